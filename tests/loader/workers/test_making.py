"""What a worker does with its tasks: it delivers what is ready, and takes tasks whatever it is doing."""

import asyncio
import queue
import threading

import pytest
import torch
from pipelines import BOUND_S, digests, items, sampled, wait_until

import datapipes as dp
from datapipes.chain.loop_pool import LoopPool
from datapipes.chain.pool import Task
from datapipes.loader.workers import making
from datapipes.loader.workers.thread_pool import MakingHere


class Gate(dp.MiniBatchTransformer):
    """An asynchronous stage at which each minibatch waits until the test lets it pass."""

    concurrency = 3

    def __init__(self, source):
        super().__init__(source)
        self.open = [asyncio.Event() for _ in range(20)]
        self.loop = None
        self.here, self.cancelled = set(), set()

    async def transform_async(self, minibatch):
        self.loop = asyncio.get_running_loop()
        self.here.add(minibatch.index)
        try:
            await asyncio.wait_for(self.open[minibatch.index].wait(), BOUND_S)
        except asyncio.CancelledError:
            self.cancelled.add(minibatch.index)
            raise
        finally:
            self.here.discard(minibatch.index)
        return minibatch

    def let_pass(self, *indices):
        for index in indices:
            self.loop.call_soon_threadsafe(self.open[index].set)


class Worker:
    """A worker over a chain; the test gives the tasks and asks for the outcomes."""

    def __init__(self, chain):
        self.tasks = queue.SimpleQueue()
        self.taken = []
        self.making = MakingHere()
        self.outcomes = making.work(0, chain, self.take, self.making)

    def take(self):
        task = self.tasks.get(timeout=BOUND_S)
        self.taken.append(task)
        return task

    def give(self, *indices, generation=1):
        for index in indices:
            self.tasks.put(Task(generation, 0, index))

    def made(self):
        return {task.index for task in self.making}

    def end(self):
        self.tasks.put(None)
        assert next(self.outcomes, None) is None
        assert not [each for each in threading.enumerate() if each.name.startswith(("datapipes-async", "datapipes-ta"))]


@pytest.fixture
def gate():
    return Gate(items())


def start(gate, *indices):
    """Start a worker with tasks; return it once as many are in flight as can be, and its first outcome, minibatch 1."""
    worker = Worker(gate)
    worker.give(*indices)
    first = []
    reading = threading.Thread(target=lambda: first.append(next(worker.outcomes)))
    reading.start()
    wait_until(lambda: gate.here == set(indices[:3]))
    gate.let_pass(1)
    reading.join(BOUND_S)
    return worker, first[0]


def test_what_is_ready_first_comes_first(gate):
    worker, first = start(gate, 0, 1, 2, 3)
    assert first.task.index == 1
    wait_until(lambda: gate.here == {0, 2, 3})
    gate.let_pass(3)
    assert next(worker.outcomes).task.index == 3
    gate.let_pass(2)
    assert next(worker.outcomes).task.index == 2
    gate.let_pass(0)
    outcome = next(worker.outcomes)
    assert (outcome.task.index, outcome.minibatch.digest()) == (0, digests(items())[0])
    assert {call.stage for call in outcome.calls} <= {"0 item_sampler", "1 gate"}
    worker.end()


def test_tasks_are_taken_while_an_outcome_is_sent_and_while_others_are_in_flight(gate):
    worker, _ = start(gate, 0, 1, 2)  # the outcome of minibatch 1 is not sent yet: nobody asks for the next one
    worker.give(3, 4)
    wait_until(lambda: gate.here == {0, 2, 3} and len(worker.taken) == 5)
    assert worker.made() == {0, 1, 2, 3}
    gate.let_pass(0, 2)
    wait_until(lambda: gate.here == {3, 4})
    assert worker.made() == {0, 1, 2, 3, 4}
    assert {next(worker.outcomes).task.index for _ in range(2)} == {0, 2}
    assert 1 not in worker.made()
    worker.end()


def test_an_epoch_that_was_left_takes_no_room_from_the_next(gate):
    worker, _ = start(gate, 0, 1, 2)
    worker.give(6, 7, 8, generation=2)
    wait_until(lambda: gate.here == {6, 7, 8} and gate.cancelled == {0, 2})
    assert worker.made() == {1, 6, 7, 8}  # minibatch 1 is being sent
    gate.let_pass(7)
    assert next(worker.outcomes).task == Task(2, 0, 7)
    worker.end()


def test_a_worker_that_is_told_to_end_waits_for_nothing_in_flight(gate):
    worker, _ = start(gate, 0, 1, 2)
    worker.end()
    assert gate.cancelled == {0, 2}


def test_an_error_of_taking_tasks_reaches_the_worker(gate):
    def take():
        raise EOFError("the pool is gone")

    with pytest.raises(EOFError, match="the pool is gone"):
        next(making.work(0, gate, take, MakingHere()))


def test_without_asynchronous_stages_tasks_are_made_in_their_order():
    worker = Worker(sampled())
    worker.give(2, 0, 1)
    assert [next(worker.outcomes).task.index for _ in range(3)] == [2, 0, 1]
    assert worker.made() == {1}  # it is being sent
    assert len(worker.taken) == 3
    worker.tasks.put(None)
    assert next(worker.outcomes, None) is None
    assert worker.made() == set()


def test_calls_of_several_threads_are_all_handed_on(gate):
    chain = gate.transform(lambda minibatch: minibatch.replace(timestamps=torch.zeros(len(minibatch.seeds))))
    worker = Worker(chain)
    for event in gate.open:
        event.set()
    worker.give(*range(6))
    calls = [call.stage for _ in range(6) for call in next(worker.outcomes).calls]
    assert {stage: calls.count(stage) for stage in calls} == {"0 item_sampler": 6, "1 gate": 6, "2 transform": 6}
    worker.end()


def test_a_worker_has_what_it_makes_and_some_ahead(gate):
    assert making.tasks_for_each(items(), 2) == 1 + 2
    assert making.tasks_for_each(gate, 2) == 3 + 2


def test_tasks_go_to_the_one_worker_that_an_event_loop_is(gate, monkeypatch):
    given, give = [], LoopPool.give

    def note(pool, number, task):
        given.append(number)
        give(pool, number, task)

    monkeypatch.setattr(LoopPool, "give", note)
    worker, _ = start(gate, 0, 1, 2)
    worker.end()
    assert given == [0, 0, 0]
