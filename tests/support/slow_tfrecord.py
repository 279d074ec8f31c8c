"""The plain Python twin of the TFRecord kernels: a slow and obvious writer and reader of framing and tf.train.Example.

It is written from the two formats alone and shares neither code nor ideas with csrc/tfrecord/. A file of TFRecords is a
row of records: uint64 length, uint32 CRC of the length, data, uint32 CRC of the data. All are little-endian, both CRCs
masked. The data is an `Example` of protobuf:

    message Example { Features features = 1; }
    message Features { map<string, Feature> feature = 1; }      // entries { string key = 1; Feature value = 2; }
    message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
    message FloatList { repeated float value = 1; }             // packed or not; the other lists alike

The texts of problems are those of the kernels, so tests compare them too.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

# --- CRC32C


def _crc_of_byte(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC_TABLE = [_crc_of_byte(byte) for byte in range(256)]


def crc32c(data: bytes, crc: int = 0) -> int:
    """Return the CRC of what `crc` is the CRC of, followed by `data`."""
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return the CRC as records store it: turned right by 15 bits, plus a constant."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32


# --- Writing

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types
BYTES_LIST, FLOAT_LIST, INT64_LIST = 1, 2, 3  # field numbers in a Feature


def varint(number: int) -> bytes:
    """Return a number of up to 64 bits, seven bits a byte; a negative one takes ten bytes."""
    number %= 2**64
    written = bytearray()
    while number >= 0x80:
        written.append(number % 0x80 + 0x80)
        number //= 0x80
    return bytes([*written, number])


def field(number: int, content: bytes, wire_type: int = BYTES) -> bytes:
    """Return a field; only one of wire type 2 carries its length."""
    return varint(number * 8 + wire_type) + (varint(len(content)) if wire_type == BYTES else b"") + content


def float_list(values: Sequence[float], packed: bool = True) -> bytes:
    pieces = [struct.pack("<f", value) for value in values]
    return field(1, b"".join(pieces)) if packed else b"".join(field(1, piece, FIXED32) for piece in pieces)


def int64_list(values: Sequence[int], packed: bool = True) -> bytes:
    pieces = [varint(value) for value in values]
    return field(1, b"".join(pieces)) if packed else b"".join(field(1, piece, VARINT) for piece in pieces)


def feature(values: Any, packed: bool = True) -> bytes:
    """Return a Feature: its list is one of bytes, ints or floats, as the first value is; without values it has none."""
    values = list(values.tolist() if isinstance(values, np.ndarray) else values)
    if not values:
        return b""
    if isinstance(values[0], bytes):
        return field(BYTES_LIST, b"".join(field(1, value) for value in values))
    if isinstance(values[0], int):
        return field(INT64_LIST, int64_list(values, packed))
    return field(FLOAT_LIST, float_list(values, packed))


def entry(key: str | bytes, value: bytes) -> bytes:
    """Return an entry of the map from keys to Features."""
    return field(1, field(1, key.encode() if isinstance(key, str) else key) + field(2, value))


def example(columns: Mapping[str, Any], packed: bool = True) -> bytes:
    """Return an Example; the values of a column are bytes, ints or floats."""
    return field(1, b"".join(entry(key, feature(values, packed)) for key, values in columns.items()))


def record(data: bytes) -> bytes:
    """Return the data with its length and the two CRCs."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def records(examples: Sequence[Mapping[str, Any]]) -> bytes:
    """Return a whole file."""
    return b"".join(record(example(columns)) for columns in examples)


# --- Framing


class Problem(Exception):
    """What is wrong with a record."""


def _check_crc(name: str, data: bytes, stored: bytes) -> None:
    has, must = struct.unpack("<I", stored)[0], masked(crc32c(data))
    if has != must:
        raise Problem(f"the CRC of its {name} is wrong: 0x{has:08x} is stored, 0x{must:08x} computed")


def record_length(data: bytes) -> int:
    """Return the bytes of the record that begins `data`, framing included; -1 where 12 bytes are not there."""
    if len(data) < 12:
        return -1
    _check_crc("length", data[:8], data[8:12])
    length = struct.unpack("<Q", data[:8])[0]
    if length >= 2**62:
        raise Problem(f"its length of {length} bytes is not possible")
    return int(length) + 16


