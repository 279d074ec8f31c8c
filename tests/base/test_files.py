"""Files of unknown origin: only regular ones are opened, nothing waits, no more is read than there was."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from channels import descriptors_from_now
from pipelines import ended, refused

from datapipes.base.files import lock_within, open_regular, read_regular


def bound_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")  # the system allows 108 characters
    os.close(folder)


# What may stand where a file should.
NO_FILES: dict[str, Callable[[Path], object]] = {
    "fifo": os.mkfifo,
    "socket": bound_socket,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "terminal": lambda path: path.symlink_to("/dev/ptmx"),
    "folder": Path.mkdir,
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("read", [open_regular, lambda path: read_regular(path, 100)], ids=["open", "read"])
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, kind, read, refuses):
    NO_FILES[kind](tmp_path / "thing")
    (error,) = ended(lambda: read(tmp_path / "thing"), tmp_path / "thing")
    with refuses(ValueError):
        raise error


def test_a_file_that_is_not_there_or_closed_to_us_keeps_its_own_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "missing")
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="symbolic links"):
        open_regular(tmp_path / "loop")


def test_a_file_is_opened_within_a_folder_whatever_its_name_is_by_now(tmp_path):
    (tmp_path / "older").mkdir()
    (tmp_path / "older" / "file").write_bytes(b"older")
    folder = os.open(tmp_path / "older", os.O_PATH | os.O_DIRECTORY)
    try:
        (tmp_path / "older").rename(tmp_path / "moved")
        with open_regular(tmp_path / "older" / "file", (folder, "file")) as file:
            assert file.read() == b"older"
        with refused(ValueError, stage="named", found="is a folder", allowed="a regular file is needed"):
            open_regular(Path("named"), (folder, "."))
        with pytest.raises(FileNotFoundError):
            open_regular(tmp_path / "moved" / "file", (folder, "missing"))
    finally:
        os.close(folder)


def test_a_link_to_a_file_is_read(tmp_path, refuses):
    (tmp_path / "file").write_bytes(b"content")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", 7) == b"content"
    refuses(ValueError, read_regular, tmp_path / "link", 6)


def test_a_file_that_grows_is_read_to_where_it_ended(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    fstat = os.fstat

    def grow(descriptor):
        status = fstat(descriptor)
        with path.open("ab") as file:
            file.write(b"more")
        return status

    monkeypatch.setattr(os, "fstat", grow)
    assert len(read_regular(path, 100)) <= 8
    assert len(path.read_bytes()) > 8


def test_no_descriptor_stays_open(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "file").write_bytes(b"content")
    opened = descriptors_from_now()
    for _ in range(5):
        read_regular(tmp_path / "file", 100)
        with pytest.raises(ValueError, match="FIFO"):
            open_regular(tmp_path / "fifo")
        with pytest.raises(ValueError, match="at most"):
            read_regular(tmp_path / "file", 1)
    assert opened() == 0


def test_a_lock_is_waited_for_with_a_bound(tmp_path):
    (tmp_path / "x").touch()
    with (tmp_path / "x").open("rb") as one, (tmp_path / "x").open("rb") as other:
        assert lock_within(one.fileno(), 0)
        assert not lock_within(other.fileno(), 0)
        one.close()
        assert lock_within(other.fileno(), 60)
