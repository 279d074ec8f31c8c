"""write_tf_records: writes tensors as files of TFRecords, for users who have no TensorFlow and for tests.

A record is the bytes of tf.train.Example with packed lists, framed. Every row has the same keys, so records differ only
in values, and in lengths if varints differ in length. So all rows are encoded at once, as one matrix of bytes with a
mask for the bytes that each row has.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_bool, check_int, dtype_name, shown
from datapipes.base.folder import new_folder
from datapipes.datasets.tfrecord.info import NUMBERS
from datapipes.ingest.remote import local_path

__all__ = ["write_tf_records"]

_WHERE = "write_tf_records"
_MOST_FILES = 99_999  # their names have five digits
_BATCH_BYTES = 2**22  # of the arrays that encode some rows at once
_BYTES_OF_INT, _BYTES_OF_FLOAT, _BYTES_OF_KEY = 100, 8, 64  # the most bytes of a value or key in these arrays


def write_tf_records(
    folder: str | os.PathLike[str], columns: Mapping[str, Any], num_files: int = 1, compress: bool = False
) -> None:
    """Write tensors as TFRecords of tf.train.Example, one record for each row.

    The files are `data-00000-of-00004.tfrecord` and so on, `data-00000-of-00004.tfrecord.gz` if compressed. Rows fill
    the files in order; the numbers of rows in two files differ by at most one. The same arguments give the same bytes.
    The folder appears at once, with all its files: a writer that fails, or is killed, leaves no folder.

    Args:
        folder: a local folder, which must be missing or empty.
        columns: {key: values}, tensors or arrays [n] or [n, k] in host memory, all of the same n. Integers become lists
            of int64. Floats become lists of float32: float64 is rounded.
        num_files: 1 to 99,999. More files than rows are allowed; some files then have no records.
        compress: pack the files by gzip.
    Raises:
        TypeError, ValueError: An argument is not allowed; the message names it. Or an integer is above the largest
            int64, or a float is beyond float32.
        FileExistsError: `folder` is not empty.
        OSError: The disk is full, or the folder cannot be written.
    """
    if not isinstance(folder, (str, os.PathLike)):
        raise TypeError(f"{_WHERE}: folder must be a path, got {shown(folder)}. Pass one.")
    path = Path(local_path(_WHERE, "folder", os.fspath(folder)))
    tensors, num_rows = _checked(columns)
    check_int(_WHERE, "num_files", num_files, 1, _MOST_FILES)
    check_bool(_WHERE, "compress", compress)
    suffix = ".tfrecord.gz" if compress else ".tfrecord"
    row_bytes = sum(
        (4 if column.is_floating_point() else 1) * column.shape[1] + len(key) for key, column in tensors.items()
    )
    rows = max(_BATCH_BYTES // sum(_room_of(column) for column in tensors.values()), 1)
    with new_folder(_WHERE, path, 0 if compress else num_rows * row_bytes) as new:
        for number in range(num_files):
            begin, end = num_rows * number // num_files, num_rows * (number + 1) // num_files
            with _opened(new / f"data-{number:05}-of-{num_files:05}{suffix}", compress) as file:
                for first in range(begin, end, rows):
                    last = min(first + rows, end)
                    file.write(records_of([(key.encode(), _values(key, t[first:last])) for key, t in tensors.items()]))


def _room_of(column: Tensor) -> int:
    """Return how many bytes of memory the encoding of one row of `column` takes at most."""
    value_bytes = _BYTES_OF_FLOAT if column.is_floating_point() else _BYTES_OF_INT
    return _BYTES_OF_KEY + value_bytes * column.shape[1]


def _checked(columns: Any) -> tuple[dict[str, Tensor], int]:
    """Return ({key: tensor [n, k]}, n) from a user's `columns`, after checks."""
    if not isinstance(columns, Mapping) or not columns or not all(isinstance(key, str) for key in columns):
        raise TypeError(
            f"{_WHERE}: columns must be a dict of tensors by key, not empty, got {shown(columns)}. Pass it."
        )
    tensors = {}
    for key, value in columns.items():
        tensor = as_tensor(_WHERE, f"columns[{key!r}]", value)
        if tensor.dtype not in (*NUMBERS, torch.bfloat16) or tensor.device.type != "cpu":
            raise TypeError(
                f"{_WHERE}: columns[{key!r}] must hold integers or floats in host memory, got "
                f"{dtype_name(tensor.dtype)} on {tensor.device}. Convert it."
            )
        if tensor.ndim not in (1, 2) or 0 in tensor.shape[1:]:
            raise ValueError(
                f"{_WHERE}: columns[{key!r}] must have shape [n] or [n, k], k at least 1, got {list(tensor.shape)}. "
                "Reshape it, or leave it out."
            )
        tensors[key] = tensor.unsqueeze(1) if tensor.ndim == 1 else tensor
    sizes = {key: len(tensor) for key, tensor in tensors.items()}
    if len({*sizes.values()}) > 1:
        raise ValueError(f"{_WHERE}: the columns must have one number of rows, got {shown(sizes)}. Make them equal.")
    return tensors, len(next(iter(tensors.values())))


