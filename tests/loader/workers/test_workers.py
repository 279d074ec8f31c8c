"""DataLoader with workers: the same minibatches as without workers, for every kind of worker and channel."""

import functools
import itertools
import json
import os
import random

import pytest
import torch
import worker_stages as ws
from amounts import ranked
from pipelines import (
    digests,
    distributed_chain,
    fetched,
    items,
    keep_most,
    refused,
    sampled,
    small_store,
    wait_until,
)
from typed_pipelines import typed_fetched, typed_links
from worker_ways import WITHOUT_SERVER, way

import datapipes as dp
from datapipes import _core
from datapipes.loader.workers import process_pool
from datapipes.loader.workers.worker_process import NICENESS
from datapipes.loader.workers.workers import Workers
from datapipes.processes import child

# The seeds of the links with types are edges by chance.
pytestmark = pytest.mark.filterwarnings("ignore:data_loader. .* positive seeds are among")

# Chains, and what they must give: asynchronous stages give what synchronous ones give.
CHAINS = {
    "plain": (ws.worker_chain, ws.worker_chain),
    "asynchronous": (ws.asynchronous_chain, lambda: fetched(sampled().transform(keep_most))),
    "types": (typed_fetched, typed_fetched),
    "links of types": (typed_links, typed_links),
}
WAYS = [
    {"num_workers": 0},
    way("thread"),
    way("fork", channel="mp"),
    way("fork", shm_size="1MB", prefetch_factor=1, cut="end"),
    *({"num_workers": 2, "channel": channel} for channel in ("shm", "mp")),
]
MORE_WAYS = [
    *(way("thread", num_workers) for num_workers in (1, 3, 4)),
    *({"num_workers": num_workers, "channel": channel} for num_workers in (1, 4) for channel in ("shm", "mp")),
    *(way("fork", num_workers, channel=channel) for num_workers in (1, 2, 3, 4) for channel in ("shm", "mp")),
    {"multiprocessing_context": "spawn", "num_workers": 2},
    {"multiprocessing_context": "spawn", "num_workers": 1, "channel": "mp"},
    {"num_workers": 2, "overlap": False, "prefetch_factor": 1},
    {"num_workers": 0, "overlap": False},
    {"num_workers": 2, "shm_size": "1MB", "timeout": None},
]
CASES = [
    *((name, options) for options in WAYS for name in CHAINS),
    *((name, options) for name in ("plain", "asynchronous") for options in MORE_WAYS),
]


@functools.cache
def expected(name: str) -> list[list[str]]:
    chain = CHAINS[name][1]()
    return [digests(chain) for _ in range(ws.EPOCHS)]


@pytest.mark.parametrize(("name", "options"), ranked(CASES, 17), ids=lambda part: str(part))
def test_three_epochs_are_the_same_bits_however_they_are_made(name, options):
    with dp.DataLoader(CHAINS[name][0](), **options) as loader:
        assert [digests(loader) for _ in range(ws.EPOCHS)] == expected(name)
        assert len(loader) == len(CHAINS[name][0]())


@pytest.mark.parametrize("method", WITHOUT_SERVER)
def test_out_of_order_gives_each_minibatch_once(tmp_path, method):
    go = tmp_path / "go"
    chain = ws.Wait(sampled(items()), 1, str(go))
    with dp.DataLoader(chain, in_order=False, overlap=False, **way(method)) as loader:
        came = []
        for minibatch in loader:
            came.append(minibatch)
            if len(came) == 3:
                go.touch()
        assert came[0].index == 0
        assert came[1].index != 1  # minibatch 1 waits and does not hold up the others
        assert sorted(minibatch.index for minibatch in came) == list(range(6))
        assert sorted(digests(came)) == sorted(digests(sampled(items())))


@pytest.mark.parametrize("method", WITHOUT_SERVER)
def test_the_workers_make_what_stands_before_the_cut_and_the_caller_the_rest(method):
    chain = fetched(sampled().transform(ws.tell_process))
    with dp.DataLoader(chain, **way(method)) as loader:
        here, there = ws.made_by(dp.DataLoader(chain)), ws.made_by(loader)
        assert (here == there) == (method == "thread")
        calls = {name: entry["calls"] for name, entry in loader.stats().items() if name[0].isdigit() or "wait" in name}
    assert calls == {
        "0 item_sampler": 6,
        "1 sample_neighbor": 6,
        "2 transform": 6,
        "3 fetch_feature": 6,
        "waiting for 2 transform": 6,
        "waiting for 3 fetch_feature": 6,
    }


