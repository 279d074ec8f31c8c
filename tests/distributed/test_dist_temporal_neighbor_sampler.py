"""DistTemporalNeighborSampler: temporal samples from parts are those of the whole graph; what parts lack is refused."""

import asyncio

import pytest
import torch
from amounts import examples
from dist_graphs import dist_graph_of, new_root, small_parts
from hypothesis import given
from hypothesis import strategies as st
from partitions import books
from pipelines import assert_states_move, digests, items, refused
from timed_pipelines import EDGE_TIMES, NODE_TIMES, temporal, timed_graph, timed_items
from tree_cases import built, can_be_sampled, cases

import datapipes as dp
from datapipes.distributed import DistGraph, DistTemporalNeighborSampler
from datapipes.partition.native.choices import ByTime

BOTH = {"edge_time_attr": "at", "node_time_attr": "since"}


def timed_parts(num_parts: int = 3, local_part: int | None = 1, graph: dp.CSCGraph | None = None) -> DistGraph:
    return small_parts(num_parts, local_part, graph or timed_graph(), "since")


def over_parts(source: dp.Stage | None = None, graph: DistGraph | None = None, **arguments) -> dp.Stage:
    given = {"return_edge_ids": True, **BOTH, **arguments}
    fanouts = given.pop("fanouts", [3, 2])
    return (source or timed_items()).dist_temporal_sample_neighbor(graph or timed_parts(), fanouts, **given)


def contract_chain() -> dp.Stage:
    return over_parts()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    arguments = {"edge_time_attr": "at", "strategy": "last", "inclusive": True, "time_window": 30, "disjoint": True}
    graph = timed_parts()
    functional = timed_items().dist_temporal_sample_neighbor(graph, [3, -1], concurrency=2, **arguments)
    return functional, DistTemporalNeighborSampler(timed_items(), graph, [3, -1], concurrency=2, **arguments)


# --- the bits of the whole graph


@examples(60)
@given(st.data(), cases(temporal=True).filter(can_be_sampled))
def test_any_temporal_sample_from_any_parts_is_that_of_the_whole_graph(data, case):
    graph, start, fanouts, arguments = built(case)
    parts = dist_graph_of(
        graph, data.draw(books(graph, 4)), new_root(), node_time_attr="since" if case.node_times else None
    )
    try:
        whole = start.temporal_sample_neighbor(graph, fanouts, **arguments)
        ours = start.dist_temporal_sample_neighbor(parts, fanouts, **arguments)
        assert digests(ours) == digests(whole)
        assert ours.fingerprint() == whole.fingerprint()
    finally:
        parts.close()


@pytest.mark.parametrize("num_parts", [1, 3])
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"edge_time_attr": None},
        {"node_time_attr": None, "strategy": "last"},
        {"disjoint": True, "inclusive": True, "frontier": "new"},
        {"time_window": 9, "replace": True},
    ],
    ids=str,
)
def test_temporal_samples_are_those_of_the_whole_graph(arguments, num_parts):
    expected = digests(temporal(**arguments))
    assert digests(over_parts(graph=timed_parts(num_parts, None), **arguments)) == expected
    assert digests(over_parts(graph=timed_parts(num_parts, num_parts - 1), **arguments)) == expected


@pytest.mark.parametrize("workers", ["thread", "process"])
def test_neither_workers_nor_minibatches_in_flight_change_a_bit(workers):
    expected = digests(temporal())
    for concurrency in (1, 8):
        context = {"multiprocessing_context": "fork"} if workers == "process" else {}
        with dp.DataLoader(over_parts(concurrency=concurrency), 2, worker_method=workers, **context) as loader:
            assert digests(loader) == expected


def test_workers_that_are_spawned_get_what_the_part_has_made():
    graph = timed_parts(2, 1)
    expected = digests(temporal())
    assert digests(over_parts(graph=graph)) == expected
    assert graph.local_part.kept_bytes > 16 * graph.local_part.relation().num_edges
    with dp.DataLoader(over_parts(graph=graph), 1) as loader:
        assert digests(loader) == expected


def test_transform_and_node_sample_draw_at_the_times_of_the_seeds():
    rng, seeds, times = dp.RngKey(5, 0, 3, 1), torch.tensor([4, 9, 4]), torch.tensor([20, 40, 50])
    minibatch = dp.MiniBatch(seeds=seeds, timestamps=times, rng=rng)
    expected = temporal().transform(minibatch)
    pipe = over_parts()
    assert pipe.transform(minibatch).digest() == expected.digest()
    found = asyncio.run(pipe.node_sample(seeds, rng, timestamps=times))
    assert torch.equal(found.nodes, expected.input_nodes)
    with refused(ValueError, stage="dist_temporal_sample_neighbor", found="without timestamps", allowed="a time"):
        asyncio.run(pipe.node_sample(seeds, rng))
    with refused(ValueError, stage="dist_temporal_sample_neighbor", found="without times", allowed="needs one"):
        pipe.sample(seeds, rng)


def test_a_part_is_told_the_time_of_each_row_and_no_stream_without_trees():
    graph = timed_parts(2, None)
    next(iter(over_parts(graph=graph)))
    requests = [request for _, request in graph.peers.asked]
    assert all(request.streams is None for request in requests)
    assert {request.choice for request in requests} == {ByTime("at", "since")}
    assert all(request.times[None].shape == request.ids[None].shape for request in requests)


# --- states