def _values(key: str, part: Tensor) -> NDArray[Any]:
    """Return some rows of a column as int64 or float32; raise ValueError for numbers beyond these dtypes."""
    if not part.is_floating_point():
        whole = part.to(torch.int64)
        if part.dtype == torch.uint64 and bool((whole < 0).any()):
            raise ValueError(
                f"{_WHERE}: columns[{key!r}] has a number above {2**63 - 1}, the largest int64. Convert it."
            )
        return whole.numpy()
    narrow = part.to(torch.float32)
    if part.dtype == torch.float64 and bool((narrow.isinf() & ~part.isinf()).any()):
        most = float(np.finfo(np.float32).max)
        raise ValueError(f"{_WHERE}: columns[{key!r}] has a number beyond {most}, the largest float32. Scale it.")
    return narrow.numpy()


@contextmanager
def _opened(path: Path, compress: bool) -> Iterator[BinaryIO]:
    with open(path, "xb") as file:
        if not compress:
            yield file
            return
        with gzip.GzipFile(
            "", "wb", 6, file, mtime=0
        ) as packed:  # no name and no time in the header, so equal rows give equal bytes
            yield packed  # type: ignore[misc]


_Bytes = NDArray[np.uint8]
_Counts = NDArray[np.int64]

_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"  # tags of fields that carry their length
_HEAD, _TAIL = 12, 4  # bytes of framing before and after the data
_MASK_DELTA = 0xA282EAD8  # of the CRCs that records store


@dataclass(frozen=True)
class _Piece:
    """The same stretch of every encoded record: `data` is uint8 [rows, width], or [1, width] if all rows are equal.

    `mask` says which of these bytes a row has (None: all of them), `lengths` how many it has.
    """

    data: _Bytes
    mask: NDArray[np.bool_] | None
    lengths: _Counts  # [rows or 1]


def records_of(columns: Sequence[tuple[bytes, NDArray[Any]]]) -> memoryview:
    """Encode rows as TFRecords; return the bytes of all records, one after the other.

    Args:
        columns: pairs (key, values); values are int64 or float32 [rows, values of a row].
    """
    num_rows = len(columns[0][1])
    entries = [piece for key, values in columns for piece in _entry(key, values)]
    pieces = [_constant(bytes(_HEAD)), *_with_length(_FIELD_1, entries), _constant(bytes(_TAIL))]
    ends = np.cumsum(np.broadcast_to(_length(pieces), num_rows))
    flat = _flattened(pieces, num_rows)
    begins = np.concatenate([[0], ends[:-1]])
    _frame(flat, begins, ends)
    return flat.data


