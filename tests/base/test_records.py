"""Records: what is written is read back; each field is refused when it is missing, unknown, of another type or out of
its bounds, and the message says which it is, what was found and what is allowed.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from datapipes.base.records import (
    MOST_ENTRIES,
    OMITTED,
    AnyType,
    Count,
    OptionalEdgeType,
    OptionalNodeType,
    dtype_among,
    from_json,
    one_of,
    to_json,
    whole,
)
from datapipes.base.strict_json import parse_strict


class Size(NamedTuple):
    rows: Count
    name: str


@dataclass(frozen=True)
class Inner:
    on: bool
    share: float


@dataclass(frozen=True)
class Outer:
    number: Annotated[int, whole(-2, 2**64)]
    kind: Annotated[str, one_of("node", "edge")]
    dtype: Annotated[torch.dtype, dtype_among("int32", "bfloat16")]
    maybe: Count | None
    inner: Inner
    many: tuple[Size, ...]
    pair: tuple[Count, str]
    by_name: Mapping[str, Size]
    by_node: Mapping[OptionalNodeType, tuple[Count, ...]]
    by_edge: Mapping[OptionalEdgeType, tuple[Count, Count]]
    by_all: Mapping[tuple[str, AnyType], Size]
    seldom: Annotated[Count | None, OMITTED] = None

    def __post_init__(self):
        if len(self.many) > self.number + 2:
            raise ValueError(f"many has {len(self.many)} entries, for {self.number}")


names = st.text(min_size=1, max_size=5)
edge_types = st.tuples(names, names, names)
counts = st.integers(0, 2**63 - 1)
sizes = st.builds(Size, counts, st.text(max_size=5))
outers = st.builds(
    Outer,
    st.integers(3, 2**64),
    st.sampled_from(["node", "edge"]),
    st.sampled_from([torch.int32, torch.bfloat16]),
    st.none() | counts,
    st.builds(Inner, st.booleans(), st.floats(allow_nan=False, allow_infinity=False)),
    st.lists(sizes, max_size=3).map(tuple),
    st.tuples(counts, st.text(max_size=5)),
    st.dictionaries(st.text(max_size=5), sizes, max_size=3),
    st.dictionaries(st.none() | names, st.lists(counts, max_size=3).map(tuple), max_size=3),
    st.dictionaries(st.none() | edge_types, st.tuples(counts, counts), max_size=3),
    st.dictionaries(st.tuples(st.text(max_size=5), st.none() | names | edge_types), sizes, max_size=3),
    st.none() | counts,
)

GOOD = Outer(
    7,
    "node",
    torch.bfloat16,
    None,
    Inner(True, 0.5),
    (Size(1, "a"),),
    (2, "b"),
    {"c": Size(3, "d")},
    {None: (1, 2)},
    {("a", "r", "b"): (5, 6)},
    {("x", ("a", "r", "b")): Size(0, ""), ("x", "a"): Size(4, "e")},
)


@given(outers)
def test_what_is_written_is_read_back(record):
    text = json.dumps(to_json(record))
    assert from_json(Outer, "it", parse_strict(text, floats=True)) == record
    assert json.dumps(to_json(from_json(Outer, "it", json.loads(text)))) == text


def test_the_form_of_each_annotation():
    assert json.dumps(to_json(GOOD)) == (
        '{"number": 7, "kind": "node", "dtype": "bfloat16", "maybe": null, "inner": {"on": true, "share": 0.5}, '
        '"many": [[1, "a"]], "pair": [2, "b"], "by_name": {"c": [3, "d"]}, "by_node": [[null, [1, 2]]], '
        '"by_edge": [[["a", "r", "b"], 5, 6]], "by_all": [["x", ["a", "r", "b"], 0, ""], ["x", "a", 4, "e"]]}'
    )


@pytest.mark.parametrize("name", [*to_json(GOOD)])
def test_a_field_that_is_missing_is_refused(name):
    values = to_json(GOOD)
    del values[name]
    with pytest.raises(ValueError, match=rf"^it is \[.*\], it must have exactly \[.*'{name}'"):
        from_json(Outer, "it", values)
    with pytest.raises(ValueError, match=rf"^it is \[.*\], it must have at least \[.*'{name}'"):
        from_json(Outer, "it", values, others=True)


def test_an_unknown_field_is_refused_unless_there_may_be_others():
    values = {**to_json(GOOD), "more": object()}
    with pytest.raises(ValueError, match=r"^it is \[.*'more'.*\], it must have exactly \["):
        from_json(Outer, "it", values)
    assert from_json(Outer, "it", values, others=True) == GOOD


def test_a_field_that_is_left_out_instead_of_null_is_refused_as_null():
    with pytest.raises(ValueError, match=r"it must have exactly \["):
        from_json(Outer, "it", {**to_json(GOOD), "seldom": None})
    assert from_json(Outer, "it", {**to_json(GOOD), "seldom": 3}).seldom == 3


@pytest.mark.parametrize("value", [None, 3, "x", [], True])
def test_what_is_no_object_is_refused(value):
    with pytest.raises(ValueError, match=r"it must have exactly \["):
        from_json(Outer, "it", value)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("number", -3, "number is -3, allowed are whole numbers in [-2, 18446744073709551616]"),
        ("number", 2**64 + 1, "number is 18446744073709551617, allowed are"),
        ("number", True, "number is True, allowed are whole numbers"),
        ("number", 1.0, "number is 1.0, allowed are whole numbers"),
        ("number", "1", "number is '1', allowed are whole numbers"),
        ("number", None, "number is None, allowed are whole numbers"),
        ("number", 10**500, "number is an int of 1661 bits, allowed are whole numbers"),
        ("kind", "graph", "kind is 'graph', allowed are node and edge"),
        ("kind", ["node"], "kind is ['node'], allowed are node and edge"),
        ("dtype", "int64", "dtype is 'int64', allowed are int32 and bfloat16"),
        ("dtype", {}, "dtype is {}, allowed are int32 and bfloat16"),
        ("maybe", -1, "maybe is -1, allowed are whole numbers in [0, 9223372036854775807]"),
        ("seldom", "x", "seldom is 'x', allowed are whole numbers"),
        ("inner", [], "inner is [], it must have exactly ['on', 'share']"),
        ("inner", {"on": 1, "share": 1}, "on is 1, allowed are booleans"),
        ("inner", {"on": True, "share": "1"}, "share is '1', allowed are finite numbers"),
        ("inner", {"on": True, "share": True}, "share is True, allowed are finite numbers"),
        ("inner", {"on": True, "share": float("nan")}, "share is nan, allowed are finite numbers"),
        ("inner", {"on": True, "share": 10**500}, "share is an int of 1661 bits, allowed are finite numbers"),
        ("many", {}, "many is {}, it must be a list of at most 65536"),
        ("many", [[1, "a"]] * (MOST_ENTRIES + 1), "many is a list of 65537, it must be a list of at most 65536"),
        ("many", [[1]], "an entry of many is [1], it must have 2 entries"),
        ("many", [[1, "a", "b"]], "an entry of many is [1, 'a', 'b'], it must have 2 entries"),
        ("many", ["ab"], "an entry of many is 'ab', it must have 2 entries"),
        ("many", [[-1, "a"]], "rows is -1, allowed are whole numbers"),
        ("many", [[1, 1]], "name is 1, allowed are texts"),
        ("many", [[1, "a"]] * 10, "many has 10 entries, for 7"),
        ("pair", [2], "pair is [2], it must have 2 entries"),
        ("pair", ["b", 2], "pair is 'b', allowed are whole numbers"),
        ("by_name", [], "by_name is [], it must be an object"),
        ("by_name", {"c": [3, None]}, "name is None, allowed are texts"),
        ("by_node", {}, "by_node is {}, it must be a list"),
        ("by_node", [["a"]], "an entry of by_node is ['a'], it must have 2 entries"),
        ("by_node", [["a", [1]], ["a", [2]]], "by_node has 'a' twice"),
        ("by_node", [["a", 1]], "by_node is 1, it must be a list"),
        ("by_node", [["", []]], "found the node type '', allowed are null and a text"),
        ("by_node", [["a" * 5000, []]], "found the node type 'aaa"),
        ("by_node", [[["a", "r", "b"], []]], "found the node type ['a', 'r', 'b'], allowed are null and a text"),
        ("by_edge", [["a:r:b", 5, 6]], "found the edge type 'a:r:b', allowed are null and a list of three texts"),
        ("by_edge", [[["a", "b"], 5, 6]], "found the edge type ['a', 'b'], allowed are null and a list of three"),
        ("by_edge", [[["a", "b", 3], 5, 6]], "found the edge type ['a', 'b', 3], allowed are null and a list"),
        ("by_edge", [[None, 5]], "an entry of by_edge is [None, 5], it must have 3 entries"),
        ("by_edge", [[None, 5, -6]], "by_edge is -6, allowed are whole numbers"),
        ("by_all", [["x", 7, 0, ""]], "found the node type 7"),
        ("by_all", [["x", [7], 0, ""]], "found the edge type [7]"),
    ],
)
def test_a_value_of_another_type_or_out_of_bounds_is_refused(name, value, text):
    with pytest.raises(ValueError) as caught:  # noqa: PT011  (the text is compared below)
        from_json(Outer, "it", {**to_json(GOOD), name: value})
    assert text in str(caught.value)
    assert len(str(caught.value)) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(JSON, st.sampled_from([*to_json(GOOD), "seldom"]))
def test_whatever_stands_in_a_field_ends_in_an_error_or_in_a_record_that_is_written_again(value, name):
    try:
        record = from_json(Outer, "it", {**to_json(GOOD), name: value})
    except ValueError:
        return
    assert from_json(Outer, "it", to_json(record)) == record
