"""TemporalNeighborSampler as a stage: its contract, threads and workers, what a state names, and what it refuses."""

import copy

import numpy as np
import pytest
import torch
import typed_pipelines
from pipelines import assert_no_bit_changes, digests, refused
from scipy.stats import chi2
from timed_pipelines import (
    EDGE_TIMES,
    NODE_TIMES,
    TIMES,
    WEIGHTS,
    WINDOWS,
    temporal,
    timed_graph,
    timed_graph_with_weights,
    timed_items,
    windowed_items,
)

import datapipes as dp


def contract_chain() -> dp.Stage:
    return temporal()


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    arguments = {"edge_time_attr": "at", "strategy": "last", "inclusive": True, "time_window": 30, "disjoint": True}
    functional = timed_items().temporal_sample_neighbor(timed_graph(), [3, -1], frontier="new", **arguments)
    return functional, dp.TemporalNeighborSampler(timed_items(), timed_graph(), [3, -1], frontier="new", **arguments)


def star(times: torch.Tensor, **attributes: torch.Tensor) -> dp.CSCGraph:
    """Node 0 has the in-edges 1, 2 ..., one for each of the times; no other node has any."""
    degree = len(times)
    indptr = torch.cat((torch.tensor([0]), torch.full((degree + 1,), degree)))
    return dp.CSCGraph(indptr, torch.arange(1, degree + 1), edge_attributes={"at": times, **attributes})


def drawn(graph: dp.CSCGraph, at: list[int], windows: list[int] | None = None, **arguments) -> list[list[int]]:
    """What is drawn for node 0 at each of the times, as sources."""
    fields = {"seeds": torch.zeros(len(at), dtype=torch.int64), "timestamps": torch.tensor(at)}
    if windows is not None:
        fields["recent"] = torch.tensor(windows)
        arguments["time_window"] = "recent"
    items = dp.ItemSet(tuple(fields.values()), names=tuple(fields))
    pipe = dp.ItemSampler(items, len(at), seed=1)
    pipe = pipe.temporal_sample_neighbor(graph, [arguments.pop("fanout")], edge_time_attr="at", **arguments)
    block, nodes = next(iter(pipe)).blocks[0], next(iter(pipe)).input_nodes
    columns = [block.indices[block.indptr[i] : block.indptr[i + 1]].long() for i in range(block.num_dst)]
    return [nodes[column].tolist() for column in columns]


def test_only_what_is_earlier_than_the_seed_is_drawn():
    graph = star(torch.tensor([5, 1, 9, 5, 7]))
    assert drawn(graph, [5, 10, 1, 6], fanout=-1) == [[2], [1, 2, 3, 4, 5], [], [1, 2, 4]]
    assert drawn(graph, [5, 4], fanout=-1, inclusive=True) == [[1, 2, 4], [2]]
    assert drawn(graph, [9, 20], fanout=-1, time_window=2) == [[5], []]
    assert drawn(graph, [9, 20], fanout=-1, time_window=4) == [[1, 4, 5], []]
    assert drawn(graph, [9], fanout=-1, time_window=0, inclusive=True) == [[3]]


def test_each_seed_may_have_a_window_of_its_own_and_only_equal_ones_share_nodes():
    graph = star(torch.tensor([5, 1, 9, 5, 7]))
    assert drawn(graph, [9, 20, 9, 9], [2, 99, 4, 2], fanout=-1) == [[5], [1, 2, 3, 4, 5], [1, 4, 5]]
    assert drawn(graph, [9, 9], [2, 2], fanout=-1, disjoint=True) == [[5], [5]]
    assert drawn(graph, [9, 9], [4, 8], fanout=1, strategy="last") == [[5], [5]]
    assert drawn(graph, [-(2**63) + 1, 9], [2**63 - 1] * 2, fanout=-1) == [[], [1, 2, 4, 5]]


