"""Prefetcher: minibatches ahead of the consumer, errors that arrive once, and a thread that always ends."""

import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Callable

import pytest
import torch
from pipelines import (
    BOUND_S,
    assert_ended,
    digests,
    fetched,
    items,
    keep_most,
    prefetch_threads,
    sampled,
    small_store,
    wait_until,
)
from scripts import SUPPORT

import datapipes as dp


def contract_chain() -> dp.Stage:
    return fetched().prefetch(2)


def contract_forms() -> tuple[dp.Stage, dp.Stage]:
    return items().prefetch(3), dp.Prefetcher(items(), 3)


WRAP: dict[str, Callable[..., dp.Stage]] = {
    "prefetch": lambda chain, timeout=None: chain.prefetch(2, timeout=timeout),
    "data_loader": lambda chain, timeout=None: dp.DataLoader(chain, timeout=timeout),
    "stage_after_it": lambda chain, timeout=None: chain.prefetch(2, timeout=timeout).transform(
        lambda minibatch: minibatch
    ),
}


@pytest.fixture(params=sorted(WRAP))
def wrap(request):
    """Put a thread around a chain; afterwards that thread must have ended."""
    before = prefetch_threads()
    yield WRAP[request.param]
    gc.collect()
    assert_ended([thread for thread in prefetch_threads() if thread not in before])


