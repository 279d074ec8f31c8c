"""The TFRecord kernels against their plain twin: records in every form, damaged ones, wrong arguments."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import slow_tfrecord as twin
import tfrecord_corpus
from amounts import examples
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


any_examples = st.one_of(usual_examples(), odd_examples())


@examples(200)
@given(st.lists(any_examples, max_size=4), column_sets(), st.integers(0, 4))
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


@examples(200)
@given(st.data(), any_examples, column_sets())
def test_damage_inside_a_record_is_judged_as_by_the_twin(data, written, chosen):
    assert_same(twin.record(data.draw(damaged(written))), *chosen)


@examples(200)
@given(st.data(), st.lists(usual_examples(), min_size=1, max_size=3), st.booleans())
def test_damage_to_a_file_is_judged_as_by_the_twin(data, written, check_data):
    broken = data.draw(damaged(b"".join(map(twin.record, written))))
    assert _core.scan_records(broken, check_data) == twin.scan_records(broken, check_data)
    assert_same(broken, [Column(b"id", "int64", 1)], ["int64"])


@given(st.binary(max_size=300), column_sets())
def test_any_bytes_are_judged_as_by_the_twin(data, chosen):
    assert _core.scan_records(data, True) == twin.scan_records(data, True)
    assert_same(twin.record(data), *chosen)


# --- What is said, and what is allowed

ID, F = Column(b"id", "int64", 1), Column(b"f", "float32", 3)
NODE = {"id": [5], "f": [1.0, 2.0, 3.0]}
GOOD = twin.record(twin.example(NODE))


def problem_with(data, column=ID, dtype="int64"):
    """Return the problem of the second record, whose data is given."""
    (records, size, problem), _ = assert_same(GOOD + twin.record(data) + GOOD, [column], [dtype])
    assert (records, size) == (1, len(GOOD))
    return problem


def test_a_problem_says_what_was_found_and_what_must_be():
    for data, problem in (
        (twin.example({"f": [1.0], "k": [2]}), "key 'id' is missing; its keys are 'f', 'k'"),
        (b"", "key 'id' is missing; its keys are none"),
        (twin.example({f"k{i}": [i] for i in range(10)}), "'k7' and 2 more"),
        (twin.example({"\n" + "é" * 30: [1]}), r"its keys are '\x0a" + "é" * 19 + r"\xc3'..."),
        (twin.example({"id": []}), "key 'id' has no values"),
        (twin.field(1, twin.entry("id", twin.field(3, b""))), "key 'id' has 0 values, must have 1"),
        (twin.example({"id": [1, 2]}), "key 'id' has 2 values, must have 1"),
        (twin.example({"id": [1.0]}), "key 'id' has float32 values, must have int64"),
        (b"\x0b", "no tf.train.Example: a group at byte 0 of its data"),
        (b"\x0e", "wire type 6 at byte 0"),
        (b"\x02\x00", "a field of number 0 at byte 0"),
        (b"\x0a\x05\x0a", "a length of 5 bytes, of which 1 are there, at byte 1"),
        (b"\x20" + b"\x80" * 10 + b"\x00", "a varint of more than 10 bytes at byte 1"),
        (b"\x20" + b"\xff" * 9 + b"\x02", "a varint of more than 64 bits at byte 1"),
        (b"\x20\x80", "a varint without an end at byte 1"),
        (b"\xff\xff\xff\xff\x7f", "a tag of more than 32 bits at byte 0"),
    ):
        assert problem in problem_with(data)
    for ids, dtype in ((300, "int8"), (2**24 + 1, "float32")):
        data = twin.example({"id": [ids]})
        assert f"key 'id': the int64 {ids} does not fit into {dtype}" in problem_with(data, dtype=dtype)
    for data, dtype, problem in (
        (twin.example({"f": [1.0] * 4}), "float32", "key 'f' has 4 values, must have 3"),
        (twin.example({"f": [b"x"]}), "float32", "key 'f' has bytes values, must have float32"),
        (twin.example({"f": [0.0, -65520.0, 0.0]}), "float16", "the float32 -65520 becomes infinite as float16"),
        (twin.field(1, twin.entry("f", twin.field(2, twin.field(1, b"12345")))), "float32", "floats of 5 bytes"),
    ):
        assert problem in problem_with(data, F, dtype)


def id_entry(*parts):
    """Return an Example of one entry for the key id, with these bytes besides the key."""
    return twin.field(1, twin.field(1, twin.field(1, b"id") + b"".join(parts)))


def in_features(*entries):
    return twin.field(1, b"".join(entries))


SEVEN, EIGHT, TEXT = twin.feature([7]), twin.feature([8]), twin.feature([b"x"])


@pytest.mark.parametrize(
    ("data", "values"),
    [
        (in_features(twin.entry("id", EIGHT), twin.entry("id", SEVEN)), [7]),
        (in_features(twin.entry("id", b"damage"), twin.entry("id", TEXT), twin.entry("id", SEVEN)), [7]),
        (in_features(twin.entry("id", EIGHT)) + in_features(twin.entry("id", SEVEN)), [7]),
        (id_entry(twin.field(2, SEVEN + EIGHT)), [7, 8]),
        (id_entry(twin.field(2, SEVEN), twin.field(2, EIGHT)), [7, 8]),
        (id_entry(twin.field(2, twin.feature([300, 1]) + twin.feature([1.0]) + SEVEN)), [7]),
        (id_entry(twin.field(2, twin.feature([7, 8], packed=False) + EIGHT)), [7, 8, 8]),
        (id_entry(twin.field(2, twin.field(3, twin.int64_list([7]) + twin.int64_list([8], packed=False)))), [7, 8]),
        (id_entry(twin.field(2, twin.field(3, twin.field(1, b"\x87\x80\x80\x80\x80\x80\x80\x80\x80\x00")))), [7]),
        (in_features(twin.field(1, twin.field(2, SEVEN) + twin.field(1, b"id"))), [7]),
        (in_features(twin.field(1, twin.field(1, b"other") + twin.field(1, b"id") + twin.field(2, SEVEN))), [7]),
    ],
)
def test_a_feature_is_put_together_as_protobuf_does(data, values):
    column = Column(b"id", "int64", len(values))
    for dtype in ("int64", "int8"):  # 300 does not fit, and does not count
        outcome, (target,) = assert_same(twin.record(data), [column], [dtype])
        assert outcome == (1, len(data) + 16, "")
        assert target[0].tolist() == values


@pytest.mark.parametrize("data", [in_features(twin.field(1, twin.field(2, SEVEN))), in_features(twin.entry("", SEVEN))])
def test_an_entry_without_a_key_has_the_empty_one(data):
    outcome, (target,) = assert_same(twin.record(data), [Column(b"", "int64", 1)], ["int64"])
    assert outcome[2] == ""
    assert target[0, 0] == 7


@pytest.mark.parametrize(
    "data", [b"", id_entry(), id_entry(twin.field(2, b"")), id_entry(twin.field(2, twin.field(9, b"x")))]
)
def test_a_feature_without_a_list_counts_as_absent(data):
    outcome, (target,) = assert_same(twin.record(data), [Column(b"id", "int64", 1, 7)], ["int64"])
    assert outcome[2] == ""
    assert target[0, 0] == 7


@pytest.mark.parametrize("second", [twin.feature([1.0]), TEXT])
def test_the_last_kind_of_a_feature_counts(second):
    assert "must have int64" in problem_with(id_entry(twin.field(2, SEVEN + second)))
    assert problem_with(id_entry(twin.field(2, twin.feature([300]) + twin.feature([300]))), dtype="int8").endswith(
        "has 2 values, must have 1"
    )


def test_floats_become_halves_as_in_numpy():
    bits = np.random.default_rng(0).integers(0, 2**32, 20_000, dtype=np.uint32)
    floats = bits.view(np.float32)
    floats = floats[np.isnan(floats) | np.isinf(floats) | (np.abs(floats) < 65520)]
    edges = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    floats = np.concatenate([floats, edges, (edges[1:] + edges[:-1]) / 2])
    column = Column(b"f", "float32", len(floats))
    data = twin.record(in_features(twin.entry("f", twin.field(2, twin.field(1, floats.tobytes())))))
    target = np.zeros((1, len(floats)), np.float16)
    assert _core.ExampleParser([column]).parse(data, [target], 0) == (1, len(data), "")
    np.testing.assert_array_equal(target[0], floats.astype(np.float16))


def test_more_records_than_rows_are_a_problem():
    (records, size, problem), _ = assert_same(3 * GOOD, [ID, F], ["int64", "float32"], rows=2)
    assert (records, size, problem) == (2, 2 * len(GOOD), "there are more records than rows (2)")
    assert assert_same(GOOD[:-1], [ID], ["int64"], rows=0)[0] == (0, 0, "")


def test_wrong_crcs_are_problems_of_their_record():
    broken = bytearray(GOOD + GOOD)
    broken[len(GOOD) + 20] ^= 1
    assert _core.scan_records(broken, check_data=False) == (2, len(broken), "")
    records, size, problem = _core.scan_records(broken, check_data=True)
    assert (records, size) == (1, len(GOOD))
    stored = int.from_bytes(GOOD[-4:], "little")
    computed = twin.masked(twin.crc32c(bytes(broken[len(GOOD) + 12 : -4])))
    assert problem == f"the CRC of its data is wrong: 0x{stored:08x} is stored, 0x{computed:08x} computed"
    broken[len(GOOD) + 3] = 1
    records, size, problem = _core.scan_records(broken, check_data=False)
    assert (records, size) == (1, len(GOOD))
    assert problem.startswith("the CRC of its length is wrong: 0x")


def test_the_length_of_a_record_is_known_from_its_first_bytes(refuses):
    assert _core.record_length(GOOD) == _core.record_length(GOOD[:12]) == len(GOOD)
    assert _core.record_length(GOOD[:11]) == _core.record_length(b"") == -1
    refuses(ValueError, _core.record_length, b"\x01" + GOOD[1:])
    length = (2**63).to_bytes(8, "little")
    refuses(ValueError, _core.record_length, length + twin.masked(twin.crc32c(length)).to_bytes(4, "little"))


def test_crcs_are_the_published_ones_and_can_go_on():
    assert _core.crc32c(b"123456789") == 0xE3069283
    assert _core.crc32c(b"") == 0
    data = np.random.default_rng(0).bytes(1000)
    assert _core.crc32c(data) == twin.crc32c(data) == _core.crc32c(data[333:], _core.crc32c(data[:333]))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: np.frombuffer(data, np.uint8)])
def test_any_contiguous_buffer_is_read(kind):
    got = fresh_targets([ID], ["int64"], 1)
    assert _core.ExampleParser([ID]).parse(kind(GOOD), got, 0) == (1, len(GOOD), "")
    assert got[0].item() == 5


def test_rows_may_lie_at_any_distance_and_address():
    edges = np.zeros((2, 3), np.int64)
    columns = [Column(b"src", "int64", 1), Column(b"dst", "int64", 1)]
    data = twin.records([{"src": [i], "dst": [10 + i]} for i in range(3)])
    assert _core.ExampleParser(columns).parse(data, [edges[0][:, None], edges[1][:, None]], 0)[2] == ""
    assert edges.tolist() == [[0, 1, 2], [10, 11, 12]]

    memory = np.zeros(200, np.uint8)
    wide = memory[1:161].view(np.float32).reshape(4, 10)  # not aligned
    assert _core.ExampleParser([F, ID]).parse(3 * GOOD, [wide[::-1, 2:5], wide[:, 7:8]], 1) == (3, 3 * len(GOOD), "")
    assert wide[:3, 2:5].tolist() == [[1, 2, 3]] * 3
    assert wide[1:, 7].tolist() == [5, 5, 5]
    assert wide.sum() == 3 * (6 + 5)


def test_one_parser_serves_many_threads():
    parser = _core.ExampleParser([ID, F])
    pieces = [twin.records([{"id": [i], "f": [float(i)] * 3}] * 50) for i in range(8)]
    targets = [np.zeros((400, 1), np.int64), np.zeros((400, 3), np.float16)]
    with ThreadPoolExecutor(4) as threads:
        outcomes = list(threads.map(lambda i: parser.parse(pieces[i], targets, 50 * i), range(8)))
    assert outcomes == [(50, len(piece), "") for piece in pieces]
    assert targets[0][:, 0].tolist() == targets[1][:, 2].tolist() == [i // 50 for i in range(400)]


def test_columns_that_cannot_be_are_refused(refuses):
    refuses(ValueError, _core.ExampleParser, [])
    refuses(ValueError, _core.ExampleParser, [ID, (b"k", "int64", 0, None)])
    refuses(ValueError, _core.ExampleParser, [(b"k", "int32", 1, None)])
    refuses(ValueError, _core.ExampleParser, [(b"k", "int64", 2, [1])])
    for kind, default in (("int64", 0.5), ("int64", 2**63), ("float32", 1e39), ("float32", ["x"])):
        refuses(TypeError, _core.ExampleParser, [(b"k", kind, 1, default)])


@pytest.mark.parametrize("given", [7, np.int64(7), [7, 7], (7, 7), np.array([7, 7]), np.array(7)])
def test_a_default_is_one_number_or_all(given):
    target = np.zeros((1, 2), np.float32)
    for kind in ("int64", "float32"):
        parser = _core.ExampleParser([(b"absent", kind, 2, given)])
        assert parser.parse(GOOD, [target], 0) == (1, len(GOOD), "")
        assert target.tolist() == [[7, 7]]


def test_targets_that_do_not_fit_are_refused(refuses):
    parse = _core.ExampleParser([ID, F]).parse
    ids, floats = np.zeros((2, 1), int), np.zeros((2, 3))
    for targets in (
        [ids],
        [ids, np.zeros((2, 4))],
        [np.zeros(2, int), floats],
        [ids, np.zeros((3, 3))],
        [ids, np.zeros((2, 6))[:, ::2]],
        [ids, np.zeros((2, 3), int)],
    ):
        refuses(ValueError, parse, GOOD, targets, 0)
    for dtype in (bool, ">i8"):
        refuses(TypeError, parse, GOOD, [np.zeros((2, 1), dtype), floats], 0)
    for first_row in (3, -1):
        refuses(ValueError, parse, GOOD, [ids, floats], first_row)
    floats.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        parse(GOOD, [ids, floats], 0)


def test_the_corpus_of_the_fuzzer_is_what_the_twin_writes():
    files = {path.name: path.read_bytes() for path in tfrecord_corpus.FOLDER.iterdir()}
    made = {name: data for name, data in files.items() if not name.startswith("found-")}
    assert made == dict(tfrecord_corpus.inputs())
    assert len(files) < 80
