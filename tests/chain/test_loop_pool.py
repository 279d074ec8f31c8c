"""LoopPool: whatever the order of those who give, the event loop, and the reader, each task comes once.

The event loop is played: it may be at any place when tasks are given, received or left, also between the end of a
coroutine and what follows from it, and the reader may be between the queue and the lock. There are 9,239 states.
"""

import queue
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
from amounts import ranked
from replayed import PlayedFuture, PlayedQueue, explore_by_replay
from shm_model import require

import datapipes as dp
from datapipes.chain import loop_pool
from datapipes.chain.loop_pool import LoopPool
from datapipes.chain.pool import Task
from datapipes.loader.workers.thread_pool import MakingHere


@dataclass(frozen=True)
class Config:
    """What is given, in this order, as (generation, index); how many run at once; and what else may happen."""

    given: tuple[tuple[int, int], ...]
    at_once: int = 2
    wrong: tuple[int, ...] = ()  # indices at which a stage raises
    at_once_done: bool = False  # a coroutine may end before anything else happens
    closes: bool = False


class Lock:
    """Counts how often it is taken. Only one thread runs here, so it need not lock."""

    num_entries = 0

    def __enter__(self) -> None:
        self.num_entries += 1

    def __exit__(self, *_: object) -> None: ...


class World:
    """A LoopPool, with the thread that gives, the reader, and the event loop. `begun` holds what the loop was given."""

    def __init__(self, config: Config, make: type[LoopPool] = LoopPool) -> None:
        self.config, self.begun, self.quick = config, {}, False
        evaluator = SimpleNamespace(minibatch_async=lambda graph, epoch, index: index)
        loop_pool.LoopThread, loop_pool.async_window = lambda: self, lambda graph: config.at_once
        self.pool = make(SimpleNamespace(find=lambda kind: []), evaluator, MakingHere())
        self.pool._done = PlayedQueue(queue.Empty)
        self.pool._changing = self.lock = Lock()
        self.num_given, self.received, self.in_hand, self.taken = 0, [], None, []
        self.is_closed = False

    @property
    def given(self) -> list[Task]:
        return [Task(generation, 0, index) for generation, index in self.config.given[: self.num_given]]

    @property
    def wanted(self) -> list[Task]:
        """What was given of the newest generation."""
        return [task for task in self.given if task.generation == self.given[-1].generation]

    # --- the event loop, as the pool sees it

    def submit(self, index: int) -> PlayedFuture:
        pending = [task for task, future in self.begun.items() if future.state in ("pending", "finished")]
        require(len(pending) < self.config.at_once, f"{index} begins, and {pending} run")
        require(not self.is_closed, f"{index} begins after the end")
        coming = [task for task in self.wanted if task not in self.begun]
        require(coming[0].index == index, f"{index} begins before {coming}")
        future = self.begun[next(task for task in coming if task.index == index)] = PlayedFuture()
        if self.quick:
            self.end(future, index)
            future.tell()
        return future

    def close(self) -> None:
        """The event loop ends."""

    def end(self, future: PlayedFuture, index: int) -> None:
        future.finish(ValueError(index) if index in self.config.wrong else dp.MiniBatch(index=index))

    # --- what may happen

    def moves(self):
        if self.num_given < len(self.config.given):
            yield ("give",)
            if self.config.at_once_done:
                yield ("give_quick",)
        for task, future in self.begun.items():
            if future.state == "pending":
                yield "finish", task
            elif future.state == "finished":
                yield "tell", task
        if self.in_hand is not None:
            yield ("sent",)
        elif self.taken:
            yield ("receive",)
        elif self.pool._done:
            yield ("get",)
        if self.config.closes and not self.is_closed:
            yield ("close_pool",)

    @contextmanager
    def locking(self) -> Iterator[None]:
        before = self.lock.num_entries
        yield
        require(self.lock.num_entries > before, "it changed without the lock")

    def give(self) -> None:
        self.num_given += 1
        with self.locking():
            self.pool.give(0, self.given[-1])

    def give_quick(self) -> None:
        self.quick = True
        self.give()
        self.quick = False

    def finish(self, task: Task) -> None:
        self.end(self.begun[task], task.index)

    def tell(self, task: Task) -> None:
        with self.locking():
            self.begun[task].tell()

    def get(self) -> None:
        """The reader has taken a task from the queue, and has not the lock yet."""
        self.taken.append(self.pool._done.pop(0))

    def receive(self) -> None:
        rest, self.pool._done[:] = [*self.pool._done], self.taken
        with self.locking():
            outcome = self.pool.receive(0.0)
        self.pool._done[:], self.taken = rest, []
        if outcome is None:
            return
        require(outcome.worker == 0, f"{outcome} is of a worker that there is not")
        require(outcome.task in self.wanted, f"{outcome.task} came, which was left")
        require(outcome.task not in self.received, f"{outcome.task} came twice")
        index = outcome.task.index
        expected = repr(ValueError(index) if index in self.config.wrong else dp.MiniBatch(index=index))
        result = repr(outcome.error or outcome.minibatch)
        require(result == expected or self.is_closed, f"{outcome} is wrong")
        self.received.append(outcome.task)
        self.in_hand = outcome.task

    def sent(self) -> None:
        self.pool._making.end(self.in_hand)
        self.in_hand = None

    def close_pool(self) -> None:
        self.is_closed = True
        with self.locking():
            self.pool.close()
        for future in self.begun.values():
            future.cancel()

    # --- what must hold

    def key(self):
        futures = tuple((task, future.state) for task, future in self.begun.items())
        parts = self.pool._waiting, self.pool._futures, self.pool._done, self.pool._making, self.taken, self.received
        return self.num_given, futures, self.pool._running, self.in_hand, self.is_closed, *map(tuple, parts)

    def check(self) -> None:
        running = [task for task, future in self.begun.items() if future.state in ("pending", "finished")]
        if not self.given:
            return
        waiting = [task for task in self.wanted if task not in self.begun]
        require(not waiting or len(running) == self.config.at_once or self.is_closed, f"{waiting} could begin")
        old = [task for task in running if task not in self.wanted and self.begun[task].state == "pending"]
        require(not old, f"{old} were left, and run")
        ended = {task for task in self.received if task != self.in_hand}
        making = {task for task in self.wanted if task in self.begun} - ended | {self.in_hand} - {None}
        require({*self.pool._making} == making, f"it says that it makes {[*self.pool._making]}, not {making}")

    def check_end(self) -> None:
        missing = {task for task in self.wanted if not self.is_closed} - {*self.received}
        require(not missing, f"{missing} never came")
        require(not self.pool._futures or self.is_closed, f"it keeps {self.pool._futures}")


