"""Read a dict of arrays that torch saved, as OGB publishes splits of links.

The zip archive that torch >= 1.6 writes may hold numpy arrays and dense tensors, what older ones wrote only numpy
arrays. torch itself does not read it: its unpickler hashes keys that the file chose, and to hash tuples of tuples, each
used twice, may take for ever. plain_pickle.py reads the pickle, and this module adds tensors to it.

Invariant: no code of a file runs, and time and memory stay in proportion to its size. An archive is not packed.
Everything else is refused with `DatasetFormatError`.
"""

from __future__ import annotations

import math
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.datasets.archives import open_archive, read_member
from datapipes.datasets.plain_pickle import (
    KNOWN,
    MAX_FILE_BYTES,
    MAX_LENGTH,
    METHODS,
    Global,
    Items,
    Reader,
    array_of,
    fields_of,
    parse_pickles,
)
from datapipes.datasets.raw import DatasetFormatError, content_of

_LEGACY_PICKLES = 4  # a magic number, the version, the system, the object; torch < 1.6 wrote them so
_MOST_DIMENSIONS = 64
_BYTE_ORDERS = {b"little": "<", b"big": ">"}

_REBUILD, _ORDERED_DICT = Global("_rebuild_tensor_v2"), Global("OrderedDict")
_KINDS = "Bool:? Byte:u1 Char:i1 Short:i2 Int:i4 Long:i8 Float:f4 Double:f8"
_DTYPES = {Global(f"{kind}Storage"): dtype for kind, _, dtype in (each.partition(":") for each in _KINDS.split())}


def _length(value: object) -> int:
    if type(value) is not int or not 0 <= value <= MAX_LENGTH:
        raise ValueError("something else than a length")
    return value


def _lengths(values: object) -> tuple[int, ...]:
    if not isinstance(values, tuple) or len(values) > _MOST_DIMENSIONS:  # a file may name one tuple again and again
        raise ValueError(f"something else than up to {_MOST_DIMENSIONS} lengths")
    return tuple(map(_length, values))


class _Storage:
    """Stands for numbers in a member of the archive: its name, how many, and their dtype."""

    __slots__ = ("count", "dtype", "key")

    def __init__(self, reference: object) -> None:
        if not isinstance(reference, tuple) or len(reference) != 5:
            raise ValueError("a reference that torch does not write")
        _, kind, key, _, count = reference
        if not isinstance(kind, Global) or kind not in _DTYPES or not isinstance(key, str):
            raise ValueError("a reference to no storage of numbers")
        self.dtype, self.key, self.count = _DTYPES[kind], key, _length(count)


class _Tensor:
    """Stands for a tensor: a storage, and which of its numbers, in what shape."""

    __slots__ = ("offset", "shape", "storage", "strides")

    def __init__(self, storage: object, offset: object, shape: object, strides: object, *_: object) -> None:
        if not isinstance(storage, _Storage):
            raise ValueError("a tensor without a storage")
        self.storage, self.offset = storage, _length(offset)
        self.shape, self.strides = _lengths(shape), _lengths(strides)
        if len(self.shape) != len(self.strides):
            raise ValueError("a tensor with more or fewer strides than dimensions")


class _TensorReader(Reader):
    """Reads what plain data and dense tensors need."""

    known: Mapping[tuple[str, str], Global] = {
        **KNOWN,
        ("torch._utils", "_rebuild_tensor_v2"): _REBUILD,
        ("collections", "OrderedDict"): _ORDERED_DICT,
        **{("torch", kind.name): kind for kind in _DTYPES},
    }
    methods: Mapping[str, str] = {**METHODS, "binpersid": "BINPERSID"}
    most_arguments = 7

    def _binpersid(self, _: Any) -> None:
        self._stack.append(_Storage(self._stack.pop()))

    def _call(self, function: Global, arguments: tuple[Any, ...]) -> object:
        if function is _REBUILD:
            return _Tensor(*arguments)
        if function is _ORDERED_DICT and not arguments:  # the hooks of a tensor
            return Items()
        return super()._call(function, arguments)


