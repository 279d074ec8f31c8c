"""One hop of drawing: counts, sets and order of the picks, equal to the twin's bit for bit."""

import numpy as np
import pytest
import twin
from amounts import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import (
    ID_DTYPES,
    Graph,
    csc_graphs,
    fanouts,
    graph_of,
    int64s,
    random_graph,
    rng_seeds,
    seeds_in,
    star,
)

from datapipes import _core

KEY = 0xFEDCBA9876543210


def sample_hop(graph: Graph, seeds, *, fanout: int, replace: bool = False, key: int = KEY):
    return _core.sample_hop(*graph, int64s(seeds), fanout=fanout, replace=replace, key=key)


def expect_the_twin(graph: Graph, seeds, *, fanout: int, replace: bool, key: int = KEY) -> None:
    found = sample_hop(graph, seeds, fanout=fanout, replace=replace, key=key)
    expected = twin.sample_hop(*graph, seeds, fanout=fanout, replace=replace, key=key)
    assert [array.tolist() for array in found] == list(expected)
    assert [array.dtype for array in found] == [np.int64, graph.indices.dtype, np.int64]


@examples(300)
@given(st.data(), csc_graphs(), fanouts, st.booleans(), rng_seeds)
def test_a_hop_equals_the_twin(data, graph, fanout, replace, key):
    expect_the_twin(graph, data.draw(seeds_in(graph)), fanout=fanout, replace=replace, key=key)


@pytest.mark.parametrize("dtype", ID_DTYPES)
@pytest.mark.parametrize(
    ("degree", "fanout"),
    [
        *((1_500, fanout) for fanout in (511, 512, 513, 700, 750, 751, 987, 988, 1_400, 1_499, 1_500, 4_999)),
        *((5_000, fanout) for fanout in (1, 512, 513, 700, 1_400, 2_500, 4_487, 4_488, 4_999, 5_000)),
    ],
)
def test_the_picks_of_a_hub_equal_the_twin(degree, fanout, dtype):
    expect_the_twin(star(degree, dtype), [0, 1, 0], fanout=fanout, replace=False)


@pytest.mark.parametrize("degree", [1, 2, 3, 31, 32, 33, 63, 64, 65, 66, 128, 129])
def test_every_fanout_of_a_middling_degree_equals_the_twin(degree):
    graph = star(degree)
    for fanout in {*range(0, degree + 2, 1 + degree // 30), degree // 2, degree - 1, degree, degree + 1}:
        expect_the_twin(graph, [0], fanout=fanout, replace=False)


@pytest.mark.parametrize("degree", [1, 64, 65, 5_000])
@pytest.mark.parametrize("fanout", [1, 65, 513, 1_400])
def test_picks_with_replacement_equal_the_twin(degree, fanout):
    expect_the_twin(star(degree), [0, 1], fanout=fanout, replace=True)


def test_a_hop_of_many_seeds_equals_the_twin():
    graph = random_graph(500, 6_000, rng_seed=1, dtype=np.int32)
    seeds = np.random.default_rng(2).integers(0, 500, 700)
    expect_the_twin(graph, seeds, fanout=7, replace=False)
    expect_the_twin(graph, seeds, fanout=3, replace=True)


@examples(150)
@given(st.data(), csc_graphs(min_nodes=1), fanouts, rng_seeds)
def test_without_replacement_the_picks_are_ascending_in_edges_of_the_seed(data, graph, fanout, key):
    seeds = data.draw(seeds_in(graph))
    indptr, neighbors, positions = sample_hop(graph, seeds, fanout=fanout, key=key)
    assert np.array_equal(neighbors, graph.indices[positions])
    for i, v in enumerate(seeds):
        begin, end = graph.indptr[v], graph.indptr[v + 1]
        picks = positions[indptr[i] : indptr[i + 1]].tolist()
        assert picks == sorted(set(picks) & set(range(begin, end)))
        assert len(picks) == (end - begin if fanout == -1 else min(fanout, end - begin))


@examples(150)
@given(st.data(), csc_graphs(min_nodes=1), st.integers(0, 300), rng_seeds)
def test_with_replacement_a_node_with_in_edges_gets_exactly_fanout(data, graph, fanout, key):
    seeds = data.draw(seeds_in(graph))
    indptr, neighbors, positions = sample_hop(graph, seeds, fanout=fanout, replace=True, key=key)
    degrees = np.diff(graph.indptr)[seeds]
    assert np.diff(indptr).tolist() == np.where(degrees > 0, fanout, 0).tolist()
    assert np.array_equal(neighbors, graph.indices[positions])
    assert (positions >= np.repeat(graph.indptr[seeds], np.diff(indptr))).all()
    assert (positions < np.repeat(graph.indptr[seeds + 1], np.diff(indptr))).all()


@examples(50)
@given(csc_graphs(), st.booleans(), rng_seeds)
def test_fanout_minus_one_copies_the_graph_and_fanout_zero_nothing(graph, replace, key):
    everyone = np.arange(graph.num_nodes)
    indptr, neighbors, positions = sample_hop(graph, everyone, fanout=-1, replace=replace, key=key)
    assert np.array_equal(indptr, graph.indptr)
    assert np.array_equal(neighbors, graph.indices)
    assert np.array_equal(positions, np.arange(graph.num_edges))
    indptr, neighbors, positions = sample_hop(graph, everyone, fanout=0, replace=replace, key=key)
    assert indptr.tolist() == [0] * (graph.num_nodes + 1)
    assert len(neighbors) == len(positions) == 0


def test_other_keys_and_other_nodes_give_other_picks():
    graph = graph_of([list(range(40)) for _ in range(40)])
    picks = {tuple(sample_hop(graph, [0], fanout=10, key=key)[1]) for key in (0, 1, 2**32, 2**63)}
    picks |= {tuple(sample_hop(graph, [v], fanout=10, key=0)[1]) for v in range(1, 40)}
    assert len(picks) == 43


def test_no_seeds_give_empty_outputs():
    for graph in (graph_of([]), star(3)):
        indptr, neighbors, positions = sample_hop(graph, [], fanout=2)
        assert indptr.tolist() == [0]
        assert len(neighbors) == len(positions) == 0


def test_what_seeds_offsets_and_neighbors_are_refused(refuses):
    for seed in (-1, 4, 2**31, 2**63 - 1, -(2**63)):
        refuses(IndexError, sample_hop, star(3), [0, seed], fanout=2)
    for indptr in ([0, 2, 1, 3], [0, 2, 9, 9], [0, -5, 2, 3], [0, 4, 5, 5], [0, 2, 2**63 - 1, 3]):
        for fanout in (-1, 0, 1):
            refuses(ValueError, sample_hop, Graph(int64s(indptr), int64s([0, 1, 2])), [1], fanout=fanout)
    for dtype in ID_DTYPES:
        for neighbor in (-1, 3, 2**31 - 1):
            graph = Graph(int64s([0, 2, 3, 3]), np.array([0, neighbor, 2], dtype=dtype))
            refuses(ValueError, sample_hop, graph, [1, 0], fanout=-1)
            assert sample_hop(graph, [1], fanout=-1)[1].tolist() == [2]  # it is not drawn


def test_arrays_of_other_dtypes_shapes_and_layouts_are_refused():
    indptr, indices, seeds = int64s([0, 1, 2]), int64s([1, 0]), int64s([0])
    good = {"indptr": indptr, "indices": indices, "seeds": seeds, "fanout": 1, "replace": False, "key": 0}
    _core.sample_hop(**good)
    wrong = [
        ("indptr", indptr.astype(np.int32)),
        ("indptr", indptr.reshape(1, 3)),
        ("indptr", int64s()),
        ("indices", indices.astype(np.int16)),
        ("indices", indices.astype(np.float64)),
        ("indices", indices.astype(">i8")),
        ("indices", np.arange(4)[::2]),
        ("indices", indices.reshape(2, 1)),
        ("indices", [1, 0]),
        ("seeds", seeds.astype(np.int32)),
        ("seeds", np.int64(0)),
        ("seeds", seeds.reshape(1, 1)),
        ("fanout", 1.5),
        ("fanout", 2**63),
        ("key", -1),
        ("key", 2**64),
    ]
    for name, value in wrong:
        with pytest.raises((TypeError, ValueError)):
            _core.sample_hop(**good | {name: value})
