"""Records of many rows at once: the bytes of tf.train.Example with packed lists, and the framing around them.

Every row has the same keys, so its bytes are those of the other rows but for the values, and the lengths where varints
have more or fewer bytes. So all rows are columns of one matrix of bytes, with a mask for the bytes that a row has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipes import _core

_Bytes = NDArray[np.uint8]
_Counts = NDArray[np.int64]

_FIELD_1, _FIELD_2, _FIELD_3 = b"\x0a", b"\x12", b"\x1a"  # tags of fields that carry their length
_HEAD, _TAIL = 12, 4  # bytes of framing before and after the data
_MASK_DELTA = 0xA282EAD8  # of the CRCs that records store


@dataclass(frozen=True)
class _Piece:
    """Some bytes of each row: uint8 [rows or 1, width], those that count (None: all), and their number in each row."""

    data: _Bytes
    mask: NDArray[np.bool_] | None
    lengths: _Counts  # [rows or 1]


def records_of(columns: Sequence[tuple[bytes, NDArray[Any]]]) -> memoryview:
    """Return a record for each row.

    Args:
        columns: keys, and their values: int64 or float32 [rows, values of a row].
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
    """Return an entry of the map from keys to Features, which holds one list."""
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
    """Return the bytes of all rows, one row after the other."""
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
    """Write the length and the two CRCs of each record into the room that was left for them."""
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
    """Return CRCs as records store them: turned right by 15 bits, plus a constant."""
    return (((crc >> 15 | crc << 17) & 0xFFFFFFFF) + _MASK_DELTA) & 0xFFFFFFFF
