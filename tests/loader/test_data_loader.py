"""DataLoader: the same minibatches with and without overlap, replay, plan, picture and counts."""

import json
import re
import xml.etree.ElementTree

import pytest
import torch
import worker_stages as ws
from pipelines import digests, distributed_chain, fetched, items, keep_most, sampled, small_store, start_at

import datapipes as dp
from datapipes.loader.facts import LaneFacts, StageFacts
from datapipes.loader.stats import LoaderStats


@pytest.mark.parametrize(
    "options", [{"prefetch_factor": 1}, {"prefetch_factor": 4, "timeout": None}, {"overlap": False}]
)
def test_the_loader_gives_what_the_chain_gives(options):
    chain = fetched()
    loader = dp.DataLoader(chain, **options)
    assert len(loader) == len(chain) == 6
    other = fetched()
    assert [digests(loader), digests(loader)] == [digests(other), digests(other)]


@pytest.mark.parametrize("overlap", [True, False])
def test_stages_after_a_loader_run_and_keep_their_random_keys(overlap):
    chain = items().transform(lambda minibatch: minibatch)
    after = fetched(sampled(dp.DataLoader(chain, overlap=overlap)))
    expected = digests(fetched(sampled(chain)))
    assert digests(after) == expected
    assert digests(dp.DataLoader(after)) == expected  # a loader over a loader


def test_the_chain_is_untouched_and_runs_on_its_own():
    chain = fetched()
    iterator = iter(chain)
    first = next(iterator)
    loader = dp.DataLoader(chain)
    assert digests(loader)[0] == first.digest()
    assert [minibatch.index for minibatch in iterator] == [1, 2, 3, 4, 5]
    assert dp.stages.StageGraph(chain).find(dp.Prefetcher) == []


IN_PROCESSES = {"channel": "mp", "multiprocessing_context": "fork"}  # options of worker processes only


def plan_of(chain, **options):
    return [stage.name for stage in dp.DataLoader(chain, **options).rewritten()]


def test_the_plan_samples_beside_the_fetch_and_fetches_beside_the_consumer():
    chain = fetched().copy_to("cpu")
    plan = dp.DataLoader(chain, prefetch_factor=3).rewritten()
    assert [stage.depth for stage in plan.find(dp.Prefetcher)] == [3, 3]
    assert dp.stages.StageGraph(chain).find(dp.Prefetcher) == []
    assert "prefetch" not in plan_of(chain, overlap=False)


def joined(one: dp.Stage, two: dp.Stage) -> dp.Stage:
    return dp.MiniBatchTransformer([one, two], lambda first, second: first)


SAMPLES = ["item_sampler", "sample_neighbor"]
FETCHES = ["fetch_feature", "prefetch"]


@pytest.mark.parametrize(
    ("chain", "plan"),
    [
        (lambda: fetched().copy_to("cpu"), [*SAMPLES, "prefetch", "fetch_feature", "copy_to", "prefetch"]),
        (sampled, [*SAMPLES, "prefetch"]),  # nothing is fetched
        (lambda: items().fetch_feature(small_store(), ["feat"]), ["item_sampler", *FETCHES]),  # nothing is sampled
        (
            lambda: fetched().fetch_feature(small_store(), ["feat"]),  # the threads meet at the first of two fetches
            [*SAMPLES, "prefetch", "fetch_feature", *FETCHES],
        ),
        (lambda: fetched(sampled().prefetch(5)), [*SAMPLES, "prefetch", *FETCHES]),  # another carrier is there
        (lambda: dp.DataLoader(fetched()), [*SAMPLES, "fetch_feature", "data_loader", "prefetch"]),
        # Asynchronous stages are not parted by a thread.
        (lambda: fetched(ws.PassOnAsync(sampled())), [*SAMPLES, "pass_on_async", *FETCHES]),
        (lambda: sampled().fetch_feature(ws.RemoteAsyncStore(dict(small_store())), ["feat"]), [*SAMPLES, *FETCHES]),
        (lambda: fetched(joined(sampled(), sampled())), [*2 * SAMPLES, "transform", "prefetch", *FETCHES]),
    ],
)
def test_the_plan_has_threads_where_they_can_be(chain, plan):
    assert plan_of(chain()) == plan