def whole_records(data: bytes) -> Iterator[bytes]:
    """Yield each record with its framing up to the first that is not whole; a Problem if a length is wrong."""
    while data:
        length = record_length(data)
        if not 0 < length <= len(data):
            return
        yield data[:length]
        data = data[length:]


def scan_records(data: bytes, check_data: bool) -> tuple[int, int, str]:
    """Return the number of whole records, their bytes, and the problem that ended the scan, if any."""
    count = size = 0
    try:
        for whole in whole_records(data):
            if check_data:
                _check_crc("data", whole[12:-4], whole[-4:])
            count, size = count + 1, size + len(whole)
    except Problem as problem:
        return count, size, str(problem)
    return count, size, ""


# --- The wire format


class Reader:
    """The bytes [at, end) of `data`; offsets in problems count from the beginning of `data`."""

    def __init__(self, data: bytes, at: int = 0, end: int | None = None) -> None:
        self.data, self.at, self.end = data, at, len(data) if end is None else end

    def wrong(self, what: str, at: int) -> Problem:
        return Problem(f"no tf.train.Example: {what} at byte {at} of its data")

    def varint(self) -> int:
        first, number = self.at, 0
        while True:
            if self.at == self.end:
                raise self.wrong("a varint without an end", first)
            byte = self.data[self.at]
            number += byte % 0x80 << 7 * (self.at - first)
            self.at += 1
            if byte < 0x80:
                break
            if self.at - first == 10:
                raise self.wrong("a varint of more than 10 bytes", first)
        if number >= 2**64:
            raise self.wrong("a varint of more than 64 bits", first)
        return number

    def tag(self) -> tuple[int, int]:
        """Return the number of the next field, and its wire type."""
        first, tag = self.at, self.varint()
        if tag >= 2**32:
            raise self.wrong("a tag of more than 32 bits", first)
        if tag < 8:
            raise self.wrong("a field of number 0", first)
        if tag % 8 in (3, 4):
            raise self.wrong("a group", first)
        if tag % 8 > 5:
            raise self.wrong(f"wire type {tag % 8}", first)
        return tag // 8, tag % 8

    def take(self, count: int, first: int) -> bytes:
        if count > self.end - self.at:
            raise self.wrong(f"a length of {count} bytes, of which {self.end - self.at} are there,", first)
        self.at += count
        return self.data[self.at - count : self.at]

    def inner(self) -> "Reader":
        """Return a reader of the bytes of a field of wire type 2."""
        first, length = self.at, self.varint()
        start = self.at
        self.take(length, first)
        return Reader(self.data, start, self.at)

    def skip(self, wire_type: int) -> None:
        if wire_type == VARINT:
            self.varint()
        elif wire_type == BYTES:
            self.inner()
        else:
            self.take({FIXED64: 8, FIXED32: 4}[wire_type], self.at)

    def rest(self) -> bytes:
        return self.data[self.at : self.end]

    def fields(self) -> Iterator[tuple[int, int]]:
        while self.at < self.end:
            yield self.tag()


def entries(data: bytes) -> list[tuple[bytes, list[Reader]]]:
    """Return the key of each entry of the map, and its Features, which protobuf merges into one."""
    found = []
    example = Reader(data)
    for number, wire_type in example.fields():
        if (number, wire_type) != (1, BYTES):
            example.skip(wire_type)
            continue
        features = example.inner()
        for number, wire_type in features.fields():
            if (number, wire_type) != (1, BYTES):
                features.skip(wire_type)
                continue
            both, key, value = features.inner(), b"", []
            for number, wire_type in both.fields():
                if (number, wire_type) == (1, BYTES):
                    key = both.inner().rest()
                elif (number, wire_type) == (2, BYTES):
                    value.append(both.inner())
                else:
                    both.skip(wire_type)
            found.append((key, value))
    return found


KIND_NAMES = {BYTES_LIST: "bytes", FLOAT_LIST: "float32", INT64_LIST: "int64"}


def float_values(values: Reader) -> Iterator[np.float32]:
    for number, wire_type in values.fields():
        if (number, wire_type) == (1, FIXED32):
            yield from np.frombuffer(values.take(4, values.at), "<f4")
        elif (number, wire_type) == (1, BYTES):
            first = values.at
            packed = values.inner().rest()
            if len(packed) % 4:
                raise values.wrong(f"a list of floats of {len(packed)} bytes", first)
            yield from np.frombuffer(packed, "<f4")
        else:
            values.skip(wire_type)


