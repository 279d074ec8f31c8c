"""has_edges: which pairs are edges, as a plain search finds them; over whole graphs, hubs, and parts."""

import pytest
import torch
from dist_graphs import in_parts, typed_parts
from hypothesis import given
from hypothesis import strategies as st
from pipelines import graph_of, small_graph
from strategies import csc_graphs, star
from typed_pipelines import NUM_NODES, WRITES, typed_graph

import datapipes as dp
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.graph.graph import FoundEdges


def searched(indptr, indices, edge_ids, pairs) -> tuple[list[int], list[int]]:
    counts, firsts = [], []
    for u, v in pairs:
        found = [p for p in range(int(indptr[v]), int(indptr[v + 1])) if int(indices[p]) == u]
        counts.append(len(found))
        firsts.append(-1 if not found else found[0] if edge_ids is None else int(edge_ids[found[0]]))
    return counts, firsts


def as_lists(found: FoundEdges) -> tuple[list[int], list[int]]:
    assert [each.dtype for each in found] == [torch.int64] * 2
    return found.counts.tolist(), found.first_ids.tolist()


@given(st.data(), csc_graphs(min_nodes=1))
def test_pairs_are_found_as_by_a_plain_search(data, arrays):
    ids = torch.randperm(arrays.num_edges) if data.draw(st.booleans()) else None
    graph = dp.CSCGraph(*arrays, edge_ids=ids)
    node = st.integers(0, arrays.num_nodes - 1)
    pairs = data.draw(st.lists(st.tuples(node, node), max_size=40))
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    found = graph.has_edges(torch.tensor(pairs, dtype=dtype).reshape(-1, 2))
    assert as_lists(found) == searched(*arrays, ids, pairs)


@pytest.mark.parametrize("degree", [255, 256, 257, 3_000])
def test_hubs_are_read_once_for_many_pairs(degree):
    indptr, indices = star(degree)
    indices[-1] = indices[3]  # a parallel edge
    graph = dp.CSCGraph(indptr, indices)
    pairs = [(u, 0) for u in (4, 1, 4, degree, 2, 0)] + [(3, 1), (2, 0)]
    assert as_lists(graph.has_edges(torch.tensor(pairs))) == searched(indptr, indices, None, pairs)


def test_an_edge_type_is_looked_into_alone():
    graph, parts = typed_graph(), typed_parts(3, 1)
    pairs = torch.cartesian_prod(torch.arange(NUM_NODES["author"]), torch.arange(NUM_NODES["paper"]))
    relation = graph.relation(WRITES)
    expected = searched(relation.indptr, relation.indices, relation.edge_ids, pairs.tolist())
    assert as_lists(graph.has_edges(pairs, WRITES)) == expected
    assert as_lists(graph.has_edges(pairs, "author:writes:paper")) == expected
    assert as_lists(parts.has_edges(pairs, WRITES)) == expected


@pytest.mark.parametrize("num_parts", [1, 2, 4])
@pytest.mark.parametrize("local_part", [None, 0])
def test_parts_find_what_the_whole_graph_does(num_parts, local_part):
    graph = small_graph()
    parts = in_parts(graph, torch.arange(40) * 7 % 11 % num_parts, num_parts, local_part)
    for pairs in (torch.cartesian_prod(torch.arange(40), torch.arange(40)), torch.empty(0, 2, dtype=torch.int64)):
        assert as_lists(parts.has_edges(pairs)) == as_lists(graph.has_edges(pairs))


def test_a_graph_without_edges_has_none():
    graph = graph_of([[], [], []], edge_ids=torch.empty(0, dtype=torch.int64))
    assert as_lists(graph.has_edges(torch.tensor([[0, 1], [2, 2]]))) == ([0, 0], [-1, -1])


@pytest.mark.parametrize("num_parts", [0, 2])
def test_a_node_outside_the_graph(refuses, num_parts):
    graph = in_parts(small_graph(), torch.arange(40) % 2, 2) if num_parts else small_graph()
    for pair in ([40, 0], [0, 40], [-1, 0], [0, -1], [2**40, 0]):
        refuses(IndexError, graph.has_edges, torch.tensor([[1, 2], pair]))


def test_what_has_edges_refuses(refuses):
    graph, pair = small_graph(), torch.zeros(1, 2).long()
    for pairs in (torch.arange(4), torch.ones(2, 3).long(), [[0, 1]], torch.arange(4).reshape(2, 2, 1)):
        refuses(ValueError, graph.has_edges, pairs)
    refuses(TypeError, graph.has_edges, torch.rand(3, 2))
    refuses(ValueError, typed_graph().has_edges, pair, ("author", "likes", "paper"))
    refuses(ValueError, graph.has_edges, pair, WRITES)
    corrupt = dp.CSCGraph(torch.tensor([0, 2, 4]), torch.tensor([0, 1, 0, 1]))
    corrupt.indptr[1] = 9
    refuses(ValueError, corrupt.has_edges, pair)


def test_a_part_answers_for_its_own_nodes_alone(refuses):
    part = in_parts(small_graph(), torch.arange(40) % 2, 2).peers.parts[0]
    ids = torch.tensor([2, 4], dtype=torch.int32)
    assert EdgesRequest(None, ids, ids).answered_by(part).counts.shape == (2,)
    refuses(IndexError, EdgesRequest(None, ids + 1, ids).answered_by, part)
    refuses(IndexError, EdgesRequest(None, ids, ids + 40).answered_by, part)
    refuses(ValueError, EdgesRequest(WRITES, ids, ids).answered_by, part)
