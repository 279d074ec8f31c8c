"""The TFRecord kernels against their plain twin: records in every form, damaged ones, wrong arguments."""

import numpy as np
import slow_tfrecord as twin
from hypothesis import given
from hypothesis import strategies as st
from slow_tfrecord import BYTES, FIXED32, FIXED64, VARINT, Column

from datapipes import _core

FLOAT_TARGETS = ["float16", "float32", "float64"]
INT_TARGETS = [*FLOAT_TARGETS, *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))]


def fresh_targets(columns, dtypes, rows):
    return [np.zeros((rows, column.width), dtype) for column, dtype in zip(columns, dtypes, strict=True)]


def assert_same(data, columns, dtypes, rows=4, first_row=0):
    """Parse with the kernel and with the twin: equal counts, problem and rows. Return what the kernel gave."""
    got, wanted = fresh_targets(columns, dtypes, rows), fresh_targets(columns, dtypes, rows)
    outcome = _core.ExampleParser(columns).parse(data, got, first_row)
    assert outcome == twin.parse(data, columns, wanted, first_row)
    good = first_row + outcome[0]
    for one, other in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(one[:good], other[:good])
        assert not one[good + 1 :].any()  # only the row of the record with the problem may have been touched
    return outcome, got


# --- Strategies: records as any writer may make them, and bytes that no writer makes

finite_ints = st.one_of(st.integers(-300, 300), st.sampled_from([2**24 + 1, 2**63 - 1, -(2**63), 65504, 65505]))
floats = st.one_of(st.floats(width=32), st.sampled_from([65504.0, 65519.0, 65520.0, 1e-8, 2.0**-14, float("nan")]))
values = st.one_of(
    st.lists(finite_ints, min_size=1, max_size=3),
    st.lists(floats, min_size=1, max_size=3),
    st.lists(st.binary(max_size=3), min_size=1, max_size=2),
    st.just([]),
)
keys = st.sampled_from([b"id", b"f", b"label", b"other", b"", b"a key of more than 40 bytes \x00 \xff" * 2])
unknown = st.one_of(
    st.builds(twin.field, st.integers(4, 2**29 - 1), st.binary(max_size=3), st.just(BYTES)),
    st.builds(lambda number, value: twin.field(number, twin.varint(value), VARINT), st.integers(4, 99), st.integers(0)),
    st.builds(twin.field, st.integers(4, 20), st.binary(min_size=4, max_size=4), st.just(FIXED32)),
    st.builds(twin.field, st.integers(4, 20), st.binary(min_size=8, max_size=8), st.just(FIXED64)),
    st.just(twin.field(1, twin.varint(7), VARINT)),  # the format's number, of another wire type
)
maybe_unknown = st.one_of(st.just(b""), st.just(b""), unknown)


@st.composite
def odd_features(draw):
    """A Feature: lists in any number of pieces, packed or not, the kind given more than once."""
    pieces = []
    for _ in range(draw(st.integers(0, 3))):
        pieces += [twin.feature(draw(values), packed=draw(st.booleans())), draw(maybe_unknown)]
    return b"".join(pieces)


@st.composite
def odd_entries(draw):
    """An entry of the map: key and value in any order, missing, more than once, among others."""
    key_field = twin.field(1, draw(keys))
    fields = [key_field, *(twin.field(2, draw(odd_features())) for _ in range(draw(st.integers(0, 2))))]
    fields.append(draw(maybe_unknown))
    if draw(st.integers(0, 9)) == 0:
        fields.remove(key_field)
    return twin.field(1, b"".join(draw(st.permutations(fields))))


@st.composite
def odd_examples(draw):
    """An Example that protobuf accepts, written as nobody would."""
    pieces = []
    for _ in range(draw(st.integers(1, 2))):
        inside = draw(st.lists(st.one_of(odd_entries(), maybe_unknown), max_size=4))
        pieces += [twin.field(1, b"".join(inside)), draw(maybe_unknown)]
    return b"".join(pieces)


@st.composite
def usual_examples(draw):
    """An Example as libraries write it: one column of ints, one of floats, in an order that may change."""
    id_values = draw(st.lists(finite_ints, min_size=1, max_size=1))
    columns = {"id": id_values, "f": draw(st.lists(floats, min_size=3, max_size=3))}
    if draw(st.booleans()):
        columns["other"] = draw(values)
    names = draw(st.permutations(list(columns)))
    return twin.example({name: columns[name] for name in names}, packed=draw(st.sampled_from([True, True, False])))


@st.composite
def column_sets(draw):
    """Columns that the drawn examples may have, with the dtypes of their targets."""
    columns, dtypes = [], []
    for key, kind, width in draw(
        st.lists(
            st.sampled_from([(b"id", "int64", 1), (b"f", "float32", 3), (b"label", "int64", 2), (b"f", "int64", 1)]),
            min_size=1,
            max_size=3,
        )
    ):
        default = draw(st.sampled_from([None, 7, [9] * width]))
        columns.append(Column(key, kind, width, default))
        dtypes.append(draw(st.sampled_from(INT_TARGETS if kind == "int64" else FLOAT_TARGETS)))
    return columns, dtypes


examples = st.one_of(usual_examples(), odd_examples())


@given(st.lists(examples, max_size=4), column_sets(), st.integers(0, 4))
def test_columns_are_those_of_the_twin(written, chosen, first_row):
    assert_same(b"".join(map(twin.record, written)), *chosen, first_row=first_row)


@st.composite
def damaged(draw, data):
    """The bytes with a few of them changed, cut out, or put in."""
    data = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        how = draw(st.sampled_from(["change", "cut", "insert"]))
        if how == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=3))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 3))]
        elif at < len(data):
            data[at] = draw(st.one_of(st.integers(0, 255), st.sampled_from([0x80, 0xFF, data[at] ^ 1])))
    return bytes(data)


@given(st.data(), examples, column_sets())
def test_damage_inside_a_record_is_judged_as_by_the_twin(data, written, chosen):
    assert_same(twin.record(data.draw(damaged(written))), *chosen)


@given(st.data(), st.lists(usual_examples(), min_size=1, max_size=3), st.booleans())
def test_damage_to_a_file_is_judged_as_by_the_twin(data, written, check_data):
    broken = data.draw(damaged(b"".join(map(twin.record, written))))
    assert _core.scan_records(broken, check_data) == twin.scan_records(broken, check_data)
    assert_same(broken, [Column(b"id", "int64", 1)], ["int64"])


@given(st.binary(max_size=300), column_sets())
def test_any_bytes_are_judged_as_by_the_twin(data, chosen):
    assert _core.scan_records(data, True) == twin.scan_records(data, True)
    assert_same(twin.record(data), *chosen)