@pytest.mark.parametrize("method", ["fork", "forkserver", "thread"])
def test_processes_of_workers_let_the_consumer_go_first(method):
    here = os.getpriority(os.PRIO_PROCESS, 0)
    chain = sampled().transform(ws.tell_priority)
    with dp.DataLoader(chain, **way(method)) as loader:
        (there,) = {ws.noted(minibatch) for minibatch in loader}
    assert there == (here if method == "thread" else min(here + NICENESS, 19))


def test_workers_stay_between_epochs_unless_they_should_not():
    chain = sampled().transform(ws.tell_process)
    with dp.DataLoader(chain, **way("fork")) as loader:
        assert ws.made_by(loader) | ws.made_by(loader) == ws.made_by(loader)
    with dp.DataLoader(chain, persistent_workers=False, **way("fork")) as loader:
        assert not ws.made_by(loader) & ws.made_by(loader)
        assert loader.stats()["channel"]["messages"] == 6  # the workers of the last epoch had a channel of their own


@pytest.mark.parametrize("method", [*WITHOUT_SERVER, "forkserver"])
def test_each_worker_is_prepared_with_its_number(tmp_path, method):
    prepare = functools.partial(ws.write_number, folder=str(tmp_path))
    with dp.DataLoader(sampled(), worker_init_fn=prepare, **way(method, 3)) as loader:
        list(loader)
    assert sorted(path.name.split("-")[0] for path in tmp_path.iterdir()) == ["0", "1", "2"]


@pytest.mark.parametrize("method", WITHOUT_SERVER)
def test_asynchronous_stages_have_many_in_flight_in_a_worker(method):
    chain = ws.SlowIsAsync(sampled())
    with dp.DataLoader(chain, **way(method)) as loader:
        assert [digests(loader), digests(loader)] == [digests(chain), digests(chain)]


def test_stages_chained_after_the_loader_run_in_the_caller():
    with dp.DataLoader(sampled(), **way("fork")) as loader:
        after = loader.transform(ws.tell_process).fetch_feature(small_store(), ["feat"])
        assert ws.made_by(after) == ws.made_by(sampled().transform(ws.tell_process))
        loader.close()


def test_a_minibatch_is_made_again_in_the_caller():
    with dp.DataLoader(ws.worker_chain(), **way("thread")) as loader:
        made = list(loader)
        assert loader.minibatch(0, 4).digest() == made[-2].digest()


@pytest.mark.parametrize("method", ["forkserver", "fork"])
@pytest.mark.parametrize("opened", [True, False], ids=["opened", "in_memory"])
def test_a_worker_has_no_copy_of_the_graph(tmp_path, opened, method):
    num_nodes, degree = 100_000, 40
    sources = torch.randint(num_nodes, (num_nodes * degree,), generator=torch.Generator().manual_seed(1))
    large = dp.CSCGraph(torch.arange(num_nodes + 1) * degree, sources)
    if opened:
        large.save(tmp_path / "graph")
        # validate() reads all pages: a page that only one process has mapped counts as private.
        large = dp.CSCGraph.open(tmp_path / "graph").validate()

    def most_private(graph: dp.CSCGraph) -> int:
        chain = dp.ItemSampler(dp.ItemSet(graph.num_nodes), graph.num_nodes, shuffle=True).sample_neighbor(graph, [2])
        with dp.DataLoader(chain.transform(ws.tell_private_memory), 1, multiprocessing_context=method) as loader:
            return max(ws.noted(minibatch) for minibatch in loader)

    small = dp.CSCGraph(torch.arange(num_nodes + 1), sources[:num_nodes])
    more = most_private(large) - most_private(small)
    assert more < large.indices.nbytes / 2  # the worker has read all of them


