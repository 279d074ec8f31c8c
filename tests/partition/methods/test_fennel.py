"""Fennel: the kernel equals its twin, no part is too heavy, and the cut is smaller than that of a random partition."""

import all_relations
import numpy as np
import pytest
import torch
import twin
from amounts import ranked
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_graph, rng_seeds

import datapipes as dp
from datapipes import _core
from datapipes.partition.methods import assign as assign_module
from datapipes.partition.methods.assign import assign
from datapipes.partition.source import Source

PASSES = 3


def kernel_of(graph, num_parts: int, key: int, weight=(1, 0, 0), training=None) -> _core.Fennel:
    masks = training or [None] * len(graph.node_types)
    of_weight = dict(zip(("base", "per_edge", "extra"), weight, strict=True))
    return _core.Fennel(graph.topology(), num_parts=num_parts, key=key, **of_weight, training=masks)


def passes_of(kernel: _core.Fennel, count: int = PASSES) -> list[list[int]]:
    """The parts after each pass; each pass is made of several calls."""
    after, before = [], None
    for _ in range(count):
        half = kernel.num_blocks // 2
        kernel.visit(0, half)
        kernel.visit(half, kernel.num_blocks - half)
        after.append(kernel.parts().tolist())
        moved = kernel.end_pass()
        assert moved == (
            len(after[-1]) if before is None else sum(a != b for a, b in zip(after[-1], before, strict=True))
        )
        before = after[-1]
    return after


weights_of_a_node = st.tuples(st.integers(1, 3), st.integers(0, 2), st.integers(0, 5))


@given(all_relations.graphs(min_nodes=1), st.integers(1, 9), rng_seeds, weights_of_a_node, st.data())
def test_the_parts_after_each_pass_are_those_of_the_twin(graph, num_parts, key, weight, data):
    masks, trained = data.draw(all_relations.training_of(graph))
    in_edges = all_relations.in_edges_of(graph)
    base, per_edge, extra = weight
    weights = [base + per_edge * len(of_node) + extra * each for of_node, each in zip(in_edges, trained, strict=True)]
    found = passes_of(kernel_of(graph, num_parts, key, weight, masks))
    assert found == twin.fennel(in_edges, weights, num_parts, key, PASSES)
    heaviest = max(np.bincount(found[-1], weights, num_parts))
    mean = sum(weights) / num_parts
    assert heaviest <= max(1.03 * mean, mean + max(weights))


@pytest.mark.parametrize(
    ("num_parts", "dtype"), ranked([(3, np.uint8), (256, np.uint16), (255, np.uint8), (700, np.uint16)], 2)
)
def test_blocks_of_several_nodes_and_many_parts_are_those_of_the_twin(num_parts, dtype):
    graph = all_relations.plain(random_graph(1100, 4000, rng_seed=1))
    kernel = kernel_of(graph, num_parts, key=5)
    assert kernel.num_blocks == 275
    found = passes_of(kernel, 2)
    assert found == twin.fennel(all_relations.in_edges_of(graph), [1] * 1100, num_parts, 5, 2)
    assert kernel.parts().dtype == dtype


def test_a_lead_of_votes_stops_at_65535():
    graph = all_relations.plain(random_graph(4, 0, rng_seed=1))
    edges = torch.tensor([[0] * 70_000 + [0, 3], [1] * 70_000 + [2, 1]])
    graph = dp.CSCGraph.from_edge_index(edges, 4)
    for key in range(4):
        assert passes_of(kernel_of(graph, 2, key)) == twin.fennel(
            all_relations.in_edges_of(graph), [1] * 4, 2, key, PASSES
        )


def test_what_the_kernel_refuses(refuses):
    for corrupt in all_relations.CORRUPT:
        kernel = kernel_of(corrupt, 2, key=0)
        refuses(ValueError, kernel.visit, 0, kernel.num_blocks)
    graph = all_relations.plain(random_graph(5, 9, rng_seed=1))
    for num_parts in (0, -1, 2**16):
        refuses(ValueError, kernel_of, graph, num_parts, key=0)
    refuses(ValueError, kernel_of, graph, 2, key=0, training=[np.zeros(4, np.uint8)])
    refuses(ValueError, kernel_of, graph, 2, key=0, training=[None, None])
    refuses(TypeError, kernel_of, graph, 2, key=0, training=[np.zeros(5, bool)])
    refuses(IndexError, kernel_of(graph, 2, key=0).visit, 0, 6)
    refuses(ValueError, kernel_of(graph, 2, key=0).visit, 0, -1)


