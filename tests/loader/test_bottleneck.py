"""What bounds an epoch: one record for each cause, and records in which nothing is to blame."""

import re

import pytest

from datapipes.loader.bottleneck import find_bottleneck
from datapipes.loader.facts import Facts, LaneFacts, StageFacts

SEEDS = StageFacts("0 item_sampler", "", "seeds", False)
SAMPLE = StageFacts("1 sample_neighbor", "", "sampling", False)
OWN = StageFacts("2 transform", "", "transform", False)
FETCH = StageFacts("3 fetch_feature", "", "gather", False)
REMOTE = StageFacts("1 dist_sample_neighbor", "", "sampling", True)
MB = 10**6


def row(ms: float, ran: float = 1.0, disk: float = 0.0, calls: int = 1000) -> dict[str, float]:
    """`calls` calls of so many ms, of which a share of `ran` was on a processor, with so many bytes from disk."""
    seconds = calls * ms / 1e3
    used = {"processor_seconds": seconds * ran, "disk_bytes": disk * calls}
    return {"calls": calls, "seconds": seconds, "concurrent_seconds": seconds, **used}


def plan(num_workers: int = 0, first=(SEEDS, SAMPLE), second=(FETCH,), pool="process", batch_size=1024):
    lane = LaneFacts(
        "lane 1", max(num_workers, 1), pool if num_workers else "", f"waiting for {first[-1].label}", first
    )
    behind = LaneFacts("lane 2", 1, "", f"waiting for {second[-1].label}", second)
    lanes = (lane, behind, LaneFacts("caller's thread", 1, "", "", ()))
    return {"title": "DataLoader()", "processors": 8, "batch_size": batch_size, "lanes": lanes}


def found_in(planned, rows):
    return find_bottleneck(Facts(rows, **planned))


def epoch(ms: float, model_ms: float = 0.1, *, idle: float = 5.0, start: float = 0.0, begun: int = 1, **rows):
    """1,000 minibatches, one each `ms` ms, beside a model that takes `model_ms` of it."""
    seconds = ms + start
    watched = {"watched_seconds": ms, "processor_seconds": 1.5 * ms, "idle_seconds": idle * ms}
    starts = {"start_seconds": start, "latest_start_seconds": start / begun, "begun": begun}
    return {**rows, "consumer": row(model_ms), "epochs": {"calls": 1000, "seconds": seconds, **starts, **watched}}


def named(fetch_ms=3.0, sample_ms=10.0, ran=1.0, **rows):
    own = {SEEDS.label: row(0.2), SAMPLE.label: row(sample_ms, ran), FETCH.label: row(fetch_ms)}
    return {**own, **rows}


AWAITED = {SEEDS.label: row(0.1), REMOTE.label: row(40, 0), FETCH.label: row(3)}


def test_nothing_is_found_before_the_first_minibatch():
    assert found_in(plan(), {}) is None
    assert found_in(plan(), {"epochs": {"calls": 0.0, "seconds": 1.0}}) is None


CASES = [
    ("sampling", SAMPLE, "num_workers=6: 5.0 of 8", plan(), epoch(10.3, **named())),
    ("workers", SAMPLE, "num_workers=6: 5.0 of 8", plan(1), epoch(10.3, **named())),
    ("workers", SAMPLE, "num_workers=6: 4.5 of 8", plan(2), epoch(5.2, **named())),
    ("workers", SAMPLE, "num_workers=6: 5.0 of 8", plan(1, pool="thread"), epoch(10.3, **named())),
    ("sampling", SAMPLE, "fanouts.*0.1 of 8", plan(7), epoch(1.6, idle=0.2, **named(fetch_ms=1.0))),
    ("gather", FETCH, "stored_as='float16'", plan(), epoch(9.1, **named(fetch_ms=9.0, sample_ms=4.0))),
    ("disk", FETCH, "read 2000 MB.*memory", plan(), epoch(91, **named(**{FETCH.label: row(90, 0.2, 2 * MB)}))),
    ("disk", SAMPLE, "for the disk 60%", plan(2), epoch(20, **named(**{SAMPLE.label: row(40, 0.4, MB)}))),
    ("channel", SAMPLE, "channel slowly.*thread", plan(2), epoch(30, **named(fetch_ms=2.0))),
    ("processors", SAMPLE, "only 50%.*threads", plan(), epoch(22, 15, idle=0.1, **named(sample_ms=20, ran=0.5))),
    ("sampling", SAMPLE, "only 50%.*fanouts", plan(), epoch(22, 5, idle=0.1, **named(sample_ms=20, ran=0.5))),
    ("tiny", SAMPLE, "4 seeds takes 0.60 ms.*=16.*lap=F", plan(batch_size=4), epoch(0.8, 0.01, **named(0.1, 0.3))),
    ("tiny", SAMPLE, r"takes 0.60 ms.*=16 or more\.$", plan(1, batch_size=4), epoch(0.8, 0.01, **named(0.1, 0.3))),
    ("network", REMOTE, "40.0 ms a call, 1.0.*concurrency", plan(first=(SEEDS, REMOTE)), epoch(41, **AWAITED)),
    ("start", None, r"took 2\.00 s to its first.*persistent", plan(2), epoch(1, start=8, begun=4, **named(0.5, 1.5))),
]


