"""Read a file that torch.save wrote, without running code of it: dicts, tuples, texts, numbers and mapped tensors.

The content of files of PyG's layout is checked here too. An error names the file, what was found and what is allowed.

The file is read by ingest/torch_archive.py, not by torch's own loader. This module lets only values pass that a part
may hold. The keys of dicts are names, numbers or types, since other keys could take forever to hash. Sizes are bounded.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Set
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, UntypedStorage

from datapipes.base.checks import dtype_name, shown
from datapipes.base.files import open_regular
from datapipes.ingest.plain_pickle import PLAIN, FileRefused, Global, Items
from datapipes.ingest.torch_archive import TENSORS, TorchArchive
from datapipes.processes.mappings import identity_of

MOST_BYTES = 2**21  # of the pickle, enough for thousands of types; the values of tensors are outside of it
MOST_BITS = 64  # of an integer: a file could give the same hash to any number of longer integers
MOST_VISITS = 2**10  # values within one tuple; a value that is used n times counts n times
MOST_VALUES = 2**22  # values within a dict or list, counted in the same way
_DTYPES = {
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz),
    *(torch.complex32, torch.complex64, torch.complex128),
}
_OF_SYSTEM = (errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EIO)


class OtherTensor:
    """Stands for a tensor that is not dense; `text` says which kind of tensor it is."""

    def __init__(self, text: str) -> None:
        self.text = text


def _sparse(layout: object, *_: object) -> OtherTensor:
    return OtherTensor(f"a tensor of layout {layout if isinstance(layout, str) else 'unknown'}")


_KNOWN = {
    **PLAIN,
    **TENSORS,
    ("torch.serialization", "_get_layout"): Global("_get_layout", lambda name: name),
    ("torch._utils", "_rebuild_sparse_tensor"): Global("_rebuild_sparse_tensor", _sparse),
    ("torch._utils", "_rebuild_nested_tensor"): Global(
        "_rebuild_nested_tensor", lambda *_: OtherTensor("a nested tensor")
    ),
}


def load_plain(path: Path) -> Any:
    """Read a file of torch.save, and return its content: dicts, tuples, texts, numbers and tensors.

    The tensors are mapped privately: writing to a tensor does not change the file.

    The file must keep its size while its tensors are in use: reading past the end of a file kills the process.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The file is no regular file, is truncated or corrupt, was not written by torch.save of version 1.6
            or later, changed while it was read, or holds something else, such as code. No code was run.
    """
    if not path.exists():
        raise FileNotFoundError(f"partition: {path} does not exist. Check the path, and that the partition is whole.")
    with open_regular(path) as file:  # refuses files that would keep a reader waiting
        before = os.fstat(file.fileno())
        try:
            # Map the open file by its descriptor: the path may name another file by now.
            mapped: Any = UntypedStorage.from_file(f"/proc/self/fd/{file.fileno()}", False, before.st_size)
            archive = TorchArchive(file, MOST_BYTES, mapped)
            content = _Plain(archive).of(archive.read(_KNOWN))[0]
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
    if not path.exists() or identity_of(path.stat()) != identity_of(before):
        raise ValueError(f"partition: {path} changed while it was read; it must stay as it is. Open the part again.")
    return content


def _unreadable(path: Path, error: Exception) -> ValueError:
    return ValueError(
        f"partition: {path} cannot be read as a file of torch.save: {shown(str(error))}. It may be truncated or "
        "corrupt; write the partition again."
    )


class _Plain:
    """Turns the values that were read from the file into dicts, lists and tensors, and refuses all others.

    Each value is turned once, however often the file uses it.
    """

    def __init__(self, archive: TorchArchive) -> None:
        self._archive = archive
        self._made: dict[int, tuple[Any, int] | None] = {}  # by id() of the value read; None: being made

    def of(self, value: Any) -> tuple[Any, int]:
        """Turn a value that was read into what `load_plain` returns; return (result, size).

        size: how many values the result holds, where a value that is used n times counts n times.

        Raises:
            FileRefused, ValueError, RecursionError: The value is too large, holds itself, or holds something that no
                part has.
        """
        if isinstance(value, int) and value.bit_length() > MOST_BITS:
            raise ValueError(f"a number in it has more than {MOST_BITS} bits")
        if isinstance(value, (str, bytes)):
            return value, 1 + len(value) // 64
        if value is None or isinstance(value, (int, float, OtherTensor)):
            return value, 1
        if id(value) not in self._made:
            self._made[id(value)] = None
            self._made[id(value)] = self._new(value)
        made = self._made[id(value)]
        if made is None:
            raise ValueError("a value in it holds itself")
        return made

    def _new(self, value: Any) -> tuple[Any, int]:
        if isinstance(value, Items):
            pairs = [(self.of(key), self.of(entry)) for key, entry in value.pairs]
            if not all(isinstance(key[0], int) or _is_name(key[0]) for key, _ in pairs):
                raise ValueError("a dict in it has another key than a name, a number or a type")
            size, most = 1 + sum(key[1] + entry[1] for key, entry in pairs), MOST_VALUES
        elif isinstance(value, (tuple, list)):
            values = [self.of(entry) for entry in value]
            size, most = 1 + sum(entry[1] for entry in values), MOST_VISITS if isinstance(value, tuple) else MOST_VALUES
        else:
            tensor = self._archive.tensor(value, "a tensor")
            if tensor is None:
                raise ValueError("something else than dicts, lists, tuples, texts, numbers and tensors")
            return tensor, 1
        if size > most:
            raise ValueError(f"{'a tuple in it' if most == MOST_VISITS else 'it'} holds more than {most} values")
        if isinstance(value, Items):
            return {key[0]: entry[0] for key, entry in pairs}, size
        return type(value)(entry[0] for entry in values), size


def _is_name(key: Any) -> bool:
    """Return whether `key`, a key of a dict in a file, is a text or a tuple of texts.

    Python hashes these with a random secret, so a file cannot contain many keys of equal hash.
    """
    return isinstance(key, str) or (isinstance(key, tuple) and all(map(_is_name, key)))


# --- what a file may hold; each refusal is a ValueError


def said(value: Any) -> str:
    """Return a short text about a value from a file, for error messages: names and numbers as they are, else the class.

    A repr might never end: in a file of a few bytes, each of many nested lists may use the next one several times.
    """
    if value is None or isinstance(value, (str, int, float)):
        return shown(value)
    if isinstance(value, (tuple, list)):
        if len(value) <= 3 and all(isinstance(entry, (str, int)) for entry in value):
            return shown(value)
        return f"a {type(value).__name__} of {len(value)} values"
    return f"a {type(value).__name__}"


def refuse(path: Path, found: str, needed: str) -> NoReturn:
    """Raise a ValueError that names the file, what was found and what is needed; both are clauses."""
    raise ValueError(f"partition: {path}: {found}; {needed}. Write the partition again.")


def dict_in(
    path: Path, name: str, value: Any, needed: Set[str] = frozenset(), optional: Set[str] | None = None
) -> dict[Any, Any]:
    """Check that `value` is a dict with all keys in `needed`, and return it; else raise ValueError.

    If `optional` is given, the dict may have no other keys than these and `needed`. `name` is what errors call the
    value.
    """
    if not isinstance(value, dict):
        refuse(path, f"found {type(value).__name__} for {name}", "a dict is needed")
    lacking = sorted(needed - value.keys())
    if lacking:
        refuse(path, f"{name}: the key {lacking[0]!r} is missing", f"needed are the keys {sorted(needed)}")
    if optional is not None:
        for key in value:
            if not isinstance(key, str) or key not in needed | optional:
                refuse(path, f"{name}: found the key {said(key)}", f"allowed are the keys {sorted(needed | optional)}")
    return value


def ids_in(path: Path, name: str, value: Any) -> Tensor:
    """Check that `value` is a contiguous int64 tensor [n], and return it; else raise ValueError."""
    ids = _plain(path, name, value)
    if ids.dtype != torch.int64 or ids.ndim != 1 or not ids.is_contiguous():
        found = f"the tensor {name} has the dtype {dtype_name(ids.dtype)} and the shape {list(ids.shape)}"
        refuse(path, found, "it must be int64 [n], contiguous")
    return ids


def tensor_in(path: Path, name: str, value: Any, count: int) -> Tensor:
    """Check that `value` is a tensor [count, ...], and return it; else raise ValueError."""
    tensor = _plain(path, name, value)
    if tensor.ndim == 0 or tensor.shape[0] != count:
        refuse(path, f"the tensor {name} has the shape {list(tensor.shape)}", f"it must have {count} rows")
    return tensor


def attributes_in(path: Path, name: str, value: Any, count: int) -> dict[str, Tensor]:
    """Check that `value` is {name: tensor [count, ...]}, and return it without the entries that are None.

    None is PyG's mark for no features. ValueError if `value` is something else.
    """
    entries = dict_in(path, name, value)
    for key in entries:
        if not isinstance(key, str):
            refuse(path, f"{name}: found the name {said(key)}", "each name must be a text")
    there = {key: values for key, values in entries.items() if values is not None}
    return {key: tensor_in(path, f"{name}[{shown(key)}]", values, count) for key, values in there.items()}


def size_in(path: Path, name: str, value: Any, expected: tuple[int, int]) -> tuple[int, int]:
    """Check that `value` is `expected`, (number of source nodes, number of destination nodes), and return it.

    ValueError if it differs.
    """
    is_pair = isinstance(value, (tuple, list)) and [type(number) for number in value] == [int, int]
    if not is_pair or tuple(value) != expected:
        refuse(path, f"{name} is {said(value)}", f"it must be {expected}, the lengths of the node maps")
    return expected


def refuse_others(path: Path, name: str, values: Tensor, count: int) -> None:
    """Raise ValueError if a value of the tensor is outside [0, count)."""
    if values.numel() == 0:
        return
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= count:
        refuse(path, f"{name} has the value {low if low < 0 else high}", f"values must be in [0, {count})")


def _plain(path: Path, name: str, value: Any) -> Tensor:
    if isinstance(value, OtherTensor):
        refuse(path, f"{name} is {value.text}", "a dense tensor in host memory is needed")
    if not isinstance(value, Tensor):
        refuse(path, f"found {type(value).__name__} for {name}", "a tensor is needed")
    if value.dtype not in _DTYPES:
        found = f"the tensor {name} has the dtype {dtype_name(value.dtype)}"
        refuse(path, found, "allowed are numbers of 8 to 128 bits, and bool")
    return value
