"""A folder that appears at once, whole: written beside its final path under a hidden name, then renamed.

Until it ends, a writer has two entries beside the folder NAME: `.NAME.datapipes-lock`, a file that it has locked, and
`.NAME.datapipes-new`, its output. A killed writer leaves both; the next writer finds the lock free and begins anew. If
NAME is an older folder of the same kind, the two change places in one step, and the older folder is removed afterwards.
If the disk cannot exchange folders, the older folder is first moved to `.NAME.datapipes-old`. A writer that is killed
at this moment leaves it there, and the next writer moves it back. Entries that are not Replaceable belong to a user,
and are never replaced or removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from datapipes.base.checks import shown
from datapipes.base.files import lock_within


@dataclass(frozen=True)
class Replaceable:
    """Says which folders a new folder may replace, by the entries in them.

    Attributes:
        foreign: function (folder) -> the first entry that may not be replaced, as a path below the folder. None: all
            entries may be replaced.
        headers: names of the files by which readers recognise such a folder. They are removed first: if the removal is
            killed half-way, no reader takes the rest for a whole folder.
    """

    foreign: Callable[[Path], str | None]
    headers: tuple[str, ...] = ()


NOTHING = Replaceable(lambda root: min((entry.name for entry in root.iterdir()), default=None))

_MOST_BYTES = 255  # of the name of a file
_LOCK, _NEW, _OLD = "datapipes-lock", "datapipes-new", "datapipes-old"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_EXCHANGE = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # of fcntl.h and linux/fs.h


@contextmanager
def new_folder(
    where: str,
    root: str | Path,
    num_bytes: int = 0,
    *,
    replaced: Replaceable = NOTHING,
    goes_on: Callable[[Path], bool] = lambda new: False,
) -> Iterator[Path]:
    """Give a new hidden folder to write to. At the end of the with statement it becomes `root`; an error removes it.

    Args:
        where: who writes, for messages.
        root: does not exist, is an empty folder, or holds only entries that may be replaced; links are followed.
        num_bytes: about how many bytes will be written.
        replaced: says which entries of `root` may be replaced; by default none.
        goes_on: function that is called with the hidden folder if a killed writer has left one. If the function returns
            True, the with statement gets that folder with its files; otherwise the folder is removed first.
    Raises:
        FileExistsError: `root` holds something else; the message names it.
        BlockingIOError: Another process is writing to `root`.
        ValueError: `root` is not allowed; see `check_place`.
        OSError: The disk is full or has less than `num_bytes` left, or the folder cannot be written.
    """
    path = check_place(where, root)
    path.parent.mkdir(parents=True, exist_ok=True)
    with locked(where, path):
        new = new_beside(path)
        _restore(where, path, replaced)
        _refuse_others(where, path, replaced)
        if not new.is_dir() or new.is_symlink() or not goes_on(new):
            _clear(where, new, replaced)  # a killed writer may have left it
        try:
            with room_told(where, path):
                check_space(path.parent, num_bytes, path)
                new.mkdir(exist_ok=True)
                if path.exists():
                    os.chmod(new, stat.S_IMODE(path.stat().st_mode))
                yield new
                sync_files(new)
                if check_place(where, root) != path:
                    raise FileExistsError(
                        f"{where}: {root} has become a link to another folder, which is not overwritten. Choose a new "
                        "folder."
                    )
                _refuse_others(where, path, replaced)
                _put(where, new, path, replaced)
        finally:
            _remove(new, replaced)  # the unfinished folder, or the older one after an exchange


@contextmanager
def room_told(where: str, path: Path) -> Iterator[None]:
    """In a with statement, turn the error of a full disk into one that names the file and a remedy.

    Args:
        path: the file or folder that is to be written; the error says that nothing at this path was changed.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL and not str(error.strerror).startswith(where):  # not told yet
            raise OSError(
                error.errno,
                f"{where}: no room to write {error.filename or path}: {error.strerror}. Nothing at {path} was "
                "changed. Free some space, or choose another folder",
            ) from error
        raise


