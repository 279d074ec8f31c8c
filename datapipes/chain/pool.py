"""Pool: the dispatcher's view of the workers that make minibatches. A pool takes tasks and returns outcomes.

Pools are an event loop of this process (loop_pool.py), worker threads and processes (loader/workers/), and servers
(distributed/server_pool.py).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from datapipes.base.clock import CallRecord
from datapipes.minibatch import MiniBatch
from datapipes.processes.unforkable import refuse_forked


class Task(NamedTuple):
    """A minibatch to be made.

    A pool begins a new generation with each epoch. A task of an older generation is stale: nobody wants its outcome, so
    drop it.
    """

    generation: int
    epoch: int
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not needed


@dataclass
class Outcome:
    """The outcome of a task: a minibatch, an error, or neither. Neither means that a stage dropped the minibatch."""

    worker: int
    task: Task
    minibatch: MiniBatch | None = None
    error: Exception | None = None
    calls: list[CallRecord] = field(default_factory=list)
    from_former_life: bool = False  # whether the worker has died and was started again since


class Death(NamedTuple):
    """The unexpected end of a worker.

    Attributes:
        how: how the worker ended, in words.
        tasks: the tasks that the worker was making, the oldest first; () if it was idle or not ready yet.
        was_ready: False if the worker was still starting.
        by_signal: whether a signal ended the worker; True also if its exit status is unknown.
    """

    worker: int
    pid: int
    how: str
    tasks: tuple[Task, ...]
    was_ready: bool
    by_signal: bool = True


class Pool(ABC):
    """Workers that make minibatches. They run as soon as the pool is built. One thread at a time uses the pool.

    A worker may be anything that takes tasks of its own: a process, a thread, an event loop, a server.

    Attributes:
        process: the pid of the process that has built the pool.
    """

    num_workers: int
    tasks_each: int  # tasks that a worker can have at once
    is_closed = False  # whether its workers have ended; if so, another pool can be made
    dropped_by = "a stage"  # counts drops by a stage whose call is not reported, under this label; "" counts none
    where = "data_loader"  # the name in errors
    makers = "workers"  # in words, for the error in a forked child

    def __init__(self) -> None:
        self.process = os.getpid()

    @property
    def most_ahead(self) -> int:
        """The most steps, counted from the first undelivered one, whose minibatches may be given out. It bounds the
        memory held.
        """
        return self.num_workers * self.tasks_each

    def refuse_other_processes(self) -> None:
        """Raise RuntimeError in a forked child, where no minibatch would ever come."""
        refuse_forked(self.process, self.where, self.makers)

    @abstractmethod
    def begin(self) -> int:
        """Begin an epoch, and return its generation: a number that is in each Task of the epoch. Tasks of older
        generations are stale from now on.
        """

    @abstractmethod
    def give(self, worker: int, task: Task) -> None:
        """Give a task to a worker that has fewer than `tasks_each` tasks. Does not block."""

    @abstractmethod
    def receive(self, timeout: float) -> Outcome | Death | None:
        """Return the next outcome, or the next death of a worker, whichever comes first. None: nothing came within
        about `timeout` seconds.

        If it raises, the outcomes of all given tasks are lost.
        """

    def taken(self, outcome: Outcome) -> MiniBatch:
        """Return the minibatch of an outcome that `receive` returned. Call it in the thread that reads the epoch."""
        assert outcome.minibatch is not None
        return outcome.minibatch

    def replace(self, worker: int) -> None:
        """Start a worker in the place of one that died."""
        raise AssertionError(f"{self.makers} do not die by themselves")

    @abstractmethod
    def whereabouts(self, worker: int) -> str:
        """Return in a few words what a worker is doing now, for the text of a time-out."""

    def name_of(self, worker: int) -> str:
        """Return how errors name the worker. "": they do not name it."""
        return f"worker {worker}"

    def stats(self) -> dict[str, float]:
        """Return the counts of the channel between the workers and this process. {}: there is no channel."""
        return {}

    def processes(self) -> list[int]:
        """Return the pids of the workers that are processes."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End the workers, within a bounded time; may be called twice."""


def in_words(tasks: Sequence[Task]) -> str:
    """Return the tasks that a worker is making, the oldest first, in a few words."""
    others = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return f"minibatch {tasks[0].index} of epoch {tasks[0].epoch}{others}"


def at_work(who: str, tasks: Sequence[Task], seconds: float) -> str:
    """Return a sentence: how long the worker `who` has been making `tasks`, or that it waits for a task.

    Args:
        tasks: the tasks that the worker is making, the oldest first.
        seconds: since the oldest task began.
    """
    return f"{who} has been making {in_words(tasks)} for {seconds:.1f} s" if tasks else f"{who} waits for a task"
