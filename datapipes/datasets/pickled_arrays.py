"""Read arrays from pickles and from files that torch saved: numpy arrays, CSR matrices, dense tensors, lists of texts.

ingest/plain_pickle.py reads a pickle without running its code. Where a pickle names a class of numpy or scipy, an
instance of a stand-in is made: a class of this module that only stores what the pickle says. This module then checks
the stand-ins and turns them into arrays. A zip archive of torch >= 1.6 may hold numpy arrays and dense tensors; a file
of an older torch holds numpy arrays only.

Invariant: no code of a file runs, and time and memory stay in proportion to its size. Any other content is refused with
`DatasetFormatError`.
"""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.datasets.raw import DatasetFormatError, content_of, format_errors
from datapipes.ingest.plain_pickle import MAX_LENGTH, PLAIN, FileRefused, Global, Items, kind_of, parse_pickles
from datapipes.ingest.torch_archive import TENSORS, TorchArchive

MAX_FILE_BYTES = 2**30
MAX_FIELDS = 64  # of a dict with text for its keys
MAX_KEY = 64  # characters of a key

_LEGACY_PICKLES = 4  # of torch < 1.6: a magic number, the version, the system, the object
_DTYPES = frozenset({"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"})
_TENSOR_DTYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float32, torch.float64),
)


class _Dtype:
    """Stand-in for `numpy.dtype` while a pickle is read.

    The state in the pickle may set the byte order and nothing else.
    """

    __slots__ = ("byte_order", "spec")

    def __init__(self, spec: object = None, *_: object) -> None:
        if not isinstance(spec, str) or spec not in _DTYPES:
            text = spec[:20] if isinstance(spec, str) else type(spec).__name__
            raise ValueError(f"dtype {text!r} is none of {sorted(_DTYPES)}")
        self.spec, self.byte_order = spec, "|"

    def set_state(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) < 2 or state[1] not in ("<", ">", "|", "="):
            raise ValueError("the state of a dtype is not (version, byte order, ...)")
        if any(part is not None for part in state[2:5]):
            raise ValueError("the dtype has fields or a shape of its own")
        self.byte_order = "<" if state[1] == "=" else state[1]

    def plain(self) -> np.dtype[Any]:
        return np.dtype(self.byte_order + self.spec)