@pytest.mark.parametrize("arguments", [{}, {"disjoint": True}, {"prob_name": "w", "graph": timed_graph_with_weights()}])
def test_equal_windows_in_a_field_draw_what_the_same_window_for_all_draws(arguments):
    def made(windows, **options):
        chain = temporal(timed_items(windows=windows), **{**arguments, **options})
        return [(minibatch.input_nodes.tolist(), minibatch.blocks[0].edge_ids.tolist()) for minibatch in chain]

    alike = torch.full_like(WINDOWS, 17)
    assert made(alike, time_window="recent") == made(alike, time_window=17)
    assert made(WINDOWS, time_window="recent") != made(alike, time_window="recent")


def test_windows_follow_the_links_to_their_negatives():
    graph = timed_graph()
    fields = torch.tensor([[1, 2], [3, 4], [5, 6]]), torch.tensor([30, 30, 50]), torch.tensor([9, 20, 9])
    items = dp.ItemSampler(dp.ItemSet(fields, names=("seeds", "timestamps", "recent")), 3, seed=1)
    chain = items.sample_uniform_negative(graph, 2)
    for disjoint in (False, True):
        minibatch = next(iter(temporal(chain, graph, time_window="recent", disjoint=disjoint)))
        assert minibatch.extra["recent"].tolist() == [9, 20, 9, 9, 9, 20, 20, 9, 9]
        block, nodes = minibatch.blocks[-1], minibatch.input_nodes
        for row, (local, time, window) in enumerate(
            zip(
                minibatch.compacted_seeds,
                minibatch.timestamps.tolist(),
                minibatch.extra["recent"].tolist(),
                strict=True,
            )
        ):
            for column in local.tolist():
                edges = block.edge_ids[block.indptr[column] : block.indptr[column + 1]]
                positions = torch.isin(graph.edge_ids, edges)
                times = torch.stack((EDGE_TIMES, NODE_TIMES[graph.indices.long()]))[:, positions]
                assert ((times < time) & (times >= time - window)).all(), row
        assert nodes[minibatch.compacted_seeds].equal(minibatch.seeds)


def test_last_takes_the_latest_and_of_equal_ones_those_at_larger_positions():
    graph = star(torch.tensor([5, 1, 9, 5, 7]))
    assert drawn(graph, [10, 9, 6], fanout=2, strategy="last") == [[3, 5], [4, 5], [1, 4]]
    assert drawn(graph, [9, 6], fanout=1, strategy="last") == [[5], [4]]


def test_the_ends_of_the_range_of_times_are_times_like_others():
    lowest, highest = -(2**63), 2**63 - 1
    graph = star(torch.tensor([lowest, highest, 0]))
    assert drawn(graph, [lowest, highest, 0], fanout=-1) == [[], [1, 3], [1]]
    assert drawn(graph, [lowest, highest, 0], fanout=-1, inclusive=True) == [[1], [1, 2, 3], [1, 3]]
    assert drawn(graph, [lowest + 1, -1, 0], fanout=-1, time_window=highest) == [[1], [1], []]
    assert drawn(graph, [lowest + 1, 1], fanout=-1, time_window=1) == [[1], [3]]