class Gate:
    """A function for `transform` that waits at one minibatch until the test opens it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.opened, self.reached = threading.Event(), threading.Event()

    def __call__(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == self.index:
            self.reached.set()
            assert self.opened.wait(BOUND_S)
        return minibatch


# --- what arrives


@pytest.mark.parametrize("depth", [1, 2, 100])
def test_the_minibatches_are_those_of_the_chain_in_order(depth):
    expected = fetched().transform(keep_most)
    stage = fetched().transform(keep_most).prefetch(depth)
    assert [digests(stage), digests(stage)] == [digests(expected), digests(expected)]


@pytest.mark.parametrize("depth", [1, 3])
def test_no_more_than_depth_are_made_ahead(depth):
    made, full = [], threading.Event()

    def note(minibatch):
        made.append(minibatch.index)
        if minibatch.index == depth + 1:  # there is no room for it; the next one must not begin
            full.set()
        return minibatch

    iterator = iter(items(60).transform(note).prefetch(depth))
    assert next(iterator).index == 0
    assert full.wait(BOUND_S)
    assert made == list(range(depth + 2))
    assert [minibatch.index for minibatch in iterator] == list(range(1, 15))
    assert made == list(range(15))


def test_the_next_minibatch_is_made_while_the_consumer_works(wrap):
    gate = Gate(1)
    iterator = iter(wrap(sampled().transform(gate)))
    assert next(iterator).index == 0
    assert gate.reached.wait(BOUND_S)  # meanwhile the consumer has asked for nothing
    gate.opened.set()
    assert [minibatch.index for minibatch in iterator] == [1, 2, 3, 4, 5]


def test_two_loaders_may_run_over_one_chain(wrap):
    chain = fetched()
    one, other = wrap(chain), wrap(chain)
    pairs = list(zip(one, other, strict=True))
    assert digests(first for first, _ in pairs) == digests(second for _, second in pairs) == digests(fetched())


# --- what the consumer keeps while it asks for the next


def queue_of(stage: dp.Stage):
    """The queue between the thread of the running epoch and the consumer."""
    stream = stage._run._stream
    return getattr(stream, "_stream", stream)._queue  # a loader times its consumer around the reader


@pytest.mark.parametrize("stage", [lambda: fetched().prefetch(1), lambda: dp.DataLoader(fetched(), prefetch_factor=1)])
def test_a_thread_that_waits_for_room_frees_the_minibatch_that_the_consumer_drops(stage):
    stage, freed_by = stage(), queue.SimpleQueue()
    iterator = iter(stage)
    kept = next(iterator)
    ready = queue_of(stage)
    wait_until(lambda: ready.is_full and ready.ready)
    weakref.finalize(kept, lambda: freed_by.put(threading.current_thread()))
    with ready.changed:  # the thread goes on only after the consumer has dropped the minibatch
        kept = next(iterator)
    assert kept.index == 1
    assert freed_by.get(timeout=BOUND_S) in prefetch_threads()
    stage.close()


def test_a_thread_that_is_at_work_is_given_nothing_to_free():
    gate = Gate(2)
    iterator = iter(items().transform(gate).prefetch(2))
    kept = next(iterator)
    assert gate.reached.wait(BOUND_S)
    dropped = weakref.finalize(kept, lambda: None)
    kept = next(iterator)
    assert (kept.index, dropped.alive) == (1, False)
    gate.opened.set()
    assert [minibatch.index for minibatch in iterator] == [2, 3, 4, 5]


def test_at_most_one_minibatch_waits_to_be_freed():
    stage = items(60).prefetch(2)
    iterator = iter(stage)
    kept = next(iterator)
    ready = queue_of(stage)
    wait_until(lambda: ready.is_full and len(ready.ready) == 2)
    with ready.changed:  # the thread has no chance to free anything
        first = weakref.finalize(kept, lambda: None)
        kept = next(iterator)
        second = weakref.finalize(kept, lambda: None)
        kept = next(iterator)
        assert (first.alive, second.alive) == (True, False)
    assert [kept.index, *(minibatch.index for minibatch in iterator)] == list(range(2, 15))
    assert not first.alive


def test_a_minibatch_that_the_consumer_has_dropped_is_kept_by_nobody():
    stage = fetched().prefetch(1)
    iterator = iter(stage)
    kept = next(iterator)
    ready = queue_of(stage)
    wait_until(lambda: ready.is_full and ready.ready)
    dropped = weakref.finalize(kept, lambda: None)
    del kept
    assert not dropped.alive
    assert [minibatch.index for minibatch in iterator] == [1, 2, 3, 4, 5]


# --- whom its thread preempts


@pytest.mark.parametrize(
    "workers",
    [
        {},
        {"num_workers": 1, "worker_method": "thread"},
        {"num_workers": 1, "multiprocessing_context": "fork"},
    ],
    ids=str,
)
def test_threads_and_workers_preempt_nobody_and_the_consumer_is_left_alone(workers):
    chain = items(12).transform(with_policy).fetch_feature(small_store(), ["feat"]).transform(with_policy)
    with dp.DataLoader(chain, **workers) as loader:
        found = {policy for minibatch in loader for policy in minibatch.labels.flatten().tolist()}
    assert found == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def with_policy(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    policy = torch.full((len(minibatch.seeds), 1), os.sched_getscheduler(0))
    before = [] if minibatch.labels is None or minibatch.labels.ndim < 2 else [minibatch.labels]
    return minibatch.replace(labels=torch.cat([*before, policy], 1))


# --- errors


def fails_at_two(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    if minibatch.index == 2:
        raise LookupError("of the user")
    return minibatch


def test_an_error_arrives_once_in_its_place_with_its_type_and_the_users_line(wrap):
    stage = wrap(sampled().transform(fails_at_two))
    iterator = iter(stage)
    assert [next(iterator).index, next(iterator).index] == [0, 1]
    with pytest.raises(LookupError, match="of the user") as caught:
        next(iterator)
    assert "fails_at_two" in "".join(traceback.format_exception(caught.value))
    with pytest.raises(RuntimeError, match="epoch 0 broke off at an error before its minibatch number 2") as again:
        list(iterator)
    assert again.value.__cause__ is caught.value
    resumed = sampled().transform(lambda minibatch: minibatch)
    resumed.load_state_dict(stage.state_dict())  # of the minibatch that failed
    assert [(minibatch.epoch, minibatch.index) for minibatch in resumed] == [(0, 2), (0, 3), (0, 4), (0, 5)]
    assert next(iter(stage)).epoch == 1


def test_a_slow_stage_ends_in_a_timeout_and_the_epoch_goes_on_afterwards(wrap):
    gate = Gate(2)
    iterator = iter(wrap(sampled().transform(gate), timeout=0.05))
    made = []
    with pytest.raises(TimeoutError) as caught:
        made.extend(iterator)  # the third minibatch times out
    text = str(caught.value)
    assert text.startswith(("prefetch: ", "data_loader: "))
    for part in ("0.05 s", "the limit", "2 (transform)", "minibatch 2 of", "Raise timeout"):
        assert part in text
    gate.opened.set()
    for _ in range(400):  # the machine may be busy: each attempt is bounded by the timeout
        try:
            made.extend(iterator)
            break
        except TimeoutError:
            continue
    assert [minibatch.index for minibatch in made] == [0, 1, 2, 3, 4, 5]


# --- the thread ends


def threads_of(stage: dp.Stage) -> tuple[list[threading.Thread], object]:
    """Begin an epoch; return the threads it started and its iterator."""
    before = prefetch_threads()
    iterator = iter(stage)
    next(iterator)
    return [thread for thread in prefetch_threads() if thread not in before], iterator


def test_it_ends_when_the_stage_is_closed(wrap):
    stage = wrap(fetched(sampled(items(200))))  # more than all queues hold, so that no thread is done already
    threads, _iterator = threads_of(stage)
    assert all(thread.daemon for thread in threads)
    assert len(threads) == (2 if wrap is WRAP["data_loader"] else 1)  # one thread samples, one fetches
    stage.close()
    assert_ended(threads)


@pytest.mark.parametrize("end", [lambda stage, rest: list(rest), lambda stage, rest: next(iter(stage))])
def test_it_ends_when_the_epoch_does_or_another_begins(wrap, end):
    stage = wrap(fetched())
    threads, iterator = threads_of(stage)
    end(stage, iterator)
    assert_ended(threads)
    stage.close()


def test_it_ends_when_an_error_is_raised(wrap):
    def fails(minibatch):
        if minibatch.index:
            raise LookupError
        return minibatch

    stage = wrap(items().transform(fails))
    threads, iterator = threads_of(stage)
    with pytest.raises(LookupError):
        next(iterator)
    assert_ended(threads)


def test_it_ends_when_the_stage_is_forgotten(wrap):
    stage = wrap(fetched())
    threads, iterator = threads_of(stage)
    del stage, iterator
    gc.collect()
    assert_ended(threads)


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from pipelines import fetched, items, sampled
import datapipes as dp
stages = [dp.DataLoader(fetched(sampled(items(2000)))), fetched(sampled(items(2000))).prefetch(3)]
iterators = [iter(stage) for stage in stages]
print([next(iterator).index for iterator in iterators], flush=True)
"""