@pytest.mark.parametrize(("cause", "stage", "said", "given", "stats"), CASES)
def test_the_cause_and_the_option_to_turn_are_named(cause, stage, said, given, stats):
    found = found_in(given, stats)
    assert (found.cause, found.stage) == (cause, stage.label if stage else "")
    assert re.search(said, str(found)), str(found)
    assert found.waits > 0.3


def test_a_slow_function_of_the_user_is_named_with_where_it_could_run():
    rows = {**named(), OWN.label: row(30)}
    in_workers = found_in(plan(2, first=(SEEDS, SAMPLE, OWN)), epoch(20.2, **rows))
    assert in_workers.cause == "transform"
    assert "your 2 transform with num_workers=2 takes 30.0 ms" in in_workers.found
    assert "num_workers=6" in in_workers.advice
    behind = found_in(plan(2, second=(FETCH, OWN)), epoch(33, **rows))
    assert "num_workers=6, cut='end'" in behind.advice
    alone = found_in(plan(first=(SEEDS, SAMPLE, OWN)), epoch(40.2, **rows))
    assert alone.advice.endswith("num_workers=6.")


def test_minibatches_of_servers_are_made_elsewhere():
    found = found_in(plan(), epoch(30, **{
        "waiting for 1 sample_neighbor": row(28), FETCH.label: row(2)}))  # fmt: skip
    assert (found.cause, "by lane 1" in found.found) == ("network", True)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("start", [0.0, 60.0])
def test_a_loader_that_the_model_does_not_wait_for_is_not_blamed(num_workers, start):
    slow_disk = {FETCH.label: row(20, 0.2, MB), OWN.label: row(19)}
    found = found_in(plan(num_workers), epoch(30, 29, start=start, **named(**slow_disk)))
    assert (found.cause, found.stage) == ("consumer", "consumer")
    assert "works 97% of the time; nothing in the loader" in found.found


def test_a_function_that_waits_is_no_lack_of_processors():
    rows = {**named(), OWN.label: row(30, 0.0)}
    found = found_in(plan(second=(FETCH, OWN)), epoch(33, 15, idle=0.0, **rows))
    assert found.cause == "transform"


def test_a_function_that_sleeps_does_not_make_minibatches_tiny():
    rows = {**named(0.1, 0.1), OWN.label: row(30, 0.0)}
    assert found_in(plan(first=(SEEDS, SAMPLE, OWN)), epoch(31, **rows)).cause == "transform"


def test_another_loader_is_told_to_be_asked():
    inner = StageFacts("2 data_loader", "", "loader", False)
    found = found_in(plan(first=(inner,)), epoch(22, **{inner.label: row(21, 0.0), FETCH.label: row(0.1)}))
    assert (found.cause, found.stage, "ask its stats()" in found.advice) == ("loader", inner.label, True)


@pytest.mark.parametrize(("calls", "begun"), [(1, 1), (5, 3), (6, 6)])
def test_few_minibatches_tell_nothing(calls, begun):
    stats = epoch(0.5, start=3.0, begun=begun, **named())
    stats["epochs"]["calls"] = calls
    assert found_in(plan(), stats).cause == "few"