# --- the method


def assigned(graph, num_parts: int, rng_seed: int = 0, training=None) -> np.ndarray:
    source = Source(graph, training or {}, graph.node_types, graph.edge_types)
    book = assign(source, num_parts, method="fennel", recursive=False, rng_seed=rng_seed, progress=lambda *_: None)
    return book.nodes().dense().numpy()


def cut(graph: dp.CSCGraph, parts: np.ndarray) -> float:
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))
    return float((parts[graph.indices.numpy()] != parts[destinations]).mean())


def communities(count: int, size: int, directed: bool, rng_seed: int = 0) -> dp.CSCGraph:
    """Groups of nodes in random order, with 20 edges a node, of which one in 20 leads out of its group."""
    rng = np.random.default_rng(rng_seed)
    number = rng.permutation(count * size)
    sources = np.repeat(np.arange(count * size), 20)
    inside = sources // size * size + rng.integers(0, size, len(sources))
    ends = np.where(rng.random(len(sources)) < 0.95, inside, rng.integers(0, count * size, len(sources)))
    edges = number[np.stack((sources, ends))]
    return dp.CSCGraph.from_edge_index(edges if directed else np.concatenate((edges, edges[::-1]), 1), count * size)


@pytest.mark.parametrize("directed", [False, True])
def test_communities_stay_together(directed):
    graph = communities(8, 100, directed)
    assert cut(graph, assigned(graph, 4)) < 0.3  # random: 0.75


def test_a_bipartite_graph_without_reverse_edges_is_cut_as_if_it_had_them():
    """Authors have no in-edges: what they are pulled by are the votes of their papers."""
    rng = np.random.default_rng(0)
    number = {"author": rng.permutation(400), "paper": rng.permutation(400)}
    authors = np.repeat(np.arange(400), 10)
    papers = authors // 100 * 100 + rng.integers(0, 100, len(authors))  # of the author's group
    ends = np.stack((number["author"][authors], number["paper"][papers]))
    graph = dp.HeteroCSCGraph.from_edge_index({("author", "writes", "paper"): ends}, {"author": 400, "paper": 400})
    source = Source(graph, {}, graph.node_types, graph.edge_types)
    book = assign(source, 4, method="fennel", recursive=False, rng_seed=0, progress=lambda *_: None)
    parts = [book.nodes(kind).dense().numpy()[ids] for kind, ids in zip(("author", "paper"), ends, strict=True)]
    assert (parts[0] != parts[1]).mean() < 0.3


def test_nodes_training_nodes_and_edges_are_even():
    graph = communities(8, 250, directed=False)
    training = torch.arange(2000) < 200
    parts = assigned(graph, 4, training={None: training})
    for weights in (np.ones(2000), training.numpy(), np.diff(graph.indptr.numpy())):
        assert np.bincount(parts, weights).max() <= 1.11 * weights.sum() / 4


def test_the_seed_alone_chooses_the_parts():
    graph = all_relations.undirected_random(500, 3000, rng_seed=1)
    first, again, other = (assigned(graph, 3, rng_seed) for rng_seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_a_mapped_graph_gives_the_same_parts(tmp_path):
    graph = all_relations.undirected_random(2000, 5000, rng_seed=1)
    graph.save(tmp_path)
    assert (assigned(dp.CSCGraph.open(tmp_path), 3) == assigned(graph, 3)).all()


def test_more_parts_than_communities_leave_no_part_empty():
    graph = all_relations.plain(random_graph(12, 0, rng_seed=1))
    for num_parts in (11, 12):
        assert set(assigned(graph, num_parts)) == set(range(num_parts))
    assert set(assigned(all_relations.undirected_random(300, 300, 1), 299)) == set(range(299))


def test_the_parts_do_not_depend_on_how_many_blocks_are_visited_at_once(monkeypatch):
    graph = all_relations.undirected_random(500, 3000, rng_seed=1)
    whole = assigned(graph, 3)
    monkeypatch.setattr(assign_module, "BLOCKS_AT_ONCE", 7)
    assert (assigned(graph, 3) == whole).all()