def test_a_join_behind_the_fetch_leaves_one_thread():
    first = sampled()
    assert plan_of(joined(fetched(first), first)).count("prefetch") == 1
    before = fetched(joined(sampled(), sampled()))
    assert digests(dp.DataLoader(before)) == digests(before)


@pytest.mark.usefixtures("one_gpu")
def test_the_thread_ends_behind_the_first_copy_to_a_gpu():
    chain = fetched().copy_to("cpu").copy_to("cuda").transform(keep_most)
    plan = dp.DataLoader(chain).rewritten()
    assert [stage.name for stage in plan] == [
        *("item_sampler", "sample_neighbor", "prefetch"),
        *("fetch_feature", "copy_to", "copy_to", "prefetch"),
        *("transform", "wait_for_gpu"),
    ]
    assert dp.stages.StageGraph(chain).find(dp.Prefetcher) == []


@pytest.mark.usefixtures("one_gpu")
def test_a_copy_to_a_gpu_before_a_join_can_be_planned():
    start = items()
    joined = dp.MiniBatchTransformer([fetched().copy_to("cuda"), start], lambda first, second: first)
    plan = dp.DataLoader(joined).rewritten()
    assert plan.find(dp.CopyTo)[0].device.type == "cuda"


# --- replay


@pytest.mark.parametrize("overlap", [True, False])
def test_a_minibatch_is_made_again_by_epoch_and_index(overlap):
    loader = dp.DataLoader(fetched(), overlap=overlap)
    made = [minibatch for epoch in (0, 3) for minibatch in start_at(loader, epoch)]
    state = loader.state_dict()
    for minibatch in reversed(made):
        assert loader.minibatch(minibatch.epoch, minibatch.index).digest() == minibatch.digest()
    assert loader.state_dict() == state


def test_replay_in_the_middle_of_an_epoch_moves_nothing():
    loader = dp.DataLoader(fetched())
    found = []
    for minibatch in loader:
        found.append(minibatch.digest())
        loader.minibatch(5, 0)
    assert found == digests(fetched())


def test_a_dropped_minibatch_is_none():
    loader = dp.DataLoader(sampled().transform(keep_most))
    assert [loader.minibatch(0, index) is None for index in range(6)] == [False, False, True, False, False, False]


def test_any_ranks_minibatch_can_be_made_again():
    loader = dp.DataLoader(distributed_chain())
    alone = fetched()
    assert [loader.minibatch(0, index).digest() for index in range(6)] == digests(alone)
    assert digests(loader) == [loader.minibatch(0, index).digest() for index in (1, 3, 5)]


def test_a_minibatch_outside_the_epoch_is_refused(refuses):
    loader = dp.DataLoader(fetched())
    for epoch, index in ((0, -1), (0, 6), (-1, 0), (2**32, 0)):
        refuses(ValueError, loader.minibatch, epoch, index)
    for epoch, index in ((0, 1.0), (True, 0)):
        refuses(TypeError, loader.minibatch, epoch, index)


# --- explain, picture, counts


def test_the_plan_names_each_stage_and_its_thread():
    loader = dp.DataLoader(fetched().transform(lambda minibatch: minibatch), prefetch_factor=3)
    lines = loader.explain().splitlines()
    assert lines[0].startswith("DataLoader(num_workers=0, prefetch_factor=3, overlap=True)")
    assert lines[1] == "  thread 1 (datapipes-prefetch-1), up to 3 minibatches ahead"
    assert lines[4] == "  thread 2 (datapipes-prefetch-2), up to 3 minibatches ahead"
    stages = [re.match(r"    (\w+): (\w+)\(", line).groups() for line in [*lines[2:4], *lines[5:7]]]
    assert stages == [
        ("item_sampler", "ItemSampler"),
        ("sample_neighbor", "NeighborSampler"),
        ("fetch_feature", "FeatureFetcher"),
        ("transform", "MiniBatchTransformer"),
    ]
    assert lines[7:] == ["  caller's thread", "    takes the minibatches from there"]


