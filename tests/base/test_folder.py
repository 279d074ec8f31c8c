"""A partition's folder: it appears at once, replaces nothing but a partition, and survives kills and full disks."""

import errno
import fcntl
import os
import shutil
from collections import namedtuple

import pytest

from datapipes.base import folder as folder_module
from datapipes.base.folder import new_folder
from datapipes.partition.layouts import PARTITION


@pytest.fixture
def root(tmp_path):
    return tmp_path / "parts"


def write(root, text="new", *, then=lambda folder: None, num_bytes=0):
    """Write a small partition; `then` is called while it is not in its place yet."""
    with new_folder("test", root, num_bytes, replaced=PARTITION) as folder:
        (folder / "part_0").mkdir()
        (folder / "part_0" / "arrays.npy").write_text(text)
        (folder / "partition.json").write_text(text)
        then(folder)


def fail_with(error):
    """Return what raises an error while a partition is not in its place yet."""

    def fail(folder):
        raise error

    return fail


def stay(*_, **__):
    """Stand in for rmtree: whoever writes was killed before it, or may not remove anything."""


def content(root):
    return {str(path.relative_to(root)): path.read_text() for path in root.rglob("*") if path.is_file()}


def whole(text="new"):
    return {"part_0/arrays.npy": text, "partition.json": text}


@pytest.fixture(params=["exchange", "two renames"])
def any_disk(request, monkeypatch):
    """A disk whose folders can change places at once, and one where they cannot."""
    if request.param == "two renames":
        monkeypatch.setattr(folder_module, "_exchanged", lambda one, other: False)


@pytest.mark.parametrize("before", ["missing", "empty", "parents missing"])
def test_a_folder_appears_whole_and_nothing_else_is_left(tmp_path, before):
    root = tmp_path / "deep" / "parts" if before == "parents missing" else tmp_path / "parts"
    if before == "empty":
        root.mkdir()

    def look(folder):
        assert not root.exists() or not any(root.iterdir())

    write(root, then=look)
    assert content(root) == whole()
    assert list(root.parent.iterdir()) == [root]


@pytest.mark.usefixtures("any_disk")
def test_an_older_partition_is_replaced_at_once(root):
    write(root, "old")

    def look(folder):
        assert content(root) == whole("old")

    write(root, then=look)
    assert content(root) == whole()
    assert list(root.parent.iterdir()) == [root]


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_an_error_leaves_the_older_partition(root, error):
    write(root, "old")
    with pytest.raises(type(error)):
        write(root, "half", then=fail_with(error))
    assert content(root) == whole("old")
    assert list(root.parent.iterdir()) == [root]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write(real, "old")
    link.symlink_to(real)
    write(link)
    assert link.is_symlink()
    assert content(real) == whole()


OF_A_USER = [
    *("notes.txt", "part_x", "sub", "part_77"),
    *("part_0/model.ckpt", "book/notes", "node_map/a.pt/b", "part_1/arrays.npy/x"),
]


@pytest.mark.parametrize("name", OF_A_USER)
@pytest.mark.parametrize("beside_a_partition", [True, False])
def test_what_a_user_put_into_the_folder_is_kept(root, name, beside_a_partition, refuses):
    if beside_a_partition:
        write(root, "old")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("mine")
    refuses(FileExistsError, write, root)
    assert (root / name).read_text() == "mine"


def test_what_is_no_place_for_a_folder(tmp_path, root, monkeypatch, refuses):
    refuses(TypeError, write, None)
    root.write_text("mine")
    refuses(FileExistsError, write, root)
    assert root.read_text() == "mine"
    write(tmp_path / ("x" * 239))
    refuses(ValueError, write, tmp_path / ("x" * 240))
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)  # a superuser may write anywhere
        refuses(PermissionError, write, tmp_path / "not there" / "parts")
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    refuses(ValueError, write, tmp_path)


