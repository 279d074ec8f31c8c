"""ItemSet.of_edges: the pairs and ids of edges, of whole graphs and parts."""

import pytest
import torch
from dist_graphs import small_parts, typed_parts
from link_chains import edges_by_id
from pipelines import small_graph
from typed_pipelines import CITES, HOSTS, WRITES, typed_graph

import datapipes as dp


def listed(graph, edge_type=None) -> dict[int, tuple[int, int]]:
    """{edge id: ends}, in the order of the graph."""
    relation = graph.relation(edge_type)
    found = {}
    for v in range(len(relation.indptr) - 1):
        for p in range(int(relation.indptr[v]), int(relation.indptr[v + 1])):
            found[p if relation.edge_ids is None else int(relation.edge_ids[p])] = (int(relation.indices[p]), v)
    return found


@pytest.mark.parametrize("with_edge_ids", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_all_edges_in_the_order_of_the_graph(dtype, with_edge_ids):
    graph = small_graph(dtype, with_edge_ids=with_edge_ids)
    items = dp.ItemSet.of_edges(graph)
    assert [*edges_by_id(items).items()] == [*listed(graph).items()]
    assert items[:][0].dtype == dtype
    minibatch = next(iter(dp.ItemSampler(items, 8)))
    assert torch.equal(minibatch.extra["edge_ids"], items[:8][1])
    assert bool((graph.has_edges(minibatch.seeds).counts > 0).all())


@pytest.mark.parametrize("with_edge_ids", [False, True])
def test_given_ids_in_their_order(with_edge_ids):
    graph = small_graph(with_edge_ids=with_edge_ids)
    ids = torch.tensor([7, 199, 0, 7], dtype=torch.int32)
    pairs, found = dp.ItemSet.of_edges(graph, edge_ids=ids)[:]
    assert found.tolist() == ids.tolist()
    assert [*map(tuple, pairs.tolist())] == [listed(graph)[int(edge)] for edge in ids]


def test_types_give_a_set_of_those_that_have_edges():
    graph = typed_graph()
    items = dp.ItemSet.of_edges(graph)
    assert items.types == tuple(of for of in graph.edge_types if of != HOSTS)
    for of in items.types:
        assert edges_by_id(items.item_sets[of]) == listed(graph, of)
    assert dp.ItemSet.of_edges(graph, "author:writes:paper").types == (WRITES,)
    some = dp.ItemSet.of_edges(graph, edge_ids={WRITES: torch.tensor([3, 1]), "paper:cites:paper": torch.tensor([5])})
    assert {of: each[:][1].tolist() for of, each in some.item_sets.items()} == {WRITES: [3, 1], CITES: [5]}
    assert dp.ItemSet.of_edges(graph, WRITES, torch.tensor([4])).item_sets[WRITES][:][1].tolist() == [4]


def test_the_parts_together_have_all_edges():
    graph = small_graph()
    found = {}
    for part in range(3):
        own = dp.ItemSet.of_edges(small_parts(3, part))
        found |= edges_by_id(own)
        ids = own[:][1][:3].flip(0)
        assert dp.ItemSet.of_edges(small_parts(3, part), edge_ids=ids)[:][1].tolist() == ids.tolist()
    assert found == listed(graph)
    typed = [dp.ItemSet.of_edges(typed_parts(2, part)).item_sets[CITES] for part in range(2)]
    assert edges_by_id(typed[0]) | edges_by_id(typed[1]) == listed(typed_graph(), CITES)


def test_what_edge_items_refuse(refuses):
    of_edges, graph, typed = dp.ItemSet.of_edges, small_graph(), typed_graph()
    for with_edge_ids in (False, True):
        for wrong in (200, -1, 2**40):
            ids = torch.tensor([3, wrong])
            refuses(IndexError, of_edges, small_graph(with_edge_ids=with_edge_ids), edge_ids=ids)
    refuses(TypeError, of_edges, 3)
    refuses(ValueError, of_edges, typed, ("author", "likes", "paper"))
    refuses(ValueError, of_edges, graph, WRITES)
    refuses(TypeError, of_edges, typed, edge_ids=torch.tensor([1]))
    refuses(ValueError, of_edges, typed, WRITES, {WRITES: torch.tensor([3]), CITES: torch.tensor([5])})
    refuses(ValueError, of_edges, typed, HOSTS)
    refuses(ValueError, of_edges, typed, WRITES, {HOSTS: torch.tensor([1])})
    refuses(ValueError, of_edges, graph, edge_ids=torch.empty(0, dtype=torch.int64))
    refuses(ValueError, of_edges, dp.CSCGraph(torch.zeros(4).long(), torch.empty(0).long()))
    refuses(ValueError, of_edges, small_parts(2, None))
    refuses(TypeError, of_edges, graph, edge_ids=torch.rand(3))