def check_root(where: str, root: str | Path, *, replaced: Replaceable = NOTHING) -> Path:
    """Return `root` with its links resolved, if a new folder may be put there.

    Raises:
        FileExistsError: `root` exists, and is neither an empty folder nor a folder that may be replaced.
        Others: see `check_place`.
    """
    path = check_place(where, root)
    _refuse_others(where, path, replaced)
    return path


def check_place(where: str, root: str | Path) -> Path:
    """Return `root` with its links resolved; the folder need not exist, and its content is not looked at.

    Raises:
        TypeError: `root` is no path.
        FileExistsError: `root` exists and is no folder.
        ValueError: `root` is a URI, is or holds the current folder, is a mount point, or has a name that is too long.
        PermissionError: The folder that holds `root`, or is to hold it, cannot be written to.
    """
    if not isinstance(root, (str, os.PathLike)):
        raise TypeError(f"{where}: root must be the path of a folder, got {shown(root)}. Pass one.")
    if isinstance(root, str) and "://" in root:
        raise ValueError(
            f"{where}: root must be a folder of this machine, got {shown(root)}. Pass a path, and copy the folder "
            "when it is written."
        )
    path = Path(os.path.realpath(root))
    here = Path(os.path.realpath(os.getcwd()))
    if path == here or path in here.parents:
        raise ValueError(
            f"{where}: {path} is or holds the current folder, which cannot be replaced. Name a folder within it."
        )
    if len(os.fsencode(_beside(path, _LOCK).name)) > _MOST_BYTES:
        raise ValueError(
            f"{where}: the name {shown(path.name)} has {len(os.fsencode(path.name))} bytes; at most "
            f"{_MOST_BYTES - len(_beside(Path('x'), _LOCK).name) + 1} are allowed. Choose a shorter one."
        )
    if os.path.lexists(path) and not path.is_dir():
        raise FileExistsError(f"{where}: {path} is no folder; it is not overwritten. Choose another folder.")
    if os.path.ismount(path):
        raise ValueError(f"{where}: {path} is a mount point, which cannot be replaced. Name a folder within it.")
    holder = next(parent for parent in path.parents if parent.exists())
    if not os.access(holder, os.W_OK | os.X_OK):
        raise PermissionError(
            errno.EACCES,
            f"{where}: {holder}, which is to hold {path.name}, cannot be written to. Choose another folder",
        )
    return path


def _refuse_others(where: str, path: Path, replaced: Replaceable) -> None:
    """Raise FileExistsError if the folder `path` holds an entry that may not be replaced, as `replaced` says."""
    try:
        foreign = replaced.foreign(path)
    except FileNotFoundError:  # it does not exist; or another writer is exchanging it, as the lock will tell
        return
    if foreign is not None:
        raise FileExistsError(
            f"{where}: {path} holds {shown(foreign)}, which is not overwritten. Choose an empty or new folder."
        )


def new_beside(root: Path) -> Path:
    """Return the path of the hidden folder that `new_folder` gives; `root` is a path that `check_root` returned."""
    return _beside(root, _NEW)


def _beside(root: Path, name: str) -> Path:
    return root.parent / f".{root.name}.{name}"


@contextmanager
def locked(where: str, root: Path) -> Iterator[None]:
    """Hold the lock of `root` while the with statement runs. Only the holder removes the lock's file.

    Raises:
        BlockingIOError: Another process holds the lock, since it is writing to `root`.
    """
    lock = _beside(root, _LOCK)
    while True:
        # 0o666: if this process is killed, other users may need the file that it leaves.
        held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            if not lock_within(held, 0.0):
                raise BlockingIOError(
                    errno.EWOULDBLOCK,
                    f"{where}: another process is writing to {root}. Wait for it, or choose another folder",
                )
            if not _is_same(held, lock):  # the writer before removed the file after it was opened here
                continue
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)
            return
        finally:
            os.close(held)


