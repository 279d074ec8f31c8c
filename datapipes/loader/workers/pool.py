"""The workers as the dispatcher sees them: a pool that takes tasks and returns outcomes.

Threads (thread_pool.py) and processes (process_pool.py) are pools; `work` is what a worker of either does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from datapipes.base.clock import CallRecord, StageClock
from datapipes.base.outcome import as_error
from datapipes.chain.asynchronous import async_window
from datapipes.chain.calls import Calls
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.in_flight import LoopThread
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch

Take = Callable[[bool], "Task | None"]


@dataclass(frozen=True)
class Task:
    """A minibatch to be made. A task of an older generation is stale; drop it."""

    generation: int
    epoch: int
    index: int

    def numbers(self) -> tuple[int, int, int]:
        """Return (generation, epoch, index)."""
        return self.generation, self.epoch, self.index


@dataclass
class Outcome:
    """What became of a task: a minibatch, nothing (a stage dropped it) or an error."""

    worker: int
    task: Task
    minibatch: MiniBatch | None = None
    error: Exception | None = None
    calls: list[CallRecord] = field(default_factory=list)
    from_former_life: bool = False  # whether that worker has died and was started again since


class Death(NamedTuple):
    """A worker ended. `task` is the task it was making; None if it was idle or had not begun."""

    worker: int
    pid: int
    how: str
    task: Task | None
    was_ready: bool
    by_signal: bool = True


class Pool(ABC):
    """Workers that make minibatches. Used by one thread at a time."""

    num_workers: int
    tasks_each: int  # tasks that a worker can have at once
    is_closed = False  # whether its workers have ended; another pool can be made then

    @abstractmethod
    def start(self) -> None:
        """Start the workers that do not run."""

    @abstractmethod
    def begin(self) -> int:
        """Begin an epoch and return its generation; tasks of older generations become stale."""

    @abstractmethod
    def give(self, worker: int, task: Task) -> None:
        """Give a task to a worker that has fewer than `tasks_each`. Does not block."""

    @abstractmethod
    def receive(self, timeout: float) -> Outcome | Death | None:
        """Return the next outcome or death, of any worker; None after about `timeout` seconds."""

    @abstractmethod
    def replace(self, worker: int) -> None:
        """Start a worker in the place of one that died."""

    @abstractmethod
    def whereabouts(self, worker: int) -> str:
        """Return in a few words what a worker is doing."""

    def stats(self) -> dict[str, float]:
        """Return the counts of the channel between the workers and this process; {} if there is none."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """End the workers, within a bounded time; may be called twice."""


def tasks_for_each(root: Stage, prefetch_factor: int) -> int:
    """Return how many tasks a worker has at most: the one it is making and those ahead, or, if that is more, as many as
    its asynchronous stages keep in flight.
    """
    return max(prefetch_factor + 1, async_window(StageGraph(root)))


def work(worker: int, root: Stage, take: Take, begins: Callable[[Task], None]) -> Iterator[Outcome]:
    """Yield the outcome of each task, in the order of the tasks.

    Args:
        take: `take(False)` returns None if no task is ready. `take(True)` blocks; None then means stop.
        begins: called with the task that is being made; of several in flight, with the oldest.
    """
    graph = StageGraph(root)
    window = async_window(graph)
    maker = _Maker(worker, graph, begins)
    return maker.one_by_one(take) if window == 0 else maker.several(take, window)


class _Maker:
    def __init__(self, worker: int, graph: StageGraph[Stage], begins: Callable[[Task], None]) -> None:
        self._worker = worker
        self._graph = graph
        self._begins = begins
        self._clock = _NewCalls()
        self._evaluator = Evaluator(Calls(graph.numbering, self._clock))

    def one_by_one(self, take: Take) -> Iterator[Outcome]:
        while (task := take(True)) is not None:
            self._begins(task)
            outcome = Outcome(self._worker, task)
            try:
                outcome.minibatch = self._evaluator.minibatch(self._graph, task.epoch, task.index)
            except BaseException as error:
                outcome.error = as_error(error)
            yield self._with_calls(outcome)

    def several(self, take: Take, window: int) -> Iterator[Outcome]:
        loop = LoopThread()
        running: deque[tuple[Task, Future[MiniBatch | None]]] = deque()
        try:
            while True:
                while len(running) < window and (task := take(not running)) is not None:
                    coroutine = self._evaluator.minibatch_async(self._graph, task.epoch, task.index)
                    running.append((task, loop.submit(coroutine)))
                if not running:
                    return
                task, future = running.popleft()
                self._begins(task)
                outcome = Outcome(self._worker, task)
                try:
                    outcome.minibatch = future.result()
                except BaseException as error:
                    outcome.error = as_error(error)
                yield self._with_calls(outcome)
        finally:
            loop.close()

    def _with_calls(self, outcome: Outcome) -> Outcome:
        outcome.calls, self._clock.calls = self._clock.calls, []
        return outcome


class _NewCalls(StageClock):
    """Collects calls, for the process that adds them up."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[CallRecord] = []

    def add_call(self, call: CallRecord) -> None:
        self.calls.append(call)