def test_a_chain_without_a_loader_shows_itself(tmp_path):
    chain = sampled().prefetch(5).transform(keep_most)
    names = ["item_sampler: ItemSampler(", "sample_neighbor: NeighborSampler(", "prefetch: Prefetcher(depth=5)",
             "transform: MiniBatchTransformer("]  # fmt: skip
    assert [line.startswith(name) for line, name in zip(str(chain).splitlines(), names, strict=True)] == [True] * 4
    lines = chain.explain().splitlines()
    assert lines[:2] == ["the chain as built", "  thread 1 (datapipes-prefetch-1), up to 5 minibatches ahead"]
    assert [line.split(":")[0].strip() for line in lines[2:]] == [
        "item_sampler", "sample_neighbor", "caller's thread", "transform"]  # fmt: skip
    chain.to_svg(tmp_path / "chain.svg")
    assert xml.etree.ElementTree.parse(tmp_path / "chain.svg").getroot().tag.endswith("svg")
    loader = dp.DataLoader(chain)
    assert str(loader).splitlines() == [*str(chain).splitlines(), f"data_loader: {loader!r}"]


def test_without_overlap_all_runs_in_the_callers_thread():
    text = dp.DataLoader(fetched(), overlap=False).explain()
    assert "datapipes-prefetch" not in text
    assert text.splitlines()[1] == "  caller's thread"
    assert "fetch_feature" in text.splitlines()[-1]


def test_prefetchers_of_the_user_make_lanes_of_their_own():
    text = dp.DataLoader(sampled().prefetch(5).transform(keep_most)).explain()
    assert re.findall(r"up to (\d) minibatches ahead", text) == ["5", "2"]


class Tag(dp.MiniBatchTransformer):
    """A stage whose details need escaping."""

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        return minibatch

    def describe(self) -> dict[str, str]:
        return {"text": "<&>"}


@pytest.mark.parametrize("overlap", [True, False])
def test_the_picture_is_well_formed_and_names_the_stages(tmp_path, overlap):
    chain = Tag(fetched().transform(lambda minibatch: minibatch)).prefetch()
    loader = dp.DataLoader(chain.copy_to("cpu"), overlap=overlap)
    loader.to_svg(tmp_path / "plan.svg")
    loader.to_svg(str(tmp_path / "again.svg"))
    root = xml.etree.ElementTree.parse(tmp_path / "plan.svg").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    for name in ("item_sampler", "sample_neighbor", "fetch_feature", "transform", "copy_to"):
        assert name in texts
    assert any("thread 1 (datapipes-prefetch-1)" in text for text in texts)
    assert "Tag(text='<&>')text='<&>'" in texts  # the tooltip, and the text in the box
    assert any("<lambda>" in text for text in texts)
    assert (tmp_path / "again.svg").read_bytes() == (tmp_path / "plan.svg").read_bytes()


def test_the_counts_say_how_often_each_stage_ran():
    loader = dp.DataLoader(fetched())
    assert loader.stats() == {}
    for epochs in (1, 2):
        list(loader)
        stats = loader.stats()
        calls = {name: entry["calls"] for name, entry in stats.items()}
        assert calls.pop("waiting for 1 sample_neighbor") == calls.pop("waiting for 2 fetch_feature") == 6 * epochs
        assert calls.pop("consumer") == calls.pop("epochs") == 6 * epochs
        assert calls == {"0 item_sampler": 6 * epochs, "1 sample_neighbor": 6 * epochs, "2 fetch_feature": 6 * epochs}
        assert all(0 <= entry["seconds"] <= entry["concurrent_seconds"] + 1e-9 for entry in stats.values())
        assert json.loads(json.dumps(stats)) == stats