def int64_values(values: Reader) -> Iterator[int]:
    for number, wire_type in values.fields():
        if (number, wire_type) == (1, VARINT):
            yield (values.varint() + 2**63) % 2**64 - 2**63
        elif (number, wire_type) == (1, BYTES):
            packed = values.inner()
            while packed.at < packed.end:
                yield (packed.varint() + 2**63) % 2**64 - 2**63
        else:
            values.skip(wire_type)


# --- Columns


class Column(NamedTuple):
    """One column, as ExampleParser takes it."""

    key: bytes
    kind: str
    width: int
    default: Any = None


def shown(key: bytes) -> str:
    """Return a key as problems show it: at most 40 bytes, nothing that a terminal obeys."""
    cut = key[:40].decode("utf-8", "backslashreplace")
    plain = "".join(f"\\x{ord(char):02x}" if ord(char) < 0x20 or ord(char) == 0x7F else char for char in cut)
    return f"'{plain}'" + ("..." if len(key) > 40 else "")


def stored(column: Column, value: Any, dtype: np.dtype) -> Any:
    """Return a value as an entry of the target."""
    name = "float32" if column.kind == "float32" else "int64"
    if column.kind == "float32":
        with np.errstate(over="ignore"):
            turned = np.float32(value).astype(dtype)
        if np.isinf(turned) and not np.isinf(np.float32(value)):
            raise Problem(f"key {shown(column.key)}: the {name} {float(value):.9g} becomes infinite as {dtype}")
        return turned
    if dtype.kind in "iu":
        fits = np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
    else:
        with np.errstate(over="ignore"):
            turned = np.array(value, np.int64).astype(dtype)
        fits = bool(np.isfinite(turned)) and int(turned) == value
    if not fits:
        raise Problem(f"key {shown(column.key)}: the {name} {value} does not fit into {dtype}")
    return dtype.type(value)


def column_values(column: Column, data: bytes) -> list[Any]:
    """Return the values of a column in one record. The last entry of a key counts; earlier ones are not looked into."""
    kind, values = 0, []
    found = entries(data)
    of_key = [value for key, value in found if key == column.key]
    for part in of_key[-1] if of_key else []:
        for number, wire_type in part.fields():
            if number > 3 or wire_type != BYTES:
                part.skip(wire_type)
                continue
            of_kind = part.inner()
            kind, values = number, values if number == kind else []
            if KIND_NAMES[kind] == column.kind:
                values += float_values(of_kind) if kind == FLOAT_LIST else int64_values(of_kind)
    if kind == 0:
        if column.default is not None:
            return [*np.broadcast_to(np.array(column.default), column.width).tolist()]
        if of_key:
            raise Problem(f"key {shown(column.key)} has no values")
        keys = ", ".join(shown(key) for key, _ in found[:8]) or "none"
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""
        raise Problem(f"key {shown(column.key)} is missing; its keys are {keys}{more}")
    if KIND_NAMES[kind] != column.kind:
        raise Problem(f"key {shown(column.key)} has {KIND_NAMES[kind]} values, must have {column.kind}")
    if len(values) != column.width:
        raise Problem(f"key {shown(column.key)} has {len(values)} values, must have {column.width}")
    return values


def parse(
    data: bytes, columns: Sequence[Column], targets: Sequence[np.ndarray], first_row: int
) -> tuple[int, int, str]:
    """Do what ExampleParser.parse does. The row of a record with a problem stays as it was."""
    count = size = 0
    try:
        for whole in whole_records(data):
            if first_row + count == len(targets[0]):
                raise Problem(f"there are more records than rows ({len(targets[0])})")
            _check_crc("data", whole[12:-4], whole[-4:])
            rows = []
            for column, target in zip(columns, targets, strict=True):
                values = column_values(column, whole[12:-4])
                rows.append([stored(column, value, target.dtype) for value in values])
            for target, row in zip(targets, rows, strict=True):
                target[first_row + count] = row
            count, size = count + 1, size + len(whole)
    except Problem as problem:
        return count, size, str(problem)
    return count, size, ""
