"""Trees over a graph in parts: the minibatches of one machine, whatever the parts; docs/semantics.md, section 4.5."""

import pytest
import torch
from amounts import examples
from dist_graphs import dist_graph_of, new_root, small_parts, typed_parts
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, graphs
from pipelines import digests, items, refused, small_graph
from test_dist_neighbor_sampler import fanouts_of, some_seeds
from tree_cases import built, can_be_sampled, cases
from typed_pipelines import FANOUTS, typed_graph, typed_items

import datapipes as dp

TREES = {"disjoint": True, "return_edge_ids": True}


@examples(30)
@given(st.data(), st.integers(0, 2**64 - 1))
def test_trees_in_any_parts_are_those_of_the_whole_graph(data, seed):
    graph = data.draw(graphs().filter(lambda made: made.edge_types and any(map(made.num_nodes_of, made.node_types))))
    fanouts = data.draw(fanouts_of(graph))
    start = dp.ItemSampler(some_seeds(data.draw, graph), 4, shuffle=True, seed=seed)
    options = {
        "disjoint": True,
        "replace": data.draw(st.booleans()),
        "frontier": data.draw(st.sampled_from(["all", "new"])),
        "return_edge_ids": data.draw(st.booleans()),
    }
    parts = dist_graph_of(graph, data.draw(books(graph, 5)), new_root())
    try:
        expected = digests(start.sample_neighbor(graph, fanouts, **options))
        assert digests(start.dist_sample_neighbor(parts, fanouts, **options)) == expected
    finally:
        parts.close()


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("links", [False, True])
def test_trees_of_nodes_and_links_with_types_are_those_of_the_whole_graph(links, dtype, num_parts):
    graph = typed_graph(dtype)
    expected = digests(typed_items(links=links).sample_neighbor(graph, FANOUTS, **TREES))
    parts = typed_parts(num_parts, None, graph)
    assert digests(typed_items(links=links).dist_sample_neighbor(parts, FANOUTS, **TREES)) == expected


@examples(30)
@given(st.data(), cases(temporal=False).filter(can_be_sampled))
def test_trees_by_weights_in_any_parts_are_those_of_the_whole_graph(data, case):
    graph, start, fanouts, arguments = built(case)
    parts = dist_graph_of(graph, data.draw(books(graph, 4)), new_root())
    try:
        expected = digests(start.sample_neighbor(graph, fanouts, **arguments))
        assert digests(start.dist_sample_neighbor(parts, fanouts, **arguments)) == expected
    finally:
        parts.close()


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_neither_workers_nor_minibatches_in_flight_change_a_bit(workers):
    expected = digests(items().sample_neighbor(small_graph(), [3, -1, 2], **TREES))
    for concurrency in (1, 8):
        pipe = items().dist_sample_neighbor(small_parts(), [3, -1, 2], concurrency=concurrency, **TREES)
        context = {"multiprocessing_context": "fork"} if workers == "process" else {}
        with dp.DataLoader(pipe, 2, worker_method=workers, **context) as loader:
            assert digests(loader) == expected


def test_transform_by_hand_gives_trees_and_their_rows():
    pairs = torch.tensor([[3, 3], [7, 3]])
    minibatch = dp.MiniBatch(seeds=pairs, rng=dp.RngKey(5, 0, 3, 1))
    found = items().dist_sample_neighbor(small_parts(), [3, 2], **TREES).transform(minibatch)
    expected = items().sample_neighbor(small_graph(), [3, 2], **TREES).transform(minibatch)
    assert found.digest() == expected.digest()
    assert found.batch[found.compacted_seeds].tolist() == [[0, 0], [1, 1]]


def test_a_part_is_told_the_stream_of_each_row_and_of_plain_draws_none():
    graph, seeds = small_parts(2, None), torch.tensor([4, 6, 4])
    start = dp.ItemSampler(dp.ItemSet(seeds), 3)
    next(iter(start.dist_sample_neighbor(graph, [2], disjoint=True)))
    told = {
        (node, stream)
        for _, request in graph.peers.asked
        for node, stream in zip(request.ids[None].tolist(), request.streams[None].tolist(), strict=True)
    }
    assert told == {(4, 0), (6, 1), (4, 2)}
    graph.peers.asked.clear()
    next(iter(start.dist_sample_neighbor(graph, [2])))
    assert [request.streams for _, request in graph.peers.asked] == [None] * len(graph.peers.asked)


def test_a_state_of_trees_moves_and_one_without_is_refused():
    whole = items().sample_neighbor(small_graph(), [2, 3], **TREES)
    parts = items().dist_sample_neighbor(small_parts(), [2, 3], **TREES)
    running = iter(whole)
    next(running), next(running)
    parts.load_state_dict(whole.state_dict())
    assert digests(parts) == [minibatch.digest() for minibatch in running]
    plain = items().sample_neighbor(small_graph(), [2, 3], return_edge_ids=True).state_dict()
    with refused(ValueError, stage="sample_neighbor", found="disjoint", allowed="."):
        parts.load_state_dict(plain)


def test_disjoint_is_true_or_false():
    with refused(TypeError, stage="dist_sample_neighbor", found="disjoint.*got 1", allowed="True or False"):
        items().dist_sample_neighbor(small_parts(), [2], disjoint=1)
