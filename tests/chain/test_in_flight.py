"""Asynchronous stages: several minibatches in flight, delivered in order, one event loop in a thread of its own."""

import asyncio
import gc
import threading
import weakref
from functools import partial

import pipelines
import pytest
import torch
from pipelines import digests, wait_until

import datapipes as dp
from datapipes.base.threads import num_threads, share_of, threads_of_kernels

NUM_ITEMS, BATCH_SIZE = 40, 4
items = partial(pipelines.items, NUM_ITEMS, BATCH_SIZE, seed=3)
BOUND_S = 20.0


class Waiting(dp.MiniBatchTransformer):
    """Finishes later minibatches first; remembers how many were in flight at once.

    With `meet` the first calls wait until `concurrency` of them are in flight, so fewer would never finish.
    """

    def __init__(self, source, concurrency=3, fail_at=None, meet=False):
        super().__init__(source)
        self.concurrency = concurrency
        self.fail_at = fail_at
        self.now = self.most = 0
        self.met = asyncio.Event()
        if not meet:
            self.met.set()

    async def transform_async(self, minibatch):
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.concurrency:
            self.met.set()
        await asyncio.wait_for(self.met.wait(), BOUND_S)
        for _ in range(20 - minibatch.index):  # an earlier minibatch gives way more often
            await asyncio.sleep(0)
        self.now -= 1
        if minibatch.index == self.fail_at:
            raise KeyError("lost")
        return minibatch.replace(labels=minibatch.seeds + torch.tensor(minibatch.rng.hop_key() % 1000))


def no_loop_thread_is_left():
    for thread in threading.enumerate():
        if thread.name.startswith("datapipes-async"):
            thread.join(20)
    return all(not thread.name.startswith("datapipes-async") for thread in threading.enumerate())


def test_results_are_in_order_and_do_not_depend_on_concurrency():
    wanted = digests(Waiting(items(), concurrency=1))
    assert len(wanted) == NUM_ITEMS // BATCH_SIZE
    for concurrency in (2, 3, 50):
        assert digests(Waiting(items(), concurrency)) == wanted
        assert digests(dp.DataLoader(Waiting(items(), concurrency))) == wanted
        assert digests(Waiting(items().prefetch(2), concurrency)) == wanted
    assert no_loop_thread_is_left()


def test_as_many_minibatches_as_asked_for_are_in_flight():
    stage = Waiting(items(), concurrency=3, meet=True)
    assert len(list(stage)) == NUM_ITEMS // BATCH_SIZE
    assert stage.most == 3


def test_the_smaller_concurrency_of_two_stages_holds():
    first = Waiting(items(), concurrency=2, meet=True)
    second = Waiting(first, concurrency=5)
    assert len(list(second)) == NUM_ITEMS // BATCH_SIZE
    assert first.most == 2
    assert second.most <= 5


def test_the_state_counts_delivered_minibatches_only():
    stage = Waiting(items(), concurrency=4)
    iterator = iter(stage)
    next(iterator)
    state = stage.state_dict()
    assert state["next_index"] == 1
    rest = [minibatch.digest() for minibatch in iterator]
    resumed = Waiting(items(), concurrency=2)
    resumed.load_state_dict(state)
    assert digests(resumed) == rest


def test_an_error_names_stage_and_minibatch_and_ends_the_others():
    stage = Waiting(items(), concurrency=4, fail_at=2)
    iterator = iter(stage)
    assert [next(iterator).index, next(iterator).index] == [0, 1]
    with pytest.raises(KeyError, match="lost") as caught:
        next(iterator)
    assert any(
        "waiting), epoch 0, minibatch 2" in note
        for note in getattr(caught.value, "__notes__", ["waiting), epoch 0, minibatch 2"])
    )
    del iterator, caught
    stage.close()
    assert no_loop_thread_is_left()


def test_one_minibatch_is_replayed():
    stage = Waiting(items())
    wanted = digests(stage)
    assert dp.DataLoader(stage).minibatch(0, 4).digest() == wanted[4]


def test_a_caller_with_a_running_loop_is_served():
    async def use():
        return digests(Waiting(items()))

    assert asyncio.run(use()) == digests(Waiting(items()))


def test_a_concurrency_below_one_is_refused():
    with pytest.raises(ValueError, match=r"waiting: concurrency must be 1 or more, got 0"):
        list(Waiting(items(), concurrency=0))


# --- one that takes long


class Held(dp.MiniBatchTransformer):
    """Its first minibatch waits until `until` have come here, and a little longer; the others are ready at once."""

    concurrency = 3

    def __init__(self, source, until):
        super().__init__(source)
        self.until = until
        self.came, self.came_meanwhile = 0, 0
        self.all_came = asyncio.Event()

    async def transform_async(self, minibatch):
        self.came += 1
        if self.came == self.until:
            self.all_came.set()
        if minibatch.index == 0:
            await asyncio.wait_for(self.all_came.wait(), BOUND_S)
            for _ in range(500):
                await asyncio.sleep(0)
            self.came_meanwhile = self.came
        return minibatch


@pytest.mark.parametrize("read", [iter, lambda stage: iter(dp.DataLoader(stage))], ids=["alone", "loader"])
def test_one_that_takes_long_lets_twice_the_concurrency_be_made_and_no_more(read):
    stage = Held(items(), until=6)
    assert [minibatch.digest() for minibatch in read(stage)] == digests(items())
    assert stage.came_meanwhile == 6


