"""The samplers over parts, a row for each: minibatches, fingerprints and states of the whole graph; what is refused.

docs/semantics.md, section 4.3. What one part is asked stands in test_hop_requests.py.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from amounts import examples
from dist_graphs import ChangedPeers, dist_graph_of, new_root, small_parts, typed_parts
from hypothesis import given
from hypothesis import strategies as st
from partitions import books, fanouts_of, graphs, item_sets_of
from pipelines import assert_states_move, digests, items, small_graph
from strategies import csc_graphs, random_graph, rng_seeds
from timed_pipelines import (
    EDGE_TIMES,
    NODE_TIMES,
    temporal,
    timed_graph,
    timed_graph_with_weights,
    timed_items,
    windowed_items,
)
from tree_cases import built, can_be_sampled, cases
from typed_pipelines import CITES, FANOUTS, WRITES, typed_items
from weights import weighted_graph, weighted_typed_graph, weights_for

import datapipes as dp
from datapipes import distributed
from datapipes.chain.functional import functional_name, registered_stages
from datapipes.distributed import DistGraph
from datapipes.graph.graph import Graph
from datapipes.sampling.choice_sampler import CONCURRENCY, ChoiceSampler
from datapipes.sampling.layer_neighbor_sampler import Numbered
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.temporal_neighbor_sampler import ByTime


class Row(NamedTuple):
    """A sampler with options, over the small graph, whole and in parts."""

    name: str
    fanouts: list[Any]
    options: dict[str, Any]
    other: dict[str, Any]  # a change of the options that a state refuses
    cls: str
    source: Callable[[], dp.Stage] = items
    graph: Callable[[], dp.CSCGraph] = small_graph
    node_time_attr: str | None = None

    def parts(self, num_parts: int = 3, local_part: int | None = 1) -> DistGraph:
        return small_parts(num_parts, local_part, self.graph(), self.node_time_attr)

    def over(self, graph: Graph, *, dist: bool = False, **changes) -> dp.Stage:
        name = f"dist_{self.name}" if dist else self.name
        return getattr(self.source(), name)(graph, *self.fanouts, **{**self.options, **changes})


BOTH = {"edge_time_attr": "at", "node_time_attr": "since"}
LAYERS = {"layer_dependency": True, "batch_dependency": 3}
ROWS = {
    "neighbor": Row("sample_neighbor", [[3, 2]], {}, {"frontier": "new"}, "DistNeighborSampler"),
    "trees": Row("sample_neighbor", [[3, -1, 2]], {"disjoint": True}, {"disjoint": False}, "DistNeighborSampler"),
    "weights": Row(
        "sample_neighbor",
        [[3, 2]],
        {"prob_name": "w"},
        {"prob_name": None},
        "DistNeighborSampler",
        graph=weighted_graph,
    ),
    "layers": Row("sample_layer_neighbor", [[3, 2]], LAYERS, {"batch_dependency": 4}, "DistLayerNeighborSampler"),
    "layers by weight": Row(
        "sample_layer_neighbor",
        [[3, 2]],
        {**LAYERS, "prob_name": "w"},
        {"prob_name": None},
        "DistLayerNeighborSampler",
        graph=weighted_graph,
    ),
    "times": Row(
        "temporal_sample_neighbor",
        [[3, 2]],
        BOTH,
        {"strategy": "last"},
        "DistTemporalNeighborSampler",
        timed_items,
        timed_graph,
        "since",
    ),
    "times and weights": Row(
        "temporal_sample_neighbor",
        [[3, 2]],
        {**BOTH, "prob_name": "w", "time_window": 40},
        {"prob_name": None},
        "DistTemporalNeighborSampler",
        timed_items,
        timed_graph_with_weights,
        "since",
    ),
    "times and windows": Row(
        "temporal_sample_neighbor",
        [[3, 2]],
        {**BOTH, "time_window": "recent"},
        {"time_window": 12},
        "DistTemporalNeighborSampler",
        windowed_items,
        timed_graph,
        "since",
    ),
    "subgraph": Row("sample_in_subgraph", [], {}, {"return_edge_ids": True}, "DistInSubgraphSampler"),
}
FIRST = {f"dist_{row.name}": row for row in reversed(ROWS.values())}  # of each stage the first row
OPTIONS_OF_FORMS = {
    "dist_sample_neighbor": {"replace": True, "frontier": "new"},
    "dist_sample_layer_neighbor": {"batch_dependency": 2, "frontier": "new"},
    "dist_temporal_sample_neighbor": {"strategy": "last", "inclusive": True, "time_window": 30, "disjoint": True},
    "dist_sample_in_subgraph": {"return_edge_ids": True},
}


SAMPLERS = [  # of hops; whole subgraphs have one name, over parts too
    cls
    for cls in registered_stages().values()
    if issubclass(cls, ChoiceSampler) and cls.__module__.startswith("datapipes.sampling.")
    if cls not in (dp.InducedSubgraphSampler, dp.ShadowSampler)
]


@pytest.mark.parametrize("cls", SAMPLERS, ids=lambda cls: cls.__name__)
def test_each_sampler_has_a_name_over_parts_with_its_options(cls):
    dist = getattr(distributed, f"Dist{cls.__name__}")
    assert registered_stages()[f"dist_{functional_name(cls)}"] is dist
    plain, ours = ({**inspect.signature(kind).parameters} for kind in (cls, dist))
    options = [name for name in plain if name not in ("source", "graph", "concurrency")]
    assert (ours.pop("dist_graph").annotation, ours.pop("concurrency").default) == (DistGraph, CONCURRENCY)
    assert ours == {name: plain[name] for name in ("source", *options)}
    said = " ".join(inspect.getdoc(dist).split())
    assert f" {', '.join([*options, 'concurrency'])}: as for {functional_name(cls)}." in said


def contract_chain(name: str) -> dp.Stage:
    row = FIRST[name]
    return row.over(row.parts(), dist=True, return_edge_ids=True)


def contract_forms(name: str) -> tuple[dp.Stage, dp.Stage]:
    row = FIRST[name]
    parts, options = row.parts(), {**row.options, **OPTIONS_OF_FORMS[name], "concurrency": 2}
    constructed = getattr(distributed, row.cls)(row.source(), parts, *row.fanouts, **options)
    return row.over(parts, dist=True, **options), constructed


of_each_row = pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)


# --- the bits of the whole graph


@of_each_row
@pytest.mark.parametrize("dist", [False, True], ids=["its name", "its name over parts"])
@pytest.mark.parametrize(("num_parts", "local_part"), [(3, 1), (1, None)])
def test_minibatches_and_fingerprints_are_those_of_the_whole_graph(row, dist, num_parts, local_part):
    for edge_ids in (True, False):
        whole = row.over(row.graph(), return_edge_ids=edge_ids)
        ours = row.over(row.parts(num_parts, local_part), dist=dist, return_edge_ids=edge_ids)
        assert digests(ours) == digests(whole)
        assert ours.fingerprint() == whole.fingerprint()
        assert ours._state_name == whole._state_name
        assert (ours.asynchronous, whole.asynchronous) == (True, False)


@of_each_row
@pytest.mark.parametrize("workers", ["thread", "process"])
def test_neither_workers_nor_minibatches_in_flight_change_a_bit(row, workers):
    expected = digests(row.over(row.graph()))
    for concurrency in (1, 8):
        pipe = row.over(row.parts(), dist=concurrency == 1, concurrency=concurrency)
        context = {"multiprocessing_context": "fork"} if workers == "process" else {}
        with dp.DataLoader(pipe, 2, worker_method=workers, **context) as loader:
            assert digests(loader) == expected


@pytest.mark.parametrize("row", [ROWS["times"], ROWS["weights"]], ids=["times", "weights"])
def test_workers_that_are_started_get_what_the_part_in_this_process_has_made(row):
    graph = row.parts(2, 1)
    pipe = row.over(graph)
    assert graph.peers.asked == []  # made when the stage is built
    assert graph.local_part.kept_bytes >= 8 * graph.local_part.relation().num_edges
    with dp.DataLoader(pipe, 1) as loader:
        assert digests(loader) == digests(row.over(row.graph()))


@of_each_row
def test_a_minibatch_by_hand_is_drawn_as_in_the_chain(row):
    pipe = row.over(row.parts())
    expected = digests(pipe)
    pipe.set_epoch(0)
    pipe.source.set_epoch(0)
    for minibatch, digest in zip(pipe.source, expected, strict=True):
        assert pipe.transform(minibatch).digest() == asyncio.run(pipe.transform_async(minibatch)).digest() == digest


# --- states


@of_each_row
def test_a_state_moves_between_the_whole_graph_and_any_parts(row, refuses):
    def pipes() -> list[dp.Stage]:
        return [
            row.over(row.graph()),
            row.over(row.parts(3), dist=True),
            row.over(row.parts(2, None), concurrency=1),
        ]

    assert_states_move(pipes)
    refuses(ValueError, row.over(row.parts(), **row.other).load_state_dict, pipes()[0].state_dict())
    expected = digests(pipes()[0])
    for saved in pipes():
        running = iter(saved)
        next(running), next(running)
        with dp.DataLoader(pipes()[1], 2, worker_method="thread") as loader:
            loader.load_state_dict(saved.state_dict())
            assert digests(loader) == expected[2:]


# --- what is refused


@of_each_row
def test_a_whole_graph_has_no_concurrency_and_is_no_dist_graph(row, refuses):
    refuses(ValueError, row.over, row.graph(), concurrency=4)
    refuses(TypeError, row.over, row.graph(), dist=True)
    refuses(TypeError, row.over, torch.eye(3), dist=True)


def test_a_sampler_with_a_draw_or_sample_method_of_its_own_needs_a_whole_graph(refuses):
    class Draws(dp.stages.Sampler):
        def draw(self, nodes, hop, rng):
            raise AssertionError("is not called")

    class Samples(dp.stages.Sampler):
        def sample(self, seeds, rng):
            raise AssertionError("is not called")

    refuses(TypeError, Draws, items(), small_parts(), [2])
    refuses(TypeError, Samples, items(), small_parts(), [2])


class Overriding(dp.NeighborSampler):
    def sample(self, seeds, rng):
        return super().sample(seeds, rng)


class Awaited(Overriding):
    concurrency = 3

    async def transform_async(self, minibatch):
        return self.transform(minibatch)


def test_a_subclass_without_an_awaitable_form_has_no_concurrency_and_one_with_it_keeps_its_own(refuses):
    refuses(ValueError, Overriding, items(), small_parts(), [2], concurrency=4)
    assert Overriding(items(), small_parts(), [2]).concurrency == 1
    assert "concurrency" in repr(contract_chain("dist_sample_neighbor"))
    expected = digests(items().sample_neighbor(small_graph(), [3, 2]))
    for graph in (small_graph(), small_parts()):
        pipe = Awaited(items(), graph, [3, 2])
        assert (pipe.asynchronous, pipe.concurrency) == (True, 3)
        assert digests(pipe) == expected


class Around(dp.NeighborSampler):
    async def transform_async(self, minibatch):
        return await super().transform_async(minibatch)


class Three(dp.NeighborSampler):
    concurrency = 3


def test_a_subclass_may_await_what_it_overrides_over_any_graph_and_its_class_may_say_the_concurrency():
    expected = digests(items().sample_neighbor(small_graph(), [3, 2]))
    for graph in (small_graph(), small_parts()):
        assert digests(Around(items(), graph, [3, 2], concurrency=4)) == expected
    assert (Three(items(), small_parts(), [2]).concurrency, Three(items(), small_graph(), [2]).concurrency) == (3, 1)


@pytest.mark.parametrize("is_whole", [True, False], ids=["whole", "parts"])
def test_hops_refuse_what_does_not_belong_together(is_whole, refuses):
    plain = small_graph()
    attributes = {name: torch.ones(plain.num_edges, dtype=torch.int64) for name in ("weight", "time")}
    attributes["weight"] = attributes["weight"].float()
    whole = dp.CSCGraph(plain.indptr, plain.indices, edge_attributes=attributes)
    graph, rng = whole if is_whole else small_parts(graph=whole), dp.stages.RngKey(1, 0, 0, 1)
    stage, other = dp.NeighborSampler(items(), graph, [2]), dp.NeighborSampler(items(), small_parts(), [2])
    weighted = dp.NeighborSampler(items(), graph, [2], prob_name="weight")
    timed = dp.TemporalNeighborSampler(items(), graph, [2], edge_time_attr="time")
    ids = torch.arange(3)
    refuses(ValueError, graph.hops, other.plan, ids, *other.plan.keyed(rng))
    refuses(ValueError, graph.hops, weighted.plan, ids, *stage.plan.keyed(rng))
    refuses(ValueError, graph.hops, timed.plan, ids, *timed.plan.keyed(rng))
    refuses(TypeError, graph.hops, stage.plan, ids + 0.5, *stage.plan.keyed(rng))
    refuses(ValueError, graph.hops, stage.plan, {"paper": ids}, *stage.plan.keyed(rng))


@pytest.mark.parametrize("method", ["sample", "transform"])
def test_a_method_that_a_subclass_overrides_is_called_over_parts(method):
    class Noting(dp.NeighborSampler):
        def sample(self, seeds, rng):
            noted.append("sample")
            return super().sample(seeds, rng)

    class NotingMinibatches(dp.NeighborSampler):
        def transform(self, minibatch):
            noted.append("transform")
            return super().transform(minibatch)

    noted: list[str] = []
    cls = Noting if method == "sample" else NotingMinibatches
    pipe = cls(items(), small_parts(), [3, 2])
    assert not pipe.asynchronous
    assert digests(pipe) == digests(items().sample_neighbor(small_graph(), [3, 2]))
    assert noted == [method] * len(pipe)


def test_a_sample_method_that_a_subclass_overrides_is_called_by_a_loop_of_ones_own():
    class Noting(distributed.DistNeighborSampler):
        def sample(self, seeds, rng):
            noted.append(seeds.tolist())
            return super().sample(seeds, rng)

    noted: list[list[int]] = []
    pipe, plain = Noting(items(), small_parts(), [3, 2]), items().dist_sample_neighbor(small_parts(), [3, 2])
    rng, seeds = dp.stages.RngKey(5, 0, 3, 1), torch.tensor([4, 9])
    assert torch.equal(
        asyncio.run(pipe.node_sample(seeds, rng)).nodes, asyncio.run(plain.node_sample(seeds, rng)).nodes
    )
    pairs = torch.tensor([[4, 9]])
    assert torch.equal(
        asyncio.run(pipe.edge_sample(pairs, rng)).nodes, asyncio.run(plain.edge_sample(pairs, rng)).nodes
    )
    assert noted == [[4, 9], [4, 9]]


@pytest.mark.parametrize("dist", [False, True])
def test_what_the_samplers_refuse(dist, refuses):
    for error, name, change in (
        (ValueError, "neighbor", {"concurrency": 0}),
        (TypeError, "neighbor", {"concurrency": True}),
        (ValueError, "neighbor", {"frontier": "old"}),
        (TypeError, "neighbor", {"replace": 1}),
        (TypeError, "neighbor", {"disjoint": 1}),
        (ValueError, "layers", {"batch_dependency": 0}),
        (ValueError, "layers", {"batch_dependency": 2**31}),
        (TypeError, "layers", {"layer_dependency": 1}),
        (ValueError, "layers", {"frontier": "old"}),
        (TypeError, "subgraph", {"return_edge_ids": 1}),
        (ValueError, "times", {"edge_time_attr": None, "node_time_attr": None}),
        (ValueError, "times", {"strategy": "last", "replace": True}),
        (ValueError, "times", {"strategy": "first"}),
        (ValueError, "times and weights", {"strategy": "last"}),
        (ValueError, "times and weights", {"prob_name": "rows"}),
        (ValueError, "times", {"time_window": -1}),
        (TypeError, "times", {"inclusive": 1}),
        (TypeError, "times", {"edge_time_attr": 3}),
        (ValueError, "times", {"edge_time_attr": "when"}),
        (ValueError, "times", {"node_time_attr": "when"}),
        (ValueError, "weights", {"prob_name": "v"}),
        (TypeError, "weights", {"prob_name": 3}),
        (ValueError, "weights", {"prob_name": "rows"}),
    ):
        refuses(error, ROWS[name].over, ROWS[name].parts(), dist=dist, **change)
    for fanouts in ([-2], [[2]], "2"):
        refuses(Exception, ROWS["neighbor"]._replace(fanouts=[fanouts]).over, small_parts(), dist=dist)
    for edge_types in ([], [("paper", "cite", "paper")]):
        subgraph = ROWS["subgraph"]._replace(source=typed_items)
        refuses(ValueError, subgraph.over, typed_parts(), dist=dist, edge_types=edge_types)


# --- any graph in any parts, and types


def expect_the_whole_graphs(data, graph: Graph, start: dp.Stage, name: str, fanouts: list, options: dict, **written):
    """Compare minibatches and fingerprint of a sampler over any parts with those over the whole graph."""
    book = data.draw(books(graph, 5))
    local_part = data.draw(st.none() | st.integers(0, book.num_parts - 1))
    parts = dist_graph_of(graph, book, new_root(), local_part, **written)
    with contextlib.closing(parts):
        whole = getattr(start, name)(graph, fanouts, **options)
        ours = getattr(start, f"dist_{name}")(parts, fanouts, **options)
        assert digests(ours) == digests(whole)
        assert ours.fingerprint() == whole.fingerprint()


@examples(70)
@given(st.data(), rng_seeds)
def test_any_graph_in_any_parts_gives_the_minibatches_and_trees_of_the_whole_one(data, rng_seed):
    graph = data.draw(graphs().filter(lambda made: made.edge_types and any(map(made.num_nodes_of, made.node_types))))
    fanouts = data.draw(fanouts_of(graph))
    start = dp.ItemSampler(data.draw(item_sets_of(graph)), 4, shuffle=True, seed=rng_seed)
    options = {
        "disjoint": data.draw(st.booleans()),
        "replace": data.draw(st.booleans()),
        "frontier": data.draw(st.sampled_from(["all", "new"])),
        "return_edge_ids": data.draw(st.booleans()),
    }
    expect_the_whole_graphs(data, graph, start, "sample_neighbor", fanouts, options)


@examples(30)
@given(st.data(), cases(temporal=False).filter(can_be_sampled))
def test_trees_by_weights_in_any_parts_are_those_of_the_whole_graph(data, case):
    expect_the_whole_graphs(data, *built_for("sample_neighbor", case))


@examples(60)
@given(st.data(), cases(temporal=True).filter(can_be_sampled))
def test_any_temporal_sample_from_any_parts_is_that_of_the_whole_graph(data, case):
    arguments = built_for("temporal_sample_neighbor", case)
    expect_the_whole_graphs(data, *arguments, node_time_attr="since" if case.node_times else None)


def built_for(name: str, case) -> tuple:
    graph, start, fanouts, options = built(case)
    return graph, start, name, fanouts, options


FRONTIER = st.sampled_from(["all", "new"])
WEIGHTED = {"prob_name": "w", "return_edge_ids": True}
ANY_OPTIONS = {
    "sample_neighbor": {
        "prob_name": st.just("w"),
        "return_edge_ids": st.just(True),
        "replace": st.booleans(),
        "frontier": FRONTIER,
        "disjoint": st.booleans(),
    },
    "sample_layer_neighbor": {
        "layer_dependency": st.booleans(),
        "batch_dependency": st.sampled_from([1, 2, 5, 2**31 - 1]),
        "prob_name": st.sampled_from([None, "w"]),
        "frontier": FRONTIER,
        "return_edge_ids": st.booleans(),
    },
}


@pytest.mark.parametrize("name", ANY_OPTIONS)
@examples(40)
@given(st.data(), csc_graphs(min_nodes=1), rng_seeds)
def test_weighted_draws_and_layers_from_any_parts_are_those_of_the_whole_graph(name, data, arrays, rng_seed):
    graph = dp.CSCGraph(*arrays, edge_attributes={"w": data.draw(weights_for(arrays.num_edges))})
    fanouts = data.draw(st.lists(st.integers(-1, 4), min_size=1, max_size=3))
    ids = data.draw(st.lists(st.integers(0, graph.num_nodes - 1), min_size=1, max_size=9))
    start = dp.ItemSampler(dp.ItemSet(torch.tensor(ids)), data.draw(st.integers(2, 4)), shuffle=True, seed=rng_seed)
    expect_the_whole_graphs(data, graph, start, name, fanouts, data.draw(st.fixed_dictionaries(ANY_OPTIONS[name])))


TREES = {"disjoint": True, "return_edge_ids": True}


@pytest.mark.parametrize("links", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize(("num_parts", "local_part"), [(1, None), (2, 1), (4, 3), (3, None)])
@pytest.mark.parametrize(
    ("name", "fanouts", "options"),
    [
        ("sample_neighbor", [FANOUTS], {"return_edge_ids": True}),
        ("sample_neighbor", [FANOUTS], {"return_edge_ids": True, "frontier": "new"}),
        ("sample_neighbor", [FANOUTS], TREES),
        ("sample_neighbor", [[2, 3]], WEIGHTED),
        ("sample_layer_neighbor", [FANOUTS], {}),
        ("sample_layer_neighbor", [FANOUTS], {"layer_dependency": True}),
        ("sample_layer_neighbor", [FANOUTS], {"batch_dependency": 4}),
        ("sample_layer_neighbor", [[2, 3]], WEIGHTED),
        ("sample_in_subgraph", [], {"edge_types": None, "return_edge_ids": True}),
        ("sample_in_subgraph", [], {"edge_types": [CITES, WRITES], "return_edge_ids": True}),
    ],
    ids=str,
)
def test_minibatches_with_types_are_those_of_the_whole_graph(
    name, fanouts, options, num_parts, local_part, dtype, links
):
    graph, start = weighted_typed_graph(dtype), typed_items(links=links)
    whole = getattr(start, name)(graph, *fanouts, **options)
    ours = getattr(start, f"dist_{name}")(typed_parts(num_parts, local_part, graph), *fanouts, **options)
    assert digests(ours) == digests(whole)
    assert ours.fingerprint() == whole.fingerprint()


# --- trees and weights


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


def test_wrong_weights_of_another_part_are_told_by_it():
    graph = small_parts(2, None, weighted_graph(torch.full((200,), -1.0)))
    with pytest.raises(ValueError, match=r"Part.draw: the weight 'w' is -1 at position") as caught:
        next(iter(items().dist_sample_neighbor(graph, [2], **WEIGHTED)))
    assert "asked of part" in "\n".join(getattr(caught.value, "__notes__", ()))


def test_what_is_no_weight_is_refused_when_the_stage_is_built(refuses):
    for error, weights in (
        (TypeError, torch.ones(200).int()),
        (ValueError, torch.arange(200.0) - 1),
        (ValueError, torch.full((200,), torch.inf)),
    ):
        graph = small_parts(1, 0, weighted_graph(weights))
        refuses(error, items().dist_sample_neighbor, graph, [2], **WEIGHTED)


def test_weights_of_the_part_in_this_process_that_were_changed_in_place_are_refused():
    graph = ROWS["weights"].parts(2, 0)
    pipe = ROWS["weights"].over(graph)
    seeds = next(iter(pipe)).seeds
    graph.local_part.relation().edge_attributes["w"].add_(1)
    changed = r"Part.* changed in place.*Partition the changed graph"
    with pytest.raises(ValueError, match=changed):
        next(iter(pipe))
    with pytest.raises(ValueError, match=changed):
        pipe.sample(seeds, dp.stages.RngKey(5, 0, 0, 1))


def test_a_state_of_another_graph_or_other_weights_or_times_or_of_another_sampler_is_refused(refuses):
    other = small_parts(graph=dp.CSCGraph(*random_graph(40, 200, rng_seed=2)))
    refuses(ValueError, ROWS["neighbor"].over(other).load_state_dict, ROWS["neighbor"].over(small_graph()).state_dict())
    weighted = ROWS["weights"].over(small_parts(3, 1, weighted_graph(torch.ones(200))))
    refuses(ValueError, weighted.load_state_dict, ROWS["weights"].over(weighted_graph()).state_dict())
    for changed in ({"edge_attributes": {"at": EDGE_TIMES + 1}}, {"node_attributes": {"since": NODE_TIMES.flip(0)}}):
        timed = over_parts(graph=timed_parts(graph=timed_graph(**changed)))
        refuses(ValueError, timed.load_state_dict, temporal().state_dict())
    subgraph = items().sample_in_subgraph(small_graph()).state_dict()
    refuses(ValueError, items().dist_sample_neighbor(small_parts(), [-1]).load_state_dict, subgraph)


# --- numbers of sources


def test_a_part_is_told_the_keys_of_the_generations_only_if_sources_keep_their_numbers():
    for dependency in (1, 2):
        graph = typed_parts(2, None)
        next(iter(typed_items().dist_sample_layer_neighbor(graph, FANOUTS, batch_dependency=dependency)))
        for _, request in graph.peers.asked:
            assert isinstance(request.choice, Numbered)
            assert sum(map(len, request.choice.keys)) == (0 if dependency == 1 else len(request.draws))


def test_a_part_refuses_numbers_that_cannot_be(refuses):
    part = small_parts().local_part
    ids, numbers = part.node_ids(), {"fanout": 2, "key": 1}
    for choice in (Numbered(0, 1), Numbered(3, 4, (((1, 2),),)), Numbered(3, 1), Numbered(3, 1, (((1, 2), (3, 4)),))):
        refuses(ValueError, part.draw, ids, choice=choice, **numbers)
    refuses(ValueError, part.draw, ids, choice=Numbered(), replace=True, **numbers)


# --- times


def timed_parts(num_parts: int = 3, local_part: int | None = 1, graph: dp.CSCGraph | None = None) -> DistGraph:
    return small_parts(num_parts, local_part, graph or timed_graph(), "since")


def over_parts(source: dp.Stage | None = None, graph: DistGraph | None = None, **arguments) -> dp.Stage:
    given = {"return_edge_ids": True, **BOTH, **arguments}
    return (source or timed_items()).dist_temporal_sample_neighbor(graph or timed_parts(), [3, 2], **given)


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


def test_transform_and_node_sample_draw_at_the_times_of_the_seeds(refuses):
    rng, seeds, times = dp.stages.RngKey(5, 0, 3, 1), torch.tensor([4, 9, 4]), torch.tensor([20, 40, 50])
    minibatch = dp.MiniBatch(seeds=seeds, timestamps=times, rng=rng)
    expected = temporal().transform(minibatch)
    pipe = over_parts()
    assert pipe.transform(minibatch).digest() == expected.digest()
    found = asyncio.run(pipe.node_sample(seeds, rng, timestamps=times))
    assert torch.equal(found.nodes, expected.input_nodes)
    with refuses(ValueError):
        asyncio.run(pipe.node_sample(seeds, rng))
    refuses(ValueError, pipe.sample, seeds, rng)


def test_a_part_is_told_the_time_of_each_row_and_no_stream_without_trees():
    graph = timed_parts(2, None)
    next(iter(over_parts(graph=graph)))
    requests = [request for _, request in graph.peers.asked]
    assert all(request.streams is None for request in requests)
    assert {request.choice for request in requests} == {ByTime("at", "since")}
    assert all(request.times[None].shape == request.ids[None].shape for request in requests)


def test_every_part_is_asked_once_for_the_digests_of_its_times():
    graph = timed_parts(3, 1)
    expected = temporal().fingerprint()
    for _ in range(2):
        assert over_parts(graph=graph).fingerprint() == expected
    assert sorted(part for part, _ in graph.peers.asked) == [0, 2]


def test_parts_that_do_not_agree_are_refused(refuses):
    graph = timed_parts(3, 1)
    graph.peers = ChangedPeers(graph.peers, lambda digests: [None, *digests[1:]])
    refuses(ValueError, over_parts(graph=graph).fingerprint)


def test_a_partition_without_the_times_of_its_sources_is_refused_and_says_what_to_do(refuses):
    plain = small_parts(graph=timed_graph())
    refuses(ValueError, over_parts, graph=plain)
    assert digests(over_parts(graph=plain, node_time_attr=None)) == digests(temporal(node_time_attr=None))
    other = timed_graph(node_attributes={"since": NODE_TIMES, "until": NODE_TIMES})
    refuses(ValueError, over_parts, graph=timed_parts(graph=other), node_time_attr="until")


def test_times_that_are_not_allowed_are_refused(refuses):
    for error, attributes in (
        (TypeError, {"edge_attributes": {"at": EDGE_TIMES.int()}}),
        (ValueError, {"edge_attributes": {"at": EDGE_TIMES[:, None]}}),
        (TypeError, {"node_attributes": {"since": NODE_TIMES.double()}}),
    ):
        refuses(error, over_parts, graph=timed_parts(graph=timed_graph(**attributes)))
    with pytest.raises(ValueError, match=r"dist_temporal_sample_neighbor.*without timestamps.*needs a time"):
        next(iter(over_parts(timed_items(None))))


def test_a_part_refuses_what_it_cannot_draw_by(refuses):
    weighted = small_parts(graph=weighted_graph()).local_part
    for choice in (ByWeight("nope"), ByWeight("rows")):
        refuses(ValueError, weighted.draw, weighted.node_ids(), fanout=2, key=1, choice=choice)
        refuses(ValueError, weighted.chosen, "test", choice.reads)
    attributes = {"at": EDGE_TIMES, "wide": EDGE_TIMES[:, None], "short": EDGE_TIMES.int()}
    nodes = {"since": NODE_TIMES, "until": NODE_TIMES}
    part = timed_parts(graph=timed_graph(edge_attributes=attributes, node_attributes=nodes)).local_part
    ids, numbers = part.node_ids(), {"fanout": 2, "key": 1}
    for error, choice in (
        (ValueError, ByTime("when", None)),
        (ValueError, ByTime("wide", None)),
        (TypeError, ByTime("short", None)),
        (ValueError, ByTime(None, "until")),
        (ValueError, ByTime(None, "when")),
    ):
        refuses(error, part.draw, ids, times=ids, choice=choice, **numbers)
        refuses(error, part.chosen, "test", choice.reads)
    refuses(ValueError, part.draw, ids, choice=ByTime("at", None), **numbers)
    refuses(ValueError, part.draw, ids, times=ids, **numbers)
    refuses(ValueError, part.draw, ids, times=ids, choice=ByTime("at", None, time_window=-1), **numbers)


# --- in-edges of the seeds


def test_edge_types_that_are_not_kept_are_not_asked_for():
    graph = typed_parts(2, None)
    next(iter(typed_items().dist_sample_in_subgraph(graph, edge_types=[CITES])))
    assert {draw.edge_type for _, request in graph.peers.asked for draw in request.draws} == {CITES}


def test_a_seed_that_is_no_node_is_refused_under_the_name_of_the_stage():
    pipe = dp.ItemSampler(dp.ItemSet(41), 41).dist_sample_in_subgraph(small_parts())
    with pytest.raises(IndexError, match=r"^dist_sample_in_subgraph: .*\[0, 40\), got 40\. Check the ids"):
        next(iter(pipe))
