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


def write(root, text="new", *, then=lambda folder: None, num_bytes=0):
    """Write a small partition; `then` is called while it is not in its place yet."""
    with new_folder("test", root, num_bytes, replaced=PARTITION) as folder:
        (folder / "part_0").mkdir()
        (folder / "part_0" / "arrays.npy").write_text(text)
        (folder / "partition.json").write_text(text)
        then(folder)


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
def test_an_older_partition_is_replaced_at_once(tmp_path):
    root = tmp_path / "parts"
    write(root, "old")

    def look(folder):
        assert content(root) == whole("old")

    write(root, then=look)
    assert content(root) == whole()
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.usefixtures("any_disk")
@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_an_error_leaves_the_older_partition(tmp_path, error):
    root = tmp_path / "parts"
    write(root, "old")

    def fail(folder):
        raise error

    with pytest.raises(type(error)):
        write(root, "half", then=fail)
    assert content(root) == whole("old")
    assert list(tmp_path.iterdir()) == [root]


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    write(real, "old")
    link.symlink_to(real)
    write(link)
    assert link.is_symlink()
    assert content(real) == whole()


@pytest.mark.parametrize("name", ["notes.txt", "part_x", "sub"])
@pytest.mark.parametrize("beside_a_partition", [True, False])
def test_a_folder_that_holds_something_else_is_refused(tmp_path, name, beside_a_partition):
    root = tmp_path / "parts"
    if beside_a_partition:
        write(root, "old")
    else:
        root.mkdir()
    (root / name).write_text("mine")
    with pytest.raises(FileExistsError, match=rf"test: .*parts holds '{name}', which is not overwritten"):
        write(root)
    assert (root / name).read_text() == "mine"


def test_a_folder_like_a_partition_without_its_header_is_refused(tmp_path):
    root = tmp_path / "parts"
    (root / "part_0").mkdir(parents=True)
    with pytest.raises(FileExistsError, match="holds 'part_0'"):
        write(root)


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    root = tmp_path / "parts"
    root.write_text("mine")
    with pytest.raises(FileExistsError, match="is no folder"):
        write(root)
    assert root.read_text() == "mine"


def test_what_comes_into_the_folder_meanwhile_is_not_overwritten(tmp_path):
    root = tmp_path / "parts"

    def come(folder):
        root.mkdir()
        (root / "mine.txt").write_text("mine")

    with pytest.raises(FileExistsError, match=r"holds 'mine\.txt'"):
        write(root, then=come)
    assert content(root) == {"mine.txt": "mine"}


def test_what_a_killed_writer_left_is_cleared(tmp_path):
    root = tmp_path / "parts"
    left = tmp_path / ".parts.datapipes-new"
    (left / "part_7").mkdir(parents=True)
    (left / "half").write_text("half")
    write(root)
    assert content(root) == whole()
    assert list(tmp_path.iterdir()) == [root]


def test_a_writer_killed_between_two_renames_loses_nothing(tmp_path):
    root = tmp_path / "parts"
    write(root, "old")
    os.rename(root, tmp_path / ".parts.datapipes-old")  # and killed

    def fail(folder):
        raise ValueError(f"stop: {content(root)}")

    with pytest.raises(ValueError, match=r"stop: .*'partition.json': 'old'"):
        write(root, then=fail)
    assert content(root) == whole("old")


def test_an_old_partition_that_was_not_removed_is_removed_later(tmp_path):
    root = tmp_path / "parts"
    write(root, "old")
    shutil.copytree(root, tmp_path / ".parts.datapipes-old")
    write(root)
    assert list(tmp_path.iterdir()) == [root]


def test_two_writers_of_one_folder_exclude_each_other(tmp_path):
    root = tmp_path / "parts"

    def write_too(folder):
        with pytest.raises(BlockingIOError, match="another process is writing to"):
            write(root, "second")

    write(root, "first", then=write_too)
    assert content(root) == whole("first")


