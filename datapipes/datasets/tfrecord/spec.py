"""KeySpec: the kind and the number of values of a key in each record, and the default of a missing key.

A KeySpec is made from a feature spec, or without a feature spec from the first record of an entity (`specs_in`). The
values of a feature spec are objects with `shape` and `dtype`, such as `tf.io.FixedLenFeature`; a `default_value` other
than None is used. The numbers of a record are int64 or float32, so only these two dtypes are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from datapipes import _core
from datapipes.base.checks import check_int, dtype_name, shown

INT64, FLOAT32 = "int64", "float32"
MOST_VALUES = 2**24  # of a key in a record


@dataclass(frozen=True)
class KeySpec:
    """A key of a record: `kind` is "int64" or "float32", `width` the number of its values in each record.

    `default` has `width` values for records without the key; it is None if every record must have the key.
    """

    key: str
    kind: str
    width: int
    default: tuple[float | int, ...] | None = None


def key_spec(where: str, feature_spec: Mapping[str, Any], key: str) -> KeySpec:
    """Return the spec of `key` from a feature spec.

    Raises:
        KeyError: The feature spec lacks the key.
        TypeError, ValueError: The entry of the key has no shape or dtype, or one that is not allowed.
    """
    if key not in feature_spec:
        raise KeyError(
            f"{where}: feature_spec has no key {key!r}; it has {shown(sorted(feature_spec))}. Add the key to the spec, "
            "or drop it from the keys to load."
        )
    where = f"{where}: feature_spec[{key!r}]"
    value = feature_spec[key]
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise TypeError(
            f"{where} must have a shape and a dtype, got {shown(value)}. Give a tf.io.FixedLenFeature, or any object "
            "with both."
        )
    kind, width = _kind(where, value.dtype), _width(where, value.shape)
    return KeySpec(key, kind, width, _default(where, getattr(value, "default_value", None), kind, width))


def _kind(where: str, dtype: Any) -> str:
    if isinstance(dtype, torch.dtype):
        name = dtype_name(dtype)
    elif isinstance(dtype, (type, np.dtype)):
        name = np.dtype(dtype).name
    else:
        name = str(getattr(dtype, "name", dtype))  # a TensorFlow dtype, or a text
    if name not in (INT64, FLOAT32):
        raise ValueError(
            f"{where}: dtype must be int64 or float32, the numbers that a record can hold, got {shown(dtype)}. Name "
            "the one that was written."
        )
    return name


def _width(where: str, shape: Any) -> int:
    if not isinstance(shape, (int, np.integer, Iterable)):
        raise TypeError(
            f"{where}: shape must be () or whole numbers, got {shown(shape)}. Say how many values there are."
        )
    sizes = [shape] if isinstance(shape, (int, np.integer)) else list(shape)
    return check_int(
        where, "number of values", math.prod(check_int(where, "shape", s, 1) for s in sizes), 1, MOST_VALUES
    )


def _default(where: str, value: Any, kind: str, width: int) -> tuple[float | int, ...] | None:
    if value is None:
        return None
    values = np.asarray(value).reshape(-1)
    if values.dtype.kind not in ("iu" if kind == INT64 else "iuf"):
        raise TypeError(f"{where}: default_value must be {kind}, got {shown(value)}. Give numbers of that kind.")
    if len(values) not in (1, width):
        raise ValueError(
            f"{where}: default_value has {len(values)} values; 1 or {width} are needed. Give as many as shape says."
        )
    if kind == FLOAT32 and bool((np.isfinite(values) & (np.abs(values) > np.finfo(np.float32).max)).any()):
        raise ValueError(f"{where}: default_value {shown(value)} is beyond the largest float32. Give a smaller one.")
    numbers: Sequence[float | int] = values.tolist()
    return tuple(numbers) * (width if len(numbers) == 1 else 1)


_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_KINDS = {1: "bytes", 2: FLOAT32, 3: INT64}  # {field number in a Feature: kind of the list}
_HEAD, _TAIL = 12, 4  # bytes of framing before and after the data of a record
_MOST_BYTES_OF_VARINT = 10


class WrongRecord(Exception):
    """Raised if a record is damaged, or lacks a key. The message says what is wrong."""


def specs_in(record: memoryview, keys: Sequence[str]) -> list[KeySpec]:
    """Return the spec of each key as found in `record`, which is a whole record with its framing.

    Raises:
        WrongRecord: The record is damaged, lacks a key, or has a key without numbers.
    """
    _, _, problem = _core.scan_records(record, True)
    if problem:
        raise WrongRecord(problem)
    features = dict(_entries(bytes(record[_HEAD:-_TAIL])))
    return [_spec(key, features) for key in keys]


def _spec(key: str, features: dict[bytes, bytes]) -> KeySpec:
    feature = features.get(key.encode())
    if feature is None:
        keys = sorted(name.decode(errors="replace") for name in features)
        raise WrongRecord(f"key {key!r} is missing; its keys are {shown(keys)}")
    number, pieces = 0, list[bytes]()
    for field, wire_type, content in _fields(feature):
        if field in _KINDS and wire_type == _BYTES:
            if field != number:  # if there are lists of two kinds, the last kind is used
                number, pieces = field, []
            pieces.append(content)
    width = 0 if number == 0 else _count(_KINDS[number], b"".join(pieces))
    if width == 0 or _KINDS[number] not in (INT64, FLOAT32):
        values = f"{_KINDS[number]} values" if width else "no values"
        raise WrongRecord(f"key {key!r} has {values}, must have int64 or float32")
    return KeySpec(key, _KINDS[number], width)


def _count(kind: str, values: bytes) -> int:
    """Return how many values the protobuf message `values` has, an Int64List, FloatList or BytesList as `kind` says.

    A packed field has several values.
    """
    count = 0
    for number, wire_type, content in _fields(values):
        if number == 1 and wire_type == _BYTES and kind == INT64:
            count += sum(byte < 0x80 for byte in content)  # the last byte of a varint
        elif number == 1 and wire_type == _BYTES and kind == FLOAT32:
            count += len(content) // 4
        else:
            count += number == 1
    return count


def _entries(example: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield (key, bytes of its Feature) for each entry of a tf.train.Example."""
    for number, wire_type, features in _fields(example):
        if (number, wire_type) != (1, _BYTES):
            continue
        for inner, inner_type, entry in _fields(features):
            if (inner, inner_type) == (1, _BYTES):
                parts = [(which, content) for which, kind, content in _fields(entry) if kind == _BYTES]
                keys = [content for which, content in parts if which == 1]
                yield keys[-1] if keys else b"", b"".join(content for which, content in parts if which == 2)


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, wire type, content) of each field of a protobuf message."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        wire_type = tag % 8
        size = _SIZES.get(wire_type, 0)
        if wire_type == _VARINT:
            _, at = _varint(data, at)
        elif wire_type == _BYTES:
            size, at = _varint(data, at)
        elif wire_type not in _SIZES:
            raise WrongRecord(f"no tf.train.Example: wire type {wire_type}")
        if size > len(data) - at:
            raise WrongRecord(f"no tf.train.Example: a length of {size} bytes, of which {len(data) - at} are there")
        yield tag // 8, wire_type, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return (value, position after it) of the varint at `at`."""
    number = 0
    for place, byte in enumerate(data[at : at + _MOST_BYTES_OF_VARINT]):
        number += byte % 0x80 << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise WrongRecord("no tf.train.Example: a varint without an end")