# --- channels and sizes


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_channel_of_two_methods_carries_minibatches(method):
    channel = ws.QueueChannel(method)
    with dp.DataLoader(ws.worker_chain(), channel=channel, **way(method)) as loader:
        assert [digests(loader) for _ in range(ws.EPOCHS)] == expected("plain")


def test_a_channel_of_the_users_own_stays_open_and_can_be_used_by_the_next_loader():
    with dp.ShmChannel(capacity=32, shm_size="4MB") as channel:
        for _ in range(2):
            with dp.DataLoader(ws.worker_chain(), channel=channel, **way("fork")) as loader:
                assert digests(loader) == expected("plain")[0]
        assert len(channel) == 0


def test_a_message_of_somebody_else_in_the_channel_is_refused(refuses):
    with dp.ShmChannel(capacity=32, shm_size="4MB") as channel:
        channel.send({"x": torch.zeros(1)})
        with dp.DataLoader(sampled(), channel=channel, **way("fork")) as loader:
            refuses(RuntimeError, list, loader)


@pytest.mark.parametrize("channel", ["shm", "mp"])
def test_later_minibatches_may_be_larger_than_the_channel(channel):
    chain = sampled(items()).transform(ws.grow)
    with dp.DataLoader(chain, channel=channel, **way("fork")) as loader:
        assert digests(loader) == digests(chain)


