"""LoopPool: makes the minibatches of a chain with asynchronous stages by an event loop of this process.

It makes them up to the first carrier, a stage that passes minibatches on unchanged.
"""

from __future__ import annotations

import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from datapipes.base.outcome import as_error
from datapipes.chain.asynchronous import async_window
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.loop_thread import LoopThread
from datapipes.chain.pool import Outcome, Pool, Task
from datapipes.chain.stage_base import QueuesOnStreams
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch


class Making(Protocol):
    """A record in which a worker writes the tasks that it is making."""

    def begin(self, task: Task) -> None:
        """Record that the worker begins a task."""

    def end(self, task: Task) -> None:
        """Record that a task is finished. May be called more than once for a task."""


class LoopPool(Pool):
    """An event loop that makes minibatches of a chain with asynchronous stages, up to `tasks_each` at once.

    At most `tasks_each` minibatches are being made or wait to be received. While the next minibatch takes long, later
    minibatches are made and kept by the dispatcher, up to `most_ahead` in all; so a slow minibatch holds up the others
    only after a while. Tasks that cannot begin yet wait. The tasks of an abandoned epoch are cancelled, so that they
    take no time and no room from the next epoch.

    Args:
        making: the record of the tasks under way; None records nothing. Whoever receives the outcome of a task calls
            `making.end`.
    """

    num_workers = 1
    dropped_by = ""  # the evaluator counts drops
    where = "asynchronous stages"
    makers = "event loop"

    def __init__(self, graph: StageGraph[Any], evaluator: Evaluator, making: Making | None = None) -> None:
        super().__init__()
        self.tasks_each = async_window(graph)
        self._graph, self._evaluator = graph, evaluator
        self._making = making
        self._waiting: deque[Task] = deque()
        self._running = 0
        self._futures: dict[Task, Future[MiniBatch | None]] = {}  # of tasks not received yet
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()  # tasks; None wakes the reader
        self._newest = 0  # the newest generation
        self._changing = threading.RLock()
        self._loop = LoopThread()
        self._end = weakref.finalize(self, self._loop.close)  # runs also when this object is collected, and at exit

    @property
    def most_ahead(self) -> int:
        return 2 * self.tasks_each

    def begin(self) -> int:
        return self._newest + 1

    def give(self, worker: int, task: Task) -> None:
        with self._changing:
            if task.generation > self._newest:
                self._newest = task.generation
                self._forget_old()
            self._waiting.append(task)
            self._fill()

    def receive(self, timeout: float | None) -> Outcome | None:
        try:
            task = self._done.get(timeout=timeout)
        except queue.Empty:
            return None
        with self._changing:
            future = self._futures.pop(task, None)
        if future is None:
            return None
        outcome = Outcome(0, task)
        try:
            outcome.minibatch = future.result()
        except BaseException as error:
            outcome.error = as_error(error)
        return outcome

    def wake(self) -> None:
        """Let one `receive` return None. It returns first the outcomes of all tasks that are done by now."""
        self._done.put(None)

    def taken(self, outcome: Outcome) -> MiniBatch:
        minibatch = super().taken(outcome)
        for stage in self._graph.find(QueuesOnStreams):
            stage._leave_loop(minibatch)
        return minibatch

    def whereabouts(self, worker: int) -> str:
        return "an event loop of this process makes it"

    def name_of(self, worker: int) -> str:
        return ""  # the loop runs in this process

    def close(self) -> None:
        with self._changing:
            self.is_closed = True  # begin no more tasks
        self._end()

    def _fill(self) -> None:
        while self._waiting and self._running < self.tasks_each and not self.is_closed:
            task = self._waiting.popleft()
            self._running += 1
            if self._making is not None:
                self._making.begin(task)
            made = self._evaluator.minibatch_async(self._graph, task.epoch, task.index)
            future = self._futures[task] = self._loop.submit(made)
            future.add_done_callback(partial(_tell_done, weakref.ref(self), task))

    def _is_done(self, task: Task) -> None:
        with self._changing:
            self._running -= 1
            self._done.put(task)
            self._fill()

    def _forget_old(self) -> None:
        self._waiting.clear()
        old, self._futures = self._futures, {}
        for task, future in old.items():
            future.cancel()
            if self._making is not None:
                self._making.end(task)


def _tell_done(pool: Callable[[], LoopPool | None], task: Task, _: Future[MiniBatch | None]) -> None:
    """Tell a pool that a task is done, if the pool still exists. `pool` is a weak reference, so a running task keeps no
    pool alive.
    """
    told = pool()
    if told is not None:
        told._is_done(task)
