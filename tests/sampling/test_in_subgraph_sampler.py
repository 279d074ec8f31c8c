"""InSubgraphSampler: all in-edges of the seeds, as the twin has them and as sample_neighbor with the fanouts [-1]."""

import numpy as np
import pytest
import torch
import twin_layer
from hypothesis import assume, given
from hypothesis import strategies as st
from pipelines import assert_no_bit_changes, digests, first, items, small_graph, start_at
from strategies import csc_graphs, random_graph, typed_graphs, typed_seeds
from twin_cases import expect_the_twin, typed_graph_of, typed_set_of
from typed_pipelines import CITES, HOSTS, WRITES, typed_graph, typed_items

import datapipes as dp


def contract_chain() -> dp.Stage:
    return items().sample_in_subgraph(small_graph(), return_edge_ids=True)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    functional = typed_items().sample_in_subgraph(typed_graph(), edge_types=["paper:cites:paper", WRITES])
    return functional, dp.InSubgraphSampler(typed_items(), typed_graph(), edge_types=[CITES, WRITES])


@given(st.data(), csc_graphs(min_nodes=1))
def test_all_in_edges_of_the_seeds_are_those_of_the_twin(data, arrays):
    edge_ids = np.arange(arrays.num_edges)[::-1].copy() if data.draw(st.booleans()) else None
    graph = dp.CSCGraph(*arrays, edge_ids=edge_ids)
    ids = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=9))
    for minibatch in dp.ItemSampler(dp.ItemSet(torch.tensor(ids)), 5).sample_in_subgraph(graph, return_edge_ids=True):
        expected = twin_layer.sample_in_subgraph(*arrays, edge_ids, minibatch.seeds.tolist())
        expect_the_twin(minibatch, expected)


@given(st.data(), typed_graphs())
def test_all_in_edges_of_chosen_edge_types_are_those_of_the_twin(data, arrays):
    graph = typed_graph_of(arrays)
    seeds = {of: ids for of, ids in data.draw(typed_seeds(arrays)).items() if ids}
    assume(seeds)
    some = data.draw(st.none() | st.lists(st.sampled_from(graph.edge_types), min_size=1, unique=True))
    pipe = dp.ItemSampler(typed_set_of(seeds), 5).sample_in_subgraph(graph, edge_types=some, return_edge_ids=True)
    for minibatch in pipe:
        given_seeds = {of: ids.tolist() for of, ids in minibatch.seeds.items()}
        chosen = list(graph.edge_types) if some is None else some
        expected = twin_layer.sample_typed_in_subgraph(sorted(arrays.num_nodes), arrays.relations, given_seeds, chosen)
        expect_the_twin(minibatch, expected)


@pytest.mark.parametrize("with_edge_ids", [True, False])
def test_the_minibatches_are_those_of_sample_neighbor_with_all_in_edges(with_edge_ids):
    plain = items().sample_neighbor(small_graph(), [-1], return_edge_ids=with_edge_ids)
    assert digests(items().sample_in_subgraph(small_graph(), return_edge_ids=with_edge_ids)) == digests(plain)
    some = {WRITES: -1, HOSTS: -1}
    typed = typed_items(links=True).sample_neighbor(typed_graph(), [some], return_edge_ids=with_edge_ids)
    ours = typed_items(links=True).sample_in_subgraph(
        typed_graph(), edge_types=list(some), return_edge_ids=with_edge_ids
    )
    assert digests(ours) == digests(typed)


def test_threads_and_workers_change_no_bit():
    graph = dp.CSCGraph(*random_graph(2_000, 60_000, rng_seed=4))
    chain = dp.ItemSampler(dp.ItemSet(2_000), 1_500).sample_in_subgraph(graph)
    assert next(start_at(chain, 0)).blocks[0].indices.numel() >= 2**14  # fewer are drawn by one thread
    assert_no_bit_changes(lambda: dp.ItemSampler(dp.ItemSet(2_000), 1_500).sample_in_subgraph(graph))


def test_what_is_kept_is_told_by_the_stage():
    chosen = typed_items().sample_in_subgraph(typed_graph(), edge_types=[WRITES, CITES])
    assert (chosen.edge_types, chosen.num_hops) == ((WRITES, CITES), 1)
    assert "edge_types=[" in repr(chosen)
    assert "edge_types" not in repr(typed_items().sample_in_subgraph(typed_graph()))
    assert "fanouts" not in repr(chosen)


def test_what_an_in_subgraph_sampler_refuses(refuses):
    sample, graph = items().sample_in_subgraph, small_graph()
    for edge_types in ([("paper", "cite", "paper")], ["writes"], [], [CITES, "paper:cites:paper"]):
        refuses(ValueError, typed_items().sample_in_subgraph, typed_graph(), edge_types=edge_types)
    for edge_types in ("paper:cites:paper", 3, [3]):
        refuses(TypeError, typed_items().sample_in_subgraph, typed_graph(), edge_types=edge_types)
    refuses(TypeError, sample, graph, edge_types=[CITES])
    refuses(TypeError, sample, graph, return_edge_ids=1)
    refuses(TypeError, sample, torch.eye(3))
    refuses(TypeError, sample, graph, fanouts=[-1])
    refuses(IndexError, first, dp.ItemSampler(dp.ItemSet(41), 41).sample_in_subgraph(graph))
    typed = dp.ItemSampler(dp.HeteroItemSet({"paper": dp.ItemSet(41)}), 41)
    refuses(IndexError, first, typed.sample_in_subgraph(typed_graph()))