def test_a_state_moves_between_the_whole_graph_and_any_parts():
    def pipes() -> list[dp.Stage]:
        return [temporal(), over_parts(), over_parts(graph=timed_parts(1, None), concurrency=1)]

    assert_states_move(pipes)


def test_every_part_is_asked_once_for_the_digests_of_its_times():
    graph = timed_parts(3, 1)
    expected = temporal().fingerprint()
    for _ in range(2):
        assert over_parts(graph=graph).fingerprint() == expected
    assert sorted(part for part, _ in graph.peers.asked) == [0, 2]


def test_a_state_of_other_times_is_refused():
    state = temporal().state_dict()
    for changed in ({"edge_attributes": {"at": EDGE_TIMES + 1}}, {"node_attributes": {"since": NODE_TIMES.flip(0)}}):
        pipe = over_parts(graph=timed_parts(graph=timed_graph(**changed)))
        with refused(ValueError, stage="temporal_sample_neighbor", found="times_digest was", allowed="is"):
            pipe.load_state_dict(state)


def test_parts_that_do_not_agree_are_refused():
    class Other:
        def __init__(self, peers):
            self.peers = peers

        def digests(self, part, request):
            asked = self.peers.digests(part, request)
            asked.result()[0] = None
            return asked

        def close(self):
            self.peers.close()

    graph = timed_parts(3, 1)
    graph.peers = Other(graph.peers)
    with refused(ValueError, stage="dist_temporal_sample_neighbor", found="have none", allowed="some parts have"):
        over_parts(graph=graph).fingerprint()


# --- what is refused


def test_a_partition_without_the_times_of_its_sources_is_refused_and_says_what_to_do():
    plain = small_parts(graph=timed_graph())
    with refused(ValueError, stage="dist_temporal", found="is none", allowed="stored", remedy="node_time_attr='since'"):
        over_parts(graph=plain)
    assert digests(over_parts(graph=plain, node_time_attr=None)) == digests(temporal(node_time_attr=None))
    other = timed_graph(node_attributes={"since": NODE_TIMES, "until": NODE_TIMES})
    with refused(ValueError, stage="dist_temporal", found="is 'since'", allowed="stored", remedy="Partition"):
        over_parts(graph=timed_parts(graph=other), node_time_attr="until")


@pytest.mark.parametrize(
    ("attributes", "arguments", "error", "found", "allowed"),
    [
        ({}, {"edge_time_attr": "when"}, ValueError, "'when'", r"\['at'\]"),
        ({}, {"node_time_attr": "when"}, ValueError, "'when'", r"\['since'\]"),
        ({"edge_attributes": {"at": EDGE_TIMES.int()}}, {}, TypeError, "int32", "int64"),
        ({"edge_attributes": {"at": EDGE_TIMES[:, None]}}, {}, ValueError, r"\[1\]", "a time for each"),
        ({"node_attributes": {"since": NODE_TIMES.double()}}, {}, TypeError, "float64", "int64"),
        ({}, {"edge_time_attr": None, "node_time_attr": None}, ValueError, "neither", "at least one"),
        ({}, {"strategy": "last", "replace": True}, ValueError, "'last'", "once each"),
        ({}, {"strategy": "first"}, ValueError, "'first'", "uniform"),
        ({}, {"time_window": -1}, ValueError, "-1", "0"),
        ({}, {"inclusive": 1}, TypeError, "got 1", "True or False"),
        ({}, {"edge_time_attr": 3}, TypeError, "got 3", "the name of"),
        ({}, {"concurrency": 0}, ValueError, "concurrency.*0", "1"),
    ],
)
def test_times_and_arguments_that_are_not_allowed_are_refused(attributes, arguments, error, found, allowed):
    graph = timed_parts(graph=timed_graph(**attributes))
    with refused(error, stage="dist_temporal_sample_neighbor", found=found, allowed=allowed):
        over_parts(graph=graph, **arguments)


def test_seeds_without_times_are_refused():
    with refused(ValueError, stage="dist_temporal_sample_neighbor", found="without timestamps", allowed="needs a time"):
        next(iter(over_parts(timed_items(None))))
    with refused(TypeError, stage="dist_temporal_sample_neighbor", found="CSCGraph", allowed="DistGraph"):
        items().dist_temporal_sample_neighbor(timed_graph(), [2], **BOTH)


@pytest.mark.parametrize(
    ("choice", "times", "error", "message"),
    [
        (ByTime("when", None), True, ValueError, "no edge attribute 'when', which is to hold times; the part has"),
        (ByTime("wide", None), True, ValueError, "must have a time for each"),
        (ByTime("short", None), True, TypeError, "must hold times of int64, got int32"),
        (ByTime(None, "until"), True, ValueError, "node_time_attr of the partition is 'since'"),
        (ByTime("at", None), False, ValueError, "only then"),
        (None, True, ValueError, "only then"),
        (ByTime("at", None, time_window=-1), True, ValueError, "window must be 0 or more"),
    ],
    ids=str,
)
def test_a_part_refuses_what_it_cannot_draw_by(choice, times, error, message):
    attributes = {"at": EDGE_TIMES, "wide": EDGE_TIMES[:, None], "short": EDGE_TIMES.int()}
    part = timed_parts(graph=timed_graph(edge_attributes=attributes)).local_part
    ids = part.node_ids()
    with pytest.raises(error, match=message):
        part.draw(ids, fanout=2, key=1, choice=choice, times=ids if times else None)
    if times and choice is not None and choice.time_window is None:
        with pytest.raises(error, match=message):
            part.digests_of("test", choice)
