"""The work of a worker, thread or process: it takes tasks and yields the outcome of each.

Without asynchronous stages it makes one minibatch after another. With asynchronous stages, a separate thread takes the
tasks, so that the worker goes on taking them while minibatches are in flight and while an outcome is being sent. The
outcome that is ready first is yielded first. The dispatcher, which gives out the tasks, restores the order.
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
    """Return how many tasks (minibatches to be made) a worker has at most: those that it is making, and
    `prefetch_factor` ahead.

    A worker makes one task at a time. With asynchronous stages, it makes as many as these stages keep in flight.
    """
    return max(1, async_window(StageGraph(root))) + prefetch_factor


def work(
    worker: int, root: Stage, take: Take, making: Making, evaluator: Callable[[Calls], Evaluator] = Evaluator
) -> Iterator[Outcome]:
    """Do the work of worker `worker`: take tasks, make the minibatches of `root`, and yield the outcome of each task.

    An outcome is yielded as soon as it is made. It is taken as sent when the next outcome is asked for.

    Args:
        root: the last stage that the worker runs.
        take: waits for a task and returns it; None means stop. With asynchronous stages another thread calls it.
        making: the record of the tasks that this worker is making.
        evaluator: makes the object that calls the stages.
    """
    graph, clock = StageGraph(root), _NewCalls()
    maker = evaluator(Calls(graph.numbering, clock))
    outcomes = _several(graph, maker, take, making) if graph._is_async else _one_by_one(graph, maker, take, making)
    for outcome in outcomes:
        outcome.worker, outcome.calls = worker, clock.take()
        yield outcome
        making.end(outcome.task)


def _one_by_one(graph: StageGraph[Stage], evaluator: Evaluator, take: Take, making: Making) -> Iterator[Outcome]:
    while (task := take()) is not None:
        making.begin(task)
        outcome = Outcome(0, task)
        try:
            outcome.minibatch = evaluator.minibatch(graph, task.epoch, task.index)
        except BaseException as error:
            outcome.error = as_error(error)
        yield outcome


def _several(graph: StageGraph[Stage], evaluator: Evaluator, take: Take, making: Making) -> Iterator[Outcome]:
    pool = LoopPool(graph, evaluator, making)
    ends: list[BaseException | None] = []

    def take_all() -> None:
        try:
            while (task := take()) is not None:
                pool.give(0, task)
            ends.append(None)
        except BaseException as error:  # the pool that gives the tasks is gone
            ends.append(error)
        pool.wake()

    taker = threading.Thread(target=take_all, name="datapipes-tasks", daemon=True)
    taker.start()
    try:
        while True:
            outcome = pool.receive(None)
            if outcome is not None:
                yield outcome
            elif ends:
                break
        if ends[0] is not None:
            raise ends[0]
        taker.join(JOIN_S)
    finally:
        pool.close()


class _NewCalls(StageClock):
    """Collects the calls of stages in a worker, for the process that adds them up."""

    def _move_unless_others_do(self) -> None:
        """Do nothing: the calls wait for `take`. The base class would count them now."""

    def take(self) -> list[CallRecord]:
        """Return the calls of stages since the last `take`."""
        return [CallRecord(*self._fresh.popleft()) for _ in range(len(self._fresh))]
