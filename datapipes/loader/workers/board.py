"""The board: shared memory in which each worker process writes its tasks (minibatches that it is making).

When a worker dies, its row says which tasks it was making; the death is charged to the minibatches of these tasks. Only
the worker writes its row, but the pool clears the row before it starts the worker. A row is a few cache lines of int64
numbers: whether the worker is ready, then an entry for each task that it can be making at once.

No lock is needed. The pool relies on a row only after its process has ended; it reads other rows only for texts of
messages. An entry is valid only once its last number is written, so a worker that is killed while it writes an entry
leaves no half entry.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from datapipes.chain.pool import Task
from datapipes.processes.sharing import Packed, pack, share_memory

_READY = 0
_ENTRY = 4  # numbers of an entry: generation, epoch, index, since; `since` is 0 while the entry holds no task
_SINCE = 3
_CACHE_LINE = 8


class Row(NamedTuple):
    """What a worker has written into its row of the board.

    Attributes:
        tasks: the tasks that the worker is making, the oldest first.
        seconds: how long the worker has been making the oldest task.
        is_ready: whether the worker has started and can make minibatches.
    """

    tasks: tuple[Task, ...]
    seconds: float
    is_ready: bool


class Board:
    """The board as the pool reads it. It has a row for each worker, with the tasks (minibatches) that the worker is
    making.

    Args:
        tasks_each: how many tasks a worker can be making at once.
    """

    def __init__(self, num_workers: int, tasks_each: int = 1) -> None:
        columns = (1 + tasks_each) * _ENTRY  # the first numbers are no entry
        whole_lines = -(-columns // _CACHE_LINE) * _CACHE_LINE
        self._rows = share_memory(torch.zeros(num_workers, whole_lines, dtype=torch.int64))
        self.packed = pack(self._rows)  # for the way to a worker

    def clear(self, worker: int) -> None:
        """Clear a worker's row of the board. Call it before the worker starts."""
        self._rows[worker] = 0

    def row(self, worker: int) -> Row:
        """Return what a worker has written into its row of the board."""
        first, *entries = self._rows[worker].view(-1, _ENTRY).tolist()
        begun = sorted((entry for entry in entries if entry[_SINCE] != 0), key=lambda entry: entry[_SINCE])
        seconds = (time.monotonic_ns() - begun[0][_SINCE]) / 1e9 if begun else 0.0
        return Row(tuple(Task(*entry[:_SINCE]) for entry in begun), seconds, bool(first[_READY]))


class OwnRow:
    """A worker's own row of the board, which it writes. Several threads of the worker may begin and end tasks."""

    def __init__(self, board: Packed, worker: int) -> None:
        self._first, *self._entries = board.unpack()[worker].view(-1, _ENTRY).numpy()
        self._free = [*reversed(range(len(self._entries)))]
        self._with: dict[Task, int] = {}  # {task: index of its entry}

    def ready(self) -> None:
        """Record on the board that this worker can make minibatches."""
        self._first[_READY] = 1

    def begin(self, task: Task) -> None:
        """Record that this worker begins a task, and when, by a clock that all processes share."""
        number = self._with[task] = self._free.pop()
        entry = self._entries[number]
        entry[:_SINCE] = task
        entry[_SINCE] = time.monotonic_ns()

    def end(self, task: Task) -> None:
        """Record that this worker has finished a task. May be called more than once for a task."""
        number = self._with.pop(task, None)
        if number is not None:
            self._entries[number][_SINCE] = 0
            self._free.append(number)
