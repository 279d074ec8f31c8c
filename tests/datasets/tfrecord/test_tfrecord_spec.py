"""What the keys of a first record hold is found as the plain Python twin finds it; any other bytes are refused."""

import contextlib

import pytest
import slow_tfrecord as twin
from hypothesis import given
from hypothesis import strategies as st

from datapipes.datasets.tfrecord.spec import KeySpec, WrongRecord, specs_in

INTS = st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=4)
FLOATS = st.lists(st.floats(width=32), min_size=1, max_size=4)
TEXTS = st.lists(st.binary(max_size=3), min_size=1, max_size=3)
EXAMPLES = st.dictionaries(st.text(max_size=3), INTS | FLOATS | TEXTS, min_size=1, max_size=4)


@given(EXAMPLES, st.booleans())
def test_kinds_and_widths_are_those_that_were_written(example, packed):
    record = memoryview(twin.record(twin.example(example, packed)))
    for key, values in example.items():
        if isinstance(values[0], bytes):
            with pytest.raises(WrongRecord, match="has bytes values, must have int64 or float32"):
                specs_in(record, [key])
        else:
            kind = "int64" if isinstance(values[0], int) else "float32"
            assert specs_in(record, [key]) == [KeySpec(key, kind, len(values))]


def test_of_two_entries_of_a_key_and_of_two_kinds_the_last_counts():
    ints, floats = twin.feature([1, 2]), twin.feature([0.5])
    both = (
        twin.entry("a", ints) + twin.entry("a", floats) + twin.entry("b", floats + ints) + twin.entry("c", ints + ints)
    )
    record = memoryview(twin.record(twin.field(1, both)))
    found = specs_in(record, ["a", "b", "c"])
    assert found == [KeySpec("a", "float32", 1), KeySpec("b", "int64", 2), KeySpec("c", "int64", 4)]


def test_unknown_fields_are_skipped():
    unknown = twin.field(9, b"abc") + twin.field(8, b"\x05", twin.VARINT) + twin.field(7, bytes(8), twin.FIXED64)
    entry = twin.field(1, twin.field(1, b"k") + unknown + twin.field(2, unknown + twin.feature([1])))
    record = twin.record(unknown + twin.field(1, unknown + entry))
    assert specs_in(memoryview(record), ["k"]) == [KeySpec("k", "int64", 1)]


@given(EXAMPLES, st.data())
def test_any_other_bytes_are_refused_or_read(example, data):
    changed = bytearray(twin.example(example))
    for _ in range(data.draw(st.integers(1, 3))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(WrongRecord):
        specs_in(memoryview(twin.record(bytes(changed))), list(example))


def test_bytes_that_are_no_example_and_a_wrong_crc(refuses):
    for data in (b"\x0b", b"\x80" * 11, b"\x80", b"\x0a\x05ab", b"\x09abc"):
        refuses(WrongRecord, specs_in, memoryview(twin.record(data)), ["k"])
    record = bytearray(twin.record(twin.example({"k": [1]})))
    record[-1] ^= 1
    refuses(WrongRecord, specs_in, memoryview(record), ["k"])