def big(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Make a minibatch of 3 MB."""
    return minibatch.replace(timestamps=torch.arange(375_000).reshape(len(minibatch.seeds), -1) + minibatch.index)


def test_the_channel_takes_no_more_than_a_share_of_the_memory_that_is_left(monkeypatch):
    monkeypatch.setattr(_core, "memory_left", lambda: (2**24, ""))
    with dp.DataLoader(sampled().transform(big), prefetch_factor=50, **way("fork")) as loader:
        assert digests(loader) == digests(sampled().transform(big))
        assert loader.rewritten().find(Workers)[0]._running.pool._channel.most_bytes_kept <= 2**24 // 4


def test_workers_that_wait_for_room_end_by_themselves(monkeypatch):
    codes = []

    def end_all(workers):
        for worker in workers:
            worker.watch.wait(20.0)
            codes.append(worker.watch.exit_code())
        child.end_all(workers)

    monkeypatch.setattr(process_pool, "end_all", end_all)
    with dp.DataLoader(sampled().transform(big), shm_size="8MB", **way("fork", 1, prefetch_factor=4)) as loader:
        minibatches = iter(loader)
        assert next(minibatches).index == 0
        pool = loader.rewritten().find(Workers)[0]._running.pool
        wait_until(lambda: pool.stats()["unread"] == 2)  # there is room for no more
    assert codes == [0]


def test_a_minibatch_that_is_dropped_first_does_not_make_the_channel_small():
    chain = sampled().transform(drop_first).transform(big)
    with dp.DataLoader(chain, **way("fork")) as loader:
        assert digests(loader) == digests(chain)
        calls = {label: shown["calls"] for label, shown in loader.stats().items() if label[0].isdigit()}
        assert calls == {"0 item_sampler": 6, "1 sample_neighbor": 6, "2 transform": 6, "3 transform": 5}
        assert loader.rewritten().find(Workers)[0]._running.pool._channel.most_bytes_kept >= 10_000_000


def drop_first(minibatch: dp.MiniBatch) -> dp.MiniBatch | None:
    return None if minibatch.index == 0 else minibatch


def test_an_epoch_of_which_all_is_dropped_needs_no_channel():
    with dp.DataLoader(sampled().transform(drop_all, may_drop_all=True), **way("fork")) as loader:
        assert [list(loader), list(loader)] == [[], []]
        assert loader.rewritten().find(Workers)[0]._running.pool._channel is None


def drop_all(minibatch: dp.MiniBatch) -> None:
    return None


def test_the_channel_has_no_room_for_more_than_an_epoch():
    with dp.DataLoader(sampled().transform(big), prefetch_factor=1000, **way("fork")) as loader:
        assert digests(loader) == digests(sampled().transform(big))
        assert loader.rewritten().find(Workers)[0]._running.pool._channel.most_bytes_kept <= 50_000_000


def test_parts_of_every_size_make_the_message_whole_again():
    from datapipes.chain.pool import Outcome, Task
    from datapipes.loader.workers.outcome_messages import Opener, num_bytes_of, to_messages

    minibatch = ws.grow(list(itertools.islice(fetched(), 3))[2])
    outcome = Outcome(1, Task(3, minibatch.epoch, minibatch.index), minibatch)
    for most_bytes in (5_000, 20_011, 200_000, 10_000_000):
        opener = Opener(7, ["0 item_sampler"])
        found = None
        for message in to_messages(outcome, 7, 0, ["0 item_sampler"], most_bytes):
            assert found is None
            assert num_bytes_of(message) <= most_bytes
            _, found = opener.open(message)
        assert found.minibatch.digest() == minibatch.digest()


def test_a_size_that_is_too_small_is_refused_with_the_size_that_is_needed():
    loader = dp.DataLoader(sampled().transform(ws.grow), shm_size="300KB", **way("fork"))
    with refused(ValueError, stage="data_loader: minibatch 1", found=r"takes \d{6,} bytes", allowed="half of its size"):
        list(loader)
    loader.close()


def test_an_epoch_larger_than_the_channel_can_be_kept():
    chain = sampled(items(800)).transform(ws.grow)
    with dp.DataLoader(chain, shm_size="4MB", **way("fork")) as loader:
        kept = list(loader)
        assert len(kept) == 200
        assert loader.stats()["channel"]["copied_out"] > 0
        assert digests(kept) == digests(chain)


# --- which chains


@pytest.mark.parametrize(
    "chain",
    [
        lambda: items(),
        lambda: sampled(),
        lambda: fetched().copy_to("cpu"),
        lambda: fetched().fetch_feature(small_store(), ["feat"]),
        lambda: ws.as_subclasses(),
        lambda: ws.joined(),
        lambda: distributed_chain(),
        lambda: sampled().fetch_feature(ws.RemoteStore(dict(small_store())), ["feat"]),
    ],
    ids=["seeds", "sampled", "copied", "two_fetchers", "subclasses", "two_item_samplers", "ranks", "remote_store"],
)
@pytest.mark.parametrize("method", WITHOUT_SERVER)
def test_chains_of_every_shape_run_in_workers(chain, method):
    with dp.DataLoader(chain(), **way(method)) as loader:
        assert digests(loader) == digests(chain())


@pytest.mark.parametrize("cut", ["end", "copy_to", "sample_neighbor", dp.NeighborSampler, dp.MiniBatchTransformer])
def test_the_cut_may_be_anywhere(cut):
    chain = fetched().copy_to("cpu")
    with dp.DataLoader(chain, cut=cut, **way("fork")) as loader:
        assert digests(loader) == digests(chain)


# --- states


@pytest.mark.parametrize(("name", "seed"), ranked([(name, seed) for seed in range(3) for name in CHAINS], 4))
def test_an_epoch_goes_on_with_other_workers_from_any_place(name, seed):
    choice = random.Random(seed)
    ways = [{"num_workers": 0}, *(way(method, workers) for method in WITHOUT_SERVER for workers in (1, 2, 3))]
    state, got = None, []
    for _ in range(8):  # eight loaders, each left early, in three epochs
        with dp.DataLoader(CHAINS[name][0](), **choice.choice(ways)) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for minibatch in itertools.islice(loader, choice.randrange(4)):
                got.append(minibatch.digest())
            state = json.loads(json.dumps(loader.state_dict()))
    with dp.DataLoader(CHAINS[name][0](), **choice.choice(ways)) as loader:
        loader.load_state_dict(state)
        while len(got) < sum(map(len, expected(name))):
            got += digests(loader)
    assert got == list(itertools.chain(*expected(name)))


@pytest.mark.parametrize("resumed", [{"num_workers": 0}, way("thread", 3, in_order=False)], ids=["alone", "workers"])
@pytest.mark.parametrize("taken", range(1, 4))  # the waiting worker has the other three
def test_an_epoch_out_of_order_goes_on_without_what_was_delivered(tmp_path, taken, resumed):
    go = tmp_path / "go"
    chain = ws.Wait(sampled(items()), 1, str(go))
    loader = dp.DataLoader(chain, in_order=False, overlap=False, **way("thread"))
    first = list(itertools.islice(loader, taken))
    state = json.loads(json.dumps(loader.state_dict()))
    go.touch()
    loader.close()
    assert state == loader.state_dict()
    with dp.DataLoader(chain, **resumed) as other:
        other.load_state_dict(state)
        rest = list(other)
    assert sorted(digests(first + rest)) == sorted(digests(chain))


def test_a_state_with_another_ranks_or_impossible_positions_is_refused(refuses):
    loader = dp.DataLoader(sampled(items()), in_order=False, **way("thread"))
    alone = {"rank": 0, "world_size": 1}
    positions = [{"rank": 1, "world_size": 2, "indices": [4]}, {**alone, "indices": [1]}, {**alone, "indices": [9]}]
    for ahead in (*positions, {"rank": 0}, [3]):
        refuses(ValueError, loader.load_state_dict, {**loader.state_dict(), "next_index": 1, "ahead": ahead})


# --- what can be seen


def test_the_trace_shows_all_processes(tmp_path):
    with dp.DataLoader(ws.worker_chain(), **way("fork")) as loader:
        list(loader)
        loader.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    sampling = {event["pid"] for event in calls if event["name"] == "1 sample_neighbor"}
    fetching = {event["pid"] for event in calls if event["name"] == "3 fetch_feature"}
    assert len(sampling) == 2
    assert len(fetching) == 1
    assert not sampling & fetching
    assert sorted(e["args"]["minibatch"] for e in calls if e["name"] == "1 sample_neighbor") == list(range(6))
    assert all(event["dur"] >= 0 for event in calls)
    spans = {(event["pid"], event["ts"], event["ts"] + event["dur"]) for event in calls if event["pid"] in sampling}
    for pid in sampling:
        times = sorted(span[1:] for span in spans if span[0] == pid)
        assert all(end <= begin + 1 for (_, end), (begin, _) in itertools.pairwise(times))  # one call after the other


def test_in_the_trace_what_runs_side_by_side_has_rows_of_its_own(tmp_path):
    with dp.DataLoader(fetched(sampled(items(400)))) as loader:
        list(loader)
        loader.trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    rows = {names[event["tid"]]: set() for event in events if event["ph"] == "X"}
    for event in events:
        if event["ph"] == "X":
            rows[names[event["tid"]]].add(event["name"])
    assert rows["datapipes-prefetch-1"] == {"0 item_sampler", "1 sample_neighbor"}
    assert rows["datapipes-prefetch-2"] == {"2 fetch_feature", "waiting for 1 sample_neighbor"}


def test_the_plan_names_each_process():
    text = dp.DataLoader(ws.worker_chain(), 2, in_order=False, channel="mp").explain()
    lines = text.splitlines()
    assert lines[1] == (
        "  2 worker processes (forkserver), each up to 2 minibatches ahead, as made, through channel mp"
    )
    assert [line.split(":")[0].strip() for line in lines[2:5]] == ["item_sampler", "sample_neighbor", "transform"]
    assert lines[5].startswith("    in huge pages: ")
    assert lines[6].startswith("  thread 1")
    assert "worker threads" in dp.DataLoader(sampled(), 2, worker_method="thread").explain()


def test_the_picture_has_a_row_for_the_workers(tmp_path):
    dp.DataLoader(ws.worker_chain(), 2).to_svg(tmp_path / "plan.svg")
    assert "2 worker processes (forkserver)" in (tmp_path / "plan.svg").read_text()


def test_what_happens_is_logged(caplog):
    caplog.set_level("INFO", logger="datapipes")
    with dp.DataLoader(sampled(), **way("fork")) as loader:
        list(loader)
    text = caplog.text
    assert "started 2 worker processes (fork)" in text
    assert "the channel gets" in text


def test_options_of_workers_that_there_are_not_are_logged_and_change_nothing(caplog):
    caplog.set_level("INFO", logger="datapipes")
    with dp.DataLoader(sampled(), 0, in_order=False, shm_size="1MB", prefetch_factor=3) as loader:
        assert digests(loader) == digests(sampled())
    assert "num_workers is 0, so ['in_order', 'shm_size'] have no effect" in caplog.text