@pytest.mark.parametrize("spread", [1, 50, 2**15, 2**17, 2**40, 2**63 - 1], ids=str)
def test_times_in_no_order_are_compared_to_the_last_bit(spread):
    rng = np.random.default_rng(3)
    times = torch.from_numpy(rng.integers(-spread, spread, 700, endpoint=True))
    times[::100] = torch.tensor([-(2**63), 2**63 - 1, 0, 1, -1, spread, -spread])
    at = [*times[5:25].tolist(), *(times[5:25] - 1).tolist(), 0, spread, 2**63 - 1, -(2**63)]
    at = [*dict.fromkeys(at)]  # seeds of one time share a column
    for arguments in ({}, {"inclusive": True}, {"time_window": spread // 2}, {"strategy": "last"}):
        window, is_inclusive = arguments.get("time_window", 2**65), arguments.get("inclusive", False)
        expected = [
            [1 + i for i, t in enumerate(times.tolist()) if (t < s or (is_inclusive and t == s)) and t >= s - window]
            for s in at
        ]
        assert drawn(star(times), at, fanout=-1, **arguments) == expected


@pytest.mark.parametrize("degree", [5, 64, 700, 5000])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_each_eligible_in_edge_is_equally_likely(degree, is_sorted):
    times = torch.arange(degree) * 2
    if not is_sorted:
        times = times[torch.from_numpy(np.random.default_rng(degree).permutation(degree))]
    graph, eligible, fanout = star(times), degree * 3 // 5, min(degree // 5, 20)
    trials = 4000 if degree < 1000 else 20_000
    ids, at = torch.zeros(trials, dtype=torch.int64), torch.full((trials,), 2 * eligible)
    pipe = dp.ItemSampler(dp.ItemSet((ids, at), names=("seeds", "timestamps")), trials, seed=degree)
    pipe = pipe.temporal_sample_neighbor(graph, [fanout], edge_time_attr="at", disjoint=True)
    minibatch = next(iter(pipe))
    counts = torch.bincount(minibatch.input_nodes[minibatch.blocks[0].indices], minlength=degree + 1)[1:]
    assert not counts[times >= 2 * eligible].any()
    kept = counts[times < 2 * eligible].numpy().astype(np.float64)
    share = fanout / eligible
    variance = trials * share * (1 - share) * eligible / (eligible - 1)  # of picks without replacement
    statistic = ((kept - trials * share) ** 2).sum() / variance
    assert kept.sum() == trials * fanout
    assert chi2.sf(statistic, eligible - 1) > 1e-4


@pytest.mark.parametrize("degree", [6, 60, 700])
@pytest.mark.parametrize("is_sorted", [True, False])
def test_by_weight_the_eligible_in_edges_are_drawn_as_if_the_node_had_no_others(degree, is_sorted):
    rng = np.random.default_rng(degree)
    times = torch.from_numpy(rng.integers(0, 100, degree))
    times = times.sort().values if is_sorted else times
    weights = torch.from_numpy(rng.integers(0, 6, degree) * 10.0 ** rng.integers(-3, 4, degree))
    eligible = ((times < 80) & (times >= 30)).nonzero().view(-1)
    timed, alone = star(times, w=weights), star(times[eligible], w=weights[eligible])
    items = dp.ItemSet((torch.zeros(20).long(), torch.full((20,), 80)), names=("seeds", "timestamps"))
    pipe = dp.ItemSampler(items, 20, seed=3)
    by_time = {"edge_time_attr": "at", "time_window": 50}
    for fanout, replace in ((-1, False), (2, False), (2, True), (30, False), (270, False), (300, True)):
        options = {"prob_name": "w", "disjoint": True, "return_edge_ids": True, "replace": replace}
        found = next(iter(pipe.temporal_sample_neighbor(timed, [fanout], **by_time, **options))).blocks[0]
        expected = next(iter(pipe.sample_neighbor(alone, [fanout], **options))).blocks[0]
        assert torch.equal(found.indptr, expected.indptr)
        assert torch.equal(found.edge_ids, eligible[expected.edge_ids])


def test_by_weight_each_eligible_in_edge_has_its_share_of_the_draws():
    times, weights = torch.tensor([5, 1, 9, 5, 7, 2]), torch.tensor([1.0, 0.0, 50.0, 3.0, 4.0, 0.5])
    items = dp.ItemSet((torch.zeros(4000).long(), torch.full((4000,), 8)), names=("seeds", "timestamps"))
    graph = star(times, w=weights)
    options = {"edge_time_attr": "at", "prob_name": "w", "disjoint": True, "return_edge_ids": True}
    pipe = dp.ItemSampler(items, 4000, seed=2).temporal_sample_neighbor(graph, [1], **options)
    counts = torch.bincount(next(iter(pipe)).blocks[0].edge_ids, minlength=6).double()
    expected = 4000 * torch.where(times < 8, weights, 0).double() / 8.5
    kept = expected > 0
    assert not counts[~kept].any()
    assert chi2.sf(float(((counts - expected)[kept] ** 2 / expected[kept]).sum()), int(kept.sum()) - 1) > 1e-4
    assert drawn(graph, [8, 6], fanout=-1, prob_name="w") == [[1, 4, 5, 6], [1, 4, 6]]


def test_seeds_of_one_time_share_what_is_drawn_and_others_do_not():
    graph = star(torch.arange(50))
    assert [len(column) for column in drawn(graph, [30, 40, 30], fanout=-1)] == [30, 40]
    trees = drawn(graph, [30, 40, 30], fanout=3, disjoint=True)
    assert len(trees) == 3
    assert trees[0] != trees[2]


@pytest.mark.parametrize(
    "arguments",
    [{}, {"strategy": "last"}, {"disjoint": True, "time_window": 20}, {"prob_name": "w", "time_window": "recent"}],
)
def test_threads_workers_and_the_width_of_ids_do_not_matter(arguments):
    graph = timed_graph_with_weights()
    assert_no_bit_changes(lambda: temporal(windowed_items(), graph, **arguments))
    narrow = [
        batch.input_nodes.tolist()
        for batch in temporal(windowed_items(), timed_graph_with_weights(torch.int32), **arguments)
    ]
    assert narrow == [minibatch.input_nodes.tolist() for minibatch in temporal(windowed_items(), graph, **arguments)]


def test_many_threads_draw_what_one_draws():
    rng = np.random.default_rng(3)
    indptr = np.arange(0, 20 * 2001, 20)
    at = rng.integers(0, 1000, 40_000)
    at[:20_000] = np.sort(at[:20_000].reshape(-1, 20), axis=1).reshape(-1)
    graph = dp.CSCGraph(indptr, rng.integers(0, 2000, 40_000), edge_attributes={"at": at})
    items = dp.ItemSet((torch.arange(2000), torch.arange(2000) % 7 * 150), names=("seeds", "timestamps"))
    options = {"edge_time_attr": "at", "return_edge_ids": True}
    for disjoint in (False, True):
        pipe = dp.ItemSampler(items, 2000).temporal_sample_neighbor(graph, [8, 8], disjoint=disjoint, **options)
        assert_no_bit_changes(lambda pipe=pipe: copy.copy(pipe))


def test_a_state_names_the_times_and_how_they_are_used():
    state = temporal().fingerprint()
    for other in (
        {"strategy": "last"},
        {"inclusive": True},
        {"time_window": 3},
        {"time_window": "w"},
        {"disjoint": True},
    ):
        assert temporal(**other).fingerprint() != state
    assert temporal(node_time_attr=None).fingerprint() != state
    moved = timed_graph(edge_attributes={"at": EDGE_TIMES.clone().index_fill_(0, torch.tensor([7]), 61)})
    assert temporal(graph=moved).fingerprint()["times_digest"] != state["times_digest"]
    assert temporal(graph=timed_graph()).fingerprint() == state
    by_weight = temporal(graph=timed_graph_with_weights(), prob_name="w").fingerprint()
    assert by_weight == {**state, "weights_digest": by_weight["weights_digest"]}
    other = timed_graph(edge_attributes={"at": EDGE_TIMES, "w": WEIGHTS + 1})
    assert temporal(graph=other, prob_name="w").fingerprint()["weights_digest"] != by_weight["weights_digest"]
    loader = dp.DataLoader(temporal())
    next(iter(loader))
    with pytest.raises(ValueError, match="times_digest"):
        dp.DataLoader(temporal(graph=moved)).load_state_dict(loader.state_dict())


def test_what_is_used_is_shown():
    assert "edge_time_attr='at'" in repr(temporal())
    assert "time_window" not in repr(temporal())
    assert "strategy='last'" in repr(temporal(strategy="last"))


def test_what_a_temporal_sampler_refuses(refuses):
    refuses(ValueError, temporal, edge_time_attr=None, node_time_attr=None)
    refuses(TypeError, temporal, edge_time_attr=3)
    refuses(ValueError, temporal, edge_time_attr="when")
    refuses(ValueError, temporal, strategy="first")
    refuses(ValueError, temporal, strategy="last", replace=True)
    refuses(ValueError, temporal, strategy="last", prob_name="w", graph=timed_graph_with_weights())
    refuses(ValueError, temporal, prob_name="w")
    refuses(ValueError, temporal, prob_name="w", graph=timed_graph(edge_attributes={"at": EDGE_TIMES, "w": -WEIGHTS}))
    refuses(ValueError, temporal, time_window=-1)
    refuses(TypeError, temporal, time_window=1.5)
    refuses(TypeError, temporal, time_window="")
    for error, windows in ((ValueError, None), (TypeError, WINDOWS.float()), (ValueError, WINDOWS - 1)):
        with refuses(error):
            next(iter(temporal(timed_items(windows=windows, shuffle=False), time_window="recent")))
    refuses(TypeError, temporal, inclusive=1)
    refuses(TypeError, temporal, disjoint=None)
    without_times = typed_pipelines.typed_items().temporal_sample_neighbor
    refuses(ValueError, without_times, typed_pipelines.typed_graph(), [2], edge_time_attr="at")
    with refuses(ValueError):
        next(iter(temporal(timed_items(None))))
    for times in (TIMES.double(), TIMES.int()):
        with refuses(TypeError):
            next(iter(temporal(timed_items(times))))
    key = dp.stages.RngKey(seed=1, epoch=0, index=0, stage=1)
    refuses(ValueError, temporal().sample, torch.tensor([1]), key)
    windowed = temporal(time_window="recent")
    refuses(
        ValueError, windowed.sample, torch.tensor([1]), key, temporal().trees_of(torch.tensor([1]), torch.tensor([5]))
    )


def test_the_earlier_times_are_named_only_where_a_window_reads_them():
    graph = dp.CSCGraph(
        torch.tensor([0, 2, 2]),
        torch.tensor([0, 1]),
        node_attributes={"born": torch.tensor([3, 4])},
        edge_attributes={"at": torch.tensor([5, 6]), "later": torch.tensor([5, 9])},
    )

    def digest_by(**options):
        stage = dp.ItemSampler(dp.ItemSet(2), 2).temporal_sample_neighbor(graph, [2], **options)
        return stage.fingerprint()["times_digest"]

    both = {"edge_time_attr": "at", "node_time_attr": "born"}
    assert digest_by(**both) == digest_by(edge_time_attr="at")  # the latest times are those of the edges
    assert len(digest_by(**both, time_window=2)) == 2
    assert digest_by(**both)[0].startswith("int64:")
    assert digest_by(edge_time_attr="later") != digest_by(edge_time_attr="at")


@pytest.mark.parametrize("change", ["in place", "replaced"])
@pytest.mark.parametrize(
    ("domain", "name", "read"),
    [
        ("edge_attributes", "at", {"edge_time_attr": "at"}),
        ("node_attributes", "since", {"node_time_attr": "since"}),
        ("edge_attributes", "at", {"edge_time_attr": "at", "node_time_attr": "since"}),
        ("node_attributes", "since", {"edge_time_attr": "at", "node_time_attr": "since"}),
        ("edge_attributes", "w", {"edge_time_attr": "at", "prob_name": "w"}),
    ],
)
def test_times_that_change_after_the_stage_was_built_are_refused(domain, name, read, change):
    graph = timed_graph(
        node_attributes={"since": NODE_TIMES.clone()}, edge_attributes={"at": EDGE_TIMES.clone(), "w": WEIGHTS + 1}
    )
    pipe = timed_items().temporal_sample_neighbor(graph, [3], **read)
    attributes = getattr(graph, domain)
    if change == "in place":
        attributes[name].mul_(2)
    else:
        attributes[name] = attributes[name] * 2
    for use in (lambda: next(iter(pipe)), pipe.fingerprint, lambda: copy.deepcopy(pipe)):
        with refused(ValueError, stage="temporal_sample_neighbor", found=change, allowed="Build the stage again"):
            use()
    again = timed_items().temporal_sample_neighbor(graph, [3], **read)
    with dp.DataLoader(again, 2, multiprocessing_context="fork") as loader:
        assert digests(loader) == digests(timed_items().temporal_sample_neighbor(graph, [3], **read))
