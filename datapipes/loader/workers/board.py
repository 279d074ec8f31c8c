"""The board: shared memory in which each worker process writes the task it is making.

When a worker dies, its row says which task it was making; the death is charged to that minibatch. Only the
worker writes its row, except that the pool clears it before it starts the worker. A row is a cache line of int64
numbers. No lock is needed: the pool reads the row of a process that has ended, or reads one only to describe it.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch

from datapipes.loader.workers.pool import Task
from datapipes.processes.sharing import Packed, pack, share_memory

_GENERATION, _EPOCH, _INDEX, _SINCE, _READY = range(5)  # _SINCE is 0 while nothing is made
_COLUMNS = 8  # a cache line


class Row(NamedTuple):
    """What a worker has written.

    Attributes:
        task: the task it is making; None if it makes nothing.
        seconds: how long it has been making it.
        is_ready: whether it has started and can make minibatches.
    """

    task: Task | None
    seconds: float
    is_ready: bool


class Board:
    """The rows of all workers, as the pool sees them."""

    def __init__(self, num_workers: int) -> None:
        self._rows = share_memory(torch.zeros(num_workers, _COLUMNS, dtype=torch.int64))

    def packed(self) -> Packed:
        """Return the board as it travels to a worker."""
        return pack(self._rows)

    def clear(self, worker: int) -> None:
        """Clear a row, for a worker that is to start."""
        self._rows[worker] = 0

    def row(self, worker: int) -> Row:
        """Return what a worker has written."""
        row = self._rows[worker].tolist()
        if row[_SINCE] == 0:
            return Row(None, 0.0, bool(row[_READY]))
        task = Task(row[_GENERATION], row[_EPOCH], row[_INDEX])
        return Row(task, (time.monotonic_ns() - row[_SINCE]) / 1e9, bool(row[_READY]))


class OwnRow:
    """The row of a worker, in the worker."""

    def __init__(self, board: Packed, worker: int) -> None:
        self._row = board.unpack()[worker].numpy()

    def ready(self) -> None:
        """Write that this worker can make minibatches."""
        self._row[_READY] = 1

    def begin(self, task: Task) -> None:
        """Write which task this worker is making, and since when, by a clock that all processes share."""
        self._row[: _SINCE + 1] = [*task.numbers(), time.monotonic_ns()]

    def end(self) -> None:
        """Write that this worker makes nothing."""
        self._row[_SINCE] = 0