def _is_same(descriptor: int, path: Path) -> bool:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(descriptor), status)


def check_space(folder: Path, num_bytes: int, path: Path | None = None) -> None:
    """Raise OSError if the disk of `folder` has less than `num_bytes` left.

    The error names `path` if it is given, else `folder`.
    """
    left = shutil.disk_usage(folder).free
    if num_bytes > left:
        raise OSError(errno.ENOSPC, f"about {num_bytes} bytes are needed, {left} are left", str(path or folder))


def sync_files(folder: Path) -> None:
    """Flush all files of `folder` to the disk. Otherwise a machine that stops after the folder was renamed could have
    the new name without the content of the files.
    """
    for base, _, files in os.walk(folder):
        for file in files:
            _sync(os.path.join(base, file))
        _sync_names(Path(base))


def _put(where: str, new: Path, root: Path, replaced: Replaceable) -> None:
    """Rename `new` to `root`. An older folder at `root` is then called `new`, and the caller removes it.

    Raises:
        FileExistsError: The older folder has got an entry that may not be replaced. Nothing has changed.
    """
    if not root.exists() or not any(root.iterdir()):
        os.rename(new, root)  # also over an empty folder
    elif _exchanged(new, root):
        foreign = replaced.foreign(new)
        if foreign is not None:  # it came between the last look and the exchange
            _exchanged(new, root)
            _refuse_others(where, root, replaced)
    else:
        _put_in_two_steps(where, new, root)
    _sync_names(root.parent)  # before the older one is removed


def _put_in_two_steps(where: str, new: Path, root: Path) -> None:
    old = _beside(root, _OLD)
    os.rename(root, old)
    try:
        os.rename(new, root)
    except BaseException:
        _restore(where, root)
        raise
    os.rename(old, new)


def _exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, and return True.

    False: the system or the disk cannot exchange folders; nothing has changed.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # old C libraries have none
    if renameat2 is None:
        return False
    if renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in _NO_EXCHANGE:
        return False
    raise OSError(code, os.strerror(code), str(one), None, str(other))


def _restore(where: str, root: Path, replaced: Replaceable | None = None) -> None:
    """If a writer that cannot exchange folders has moved the older folder aside, move it back to `root`.

    Args:
        replaced: if given, and `root` holds only entries that may be replaced, `root` is the new folder of a writer
            that was killed right after it put the folder there. Then the older folder is removed.
    Raises:
        FileExistsError: Another entry is at `root`.
    """
    old = _beside(root, _OLD)
    if not os.path.lexists(old):
        return
    try:
        os.rename(old, root)  # also over an empty folder
    except OSError as error:
        if replaced is not None and replaced.foreign(root) is None:
            _clear(where, old, replaced)
            return
        raise FileExistsError(
            f"{where}: {old} is the older content of {root}, which a writer moved aside. It cannot be moved back, "
            f"since {root} has other content now ({error.strerror}). Move one of the two away."
        ) from error


def _sync_names(folder: Path) -> None:
    with contextlib.suppress(OSError):  # some network disks refuse it for folders
        _sync(folder)


def _sync(path: str | Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _remove(path: Path, replaced: Replaceable) -> None:
    """Remove a hidden folder; a link is removed and not followed. Entries that cannot be removed stay."""
    if path.is_symlink():
        path.unlink()
        return
    for header in replaced.headers:
        with contextlib.suppress(OSError):
            (path / header).unlink()
    shutil.rmtree(path, ignore_errors=True)


def _clear(where: str, path: Path, replaced: Replaceable) -> None:
    """Remove a hidden folder; raise PermissionError if it cannot be removed."""
    _remove(path, replaced)
    if os.path.lexists(path):
        raise PermissionError(
            errno.EACCES,
            f"{where}: {path}, left by an earlier writer, cannot be removed. Remove it, or choose another folder",
        )