@pytest.mark.full
def test_the_interpreter_exits_while_an_epoch_runs():
    child = subprocess.run([sys.executable, "-c", CHILD, SUPPORT], capture_output=True, text=True, timeout=60)
    assert (child.returncode, child.stdout.strip(), child.stderr) == (0, "[0, 0]", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_gets_an_error_and_does_not_hang():
    gate = Gate(3)  # the thread waits in here while the process forks, and holds no lock
    chain = items().transform(gate)
    stage = chain.prefetch(1)
    iterator = iter(stage)
    assert [next(iterator).index for _ in range(3)] == [0, 1, 2]
    assert gate.reached.wait(BOUND_S)
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # ends the child if it hangs
        try:
            next(iterator)
        except RuntimeError as error:
            os._exit(42 if "forked child" in str(error) else 43)
        finally:
            os._exit(44)
    _, status = os.waitpid(child, 0)
    gate.opened.set()
    stage.close()
    assert os.waitstatus_to_exitcode(status) == 42


# --- arguments


def test_what_prefetch_refuses(refuses):
    refuses(ValueError, items().prefetch, 0)
    refuses(TypeError, items().prefetch, 1.5)
    for timeout in (0, -1.0, float("nan"), True, "1"):
        refuses(ValueError, items().prefetch, timeout=timeout)


def test_a_reader_that_the_sampling_thread_collects_does_not_hold_it_up(monkeypatch):
    """The fetching thread of that reader may be waiting for minibatches of the thread that collects the reader."""
    monkeypatch.setattr("datapipes.loader.prefetcher.JOIN_S", 10 * BOUND_S)
    collected: list[bool] = []

    def collect(minibatch):
        if minibatch.index == 3:
            forgotten.set()
            assert released.wait(BOUND_S)
            gc.collect()
            collected.append(True)
        return minibatch

    forgotten, released = threading.Event(), threading.Event()
    before = prefetch_threads()
    loader = dp.DataLoader(sampled().transform(collect).fetch_feature(small_store(), ["feat"]))
    iterator = iter(loader)
    cycle = [iterator]
    cycle.append(cycle)
    gc.disable()
    try:
        next(iterator)
        threads = [thread for thread in prefetch_threads() if thread not in before]
        assert forgotten.wait(BOUND_S)
        del loader, iterator, cycle
        released.set()
        assert_ended(threads)
    finally:
        gc.enable()
    assert collected == [True]