CONFIGS = {
    "one epoch": Config(((1, 0), (1, 1), (1, 2)), wrong=(1,)),
    "the next epoch": Config(((1, 0), (1, 1), (2, 0))),
    "quick ones": Config(((1, 0), (1, 1), (1, 2), (1, 3)), at_once=1, at_once_done=True),
    "an end": Config(((1, 0), (1, 1), (1, 2)), closes=True),
    "the next epoch waits": Config(((1, 0), (1, 1), (1, 2), (2, 0), (2, 1)), at_once=1, at_once_done=True),
    "two at once": Config(((1, 0), (1, 1), (1, 2), (2, 0), (2, 1)), wrong=(1,), closes=True),
    "three epochs": Config(((1, 0), (1, 1), (3, 1), (3, 0), (4, 1)), at_once_done=True),
}


@pytest.fixture(autouse=True)
def played(monkeypatch):
    for name in ("LoopThread", "async_window"):  # `World` changes them
        monkeypatch.setattr(loop_pool, name, getattr(loop_pool, name))


def test_a_reader_is_woken_and_one_that_finds_nothing_goes_on():
    pool = World(CONFIGS["one epoch"]).pool
    assert pool.receive(0.0) is None
    pool.wake()
    assert pool.receive(0.0) is None
    assert not pool._done


def test_each_epoch_has_a_generation_of_its_own():
    world = World(CONFIGS["one epoch"])
    assert world.pool.begin() == 1
    world.give()
    assert world.pool.begin() == 2


def test_it_says_where_its_minibatches_are():
    pool = World(CONFIGS["one epoch"]).pool
    assert (pool.num_workers, pool.tasks_each, pool.most_ahead) == (1, 2, 4)
    assert (pool.whereabouts(0), pool.name_of(0)) == ("an event loop of this process makes it", "")


def test_what_is_made_is_told_with_the_time_of_the_oldest():
    making = MakingHere()
    assert making.in_words("worker 3") == "worker 3 waits for a task"
    making.begin(Task(1, 0, 4))
    making[Task(1, 0, 5)] = making[Task(1, 0, 4)] + 60.0
    assert re.fullmatch(
        r"worker 3 has been making minibatch 4 of epoch 0 and 1 more for 0\.\d s", making.in_words("worker 3")
    )
    for _ in range(2):
        making.end(Task(1, 0, 4))
    assert [*making] == [Task(1, 0, 5)]


# --- The search


@pytest.mark.parametrize("config", ranked(CONFIGS.values(), 4), ids=CONFIGS)
def test_no_order_loses_or_doubles_a_task(config):
    assert explore_by_replay(lambda: World(config)).ends > 0