def test_a_lock_that_its_holder_has_removed_is_not_taken_for_one(tmp_path, monkeypatch):
    root, flock = tmp_path / "parts", fcntl.flock

    def finish_first(descriptor, operation):
        monkeypatch.setattr(fcntl, "flock", flock)
        write(root, "first")  # another writer, between open and lock
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", finish_first)
    write(root, "second")
    assert content(root) == whole("second")
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.usefixtures("any_disk")
def test_no_other_writer_begins_while_the_older_partition_is_removed(tmp_path, monkeypatch):
    root, rmtree, tried = tmp_path / "parts", shutil.rmtree, []
    write(root, "old")

    def write_too(path, **arguments):
        if root.exists() and content(root) == whole() and not tried:
            tried.append(True)
            with pytest.raises(BlockingIOError, match="another process is writing to"):
                write(root, "second")
        rmtree(path, **arguments)

    monkeypatch.setattr(shutil, "rmtree", write_too)
    write(root)
    assert tried
    assert content(root) == whole()
    assert list(tmp_path.iterdir()) == [root]


@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), KeyboardInterrupt()])
def test_an_error_between_two_renames_brings_the_older_partition_back(tmp_path, monkeypatch, error):
    root, rename = tmp_path / "parts", os.rename
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
    assert list(tmp_path.iterdir()) == [root]


def test_an_older_partition_comes_back_also_over_an_empty_folder(tmp_path):
    root = tmp_path / "parts"
    write(root, "old")
    os.rename(root, tmp_path / ".parts.datapipes-old")  # and killed
    root.mkdir()

    def fail(folder):
        raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        write(root, then=fail)
    assert content(root) == whole("old")


@pytest.mark.parametrize(
    "name", ["part_0/model.ckpt", "book/notes", "node_map/a.pt/b", "part_77", "part_1/arrays.npy/x"]
)
def test_what_a_user_put_into_the_folders_of_a_partition_is_kept(tmp_path, name):
    root = tmp_path / "parts"
    write(root, "old")
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("mine")
    with pytest.raises(FileExistsError, match="which is not overwritten"):
        write(root)
    assert (root / name).read_text() == "mine"


def test_the_mode_of_the_folder_stays(tmp_path):
    root = tmp_path / "parts"
    root.mkdir(mode=0o700)
    modes = []
    write(root, "old", then=lambda folder: modes.append(folder.stat().st_mode & 0o777))
    write(root, "new", then=lambda folder: modes.append(folder.stat().st_mode & 0o777))
    assert [*modes, root.stat().st_mode & 0o777] == [0o700] * 3


@pytest.mark.parametrize("below", ["", "a", "a/b"])
def test_the_current_folder_and_those_above_it_are_refused(tmp_path, monkeypatch, below):
    (tmp_path / below).mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(tmp_path / below)
    for root in (tmp_path, "/"):
        with pytest.raises(ValueError, match="is or holds the current folder, which cannot be replaced"):
            write(root)
    write("parts")
    assert content(tmp_path / below / "parts") == whole()


def test_a_mount_point_is_refused_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(os.path, "ismount", lambda path: True)
    with pytest.raises(ValueError, match="is a mount point, which cannot be replaced"):
        write(tmp_path)


def test_a_name_that_leaves_no_room_for_the_hidden_ones_is_refused(tmp_path):
    write(tmp_path / ("x" * 239))
    with pytest.raises(ValueError, match="has 240 bytes; at most 239 are allowed"):
        write(tmp_path / ("x" * 240))


def test_a_folder_that_cannot_hold_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # a superuser may write anywhere
    with pytest.raises(PermissionError, match="which is to hold parts, cannot be written to"):
        write(tmp_path / "not there" / "parts")


