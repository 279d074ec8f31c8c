"""Read a file that torch.save wrote, without running code of it: dicts, tuples, texts, numbers and mapped tensors.

ingest/torch_archive.py reads it, and torch's own loader is not asked. Here its values become those that a part may
hold: dicts whose keys are names, numbers or types, since others could take for ever to hash, and values that end.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from torch import UntypedStorage

from datapipes.base.checks import shown
from datapipes.base.files import open_regular
from datapipes.ingest.plain_pickle import PLAIN, FileRefused, Global, Items
from datapipes.ingest.torch_archive import TENSORS, TorchArchive

MOST_BYTES = 2**21  # of the pickle, thousands of types; the tensors stand beside it
MOST_BITS = 64  # of a number: among longer ones are as many as one likes that have one hash
MOST_VISITS = 2**10  # values within one tuple, each as often as it is used there
MOST_VALUES = 2**22  # values within any other, likewise
_OF_SYSTEM = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO)


class OtherTensor:
    """Stands for a tensor that is not dense; its text says what it is."""

    def __init__(self, what: str) -> None:
        self.what = what


def _sparse(layout: object, *_: object) -> OtherTensor:
    return OtherTensor(f"a tensor of layout {layout if isinstance(layout, str) else 'unknown'}")


def _layout(name: object) -> object:
    return name


_KNOWN = {
    **PLAIN,
    **TENSORS,
    ("torch.serialization", "_get_layout"): Global("_get_layout", _layout),
    ("torch._utils", "_rebuild_sparse_tensor"): Global("_rebuild_sparse_tensor", _sparse),
    ("torch._utils", "_rebuild_nested_tensor"): Global(
        "_rebuild_nested_tensor", lambda *_: OtherTensor("a nested tensor")
    ),
}


def load_plain(path: Path) -> Any:
    """Return what the file holds; its tensors are mapped, and shared with no file: writing to them copies a page.

    A mapped file must keep its size while it is in use: reading past the end of a truncated one kills the process.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no regular file, is truncated or corrupt, was not written by torch.save of version 1.6
            or later, or holds something else, such as code. Nothing of it was run. Or it changed meanwhile.
    """
    if not path.exists():
        raise FileNotFoundError(f"partition: {path} does not exist. Check the path, and that the partition is whole.")
    with open_regular(path) as file:  # refuses what would keep its reader waiting
        before = os.fstat(file.fileno())
        try:
            # By its descriptor: the path may name another file by now.
            mapped: Any = UntypedStorage.from_file(f"/proc/self/fd/{file.fileno()}", False, before.st_size)
            archive = TorchArchive(file, MOST_BYTES, mapped)
            found = _Plain(archive).of(archive.read(_KNOWN))[0]
        except FileRefused as error:
            if error.named is None:
                raise _unreadable(path, error) from error
            raise ValueError(
                f"partition: {path} holds something else than plain dicts of tensors: it names {error.named}. Nothing "
                "of it was run. Do not trust this file; let its maker write a dict of tensors."
            ) from error
        except Exception as error:  # a corrupt archive can raise nearly anything, also OSError
            if isinstance(error, OSError) and error.errno in _OF_SYSTEM:
                raise
            raise _unreadable(path, error) from error
    if not path.exists() or _identity(path.stat()) != _identity(before):
        raise ValueError(f"partition: {path} changed while it was read; it must stay as it is. Open the part again.")
    return found


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"partition: {path} cannot be read as a file of torch.save: {shown(str(error))}. It may be truncated or "
        "corrupt; write the partition again."
    )


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class _Plain:
    """Makes dicts and tensors of what was read. Each value is made once, however often it is used."""

    def __init__(self, archive: TorchArchive) -> None:
        self._archive = archive
        self._made: dict[int, tuple[Any, int] | None] = {}  # by the id of what was read; None while it is made

    def of(self, found: Any) -> tuple[Any, int]:
        """Return a value, and how many values are within it, each as often as it is used.

        Raises:
            FileRefused, ValueError, RecursionError: It is too large, holds itself, or holds what no part has.
        """
        if isinstance(found, int) and found.bit_length() > MOST_BITS:
            raise ValueError(f"a number in it has more than {MOST_BITS} bits")
        if isinstance(found, (str, bytes)):
            return found, 1 + len(found) // 64
        if found is None or isinstance(found, (int, float, OtherTensor)):
            return found, 1
        if id(found) not in self._made:
            self._made[id(found)] = None
            self._made[id(found)] = self._new(found)
        made = self._made[id(found)]
        if made is None:
            raise ValueError("a value in it holds itself")
        return made

    def _new(self, found: Any) -> tuple[Any, int]:
        if isinstance(found, Items):
            pairs = [(self.of(key), self.of(value)) for key, value in found.pairs]
            if not all(isinstance(key[0], int) or _is_name(key[0]) for key, _ in pairs):
                raise ValueError("a dict in it has another key than a name, a number or a type")
            size, most = 1 + sum(key[1] + value[1] for key, value in pairs), MOST_VALUES
        elif isinstance(found, (tuple, list)):
            values = [self.of(each) for each in found]
            size, most = 1 + sum(each[1] for each in values), MOST_VISITS if isinstance(found, tuple) else MOST_VALUES
        else:
            tensor = self._archive.tensor(found, "a tensor")
            if tensor is None:
                raise ValueError("something else than dicts, lists, tuples, texts, numbers and tensors")
            return tensor, 1
        if size > most:
            raise ValueError(f"{'a tuple in it' if most == MOST_VISITS else 'it'} holds more than {most} values")
        if isinstance(found, Items):
            return {key[0]: value[0] for key, value in pairs}, size
        return type(found)(each[0] for each in values), size


def _is_name(key: Any) -> bool:
    """Return whether a key is a text or a tuple of texts: Python hashes them in a way that no file can foresee."""
    return isinstance(key, str) or (isinstance(key, tuple) and all(map(_is_name, key)))
