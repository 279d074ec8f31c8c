"""What the keys of a record hold: their kind and number of values, for an entity without a spec.

The wire format is walked as `ExampleParser` walks it, but slowly: one record of an entity is looked at.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datapipes import _core
from datapipes.base.checks import shown
from datapipes.datasets.tfrecord.spec import FLOAT32, INT64, KeySpec

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf
_SIZES = {_FIXED64: 8, _FIXED32: 4}
_KINDS = {1: "bytes", 2: FLOAT32, 3: INT64}  # lists of a Feature, by the number of their field
_HEAD, _TAIL = 12, 4  # bytes of framing before and after the data of a record
_MOST_BYTES_OF_VARINT = 10


class WrongRecord(Exception):
    """A record is damaged, or lacks a key. The text says what is wrong."""


def specs_in(record: memoryview, keys: Sequence[str]) -> list[KeySpec]:
    """Return what a whole record, framing included, says of each key.

    Raises:
        WrongRecord: The record is damaged; it lacks a key, or has no numbers there.
    """
    _, _, problem = _core.scan_records(record, True)
    if problem:
        raise WrongRecord(problem)
    found = dict(_entries(bytes(record[_HEAD:-_TAIL])))
    return [_spec(key, found) for key in keys]


def _spec(key: str, found: dict[bytes, bytes]) -> KeySpec:
    feature = found.get(key.encode())
    if feature is None:
        keys = sorted(each.decode(errors="replace") for each in found)
        raise WrongRecord(f"key {key!r} is missing; its keys are {shown(keys)}")
    number, pieces = 0, list[bytes]()
    for each, wire_type, content in _fields(feature):
        if each in _KINDS and wire_type == _BYTES:
            if each != number:  # of two kinds the last one counts
                number, pieces = each, []
            pieces.append(content)
    width = 0 if number == 0 else _count(_KINDS[number], b"".join(pieces))
    if width == 0 or _KINDS[number] not in (INT64, FLOAT32):
        what = f"{_KINDS[number]} values" if width else "no values"
        raise WrongRecord(f"key {key!r} has {what}, must have int64 or float32")
    return KeySpec(key, _KINDS[number], width)


def _count(kind: str, values: bytes) -> int:
    """Return the number of values of a list; a packed field holds many of them."""
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
    """Yield each key and its Feature."""
    for number, wire_type, features in _fields(example):
        if (number, wire_type) != (1, _BYTES):
            continue
        for inner, inner_type, entry in _fields(features):
            if (inner, inner_type) == (1, _BYTES):
                parts = [(which, content) for which, kind, content in _fields(entry) if kind == _BYTES]
                keys = [content for which, content in parts if which == 1]
                yield keys[-1] if keys else b"", b"".join(content for which, content in parts if which == 2)


def _fields(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number, the wire type and the content of each field of a message."""
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
    """Return a varint, and where what follows begins."""
    number = 0
    for place, byte in enumerate(data[at : at + _MOST_BYTES_OF_VARINT]):
        number += byte % 0x80 << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    raise WrongRecord("no tf.train.Example: a varint without an end")
