"""split_ids: ids by where their rows lie, against the plain loop."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from datapipes import _core


def slow_split(parts, ids, own_part, own_ids, hot_ids, num_parts):
    """The twin: (places, rows) of each group: own, hot, part 0, part 1 ..."""
    groups = [([], []) for _ in range(num_parts + 2)]
    for place, each in enumerate(ids):
        if parts[each] == own_part:
            number, row = 0, own_ids.index(each)
        elif each in hot_ids:
            number, row = 1, hot_ids.index(each)
        else:
            number, row = 2 + parts[each], each
        groups[number][0].append(place)
        groups[number][1].append(row)
    return groups


@st.composite
def cases(draw):
    num_ids, num_parts = draw(st.integers(1, 900)), draw(st.sampled_from([1, 2, 3, 300]))
    made = np.random.default_rng(draw(st.integers(0, 1000)))
    in_ranges = draw(st.booleans())
    parts = made.integers(0, num_parts, num_ids)
    parts = np.sort(parts) if in_ranges else parts
    own_part = draw(st.integers(-1, num_parts - 1))
    hot = np.flatnonzero((made.random(num_ids) < draw(st.sampled_from([0, 0.3, 1]))) & (parts != own_part))
    ids = made.integers(0, num_ids, draw(st.sampled_from([0, 1, 50, 40_000])))
    return num_parts, parts, in_ranges, own_part, hot, ids.astype(draw(st.sampled_from([np.int32, np.int64])))


def part_map(parts, num_parts, in_ranges):
    if in_ranges:
        stored = np.searchsorted(parts, np.arange(num_parts + 1)).astype(np.int64)
    else:
        stored = parts.astype(np.uint8 if num_parts <= 256 else np.int16)
    return _core.PartMap(stored, num_parts, len(parts))


@given(cases(), st.sampled_from([1, 3]))
def test_each_id_is_where_its_row_lies(case, num_threads):
    num_parts, parts, in_ranges, own_part, hot, ids = case
    own = np.flatnonzero(parts == own_part)
    rank = _core.IdRank(own, len(parts))
    options = {"part": own_part, "hot": _core.IdRank(hot, len(parts)), "num_threads": num_threads}
    places, rows, bounds = _core.split_ids("x", part_map(parts, num_parts, in_ranges), ids, rank=rank, **options)
    assert rows.dtype == ids.dtype
    assert len(bounds) == num_parts + 3
    if len(ids) <= 50:
        expected = slow_split(parts.tolist(), ids.tolist(), own_part, own.tolist(), hot.tolist(), num_parts)
        found = [(places[b:e].tolist(), rows[b:e].tolist()) for b, e in itertools.pairwise(bounds)]
        assert found == expected
    else:  # the same by numpy
        group = np.where(parts[ids] == own_part, 0, np.where(np.isin(ids, hot), 1, 2 + parts[ids]))
        assert np.array_equal(places, np.argsort(group, kind="stable"))
        assert bounds == np.searchsorted(np.sort(group), np.arange(num_parts + 3)).tolist()
        row = np.where(group == 0, np.searchsorted(own, ids), np.where(group == 1, np.searchsorted(hot, ids), ids))
        assert np.array_equal(rows, row[places])
    if in_ranges and len(own) > 0:  # contiguous ids need no rank
        again = _core.split_ids("x", part_map(parts, num_parts, True), ids, first=int(own[0]), **options)
        assert np.array_equal(again[1], rows)


def test_what_split_ids_refuses(refuses):
    owners = _core.PartMap(np.zeros(5, dtype=np.uint8), 1, 5)
    for outside in (-1, 5, 2**31 - 1, -(2**31)):
        refuses(IndexError, _core.split_ids, "feature 'x'", owners, np.array([1, outside], dtype=np.int32))
    damaged = _core.PartMap(np.array([0, 7], dtype=np.uint8), 2, 2)
    refuses(ValueError, _core.split_ids, "x", damaged, np.array([0, 1]))
    owners = _core.PartMap(np.array([0, 1], dtype=np.uint8), 2, 2)
    rank = _core.IdRank(np.array([0]), 2)
    refuses(ValueError, _core.split_ids, "x", owners, np.array([0, 1]), part=1, rank=rank)
    for stored in (np.zeros(4, np.uint8), np.array([0, 2, 1, 5]), np.array([0, 5]), np.zeros((5, 1), np.uint8)):
        refuses(ValueError, _core.PartMap, stored, 3, 5)
    with pytest.raises(TypeError):
        _core.PartMap(np.zeros(5, dtype=np.float32), 3, 5)