def test_what_comes_into_the_folder_meanwhile_is_not_overwritten(root, refuses):
    def come(folder):
        root.mkdir()
        (root / "mine.txt").write_text("mine")

    refuses(FileExistsError, write, root, then=come)
    assert content(root) == {"mine.txt": "mine"}


def test_what_a_killed_writer_left_is_cleared(tmp_path, root):
    left = tmp_path / ".parts.datapipes-new"
    (left / "part_7").mkdir(parents=True)
    (left / "half").write_text("half")
    write(root)
    assert content(root) == whole()
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize("leaves_an_empty_folder", [False, True])
def test_a_writer_killed_between_two_renames_loses_nothing(tmp_path, root, leaves_an_empty_folder):
    write(root, "old")
    os.rename(root, tmp_path / ".parts.datapipes-old")  # and killed
    if leaves_an_empty_folder:
        root.mkdir()

    def fail(folder):
        raise ValueError(f"stop: {content(root)}")

    with pytest.raises(ValueError, match=r"stop: .*'partition.json': 'old'"):
        write(root, then=fail)
    assert content(root) == whole("old")


def test_an_old_partition_that_was_not_removed_is_removed_later(tmp_path, root):
    write(root, "old")
    shutil.copytree(root, tmp_path / ".parts.datapipes-old")
    write(root)
    assert list(tmp_path.iterdir()) == [root]


def test_two_writers_of_one_folder_exclude_each_other(root, refuses):
    write(root, "first", then=lambda folder: refuses(BlockingIOError, write, root, "second"))
    assert content(root) == whole("first")


def test_a_lock_that_its_holder_has_removed_is_not_taken_for_one(root, monkeypatch):
    flock = fcntl.flock

    def finish_first(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        write(root, "first")  # another writer, between open and lock
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    write(root, "second")
    assert content(root) == whole("second")
    assert list(root.parent.iterdir()) == [root]


@pytest.mark.usefixtures("any_disk")
def test_no_other_writer_begins_while_the_older_partition_is_removed(root, monkeypatch, refuses):
    rmtree, tried = shutil.rmtree, []
    write(root, "old")

    def write_too(path, **arguments):
        if root.exists() and content(root) == whole() and not tried:
            tried.append(True)
            refuses(BlockingIOError, write, root, "second")
        rmtree(path, **arguments)

    monkeypatch.setattr(shutil, "rmtree", write_too)
    write(root)
    assert tried
    assert content(root) == whole()
    assert list(root.parent.iterdir()) == [root]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_an_error_between_two_renames_brings_the_older_partition_back(root, monkeypatch, error):
    rename = os.rename
    write(root, "old")

    def fail(one, other):
        if one.name.endswith("-new"):
            raise error
        rename(one, other)

    monkeypatch.setattr(folder_module, "_exchanged", lambda one, other: False)
    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(type(error)):
        write(root)
    assert content(root) == whole("old")
    assert list(root.parent.iterdir()) == [root]


def test_the_mode_of_the_folder_stays(root):
    root.mkdir(mode=0o700)
    modes = []
    for text in ("old", "new"):
        write(root, text, then=lambda folder: modes.append(folder.stat().st_mode & 0o777))
    assert [*modes, root.stat().st_mode & 0o777] == [0o700] * 3


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_the_current_folder_and_those_above_it_are_refused(tmp_path, monkeypatch, below, refuses):
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / below)
    for root in (tmp_path, "/"):
        refuses(ValueError, write, root)
    write("parts")
    assert content(tmp_path / below / "parts") == whole()


def test_a_link_to_a_folder_that_is_not_there_leads_to_a_new_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link")
    assert content(tmp_path / "real") == whole()


def test_too_little_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
    with pytest.raises(OSError, match=r"no room to write .*parts: about 11 bytes are needed, 10 are left") as caught:
        write(tmp_path / "parts", num_bytes=11)
    assert caught.value.errno == errno.ENOSPC
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_that_says_so(root):
    write(root, "old")

    def fill(folder):
        (folder / "edge_map.pt").symlink_to("/dev/full")
        (folder / "edge_map.pt").write_bytes(bytes(10))

    with pytest.raises(OSError, match=r"No space left on device\. Nothing at .* was changed") as caught:
        write(root, then=fill)
    assert caught.value.errno == errno.ENOSPC
    assert content(root) == whole("old")


