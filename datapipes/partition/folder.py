"""A folder that appears at once, whole: written beside its place under a hidden name, then renamed.

`.NAME.partial` beside the folder NAME is being written, and locked by its writer. A killed writer leaves it; the next
one finds the lock free and begins anew. If NAME holds an older partition, the two folders change places in one step,
and the older one is removed after it. So at any moment NAME is the older partition or the new one, each whole.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from datapipes.base.checks import shown

HEADERS = ("partition.json", "META.json")  # one of them makes a folder a partition
_KNOWN = re.compile(r"partition\.json|book|META\.json|(node|edge)_map(\.pt)?|part_?\d+")
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of fcntl.h and linux/fs.h


@contextmanager
def new_folder(where: str, root: Path, num_bytes: int = 0) -> Iterator[Path]:
    """Give a fresh hidden folder; when the block ends without an error, it becomes `root`. An error removes it.

    Args:
        where: for messages.
        root: does not exist, is an empty folder, or holds a partition, which is replaced.
        num_bytes: about what will be written.
    Raises:
        FileExistsError: `root` holds something else; the message names it.
        BlockingIOError: Another process is writing to `root`.
        OSError: The disk is full or has less than `num_bytes` left, or the folder cannot be written.
    """
    root = Path(os.path.realpath(root))
    refuse_others(where, root)
    root.parent.mkdir(parents=True, exist_ok=True)
    with _locked(where, root) as partial:
        _restore(root)
        try:
            for entry in partial.iterdir():  # what a killed writer left
                _remove(entry)
            _check_space(where, root, num_bytes)
            yield partial
            _sync(partial)
            refuse_others(where, root)
            _put(partial, root)
        except OSError as error:
            _remove(partial)
            if error.errno in _FULL:
                raise OSError(
                    error.errno,
                    f"{where}: no room to write {error.filename or root}: {error.strerror}. Nothing at {root} was "
                    "changed. Free some space, or choose another folder",
                ) from error
            raise
        except BaseException:
            _remove(partial)
            raise


def refuse_others(where: str, root: Path) -> None:
    """Raise FileExistsError unless `root` is free: missing, an empty folder, or nothing but a partition."""
    if not os.path.lexists(root):
        return
    if not root.is_dir():
        raise FileExistsError(f"{where}: {root} is no folder; it is not overwritten. Choose another folder.")
    names = sorted(entry.name for entry in root.iterdir())
    others = [name for name in names if _KNOWN.fullmatch(name) is None]
    if names and not (set(names) & set(HEADERS)):
        others = others or names
    if others:
        raise FileExistsError(
            f"{where}: {root} holds {shown(others[0])}, which is not of a partition; nothing is overwritten. Choose an "
            "empty or new folder."
        )


@contextmanager
def _locked(where: str, root: Path) -> Iterator[Path]:
    """Give the hidden folder, locked until the block ends."""
    partial = root.parent / f".{root.name}.partial"
    while True:
        partial.mkdir(exist_ok=True)
        try:
            held = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except FileNotFoundError:  # its writer has just finished
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_same(held, partial):  # else it was renamed between the two calls
                yield partial
                return
        except BlockingIOError as error:
            raise BlockingIOError(
                error.errno, f"{where}: another process is writing to {root}. Wait for it, or choose another folder"
            ) from error
        finally:
            os.close(held)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), found)


def _check_space(where: str, root: Path, num_bytes: int) -> None:
    left = shutil.disk_usage(root.parent).free
    if num_bytes > left:
        raise OSError(
            errno.ENOSPC,
            f"about {num_bytes} bytes are needed, {left} are left",
            str(root),
        )


def _sync(folder: Path) -> None:
    """Bring all files to the disk, so that the new name never outlives their content when the machine stops."""
    for base, _, files in os.walk(folder):
        for path in [*(os.path.join(base, file) for file in files), base]:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _put(partial: Path, root: Path) -> None:
    """Let `partial` become `root`."""
    if not root.exists() or not any(root.iterdir()):
        os.rename(partial, root)  # also over an empty folder
    else:
        if not _exchanged(partial, root):
            old = _old(root)
            os.rename(root, old)
            os.rename(partial, root)
            _remove(old)
        _remove(partial)
    _sync_names(root.parent)


def _exchanged(one: Path, other: Path) -> bool:
    """Let two folders change places in one step; False if the system or the disk cannot."""
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # old C libraries have none
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _old(root: Path) -> Path:
    return root.parent / f".{root.name}.old"


def _restore(root: Path) -> None:
    """Bring back what a writer without exchange had moved away when it was killed; drop what it did not remove."""
    old = _old(root)
    if not old.exists():
        return
    if root.exists():
        _remove(old)
    else:
        os.rename(old, root)


def _sync_names(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # some network disks refuse it for folders
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    """Remove a folder or a file. What cannot be removed stays hidden; the next writer tries again."""
    if path.is_dir() and not path.is_symlink():
        for header in HEADERS:  # first: half a folder, left by a kill, is no partition
            _remove(path / header)
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()
