"""MissingIds: reports ids without a row that gathers on a GPU have met, after the gathers have run.

A gather cannot raise: the ids lie on the device, and looking at them would wait for the device. So the kernel counts
the wrong ids in device memory. The count is then copied to page-locked memory, and an event passes after the copy. The
error is raised later: by the next read once the event has passed, or by `finish`, which waits.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import INT64_MAX
from datapipes.base.errors import raise_first
from datapipes.device.runtime import Event, cuda


class _Count(NamedTuple):
    """The wrong ids of one gather, as int64 [2]: how many they are, and the smallest of them.

    Attributes:
        on_device: the tensor to which the gather writes.
        in_host: its copy in page-locked memory.
        passed: an event, which passes once `in_host` has the values.
    """

    on_device: Tensor
    in_host: Tensor
    passed: Event  # passes once in_host has the values that on_device has after the gather


class MissingIds:
    """Collects, for one feature on one device, the ids without a row that gathers have met, and raises the error later.

    Threads and streams may share it.

    Args:
        where: the words with which errors begin.
        num_rows: ids in [0, num_rows) have a row.
        device: the device of the ids.
        table: host memory that the gathers read; this object keeps it alive until after the last gather.
    """

    def __init__(self, where: str, num_rows: int, device: torch.device, table: Tensor | None = None) -> None:
        self._where, self._num_rows, self._device = where, num_rows, device
        self._lock = threading.Lock()
        self._in_flight: list[_Count] = []
        self._free: list[_Count] = []  # counts of no wrong ids, which the next gathers use again
        self._wrong, self._smallest = 0, INT64_MAX  # found, and not raised yet
        if table is not None:
            weakref.finalize(self, _let_go, self._in_flight, table, os.getpid()).atexit = False

    @contextmanager
    def counter(self) -> Iterator[Tensor]:
        """Context manager: give device memory, int64 [2], in which one gather counts its wrong ids; see `_Count`.

        Queue the gather inside the with statement. Enter the statement while the gather's stream is the current one.
        """
        stream = cuda().current_stream(self._device)
        with self._lock:
            self._look()
            count = self._free.pop() if self._free else None
        if count is None:
            in_host = cuda().empty_pinned((2,), torch.int64)
            in_host[0], in_host[1] = 0, INT64_MAX
            count = _Count(cuda().copy(in_host, self._device, non_blocking=True), in_host, cuda().new_event())
        else:
            cuda().used_on(count.on_device, stream)
        yield count.on_device
        cuda().copy_back(count.in_host, count.on_device)
        count.passed.record(stream)
        with self._lock:
            self._in_flight.append(count)

    def raise_known(self) -> None:
        """Raise IndexError if a finished gather met ids without a row. Do not wait for gathers that still run."""
        with self._lock:
            self._look()
            wrong, smallest = self._wrong, self._smallest
            self._wrong, self._smallest = 0, INT64_MAX
        if wrong > 0:
            raise IndexError(
                f"{self._where}: {wrong} of the ids that were read on {self._device} have no row, the smallest is "
                f"{smallest}; allowed are ids in [0, {self._num_rows}). This was found on the device after the read "
                "had returned, so it may belong to an earlier minibatch: its rows for these ids are zeros. Check the "
                "ids, or give the feature a row for each."
            )

    def finish(self) -> None:
        """Wait for the gathers that were queued before; raise IndexError if one of them met ids without a row."""
        with self._lock:
            waited_for = [*self._in_flight]
        for count in waited_for:
            count.passed.synchronize()
        self.raise_known()

    def _look(self) -> None:
        """Add the counts of the gathers that have finished by now to the totals. Call it with the lock held."""
        queued = [*self._in_flight]
        self._in_flight.clear()  # the list stays: the finalizer of the table has it too
        for count in queued:
            if not count.passed.query():
                self._in_flight.append(count)
                continue
            wrong, smallest = count.in_host.tolist()
            if wrong == 0:
                self._free.append(count)
            self._wrong += wrong
            self._smallest = min(self._smallest, smallest)


def wait_for_all(waits: Iterable[Callable[[], None]]) -> None:
    """Call all functions in `waits`, even if some raise IndexError (ids without rows); then raise the first such error.

    If the first error ended the calls, a later read would raise the errors of the other calls.
    """
    errors: list[Exception] = []
    for wait in waits:
        try:
            wait()
        except IndexError as error:
            errors.append(error)
    raise_first(errors)


def _let_go(in_flight: list[_Count], table: Tensor, pid: int) -> None:
    """Wait for the gathers that still run, then drop the table: only then may its memory be used for something else."""
    if os.getpid() == pid:  # a forked child has the objects, but not CUDA
        for count in in_flight:
            count.passed.synchronize()
    del table