def read_saved(path: Path) -> dict[str, Any]:
    """Return the arrays of a dict that torch saved; its values are numpy arrays or tensors, [n] or [n, k].

    A value may also be a list of texts, and stays one. The arrays may share memory and may not be written to.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is broken or hostile, or holds something else.
    """
    file, content = path.name, content_of(path, MAX_FILE_BYTES)
    if not content.startswith(b"PK"):
        return _plain(file, parse_pickles(file, content, _LEGACY_PICKLES)[-1], array_of)
    archive = _Archive(file, content)
    return _plain(file, parse_pickles(file, archive.pickled, kind=_TensorReader)[0], archive.array_of)


def _plain(file: str, found: object, array_in: Callable[[str, object, str], np.ndarray]) -> dict[str, Any]:
    return {
        key: value if _is_texts(value) else array_in(file, value, repr(key))
        for key, value in fields_of(file, found, "an object").items()
    }


def _is_texts(value: object) -> bool:
    return type(value) is list and all(type(each) is str for each in value)


class _Archive:
    """The members of a zip archive that torch wrote; it stores, and does not pack.

    Attributes:
        pickled: The pickle in the archive.
    """

    def __init__(self, file: str, content: bytes) -> None:
        self._file, self._size = file, len(content)
        self._read: dict[str, bytes] = {}  # by the key of a storage
        try:
            self._archive = open_archive(content)
            members = self._archive.infolist()
            stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            pickles = [member for member in members if member.filename.endswith("data.pkl")]
            if len(pickles) != 1 or not stored or sum(member.file_size for member in members) > len(content):
                found = "a packed archive, or none with one data.pkl"
                raise DatasetFormatError.of(file, found, "a file that torch saved")
            self.pickled = read_member(self._archive, pickles[0])
            self._folder = pickles[0].filename.removesuffix("data.pkl")
            self._members = {member.filename: member for member in members}
            order = self._members.get(f"{self._folder}byteorder")  # older versions of torch wrote none
            self._byte_order = "<" if order is None else _BYTE_ORDERS[read_member(self._archive, order)]
        except DatasetFormatError:
            raise
        except Exception as error:  # zipfile raises nearly anything on corrupt archives
            raise _broken(file, "a broken archive", error) from error

    def array_of(self, file: str, found: object, what: str) -> np.ndarray:
        """Return the array that a stand-in describes; a tensor shares the bytes of its storage."""
        if not isinstance(found, _Tensor):
            return array_of(file, found, what)
        flat = self._numbers(found.storage)
        shape, strides, size = found.shape, found.strides, math.prod(found.shape)
        if not 1 <= len(shape) <= 2 or size * flat.itemsize > self._size:
            raise DatasetFormatError.of(file, f"{what} of shape {list(shape)}", "numbers for all of it, [n] or [n, k]")
        if size == 0:
            return np.zeros(shape, dtype=flat.dtype)
        last = found.offset + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))
        if last >= len(flat):
            raise DatasetFormatError.of(file, f"{what} up to number {last} of {len(flat)}", "numbers for all of it")
        steps = [stride * flat.itemsize for stride in strides]
        return np.lib.stride_tricks.as_strided(flat[found.offset :], shape, steps, writeable=False)

    def _numbers(self, storage: _Storage) -> np.ndarray:
        name = f"{self._folder}data/{storage.key}"
        try:
            content = self._read[name] = self._read.get(name) or read_member(self._archive, self._members[name])
        except Exception as error:  # no such member, or a broken one
            raise _broken(self._file, "broken tensors", error) from error
        dtype = np.dtype(self._byte_order + storage.dtype)
        if storage.count * dtype.itemsize != len(content):
            found = f"a storage of {storage.count} numbers with {len(content)} bytes"
            raise DatasetFormatError.of(self._file, found, f"{dtype.itemsize} bytes for each number")
        return np.frombuffer(content, dtype=dtype)


def _broken(file: str, what: str, error: Exception) -> DatasetFormatError:
    found = f"{what} ({type(error).__name__}: {str(error)[:200]})"
    return DatasetFormatError.of(file, found, "a file that torch saved")