class _Array:
    """Stand-in for `numpy.ndarray` while a pickle is read: stores the pickle's state until `array_of` checks it."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: object = None

    def set_state(self, state: object) -> None:
        """Store the state from the pickle, unchecked."""
        self.state = state


class Csr(_Array):
    """Stand-in for `scipy.sparse.csr_matrix` while a pickle is read; stores the state in the pickle."""

    __slots__ = ()


def _reconstructed(kind: object, *_: object) -> _Array:
    if kind is not _NDARRAY:
        raise TypeError("no array")
    return _Array()


_NDARRAY, _CSR = Global("ndarray"), Global("csr_matrix", Csr)
_RECONSTRUCT = Global("_reconstruct", _reconstructed)
ARRAYS = {
    **PLAIN,
    ("numpy", "ndarray"): _NDARRAY,
    ("numpy", "dtype"): Global("dtype", _Dtype),
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("scipy.sparse.csr", "csr_matrix"): _CSR,
    ("scipy.sparse._csr", "csr_matrix"): _CSR,
}


def read_pickle(path: Path) -> object:
    """Return the content of a pickle, without running its code.

    It consists of numbers, texts, tuples and lists; `Items`, which stand for dicts; and stand-ins for arrays and
    matrices.
    """
    content = content_of(path, MAX_FILE_BYTES)
    with format_errors(path.name):
        return parse_pickles(content, ARRAYS)[0]


def read_saved(path: Path) -> dict[str, Any]:
    """Return {key: array} of a dict that torch saved, whose values are numpy arrays or tensors, [n] or [n, k].

    A list of texts is returned as it is. Do not write to the arrays: they may share memory.

    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is broken or hostile, or holds something else.
    """
    file, content = path.name, content_of(path, MAX_FILE_BYTES)
    with format_errors(file):
        archive = TorchArchive(io.BytesIO(content), MAX_FILE_BYTES) if content.startswith(b"PK") else None
        if archive is None:
            saved = parse_pickles(content, ARRAYS, _LEGACY_PICKLES)[-1]
        else:
            saved = archive.read({**ARRAYS, **TENSORS})
        table: dict[str, Any] = {}
        for key, value in fields_of(file, saved, "an object").items():
            tensor = None if archive is None else archive.tensor(value, repr(key))
            if tensor is not None:
                table[key] = _array_of_tensor(tensor, repr(key))
            else:
                table[key] = value if _is_texts(value) else array_of(file, value, repr(key))
        return table


def _is_texts(value: object) -> bool:
    return type(value) is list and all(type(text) is str for text in value)


def _array_of_tensor(tensor: Tensor, name: str) -> np.ndarray:
    if tensor.dtype not in _TENSOR_DTYPES:
        raise FileRefused(f"{name} of {tensor.dtype}", f"one of {_TENSOR_DTYPES}")
    if tensor.ndim not in (1, 2):
        raise FileRefused(f"{name} of shape {[*tensor.shape]}", "[n] or [n, k]")
    array = tensor.resolve_neg().numpy()
    array.flags.writeable = False
    return array


def shown_plain(value: object) -> str:
    """Return a short text for an object in an error message: an int as it is, any other object by its class.

    The repr of nested tuples might never end.
    """
    return shown(value) if type(value) is int else f"of {kind_of(value)}"


def fields_of(file: str, record: object, name: str) -> dict[str, object]:
    """Return `record`, an `Items` that stands for a dict in a pickle, as {key: value}.

    Raises:
        DatasetFormatError: `record` is another object, or a key is repeated or no short text. The message calls it
            `name`.
    """
    pairs = record.pairs if isinstance(record, Items) else None
    if pairs is None or len(pairs) > MAX_FIELDS:
        shown_as = f"of {kind_of(record)}" if pairs is None else f"with {len(pairs)} fields"
        raise DatasetFormatError.of(file, f"{name} {shown_as}", f"a dict of up to {MAX_FIELDS} fields")
    fields: dict[str, object] = {}
    for key, value in pairs:
        if not isinstance(key, str) or len(key) > MAX_KEY or key in fields:
            fault = f"{name} with the field {shown(key) if isinstance(key, str) else shown_plain(key)}"
            raise DatasetFormatError.of(file, fault, f"text of up to {MAX_KEY} characters, each once")
        fields[key] = value
    return fields


def array_of(file: str, value: object, name: str) -> np.ndarray:
    """Return the numpy array that the stand-in `value` describes, after checks.

    The array shares memory with the bytes of the pickle.
    """
    if type(value) is not _Array:
        raise DatasetFormatError.of(file, f"{name} of {kind_of(value)}", "a numpy array")
    state = value.state
    if not isinstance(state, tuple) or len(state) != 5:
        raise DatasetFormatError.of(file, f"{name} without its five parts", "version, shape, dtype, order, bytes")
    _, shape, dtype, fortran, content = state
    if isinstance(content, str):
        try:
            content = content.encode("latin-1")
        except UnicodeEncodeError as error:
            raise DatasetFormatError.of(file, f"{name} with text for its bytes", "bytes") from error
    if (
        not isinstance(shape, tuple)
        or not 1 <= len(shape) <= 2
        or not all(type(length) is int and 0 <= length <= MAX_LENGTH for length in shape)
        or not isinstance(dtype, _Dtype)
        or type(fortran) not in (bool, int)
        or not isinstance(content, bytes)
    ):
        raise DatasetFormatError.of(file, f"{name} that is no plain array", "one or two dimensions of numbers")
    plain = dtype.plain()
    if math.prod(shape) * plain.itemsize != len(content):
        disagreeing = f"{name} of shape {list(shape)} with {len(content)} bytes"
        raise DatasetFormatError.of(file, disagreeing, f"{plain.itemsize} bytes for each element")
    return np.frombuffer(content, dtype=plain).reshape(shape, order="F" if fortran else "C")