def test_a_link_to_a_folder_that_is_not_there_leads_to_a_new_one(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write(tmp_path / "link")
    assert content(tmp_path / "real") == whole()


def test_no_path_is_refused():
    with pytest.raises(TypeError, match="root must be the path of a folder, got None"):
        write(None)


def test_too_little_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100, 90, 10))
    with pytest.raises(OSError, match=r"no room to write .*parts: about 11 bytes are needed, 10 are left") as caught:
        write(tmp_path / "parts", num_bytes=11)
    assert caught.value.errno == errno.ENOSPC
    assert not any(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_is_an_error_that_says_so(tmp_path):
    root = tmp_path / "parts"
    write(root, "old")

    def fill(folder):
        (folder / "edge_map.pt").symlink_to("/dev/full")
        (folder / "edge_map.pt").write_bytes(bytes(10))

    with pytest.raises(OSError, match=r"No space left on device\. Nothing at .* was changed") as caught:
        write(root, then=fill)
    assert caught.value.errno == errno.ENOSPC
    assert content(root) == whole("old")


def test_a_folder_that_is_half_removed_is_no_partition(tmp_path, monkeypatch):
    root = tmp_path / "parts"
    write(root, "old")
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # killed before it
    write(root)
    assert content(tmp_path / ".parts.datapipes-new") == {"part_0/arrays.npy": "old"}


def test_what_takes_the_place_between_two_renames_is_kept_and_so_is_the_older_partition(tmp_path, monkeypatch):
    root, rename = tmp_path / "parts", os.rename
    write(root, "old")

    def come_between(one, other):
        if one.name.endswith("-new"):
            root.mkdir()
            (root / "mine.txt").write_text("mine")
        rename(one, other)

    monkeypatch.setattr(folder_module, "_exchanged", lambda one, other: False)
    monkeypatch.setattr(os, "rename", come_between)
    with pytest.raises(
        FileExistsError, match=r"\.parts\.datapipes-old holds an older partition of .*parts, which holds"
    ):
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


def test_what_comes_right_before_the_exchange_is_kept(tmp_path, monkeypatch):
    root, exchanged = tmp_path / "parts", folder_module._exchanged
    write(root, "old")
    (root / "part_1").mkdir()

    def come_before(one, other):
        (root / "part_0" / "mine.txt").write_text("mine")
        monkeypatch.setattr(folder_module, "_exchanged", exchanged)
        return exchanged(one, other)

    monkeypatch.setattr(folder_module, "_exchanged", come_before)
    with pytest.raises(FileExistsError, match=r"holds 'part_0/mine\.txt', which is not overwritten"):
        write(root)
    assert content(root) == {**whole("old"), "part_0/mine.txt": "mine"}


@pytest.mark.parametrize("hidden", [".parts.datapipes-new", ".parts.datapipes-old"])
def test_links_under_the_hidden_names_are_not_followed(tmp_path, hidden):
    root, other = tmp_path / "parts", tmp_path / "other"
    write(root, "old")
    write(other, "other")
    (tmp_path / hidden).symlink_to(other)
    write(root)
    assert (content(root), content(other)) == (whole(), whole("other"))
    assert sorted(tmp_path.iterdir()) == [other, root]


def test_a_root_that_becomes_a_link_meanwhile_is_refused(tmp_path):
    root, big = tmp_path / "parts", tmp_path / "big"
    write(root, "old")

    def move(folder):
        os.rename(root, big)
        root.symlink_to(big)

    with pytest.raises(FileExistsError, match="has become a link to another folder"):
        write(root, then=move)
    assert content(big) == whole("old")
    assert root.is_symlink()


def test_an_error_of_the_system_in_the_block_is_not_taken_for_another_writer(tmp_path):
    def fail(folder):
        raise BlockingIOError(errno.EAGAIN, "no process is left")

    with pytest.raises(BlockingIOError, match="no process is left"):
        write(tmp_path / "parts", then=fail)


def test_what_a_writer_before_left_and_nobody_can_remove_is_named(tmp_path, monkeypatch):
    (tmp_path / ".parts.datapipes-new").mkdir()
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)  # a superuser may remove anything
    with pytest.raises(PermissionError, match=r"\.parts\.datapipes-new, left by an earlier writer, cannot be removed"):
        write(tmp_path / "parts")


def test_a_disk_that_cannot_bring_folders_to_the_disk_is_no_error(tmp_path, monkeypatch):
    fsync = os.fsync

    def files_only(descriptor):
        if os.path.isdir(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", files_only)
    write(tmp_path / "parts")
    assert content(tmp_path / "parts") == whole()


def test_a_lock_that_somebody_removed_is_no_error(tmp_path):
    root = tmp_path / "parts"
    write(root, then=lambda folder: (tmp_path / ".parts.datapipes-lock").unlink())
    assert content(root) == whole()
