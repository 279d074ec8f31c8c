"""Read a file that torch.save wrote, without running code of it: dicts, tuples, texts, numbers and tensors.

torch's weights-only loader does the reading. PyG writes edge features as a `collections.defaultdict`, which that loader
refuses; here a function stands in for it, and the file gets a plain dict.
"""

from __future__ import annotations

import errno
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from datapipes.base.checks import shown
from datapipes.base.files import open_regular
from datapipes.partition.pyg.pickle_scan import refuse_endless


def _stand_in(module: str, name: str) -> Callable[..., dict[Any, Any]]:
    """Return a function that torch takes for `module.name`; it returns a dict.

    torch 2.4 knows what is allowed by its own name only, later versions by a name that is given with it, too.
    """

    def made(*_: Any) -> dict[Any, Any]:
        return {}

    made.__module__, made.__name__, made.__qualname__ = module, name, name
    return made


# torch.save writes dict under its name in Python 2; torch 2.4 reads it so, later versions as that of Python 3.
_STAND_INS: list[Any] = [
    _stand_in("collections", "defaultdict"),
    _stand_in("builtins", "dict"),
    _stand_in("__builtin__", "dict"),
]
_lock = threading.Lock()  # what is allowed is one list for the whole process


def load_plain(path: Path) -> Any:
    """Return what the file holds; its tensors are mapped, and shared with no file: writing to them copies a page.

    A mapped file must keep its size while it is in use: reading past the end of a truncated one kills the process.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no regular file, is truncated or corrupt, was not written by torch.save of version 1.6
            or later, or holds something else, such as code. Nothing of it was run. Or it changed meanwhile: what was
            looked through is not what was read.
    """
    if not path.exists():
        raise FileNotFoundError(f"partition: {path} does not exist. Check the path, and that the partition is whole.")
    with open_regular(path) as file:  # refuses what would keep its reader waiting
        before = _identity(os.fstat(file.fileno()))
    try:
        refuse_endless(path)
        found = _loaded(path)
    except pickle.UnpicklingError as error:
        raise ValueError(
            f"partition: {path} holds something else than plain dicts of tensors: {_short(error)}. Nothing of it was "
            "run. Do not trust this file; let its maker write a dict of tensors."
        ) from error
    except Exception as error:  # a corrupt archive can raise nearly anything, also OSError
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO):
            raise
        raise ValueError(
            f"partition: {path} cannot be read as a file of torch.save: {_short(error)}. It may be truncated or "
            "corrupt; write the partition again."
        ) from error
    # torch opens files by their path, so the scan and the loader may have seen different files there.
    if not path.exists() or _identity(path.stat()) != before:
        raise ValueError(f"partition: {path} changed while it was read; it must stay as it is. Open the part again.")
    return found


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def _loaded(path: Path) -> Any:
    try:
        return torch.load(str(path), "cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        with _allowed():
            return torch.load(str(path), "cpu", weights_only=True, mmap=True)


@contextmanager
def _allowed() -> Iterator[None]:
    """Let torch's loader take the stand-ins while the block runs; what others have allowed is there after it as before.

    torch_geometric allows the real defaultdict when it is imported, so what has the name of a stand-in makes way: for
    this time, another thread that loads a file with a defaultdict gets a dict. What other threads allow or take back
    meanwhile stays so, but torch 2.4 can only clear its list and add: there, what another thread allows between the
    two calls is lost. torch has no lock for the list either.
    """
    names = {_name(each) for each in _STAND_INS}
    with _lock:
        before = [each for each in torch.serialization.get_safe_globals() if _name(each) in names]
        _take_back(before)
        torch.serialization.add_safe_globals(_STAND_INS)
        try:
            yield
        finally:
            _take_back(_STAND_INS)
            torch.serialization.add_safe_globals(before)


def _take_back(allowed: list[Any]) -> None:
    """Let torch's loader take some values no longer, of those that it was allowed to take."""
    if hasattr(torch.serialization, "safe_globals"):
        torch.serialization.safe_globals(allowed).__exit__(None, None, None)  # type: ignore[no-untyped-call]
        return
    others = [each for each in torch.serialization.get_safe_globals() if each not in allowed]
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(others)


def _name(allowed: Any) -> str:
    """Return the name in a file that an entry of the list stands for."""
    return str(allowed[1]) if isinstance(allowed, tuple) else f"{allowed.__module__}.{allowed.__qualname__}"


def _short(error: Exception) -> str:
    """Return what torch found, without its advice to let the file run code."""
    text = str(error)
    named = re.search(r"GLOBAL `?([\w.]+)", text)
    if named is not None:
        return f"it names {named[1]}"
    found = text.rpartition("WeightsUnpickler error:")[2]
    first = next((line.strip() for line in found.splitlines() if line.strip()), "")
    return shown(f"{type(error).__name__}: {first}"[:300])