def _entry(key: bytes, values: NDArray[Any]) -> list[_Piece]:
    """Return the pieces that encode `key` and its values, for all records at once.

    In each record this is one entry of the map from keys to Features; the Feature has a list of int64 or of float32.
    """
    if values.dtype == np.float32:
        data = np.ascontiguousarray(values, "<f4").view(np.uint8)
        payload, kind = _Piece(data, None, np.array([data.shape[1]])), _FIELD_2
    else:
        payload, kind = _varints(values), _FIELD_3
    feature = _with_length(kind, _with_length(_FIELD_1, [payload]))
    return _with_length(_FIELD_1, [*_with_length(_FIELD_1, [_constant(key)]), *_with_length(_FIELD_2, feature)])


def _with_length(tag: bytes, inner: list[_Piece]) -> list[_Piece]:
    return [_constant(tag), _varints(_length(inner)[:, None]), *inner]


def _constant(data: bytes) -> _Piece:
    return _Piece(np.frombuffer(data, np.uint8)[None], None, np.array([len(data)]))


def _length(pieces: list[_Piece]) -> _Counts:
    total: _Counts = np.zeros(1, np.int64)
    for piece in pieces:
        total = total + piece.lengths
    return total


def _varints(values: NDArray[Any]) -> _Piece:
    """Return the varints of each row, seven bits a byte; a negative number takes ten bytes."""
    bits = np.ascontiguousarray(values, np.int64).view(np.uint64)
    width = max(-(-int(bits.max(initial=1)).bit_length() // 7), 1)
    digits = bits[:, :, None] >> (7 * np.arange(width, dtype=np.uint64))  # [rows, values, width]
    is_there = digits > 0
    is_there[:, :, 0] = True
    data = (digits & np.uint64(0x7F)).astype(np.uint8)
    data[:, :, :-1] |= np.where(is_there[:, :, 1:], np.uint8(0x80), np.uint8(0))
    mask = is_there.reshape(len(values), -1)
    return _Piece(data.reshape(len(values), -1), None if mask.all() else mask, mask.sum(1))


def _flattened(pieces: list[_Piece], num_rows: int) -> _Bytes:
    """Return all pieces of row 0, then all pieces of row 1 and so on, as one array of bytes."""
    width = sum(piece.data.shape[1] for piece in pieces)
    whole, mask = np.empty((num_rows, width), np.uint8), None
    at = 0
    for piece in pieces:
        end = at + piece.data.shape[1]
        whole[:, at:end] = piece.data
        if piece.mask is not None:
            mask = np.ones((num_rows, width), bool) if mask is None else mask
            mask[:, at:end] = piece.mask
        at = end
    return whole.reshape(-1) if mask is None else whole[mask]


def _frame(flat: _Bytes, begins: _Counts, ends: _Counts) -> None:
    """Write the framing of each record into `flat`: its length and two CRCs, for which bytes are reserved.

    `begins` and `ends` are the positions of the records, framing included.
    """
    lengths, which = np.unique(ends - begins - _HEAD - _TAIL, return_inverse=True)
    heads = [int(length).to_bytes(8, "little") for length in lengths]
    of_lengths = np.array([list(head + _masked(_core.crc32c(head)).to_bytes(4, "little")) for head in heads], np.uint8)
    flat[begins[:, None] + np.arange(_HEAD)] = of_lengths[which]
    view = flat.data
    begin_of_data, end_of_data = (begins + _HEAD).tolist(), (ends - _TAIL).tolist()
    crcs = [_core.crc32c(view[begin:end]) for begin, end in zip(begin_of_data, end_of_data, strict=True)]
    tails = _masked(np.array(crcs, np.int64)).astype("<u4").view(np.uint8).reshape(-1, _TAIL)
    flat[(ends - _TAIL)[:, None] + np.arange(_TAIL)] = tails


def _masked(crc: Any) -> Any:
    """Return CRCs as records store them: rotated right by 15 bits, plus a constant."""
    return (((crc >> 15 | crc << 17) & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF
