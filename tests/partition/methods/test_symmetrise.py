"""The undirected graph that METIS gets: count_neighbors and fill_neighbors equal their twin."""

from itertools import pairwise

import all_relations
import numpy as np
import pytest
import torch
import twin
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_graph

import datapipes as dp
from datapipes import _core

widths = st.sampled_from([np.int32, np.int64])


def symmetrised(graph, dtype=np.int64) -> tuple[np.ndarray, np.ndarray]:
    total = sum(map(graph.num_nodes_of, graph.node_types))
    xadj = np.full(total + 1, 7, dtype)
    room = _core.count_neighbors(graph.topology(), xadj)
    assert xadj[-1] == room
    adjncy = np.full(room, 7, dtype)
    count = _core.fill_neighbors(graph.topology(), xadj, adjncy)
    return xadj, adjncy[:count]


def rows_of(xadj: np.ndarray, adjncy: np.ndarray) -> list[list[int]]:
    return [adjncy[begin:end].tolist() for begin, end in pairwise(xadj)]


def twin_of(graph) -> list[list[int]]:
    into = all_relations.in_edges_of(graph)
    return twin.undirected([(u, v) for v, sources in enumerate(into) for u in sources], len(into))


@given(all_relations.graphs(), widths)
def test_a_graph_is_symmetrised_as_by_the_twin(graph, dtype):
    xadj, adjncy = symmetrised(graph, dtype)
    assert rows_of(xadj, adjncy) == twin_of(graph)
    assert xadj[-1] == len(adjncy)


def test_a_larger_graph_is_symmetrised_as_by_the_twin():
    graph = all_relations.plain(random_graph(300, 4000, rng_seed=3))
    assert rows_of(*symmetrised(graph)) == twin_of(graph)


def test_the_room_that_is_asked_for_holds_each_edge_at_both_ends_but_no_self_loop():
    graph = dp.CSCGraph.from_edge_index(torch.tensor([[0, 0, 1, 2], [1, 1, 0, 2]]), 3)
    xadj = np.zeros(4, np.int64)
    assert _core.count_neighbors(graph.topology(), xadj) == 6
    assert xadj.tolist() == [0, 3, 6, 6]
    assert rows_of(*symmetrised(graph)) == [[1], [0], []]


def test_a_graph_that_grew_between_the_steps_is_refused(refuses):
    """Another process may write to the files of a mapped graph."""
    indptr, indices = torch.tensor([0, 1, 2, 3]), torch.tensor([1, 2, 0])
    graph = dp.CSCGraph(indptr, indices)
    xadj = np.zeros(4, np.int64)
    adjncy = np.zeros(_core.count_neighbors(graph.topology(), xadj), np.int64)
    indptr[1:3] = torch.tensor([2, 3])
    refuses(ValueError, _core.fill_neighbors, graph.topology(), xadj, adjncy)


def test_what_the_kernels_refuse(refuses):
    for corrupt in (graph.topology() for graph in all_relations.CORRUPT):
        refuses(ValueError, _core.count_neighbors, corrupt, np.zeros(4, np.int64))
        refuses(ValueError, _core.fill_neighbors, corrupt, np.arange(0, 40, 10), np.zeros(30, np.int64))
    refuses(ValueError, _core.count_neighbors, all_relations.corrupt_relation().topology(), np.zeros(5, np.int64))
    topology = all_relations.plain(random_graph(4, 9, rng_seed=1)).topology()
    refuses(ValueError, _core.count_neighbors, topology, np.zeros(4, np.int64))
    refuses(ValueError, _core.fill_neighbors, topology, np.zeros(6, np.int64), np.zeros(0, np.int64))
    for xadj in ([1, 1, 1, 1, 1], [0, 5, 4, 5, 6], [0, 1, 2, 3, 11], [0, 0, 0, 0, -1]):
        refuses(ValueError, _core.fill_neighbors, topology, np.array(xadj), np.zeros(10, np.int64))
    fixed = np.zeros(5, np.int64)
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="not writeable"):
        _core.count_neighbors(topology, fixed)
    with pytest.raises(TypeError):
        _core.count_neighbors(topology, np.zeros(5))


def test_a_graph_beyond_the_integers_of_metis_names_another_method(refuses, tmp_path):
    """The row of 2^30 edges is a file without content; the count refuses it before it reads an edge."""
    indices = np.memmap(tmp_path / "indices", np.int32, "w+", shape=2**30)
    graph = dp.CSCGraph(np.array([0, 0, len(indices)]), indices)
    refuses(ValueError, _core.count_neighbors, graph.topology(), np.zeros(3, np.int32))
