"""Asynchronous stages: several minibatches in flight, delivered in order, one event loop in a thread of its own."""

import asyncio
import threading

import pytest
import torch

import datapipes as dp

NUM_ITEMS, BATCH_SIZE = 40, 4
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


def items():
    return dp.ItemSampler(dp.ItemSet(NUM_ITEMS), BATCH_SIZE, shuffle=True, seed=3)


def digests(stage):
    return [minibatch.digest() for minibatch in stage]


def no_loop_thread_is_left():
    for thread in threading.enumerate():
        if thread.name == "datapipes-async":
            thread.join(20)
    return all(thread.name != "datapipes-async" for thread in threading.enumerate())


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
