"""What a worker does, be it a thread or a process: it takes tasks and yields the outcome of each.

Without asynchronous stages it makes one minibatch after another. With some, a thread of its own takes the tasks, so
that the worker goes on taking them while minibatches are in flight and while an outcome is being sent; what is ready
first is yielded first, and the dispatcher restores the order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from datapipes.base.clock import CallRecord, StageClock
from datapipes.base.outcome import as_error
from datapipes.chain.asynchronous import async_window
from datapipes.chain.calls import Calls
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.loop_pool import LoopPool, Making
from datapipes.chain.pool import Outcome, Task
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph

JOIN_S = 5.0  # seconds that the end waits for the thread that takes tasks

Take = Callable[[], "Task | None"]


def tasks_for_each(root: Stage, prefetch_factor: int) -> int:
    """Return how many tasks a worker has at most: those it is making, which are one or, with asynchronous stages, as
    many as these keep in flight, and `prefetch_factor` ahead.
    """
    return max(1, async_window(StageGraph(root))) + prefetch_factor


def work(
    worker: int, root: Stage, take: Take, making: Making, evaluator: Callable[[Calls], Evaluator] = Evaluator
) -> Iterator[Outcome]:
    """Yield the outcome of each task as soon as it is made. It counts as sent when the next one is asked for.

    Args:
        take: waits for a task and returns it; None means stop. With asynchronous stages another thread calls it.
    """
    maker = _Maker(worker, StageGraph(root), making, evaluator)
    return maker.several(take) if maker.graph._is_async else maker.one_by_one(take)


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
            outcome = Outcome(self._worker, task)
            try:
                outcome.minibatch = self._evaluator.minibatch(self.graph, task.epoch, task.index)
            except BaseException as error:
                outcome.error = as_error(error)
            yield self._labelled(outcome)
            self._making.end(task)

    def several(self, take: Take) -> Iterator[Outcome]:
        pool = LoopPool(self.graph, self._evaluator, self._making)
        ends: list[BaseException | None] = []

        def take_all() -> None:
            try:
                while (task := take()) is not None:
                    pool.give(0, task)
                ends.append(None)
            except BaseException as error:  # the pool of this worker is gone
                ends.append(error)
            pool.wake()

        taker = threading.Thread(target=take_all, name="datapipes-tasks", daemon=True)
        taker.start()
        try:
            while True:
                outcome = pool.receive(None)
                if outcome is not None:
                    yield self._labelled(outcome)
                    self._making.end(outcome.task)
                elif ends:
                    break
            if ends[0] is not None:
                raise ends[0]
            taker.join(JOIN_S)
        finally:
            pool.close()

    def _labelled(self, outcome: Outcome) -> Outcome:
        outcome.worker, outcome.calls = self._worker, self._clock.take()
        return outcome


class _NewCalls(StageClock):
    """Collects calls, for the process that adds them up."""

    def _move_unless_others_do(self) -> None:
        """Move none: they are taken as they are."""

    def take(self) -> list[CallRecord]:
        """Return the calls since the last time."""
        return [CallRecord(*self._fresh.popleft()) for _ in range(len(self._fresh))]
