"""What a worker does, be it a thread or a process: it takes tasks and yields the outcome of each.

Without asynchronous stages it makes one minibatch after another. With some, a thread of its own takes the tasks, so
that the worker goes on taking them while minibatches are in flight and while an outcome is being sent; what is ready
first is yielded first, and the dispatcher restores the order.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

from datapipes.base.clock import CallRecord, StageClock
from datapipes.base.outcome import as_error
from datapipes.chain.asynchronous import async_window
from datapipes.chain.calls import Calls
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.in_flight import LoopThread
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.loader.workers.pool import Outcome, Task
from datapipes.minibatch import MiniBatch

JOIN_S = 5.0  # seconds that the end waits for the thread that takes tasks

Take = Callable[[], "Task | None"]


class Making(Protocol):
    """Where a worker writes which tasks it is making."""

    def begin(self, task: Task) -> None:
        """Write that a task begins."""

    def end(self, task: Task) -> None:
        """Write that a task is done with; may be called again for the same task."""


def work(
    worker: int, root: Stage, take: Take, making: Making, evaluator: Callable[[Calls], Evaluator] = Evaluator
) -> Iterator[Outcome]:
    """Yield the outcome of each task as soon as it is made. It counts as sent when the next one is asked for.

    Args:
        take: waits for a task and returns it; None means stop. With asynchronous stages another thread calls it.
    """
    maker = _Maker(worker, StageGraph(root), making, evaluator)
    window = async_window(maker.graph)
    return maker.one_by_one(take) if window == 0 else maker.several(take, window)


class _Maker:
    def __init__(
        self, worker: int, graph: StageGraph[Stage], making: Making, evaluator: Callable[[Calls], Evaluator]
    ) -> None:
        self.graph = graph
        self._worker = worker
        self._making = making
        self._clock = _NewCalls()
        self._evaluator = evaluator(Calls(graph.numbering, self._clock))

    def one_by_one(self, take: Take) -> Iterator[Outcome]:
        while (task := take()) is not None:
            self._making.begin(task)
            yield self._outcome(task, partial(self._evaluator.minibatch, self.graph, task.epoch, task.index))
            self._making.end(task)

    def several(self, take: Take, window: int) -> Iterator[Outcome]:
        loop = LoopThread()

        def begin(task: Task) -> Future[MiniBatch | None]:
            return loop.submit(self._evaluator.minibatch_async(self.graph, task.epoch, task.index))

        in_flight = _InFlight(window, self._making, begin)
        taker = threading.Thread(target=in_flight.take_all, args=(take,), name="datapipes-tasks", daemon=True)
        taker.start()
        try:
            while (done := in_flight.next_done()) is not None:
                task, future = done
                yield self._outcome(task, future.result)
                self._making.end(task)
            taker.join(JOIN_S)
        finally:
            in_flight.close()
            loop.close()

    def _outcome(self, task: Task, make: Callable[[], MiniBatch | None]) -> Outcome:
        outcome = Outcome(self._worker, task)
        try:
            outcome.minibatch = make()
        except BaseException as error:
            outcome.error = as_error(error)
        outcome.calls = self._clock.take()
        return outcome


class _InFlight:
    """The tasks of a worker: those that wait, those that are being made, up to `window` at once, and those that are
    made and not sent yet.

    Tasks are taken also while none can begin, since the thread that takes them hears that the work ends.
    """

    def __init__(self, window: int, making: Making, begin: Callable[[Task], Future[MiniBatch | None]]) -> None:
        self._window = window
        self._making = making
        self._begin = begin
        self._waiting: deque[Task] = deque()
        self._running = 0
        self._futures: dict[Task, Future[MiniBatch | None]] = {}  # of tasks that run or are done
        self._done: queue.SimpleQueue[Task | BaseException | None] = queue.SimpleQueue()
        self._newest = 0  # generation
        self._closed = False
        self._changing = threading.RLock()

    def take_all(self, take: Take) -> None:
        """Take tasks until there are no more. Runs in a thread of its own."""
        try:
            while (task := take()) is not None:
                with self._changing:
                    if task.generation > self._newest:
                        self._newest = task.generation
                        self._forget_old()
                    self._waiting.append(task)
                    self._fill()
        except BaseException as error:  # the pool is gone
            self._done.put(error)
        self._done.put(None)

    def next_done(self) -> tuple[Task, Future[MiniBatch | None]] | None:
        """Wait for a task that is done; None means that there are no more. Stale ones are left out."""
        while (done := self._done.get()) is not None:
            if isinstance(done, BaseException):
                raise done
            with self._changing:
                future = self._futures.pop(done, None)
            if future is not None:
                return done, future
        return None

    def close(self) -> None:
        """Begin no more tasks."""
        with self._changing:
            self._closed = True

    def _fill(self) -> None:
        while self._waiting and self._running < self._window and not self._closed:
            task = self._waiting.popleft()
            self._running += 1
            self._making.begin(task)
            future = self._futures[task] = self._begin(task)
            future.add_done_callback(partial(self._is_done, task))

    def _is_done(self, task: Task, _: Future[MiniBatch | None]) -> None:
        with self._changing:
            self._running -= 1
            self._done.put(task)
            self._fill()

    def _forget_old(self) -> None:
        """End the tasks of an epoch that was left, so that they take no time and no room from those of the next."""
        self._waiting.clear()
        old, self._futures = self._futures, {}
        for task, future in old.items():
            future.cancel()
            self._making.end(task)


class _NewCalls(StageClock):
    """Collects calls, for the process that adds them up."""

    def __init__(self) -> None:
        super().__init__()
        self._calls: deque[CallRecord] = deque()  # several threads may append while another takes

    def add_call(self, *call: Any) -> None:
        self._calls.append(CallRecord(*call))

    def take(self) -> list[CallRecord]:
        """Return the calls since the last time."""
        return [self._calls.popleft() for _ in range(len(self._calls))]