def test_a_folder_that_is_half_removed_is_no_partition(tmp_path, root, monkeypatch):
    write(root, "old")
    monkeypatch.setattr(shutil, "rmtree", stay)
    write(root)
    assert content(tmp_path / ".parts.datapipes-new") == {"part_0/arrays.npy": "old"}


def test_what_takes_the_place_between_two_renames_is_kept_and_so_is_the_older_partition(tmp_path, root, monkeypatch):
    rename = os.rename
    write(root, "old")

    def come_between(one, other):
        if one.name.endswith("-new"):
            root.mkdir()
            (root / "mine.txt").write_text("mine")
        rename(one, other)

    monkeypatch.setattr(folder_module, "_exchanged", lambda one, other: False)
    monkeypatch.setattr(os, "rename", come_between)
    with pytest.raises(FileExistsError, match=r"datapipes-old is the older content of .*parts has other content now"):
        write(root)
    assert content(root) == {"mine.txt": "mine"}
    assert content(tmp_path / ".parts.datapipes-old") == whole("old")
    with pytest.raises(FileExistsError, match="Move one of the two away"):
        write(root)
    shutil.rmtree(root)
    monkeypatch.undo()
    write(root)
    assert content(root) == whole()
    assert list(tmp_path.iterdir()) == [root]


def test_what_comes_right_before_the_exchange_is_kept(root, monkeypatch, refuses):
    exchanged = folder_module._exchanged
    write(root, "old")
    (root / "part_1").mkdir()

    def come_before(one, other):
        (root / "part_0" / "mine.txt").write_text("mine")
        monkeypatch.setattr(folder_module, "_exchanged", exchanged)
        return exchanged(one, other)

    monkeypatch.setattr(folder_module, "_exchanged", come_before)
    refuses(FileExistsError, write, root)
    assert content(root) == {**whole("old"), "part_0/mine.txt": "mine"}


@pytest.mark.parametrize("hidden", [".parts.datapipes-new", ".parts.datapipes-old"])
def test_links_under_the_hidden_names_are_not_followed(tmp_path, root, hidden):
    other = tmp_path / "other"
    write(root, "old")
    write(other, "other")
    (tmp_path / hidden).symlink_to(other)
    write(root)
    assert (content(root), content(other)) == (whole(), whole("other"))
    assert sorted(tmp_path.iterdir()) == [other, root]


def test_a_root_that_becomes_a_link_meanwhile_is_refused(tmp_path, root, refuses):
    big = tmp_path / "big"
    write(root, "old")

    def move(folder):
        os.rename(root, big)
        root.symlink_to(big)

    refuses(FileExistsError, write, root, then=move)
    assert content(big) == whole("old")
    assert root.is_symlink()


def test_an_error_of_the_system_in_the_block_is_not_taken_for_another_writer(root):
    with pytest.raises(BlockingIOError, match="no process is left"):
        write(root, then=fail_with(BlockingIOError(errno.EAGAIN, "no process is left")))


def test_what_a_writer_before_left_and_nobody_can_remove_is_named(tmp_path, root, monkeypatch, refuses):
    (tmp_path / ".parts.datapipes-new").mkdir()
    monkeypatch.setattr(shutil, "rmtree", stay)
    refuses(PermissionError, write, root)


def test_a_disk_that_cannot_bring_folders_to_the_disk_is_no_error(root, monkeypatch):
    fsync = os.fsync

    def files_only(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    write(root)
    assert content(root) == whole()


def test_a_lock_that_somebody_removed_is_no_error(tmp_path, root):
    write(root, then=lambda folder: (tmp_path / ".parts.datapipes-lock").unlink())
    assert content(root) == whole()
