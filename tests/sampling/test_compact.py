"""Relabelling by first occurrence, with the direct map and with the hash map."""

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import ID_DTYPES

from datapipes import _core

HASHED, DIRECT = 0, 2**20  # values of direct_limit: up to so many nodes the map is direct


@pytest.mark.parametrize("direct_limit", [HASHED, DIRECT])
@examples(150)
@given(st.lists(st.integers(0, 60), max_size=80), st.sampled_from(ID_DTYPES))
def test_compact_equals_the_twin(direct_limit, ids, dtype):
    unique, local = _core.compact(np.array(ids, dtype=dtype), num_nodes=61, direct_limit=direct_limit)
    assert (unique.tolist(), local.tolist()) == twin.compact(ids)
    assert unique.dtype == local.dtype == dtype


@examples(150)
@given(st.lists(st.integers(0, 2**48 - 1), max_size=60))
def test_ids_of_a_graph_too_large_for_the_direct_map_are_hashed(ids):
    unique, local = _core.compact(np.array(ids, dtype=np.int64), num_nodes=2**48)
    assert (unique.tolist(), local.tolist()) == twin.compact(ids)


@pytest.mark.parametrize(
    ("step", "direct_limit"), [(1, DIRECT), (1, HASHED), (2**10, HASHED), (2**32, HASHED), (2**40, HASHED)]
)
def test_a_growing_map_keeps_what_it_holds(step, direct_limit):
    order = np.random.default_rng(step).permutation(np.repeat(np.arange(5_000), 2))
    ids = order * step
    unique, local = _core.compact(ids, num_nodes=5_000 * step, direct_limit=direct_limit)
    assert (unique.tolist(), local.tolist()) == twin.compact(ids)


@pytest.mark.parametrize("direct_limit", [HASHED, DIRECT])
def test_a_call_remembers_nothing_of_the_calls_before(direct_limit):
    def compacted(ids, num_nodes=100):
        found = _core.compact(np.array(ids, dtype=np.int64), num_nodes=num_nodes, direct_limit=direct_limit)
        return tuple(array.tolist() for array in found)

    for ids in ([7, 3], [3, 7], [3], [], list(range(99, -1, -1)), [7, 3]):
        assert compacted(ids) == twin.compact(ids)
    with pytest.raises(IndexError):
        compacted([5, 6, 100])
    assert compacted([6, 5]) == ([6, 5], [0, 1])
    assert compacted([6, 5, 70_000], num_nodes=80_000) == ([6, 5, 70_000], [0, 1, 2])
    assert compacted([5]) == ([5], [0])


@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_the_largest_ids_are_kept(dtype):
    largest = np.iinfo(dtype).max - 1
    unique, local = _core.compact(np.array([largest, 0, largest], dtype=dtype), num_nodes=largest + 1)
    assert unique.tolist() == [largest, 0]
    assert local.tolist() == [0, 1, 0]


@pytest.mark.parametrize("direct_limit", [HASHED, DIRECT])
def test_what_ids_are_refused(refuses, direct_limit):
    for dtype in ID_DTYPES:
        for outside in (-1, 5, 2**31 - 1, -(2**31)):
            ids = np.array([0, outside], dtype=dtype)
            refuses(IndexError, _core.compact, ids, num_nodes=5, direct_limit=direct_limit)
    unique, local = _core.compact(np.array([], dtype=np.int32), num_nodes=0, direct_limit=direct_limit)
    assert unique.shape == local.shape == (0,)
    assert unique.dtype == local.dtype == np.int32
    refuses(IndexError, _core.compact, np.array([0]), num_nodes=0, direct_limit=direct_limit)


def test_other_dtypes_and_shapes_are_refused():
    ids = np.array([0, 1])
    for wrong in (ids.reshape(1, 2), ids.astype(float), ids.astype(np.uint64), np.arange(4)[::2], [0, 1]):
        with pytest.raises((TypeError, ValueError)):
            _core.compact(wrong, num_nodes=5)
    with pytest.raises(ValueError):  # noqa: PT011  any ValueError will do
        _core.compact(np.array([0]), num_nodes=-1)