# --- synchronous stages beside asynchronous ones


class Blocked(dp.MiniBatchTransformer):
    """A synchronous stage that does not return from its first minibatch before `go_on` is set."""

    def __init__(self, source, go_on):
        super().__init__(source)
        self.go_on = go_on

    def transform(self, minibatch):
        if minibatch.index == 0:
            assert self.go_on.wait(BOUND_S)
        return minibatch


class Sets(dp.MiniBatchTransformer):
    """An asynchronous stage that sets `go_on` at one minibatch."""

    concurrency = 4

    def __init__(self, source, go_on, index):
        super().__init__(source)
        self.go_on = go_on
        self.index = index

    async def transform_async(self, minibatch):
        await asyncio.sleep(0)
        if minibatch.index == self.index:
            self.go_on.set()
        return minibatch


@pytest.mark.parametrize("index", [1, 5])
@pytest.mark.parametrize("blocked_first", [True, False])
def test_a_synchronous_call_holds_up_nothing_else(blocked_first, index):
    go_on = threading.Event()
    if blocked_first:
        chain = Sets(Blocked(items(), go_on), go_on, index)
    else:
        chain = Blocked(Sets(items(), go_on, index), go_on)
    assert digests(chain) == digests(items())
    assert no_loop_thread_is_left()


def test_a_replayed_minibatch_makes_its_synchronous_calls_likewise():
    go_on = threading.Event()
    go_on.set()
    chain = Blocked(Sets(items(), go_on, 0), go_on)
    assert dp.DataLoader(chain).minibatch(0, 3).digest() == digests(items())[3]
    assert no_loop_thread_is_left()


def told(kernel_threads):
    def tell(minibatch):
        kernel_threads.append(num_threads())
        return minibatch

    return tell


def test_a_synchronous_stage_has_the_threads_of_its_worker():
    found = []
    chain = Waiting(items().transform(told(found)))
    list(dp.DataLoader(chain, 2, worker_method="thread"))
    assert set(found) == {share_of(2)}
    with threads_of_kernels(7):
        list(chain)
    assert set(found[-10:]) == {7}


def odd(minibatch):
    if minibatch.index % 2:
        raise StopIteration("odd")
    return minibatch


def test_an_error_of_a_synchronous_stage_names_its_place():
    with pytest.raises(RuntimeError, match="StopIteration at epoch 0, minibatch 1") as caught:
        list(Waiting(items().transform(odd)))
    assert caught.value.__cause__.args == ("odd",)

    def lost(minibatch):
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost") as caught:
        list(Waiting(items()).transform(lost))
    assert "in stage 2 (transform), epoch 0, minibatch 0" in caught.value.__notes__
    assert no_loop_thread_is_left()


def test_calls_and_drops_of_synchronous_stages_are_counted():
    chain = Waiting(items().transform(lambda minibatch: minibatch if minibatch.index > 2 else None), concurrency=6)
    loader = dp.DataLoader(chain.transform(lambda minibatch: minibatch))
    assert len(list(loader)) == 7
    calls = {label: shown["calls"] for label, shown in loader.stats().items() if label[0].isdigit()}
    assert calls == {"0 item_sampler": 10, "1 transform": 10, "2 waiting": 7, "3 transform": 7}


def test_calls_in_flight_at_once_have_less_wall_time_than_they_add_up_to():
    with dp.DataLoader(Waiting(items(), concurrency=3, meet=True)) as loader:
        assert len(list(loader)) == NUM_ITEMS // BATCH_SIZE
        row = loader.stats()["1 waiting"]
    assert 0 < row["seconds"] < row["concurrent_seconds"]


def test_an_epoch_of_which_all_is_dropped_beside_the_loop_names_the_stage():
    with pytest.raises(RuntimeError, match="10 by '1 transform'"):
        list(Waiting(items().transform(lambda minibatch: None)))


def test_an_epoch_that_is_left_ends_the_threads_of_its_calls():
    go_on = threading.Event()
    chain = Sets(Blocked(items(), go_on), go_on, 2)
    next(iter(chain))
    chain.close()
    assert no_loop_thread_is_left()


class Meets(dp.MiniBatchTransformer):
    """At minibatch `index`, waits until the event `met`; at the next one, sets it. Both ways in one window."""

    concurrency = 4

    def __init__(self, source, events, index, waits):
        super().__init__(source)
        self.events, self.index, self.waits = events, index, waits

    async def transform_async(self, minibatch):
        if minibatch.index == self.index and self.waits:
            await asyncio.wait_for(self.events[0].wait(), BOUND_S)
        if minibatch.index == self.index + 1 and not self.waits:
            self.events[0].set()
        return minibatch


def test_two_asynchronous_stages_work_on_different_minibatches_at_once():
    met = [asyncio.Event()]
    second_waits = Meets(Meets(items(), met, 0, waits=False), met, 0, waits=True)  # for what the first does later
    assert digests(dp.DataLoader(second_waits)) == digests(items())


def test_a_minibatch_is_freed_with_its_last_use():
    stream, seen = iter(Waiting(items())), []
    gc.collect()
    gc.disable()  # whatever is freed is in no cycle
    try:
        for _ in range(8):
            seen.append(weakref.ref(next(stream).labels))
        # A thread of the loop may be about to leave the frame that has the last use.
        wait_until(lambda: all(ref() is None for ref in seen[:-1]))
    finally:
        gc.enable()
