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


def test_what_is_no_record_is_refused(refuses):
    values = to_json(GOOD)
    for name in values:
        others = {other: value for other, value in values.items() if other != name}
        refuses(ValueError, from_json, Outer, "it", others)
        refuses(ValueError, from_json, Outer, "it", others, others=True)
    refuses(ValueError, from_json, Outer, "it", {**values, "more": object()})
    assert from_json(Outer, "it", {**values, "more": object()}, others=True) == GOOD
    refuses(ValueError, from_json, Outer, "it", {**values, "seldom": None})  # not left out
    assert from_json(Outer, "it", {**values, "seldom": 3}).seldom == 3
    for no_object in (None, 3, "x", [], True):
        refuses(ValueError, from_json, Outer, "it", no_object)


WRONG = {
    "number": [-3, 2**64 + 1, True, 1.0, "1", None, 10**500],
    "kind": ["graph", ["node"]],
    "dtype": ["int64", {}],
    "maybe": [-1],
    "seldom": ["x"],
    "inner": [
        *([], {"on": 1, "share": 1}, {"on": True, "share": "1"}, {"on": True, "share": True}),
        *({"on": True, "share": float("nan")}, {"on": True, "share": 10**500}),
    ],
    "many": [
        *({}, [[1]], [[1, "a", "b"]], ["ab"], [[-1, "a"]], [[1, 1]], [[1, "a"]] * 10),
        [[1, "a"]] * (MOST_ENTRIES + 1),
    ],
    "pair": [[2], ["b", 2]],
    "by_name": [[], {"c": [3, None]}],
    "by_node": [
        *({}, [["a"]], [["a", [1]], ["a", [2]]], [["a", 1]]),
        *([["", []]], [["a" * 5000, []]], [[["a", "r", "b"], []]]),
    ],
    "by_edge": [
        *([["a:r:b", 5, 6]], [[["a", "b"], 5, 6]], [[["a", "b", 3], 5, 6]]),
        *([[None, 5]], [[None, 5, -6]]),
    ],
    "by_all": [[["x", 7, 0, ""]], [["x", [7], 0, ""]]],
}


@pytest.mark.parametrize("name", WRONG)
def test_a_value_of_another_type_or_out_of_bounds_is_refused(name, refuses):
    for value in WRONG[name]:
        refuses(ValueError, from_json, Outer, "it", {**to_json(GOOD), name: value})


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