def spent(calls: int, seconds: float, at_once: float = 1.0) -> dict[str, float]:
    return {"calls": calls, "seconds": seconds, "concurrent_seconds": seconds * at_once}


def test_the_counts_print_as_a_table_that_names_the_bottleneck():
    stats = LoaderStats(
        {
            "1 dist_sample_neighbor": spent(1000, 20.0, at_once=6.2),
            "waiting for 1 dist_sample_neighbor": spent(1000, 21.0),
            "consumer": spent(1000, 2.5),
            "epochs": spent(1000, 22.0),
            "channel": {"messages": 1000.0, "held": 1.0, "send_wait_s": 0.5},
            "workers": {"deaths": 1.0, "made_again": 2.0},
            "features": {"own": 3.0, "node feature 'x': hits": 4.0},
        },
        lanes=(LaneFacts("", 1, "", "", (StageFacts("1 dist_sample_neighbor", "", "", False),)),),
    )
    assert str(stats).splitlines() == [
        "stage                               calls  ms/call  ms/minibatch  busy  at once",
        "1 dist_sample_neighbor               1000  124.000        20.000   91%      6.2",
        "waiting for 1 dist_sample_neighbor   1000   21.000        21.000   95%      1.0",
        "consumer                             1000    2.500         2.500   11%      1.0",
        "channel: 1,000 messages sent, 1 received messages that are still in use, 0.500 seconds in which sends waited",
        "workers: 1 workers that died, 2 minibatches made again",
        "features: 3 ids read from the local part, 4 node feature 'x': hits",
        "1000 minibatches in 22.00 s: 22.000 ms/minibatch, 45.5 minibatches/s",
        "bottleneck: The consumer waits 89% of the time: 1 dist_sample_neighbor takes 124.0 ms a call; its "
        "thread is busy 100% of the time. Make the stage faster; 0.0 of 1 processors are idle.",
    ]
    slow_model = LoaderStats({**stats, "consumer": spent(1000, 21.5)})
    assert "bottleneck: the consumer works 98% of the time; nothing in the loader holds it up" in str(slow_model)
    assert str(dp.DataLoader(fetched()).stats()) == "no minibatches yet"


# --- arguments


def test_what_a_data_loader_refuses(refuses):
    wrong_values = [
        *({"num_workers": -1}, {"prefetch_factor": 0}, {"timeout": 0}, {"timeout": -1}, {"max_restarts": -1}),
        *({"worker_method": "ray"}, {"channel": "tcp"}, {"max_uva_threads": 512}),
        *({"shm_size": "many"}, {"shm_size": 0}, {"shm_size": 4096}, {"shm_size": "1MB", "channel": "mp"}),
        *({"cut": "sample_layer"}, {"cut": dp.CopyTo}, {"cut": "item_sampler"}, {"cut": dp.ItemSampler}),
        {"cut": "copy_to", "num_workers": 0},
        *({"worker_method": "thread", name: value} for name, value in IN_PROCESSES.items()),
    ]
    for arguments in wrong_values:
        refuses(ValueError, dp.DataLoader, sampled(), **{"num_workers": 2, **arguments})
    with pytest.raises(ValueError, match=r"multiprocessing_context .*'spawn'.*'frok'"):
        dp.DataLoader(sampled(), 2, multiprocessing_context="frok")
    wrong_types = [
        *({"num_workers": 1.5}, {"num_workers": True}, {"overlap": 1}, {"in_order": 1}, {"persistent_workers": 0}),
        *({"cut": 3}, {"worker_init_fn": 3}),
    ]
    for arguments in wrong_types:
        refuses(TypeError, dp.DataLoader, sampled(), **{"num_workers": 2, **arguments})
    for no_chain in ([1, 2], torch.utils.data.DataLoader([1])):
        refuses(TypeError, dp.DataLoader, no_chain)
