"""The workers as the dispatcher sees them: a pool that takes tasks and returns outcomes.

Threads (thread_pool.py) and processes (process_pool.py) are pools; making.py is what a worker of either does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from datapipes.base.clock import CallRecord
from datapipes.chain.asynchronous import async_window
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device.handover import Queued
from datapipes.minibatch import MiniBatch


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
    queued: list[Queued] = field(default_factory=list)  # on GPUs: what the minibatch of a worker thread waits for


class Death(NamedTuple):
    """A worker ended. `tasks` are those it was making, the oldest first; () if it was idle or had not begun."""

    worker: int
    pid: int
    how: str
    tasks: tuple[Task, ...]
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

    def processes(self) -> list[int]:
        """Return the pids of the workers that are processes."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End the workers, within a bounded time; may be called twice."""


def tasks_for_each(root: Stage, prefetch_factor: int) -> int:
    """Return how many tasks a worker has at most: those it is making, which are one or, with asynchronous stages, as
    many as these keep in flight, and `prefetch_factor` ahead.
    """
    return max(1, async_window(StageGraph(root))) + prefetch_factor


def in_words(tasks: Sequence[Task]) -> str:
    """Return the tasks that a worker is making, the oldest first, in a few words."""
    others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"minibatch {tasks[0].index} of epoch {tasks[0].epoch}{others}"
