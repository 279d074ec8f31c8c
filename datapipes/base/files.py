"""Read files of unknown origin safely; write texts whole or not at all.

Only regular files are read. They are opened without waiting, and never more bytes are read than they had when opened. A
FIFO, a socket or a device in the place of a file could keep its reader waiting for ever. So could a file that grows as
fast as it is read.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

_LOOK_S = 0.05  # between two attempts to take a lock
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: Path, at: tuple[int, str] | None = None) -> BinaryIO:
    """Return the regular file at `path`, open for reading; links are followed.

    Args:
        at: (descriptor of a folder, path within it). The file is opened there, and `path` only names it in messages.
            So the folder stays the same one, whatever is renamed meanwhile.
    Raises:
        ValueError: There is something else at `path`: a folder, a FIFO, a socket or a device.
        OSError: It cannot be opened.
    """
    # O_NONBLOCK: do not wait for a writer at the other end of a FIFO. O_NOCTTY: do not take over a terminal.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    folder, name = at or (None, path)
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except OSError:  # a socket cannot be opened, nor some devices
        _refuse_others(path, os.stat(name, dir_fd=folder))
        raise
    try:
        _refuse_others(path, os.fstat(descriptor))  # of the open file: the path may name another one by now
    except ValueError:
        os.close(descriptor)
        raise
    return open(path, "rb", opener=lambda *_: descriptor)  # not os.fdopen, which forgets the path


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Return the content of the regular file at `path`; bytes that are appended after it was opened are left out.

    Raises:
        ValueError: There is something else at `path`, or the file has more than `most_bytes` bytes.
        OSError: It cannot be opened or read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise ValueError(
                f"{path} has {size} bytes; at most {most_bytes} are allowed here. Check that it is the right file."
            )
        return file.read(size)


def _refuse_others(path: Path, status: os.stat_result) -> None:
    kind = stat.S_IFMT(status.st_mode)
    if kind != stat.S_IFREG:
        kind_text = _KINDS.get(kind, "no file")
        raise ValueError(f"{path} is {kind_text}; a regular file is needed. Check the path.")


def lock_within(descriptor: int, seconds: float) -> bool:
    """Lock an open file (flock), waiting at most `seconds`; return whether it is locked now. Closing it unlocks it.

    Raises:
        OSError: The file system has no locks.
    """
    ends = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= ends:
                return False
        time.sleep(_LOOK_S)


def write_text(path: str | Path, text: str) -> None:
    """Write a text as UTF-8. An existing file is replaced once the new one is whole; a device or FIFO is written to.

    Raises:
        OSError: It cannot be written.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
    with written_whole(target) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give the path of a new file. When the with statement ends it replaces `path`; after an error it is removed."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
