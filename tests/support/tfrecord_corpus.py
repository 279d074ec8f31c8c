"""Where the fuzzer of TFRecords begins: small records of every form, right and wrong, written by the twin.

csrc/tests/fuzz_tfrecord.cpp says what an input is. A file named `found-...` was found by the fuzzer; it stays as it is.
Run, to write the others anew: python tests/support/tfrecord_corpus.py
"""

from collections.abc import Iterator
from pathlib import Path

import slow_tfrecord as twin
from slow_tfrecord import FIXED32, FIXED64, VARINT, entry, feature, field, varint

FOLDER = Path(__file__).parents[1] / "corpus" / "tfrecord"
NODE = {"id": [5], "f": [1.0, -2.5, 65520.0]}
ID, F = entry("id", feature([7])), entry("f", feature([0.5, 1.5, 2.5]))

TWO, EDGES, DEFAULTS, MANY = range(4)  # the sets of columns of the fuzz target


def framed(first: bytes, second: bytes = b"", columns: int = TWO, dtypes: int = 6) -> bytes:
    """Return an input that becomes three records: first, second, first."""
    return bytes([0x80 + columns, dtypes]) + len(first).to_bytes(2, "little") + first + second


def plain(file: bytes, columns: int = TWO, dtypes: int = 6) -> bytes:
    """Return an input that is a file."""
    return bytes([columns, dtypes, 0, 0]) + file


def inputs() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file."""
    node, file = twin.example(NODE), twin.records([NODE, {"f": [1.0, 2.0, 3.0], "id": [-1]}])
    edge = twin.example({"src": [2**40], "dst": [-1]})
    yield "file", plain(file)
    yield "file-cut", plain(file[:-9])
    yield "file-wrong-data", plain(file[:20] + b"\xff" + file[21:])
    yield "file-wrong-length", plain(b"\x01" + file[1:])
    length = (2**63).to_bytes(8, "little")
    yield "file-impossible-length", plain(length + twin.masked(twin.crc32c(length)).to_bytes(4, "little"))
    yield "file-more-records-than-rows", plain(4 * twin.record(node))
    yield "file-empty-records", plain(3 * twin.record(b""), DEFAULTS)
    yield "node", framed(node, twin.example({"f": [1e-7, 1e30, float("nan")], "id": [2**24 + 1]}))
    for dtypes in range(11):
        yield f"node-as-{dtypes}", framed(node, twin.example({"id": [300], "f": [2.0**-14, -1e5, 3.0]}), TWO, dtypes)
    yield "node-not-packed", framed(twin.example(NODE, packed=False), node)
    yield "edge", framed(edge, twin.example({"dst": [1], "src": [300]}), EDGES)
    absent = twin.example({"other": [b"x"]}), twin.example({"id": [1, 2]})
    yield "defaults", framed(*absent, DEFAULTS, 4)
    yield "defaults-that-do-not-fit", framed(*absent, DEFAULTS, 8)
    long = "the longest name of all"
    many = {long: [9], "": [1.0, 2.0], "id": [4], "f": [1.0, 2.0, 3.0]}
    yield "many", framed(twin.example(many), twin.example(dict(reversed(many.items()))), MANY)
    for place in (0, 13, 22):  # a key that differs in one letter from the one that stood there
        alike = {long[:place] + long[place].upper() + long[place + 1 :]: [9], **many}
        del alike[long]
        yield f"many-alike-{place}", framed(twin.example(many), twin.example(alike), MANY)
    yield "key-twice-another-missing", framed(field(1, ID + ID), node)
    yield "key-twice", framed(field(1, ID + F + entry("id", feature([8]))), node)
    yield "key-missing", framed(twin.example({"id": [1], **{f"k{i}": [i] for i in range(9)}}))
    yield "key-not-text", framed(field(1, F + entry(b"\x00\xff" * 30, feature([1]))))
    yield "key-after-value", framed(field(1, F + field(1, field(2, feature([3])) + field(1, b"id"))), node)
    yield "no-key-no-value", framed(field(1, ID + F + field(1, b"") + field(1, field(1, b"x"))), node, MANY)
    yield "feature-without-list", framed(field(1, entry("id", b"") + F), field(1, entry("id", field(3, b"")) + F))
    yield "wrong-kind", framed(twin.example({"id": [1.0], "f": [1, 2, 3]}), twin.example({"id": [b"x"]}))
    yield "wrong-number", framed(twin.example({"id": [1, 2], "f": [1.0]}), twin.example({"id": [1], "f": [1.0] * 4}))
    yield "kinds-in-turn", framed(field(1, F + entry("id", feature([1, 2]) + feature([1.0]) + feature([3]))), node)
    yield (
        "pieces",
        framed(field(1, ID) + field(1, entry("f", feature([0.5]) + feature([1.0, 2.0], packed=False))), node),
    )
    yield "value-twice", framed(field(1, F + field(1, field(1, b"id") + field(2, b"") + field(2, feature([3])))), node)
    other = (
        field(4, varint(2**64 - 1), VARINT)
        + field(5, b"12345678", FIXED64)
        + field(6, b"1234", FIXED32)
        + field(7, b"x")
    )
    spread = entry("id", other + feature([7]) + other) + field(
        1, field(1, b"f") + other + field(2, feature([1.0, 2.0, 3.0]))
    )
    yield "unknown-fields", framed(other + field(1, other + spread + other) + other, node)
    lists = field(3, other + twin.int64_list([7]) + other), field(2, other + twin.float_list([1.0, 2.0, 3.0]) + other)
    yield "unknown-fields-in-lists", framed(field(1, entry("id", lists[0]) + entry("f", lists[1])), node)
    yield "unknown-fields-and-no-id", framed(field(1, other + F) + other)
    yield "group", framed(node + b"\x0b\x0c", node)
    yield "wire-type-6", framed(node + b"\x0e", node)
    yield "field-0", framed(node + b"\x02\x00", node)
    yield "long-tag", framed(node + b"\xfa\xff\xff\xff\x7f\x00", node)
    yield "varint-of-11-bytes", framed(field(1, F + entry("id", field(3, field(1, b"\x80" * 10 + b"\x00")))), node)
    yield "varint-of-65-bits", framed(field(1, F + entry("id", field(3, field(1, b"\xff" * 9 + b"\x02")))), node)
    for size in (6, 11):
        written = bytes([len(ID + F) | 0x80]) + b"\x80" * (size - 2) + b"\x00"
        yield f"length-in-{size}-bytes", framed(b"\x0a" + written + ID + F, node)
    yield "varint-without-end", framed(field(1, F + entry("id", field(3, field(1, b"\xff\xff")))), node)
    yield "floats-of-5-bytes", framed(field(1, ID + entry("f", field(2, field(1, b"12345")))), node)
    yield "length-beyond", framed(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01" + ID, b"\x0a\x7f" + ID)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, content in inputs():
        (FOLDER / name).write_bytes(content)
