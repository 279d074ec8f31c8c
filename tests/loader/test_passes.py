"""The rewrite passes: the chain that each of them returns; the given chain stays as it is."""

import pytest
import worker_stages as ws
from pipelines import fetched, items, sampled, small_store

import datapipes as dp
from datapipes.loader.options import LoaderOptions
from datapipes.loader.passes import PASSES, overlap_with_consumer, put_in_workers, rewrite
from datapipes.loader.prefetcher import Prefetcher
from datapipes.loader.workers.workers import Workers


def workers(num_workers: int = 2, **options) -> LoaderOptions:
    return LoaderOptions(num_workers=num_workers, worker_method="thread", **options)


def names(graph: dp.stages.StageGraph) -> list[str]:
    return [stage.name for stage in graph]


def remote_store() -> dp.FeatureStore:
    return ws.RemoteStore(dict(small_store()))


# --- cut


SAMPLES, FETCHES = ["item_sampler", "sample_neighbor"], ["fetch_feature"]


def fetched_far() -> dp.Stage:
    return sampled().fetch_feature(remote_store(), ["feat"])


@pytest.mark.parametrize(
    ("chain", "place", "expected"),
    [
        (fetched, "fetch_feature", [*SAMPLES, "workers", *FETCHES]),
        (lambda: fetched(fetched()), "fetch_feature", [*SAMPLES, "workers", *FETCHES, *FETCHES]),
        (lambda: fetched(fetched_far()), "fetch_feature", [*SAMPLES, *FETCHES, "workers", *FETCHES]),
        (lambda: fetched_far().copy_to("cpu"), "fetch_feature", [*SAMPLES, *FETCHES, "workers", "copy_to"]),
        (lambda: sampled().copy_to("cpu"), "fetch_feature", [*SAMPLES, "workers", "copy_to"]),
        (sampled, "fetch_feature", [*SAMPLES, "workers"]),
        (items, "fetch_feature", ["item_sampler", "workers"]),
        (fetched, "end", [*SAMPLES, *FETCHES, "workers"]),
        (fetched, "sample_neighbor", ["item_sampler", "workers", "sample_neighbor", *FETCHES]),
        (fetched, dp.FeatureFetcher, [*SAMPLES, "workers", *FETCHES]),
        (ws.as_subclasses, "fetch_feature", ["my_items", "sample_neighbor", "workers", "my_fetcher"]),
    ],
)
def test_the_chain_is_cut_where_the_place_says(chain, place, expected):
    given = chain()
    graph = put_in_workers(dp.stages.StageGraph(given), workers(cut=place))
    assert names(graph) == expected
    assert dp.stages.StageGraph(given).find(Workers) == []


# --- workers and overlap


def test_workers_leave_the_random_keys_and_the_state_as_they_are():
    chain = ws.worker_chain()
    graph, before = put_in_workers(dp.stages.StageGraph(chain), workers()), dp.stages.StageGraph(chain)
    assert [graph.ordinal(stage) for stage in graph if stage.name != "workers"] == [
        before.ordinal(stage) for stage in before
    ]
    assert graph.root.state_dict() == chain.state_dict()


def test_the_cut_becomes_workers_and_what_follows_a_thread():
    graph = put_in_workers(dp.stages.StageGraph(fetched().copy_to("cpu")), workers())
    assert names(graph) == ["item_sampler", "sample_neighbor", "workers", "fetch_feature", "copy_to"]
    assert names(overlap_with_consumer(graph, workers()))[-1] == "prefetch"
    assert not graph.find(Workers)[0].pin


def test_workers_at_the_end_need_no_thread_that_runs_ahead():
    options = workers(cut="end")
    graph = put_in_workers(dp.stages.StageGraph(sampled()), options)
    assert overlap_with_consumer(graph, workers()) is graph
    assert dp.DataLoader(sampled(), 1, timeout=3.0).rewritten().root.timeout == 3.0


def test_the_wait_that_is_limited_is_the_consumers():
    graph = dp.DataLoader(fetched(), 2, timeout=3.0).rewritten()
    assert graph.find(Prefetcher)[0].timeout == 3.0
    assert graph.find(Workers)[0].timeout is None
    alone = dp.DataLoader(fetched(), 2, timeout=3.0, overlap=False).rewritten()
    assert alone.find(Workers)[0].timeout == 3.0
    assert alone.find(Prefetcher) == []


@pytest.mark.usefixtures("one_gpu")
def test_a_chain_that_copies_to_a_gpu_pins_its_channel():
    graph = dp.DataLoader(fetched().copy_to("cuda"), 2).rewritten()
    assert names(graph) == [
        *("item_sampler", "sample_neighbor", "workers"),
        *("fetch_feature", "copy_to", "prefetch", "wait_for_gpu"),
    ]
    assert graph.find(Workers)[0].pin


def test_what_starts_at_a_node_cannot_be_made_in_workers(refuses):
    import torchdata.nodes

    node = torchdata.nodes.IterableWrapper(list(sampled()))
    refuses(ValueError, dp.DataLoader, fetched(dp.FromNode(node)), 2)


def test_planning_starts_nothing_and_leaves_the_chain_alone():
    chain = fetched()
    loader = dp.DataLoader(chain, 2)
    loader.explain()
    assert loader.rewritten().find(Workers)[0]._running.pool is None
    assert names(dp.stages.StageGraph(chain)) == ["item_sampler", "sample_neighbor", "fetch_feature"]


# --- the list of passes


@pytest.mark.parametrize("options", [LoaderOptions(), LoaderOptions(overlap=False), workers(), workers(overlap=False)])
def test_every_pass_returns_a_graph_and_leaves_the_one_it_was_given(options):
    graph = dp.stages.StageGraph(fetched())
    for each in PASSES:
        before = graph.walk()
        planned = each(graph, options)
        assert graph.walk() == before
        graph = planned
    assert names(graph) == names(rewrite(dp.stages.StageGraph(fetched()), options))


def test_without_workers_the_pass_that_makes_them_changes_nothing():
    graph = dp.stages.StageGraph(fetched())
    assert put_in_workers(graph, LoaderOptions()) is graph
