"""Edges grouped by destination, stably, and the check of a whole graph."""

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import ID_DTYPES, csc_graphs, int64s, random_graph

from datapipes import _core

SPLIT, AT_ONCE = 0, 2**62  # values of partition_from: graphs with so many edges are first split into parts


@st.composite
def edges(draw, max_nodes=10):
    num_nodes = draw(st.integers(0, max_nodes))
    if num_nodes == 0:
        return [], [], 0
    node = st.integers(0, num_nodes - 1)
    pairs = draw(st.lists(st.tuples(node, node), max_size=40))
    return [src for src, _ in pairs], [dst for _, dst in pairs], num_nodes


@examples(200)
@given(edges(), st.sampled_from(ID_DTYPES), st.sampled_from([SPLIT, AT_ONCE]))
def test_a_csc_equals_the_twin(coo, dtype, partition_from):
    src, dst, num_nodes = coo
    rows = np.array([src, dst], dtype=dtype)
    csc = _core.coo_to_csc(*rows, num_nodes, partition_from=partition_from)
    assert [array.dtype for array in csc] == [np.int64, dtype, np.int64]
    assert tuple(array.tolist() for array in csc) == twin.coo_to_csc(src, dst, num_nodes)
    _core.validate_csc(*csc[:2])


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize(("partition_from", "spare_bytes"), [(SPLIT, None), (SPLIT, 0), (AT_ONCE, None)])
@pytest.mark.parametrize("num_nodes", [1, 1_000, 70_001])
def test_in_edges_keep_the_order_in_which_they_were_given(num_nodes, partition_from, spare_bytes, dtype):
    rng = np.random.default_rng(3)
    src, dst = (rng.random((2, 150_000)) ** 12 * num_nodes).astype(dtype)  # low ids have most of the edges
    options = {"partition_from": partition_from, "spare_bytes": spare_bytes}  # without any, a large part has no copy
    indptr, indices, order = _core.coo_to_csc(src, dst, num_nodes, **options)
    assert np.array_equal(order, np.argsort(dst, kind="stable"))
    assert np.array_equal(indices, src[order])
    assert np.array_equal(indptr, np.searchsorted(dst[order], np.arange(num_nodes + 1)))


@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_a_graph_large_enough_to_be_split_equals_the_one_sorted_at_once(dtype):
    rng = np.random.default_rng(5)
    src, dst = rng.integers(0, 200_000, (2, 1_100_000)).astype(dtype)
    csc, plain = _core.coo_to_csc(src, dst, 200_000), _core.coo_to_csc(src, dst, 200_000, partition_from=AT_ONCE)
    assert all(map(np.array_equal, csc, plain))


@examples(50)
@given(csc_graphs())
def test_a_graph_survives_being_taken_apart(graph):
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr)).astype(graph.indices.dtype)
    indptr, indices, order = _core.coo_to_csc(graph.indices, dst, graph.num_nodes)
    assert np.array_equal(indptr, graph.indptr)
    assert np.array_equal(indices, graph.indices)
    assert np.array_equal(order, np.arange(graph.num_edges))


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize("partition_from", [SPLIT, AT_ONCE])
def test_what_edges_are_refused_by_their_places(refuses, partition_from, dtype):
    good = np.array([0, 1, 2], dtype=dtype)
    for outside in (-1, 3, 2**31 - 1, -(2**31)):
        bad = np.array([0, outside, 2], dtype=dtype)
        refuses(IndexError, _core.coo_to_csc, bad, good, 3, partition_from=partition_from)
        refuses(IndexError, _core.coo_to_csc, good, bad, 3, partition_from=partition_from)
    src, dst = np.zeros((2, 5_000), dtype=dtype)
    src[4_000], dst[3] = 7, -7
    for num_nodes in (7, 8):  # a wrong source is named before a wrong destination
        refuses(IndexError, _core.coo_to_csc, src, dst, num_nodes, partition_from=partition_from)


def test_what_arrays_are_no_edges(refuses):
    ids = int64s([0, 1])
    refuses(ValueError, _core.coo_to_csc, ids, ids[:1], 2)
    refuses(ValueError, _core.coo_to_csc, ids[:0], ids[:0], -1)
    for wrong in (ids.astype(np.int32), ids.astype(float), ids.reshape(1, 2), np.arange(4)[::2], [0, 1]):
        with pytest.raises((TypeError, ValueError)):
            _core.coo_to_csc(ids, wrong, 2)
        with pytest.raises((TypeError, ValueError)):
            _core.coo_to_csc(wrong, ids, 2)


def test_a_large_sound_graph_is_valid():
    for dtype in ID_DTYPES:
        _core.validate_csc(*random_graph(1_000, 100_000, rng_seed=4, dtype=dtype))


WRONG_GRAPHS = [
    ([], []),
    ([1, 3], [0, 0, 0]),
    ([-1, 0], []),
    ([0, 2, 1, 3], [0, 0, 0]),
    ([0, 2**62, -(2**62), 3], [0, 0, 0]),
    ([0, 2], [0, 0, 0]),
    ([0, 4], [0, 0, 0]),
    ([0], [0]),
    ([0, 1, 3], [0, 2, 1]),
    ([0, 1, 3], [0, 1, -1]),
]


@pytest.mark.parametrize("dtype", ID_DTYPES)
def test_the_first_place_where_a_graph_is_wrong_is_named(refuses, dtype):
    for indptr, indices in WRONG_GRAPHS:
        refuses(ValueError, _core.validate_csc, int64s(indptr), np.array(indices, dtype=dtype))


def test_a_graph_of_other_dtypes_or_shapes_is_refused():
    indptr, indices = int64s([0, 1]), int64s([0])
    for wrong in (indptr.astype(np.int32), indptr.reshape(2, 1), [0, 1]):
        with pytest.raises((TypeError, ValueError)):
            _core.validate_csc(wrong, indices)
    for wrong in (indices.astype(np.int16), indices.reshape(1, 1), [0]):
        with pytest.raises((TypeError, ValueError)):
            _core.validate_csc(indptr, wrong)
