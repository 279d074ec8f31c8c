"""Count and time the calls of stages, and keep the last calls for a trace."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import resource
import struct
import threading
import time
from collections import deque
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FRESH_CALLS = 64  # calls that are counted together
KEPT_CALLS = 2**16  # calls that a StageClock keeps, 72 bytes each
SHORT_S = 1e-3  # calls that take less are too short to wait for a disk
_ROW = struct.Struct("9d")  # of StageClock._kept; NumPy takes ten times as long to write one
_BLOCK, _PAGE = 512, resource.getpagesize()  # bytes
GAP_S = 5e-5  # of a call, and from its end to the begin of the next one: in less the thread has not waited


class _Here(threading.local):
    """What this thread had used when it was last looked at."""

    ended = -math.inf  # time.monotonic() at the end of its last call
    processor_seconds = 0.0  # at that time
    disk_bytes: float | None = None

    def __init__(self) -> None:
        self.name = threading.current_thread().name


_here = _Here()
_process = [os.getpid()]  # this one; a child that is forked notes its own
os.register_at_fork(after_in_child=lambda: _process.__setitem__(0, os.getpid()))


class Used(NamedTuple):
    """What a thread has used: seconds of a processor, and bytes that it waited for until they came from a disk."""

    processor_seconds: float = 0.0
    disk_bytes: float = 0.0

    @classmethod
    def by_this_thread(cls) -> Used:
        """Return what this thread has used since it began."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)  # its processor time may lag by the tick of the system
        # A network file system counts no blocks; its pages are counted as faults.
        return cls(time.thread_time(), max(usage.ru_inblock * _BLOCK, usage.ru_majflt * _PAGE))

    def since(self, earlier: Used) -> Used:
        """Return what was used since `earlier`."""
        return Used(self.processor_seconds - earlier.processor_seconds, self.disk_bytes - earlier.disk_bytes)

    @classmethod
    def at_begin(cls, began: float) -> float:
        """Return the processor time of this thread at the begin of a call, `began` in seconds of time.monotonic().

        No system call where the thread has just ended another one: it has been at work since then.
        """
        gap = began - _here.ended
        if gap < GAP_S:
            return _here.processor_seconds + gap
        if _here.disk_bytes is None:
            _here.disk_bytes = cls.by_this_thread().disk_bytes
        return time.thread_time()

    @classmethod
    def in_call(cls, began: float, processor_seconds: float) -> tuple[float, float]:
        """Return what a call has used that ends now; given when it began and what `at_begin` has returned then.

        No system call for the shortest, one for a short one. What the thread read before, in calls that were short,
        counts in a long one.
        """
        ended = time.monotonic()
        seconds = used = ended - began
        if seconds >= GAP_S:
            used = time.thread_time() - processor_seconds
            ended = time.monotonic()
        _here.processor_seconds, _here.ended = processor_seconds + used, ended
        if seconds < SHORT_S:
            return used, 0.0
        before, _here.disk_bytes = _here.disk_bytes or 0.0, cls.by_this_thread().disk_bytes
        return used, _here.disk_bytes - before


NOTHING = Used()


class CallRecord(NamedTuple):
    """One call of a stage: when and where it ran, and what its thread used.

    `began` is in seconds of time.monotonic, which all processes of a machine share.
    """

    stage: str
    began: float
    seconds: float
    process: int
    thread: str
    minibatch: int
    processor_seconds: float = 0.0
    disk_bytes: float = 0.0


class _Folded(NamedTuple):
    """The time in which each stage was at work, in the calls before `number`.

    Attributes:
        spans: {number of a stage's name: (seconds, the end of its last call)}.
    """

    number: float
    spans: dict[float, tuple[float, float]]


class StageClock:
    """Adds up the calls and seconds of each stage over a run, and keeps the last calls. Can be read during the run.

    Attributes:
        counts: whether anybody reads the counts; if not, callers need not ask the system what a thread has used.
    """

    counts = True

    def __init__(self) -> None:
        # Calls that were not counted yet. Several at a time take half as long each, since the code stays in a cache.
        self._fresh: deque[tuple[Any, ...]] = deque()
        # By stage and thread, so each entry has one writer. A lock might be held by a thread that a fork leaves out.
        self._spent: dict[tuple[str, int], list[float]] = {}
        self._kept = self._rows()
        self._into: memoryview = self._kept.data
        self._number = itertools.count()
        self._names: dict[str, int] = {}
        self._next_name = itertools.count()
        self._folded = _Folded(0, {})

    @staticmethod
    def _rows() -> NDArray[np.float64]:
        """Return a row for each call that is kept. Rows that are never written take no memory."""
        return np.zeros((KEPT_CALLS, 9))

    def add(self, stage: str, began: float, index: int, used: tuple[float, float] = NOTHING) -> None:
        """Count one call that ends now."""
        self.add_call(stage, began, time.monotonic() - began, _process[0], _here.name, index, *used)

    def add_call(self, *call: Any) -> None:
        """Count a call of this process or of another one, given as the values of a CallRecord."""
        self._fresh.append(call)
        if len(self._fresh) >= FRESH_CALLS:
            self._count_fresh()

    def _count_fresh(self) -> None:
        with contextlib.suppress(IndexError):  # it is empty; other threads may count at the same time
            while True:
                self._count(*self._fresh.popleft())

    def _count(
        self,
        stage: str,
        began: float,
        seconds: float,
        process: int,
        thread: str,
        minibatch: int,
        processor_seconds: float = 0.0,
        disk_bytes: float = 0.0,
    ) -> None:
        number = next(self._number)
        if number > 0 and number % (KEPT_CALLS // 2) == 0:
            self._folded = self._folded_until(number)
        names = self._names
        of_stage, of_thread = names.get(stage), names.get(thread)
        if of_stage is None or of_thread is None:
            of_stage, of_thread = self._number_of(stage), self._number_of(thread)
        row = (number + 1, of_stage, began, seconds, process, of_thread, minibatch, processor_seconds, disk_bytes)
        _ROW.pack_into(self._into, number % KEPT_CALLS * _ROW.size, *row)
        # After the row: `stats` may run now in another thread, and looks for the row of each stage that has a count.
        spender = stage, threading.get_ident()
        entry = self._spent.get(spender)
        if entry is None:
            entry = self._spent[spender] = [0.0, 0.0, 0.0, 0.0]
        entry[0] += 1
        entry[1] += seconds
        entry[2] += processor_seconds
        entry[3] += disk_bytes

    def _number_of(self, name: str) -> int:
        number = self._names.get(name)
        return self._names.setdefault(name, next(self._next_name)) if number is None else number

    def last_calls(self) -> list[CallRecord]:
        """Return the last calls, at most KEPT_CALLS, in the order in which they were counted."""
        self._count_fresh()
        names = {number: name for name, number in list(self._names.items())}
        rows = self._kept[self._kept[:, 0] > 0]
        return [
            CallRecord(names[int(stage)], began, seconds, int(process), names[int(thread)], int(minibatch), *used)
            for _, stage, began, seconds, process, thread, minibatch, *used in rows[rows[:, 0].argsort()].tolist()
        ]

    def _folded_until(self, number: float) -> _Folded:
        """Return the seconds of each stage in the calls before `number`, added to those that were folded before.

        A call that reaches further back than the calls folded before it counts from their end on.
        """
        folded = self._folded
        rows = self._kept[(self._kept[:, 0] > folded.number) & (self._kept[:, 0] <= number)]
        spans = dict(folded.spans)
        for stage in np.unique(rows[:, 1]).tolist():
            of_stage = rows[rows[:, 1] == stage]
            of_stage = of_stage[of_stage[:, 2].argsort()]
            seconds, until = spans.get(stage, (0.0, 0.0))
            ends = np.maximum.accumulate(np.append(until, of_stage[:, 2] + of_stage[:, 3]))
            began = np.maximum(of_stage[:, 2], ends[:-1])
            spans[stage] = (seconds + float(np.maximum(ends[1:] - began, 0).sum()), float(ends[-1]))
        return _Folded(number, spans)

    def stats(self) -> dict[str, dict[str, float]]:
        """Return {stage: {"calls": n, "seconds": s, "concurrent_seconds": c, "processor_seconds": p, "disk_bytes": b}}.

        `seconds` is the time in which at least one call of the stage ran, in any thread or process;
        `concurrent_seconds` adds up the calls, also those that ran at the same time. The others are of the threads that
        made the calls; 0 for calls that were awaited.
        """
        self._count_fresh()
        spent: dict[str, list[float]] = {}
        for (stage, _), counted in list(self._spent.items()):
            spent[stage] = [a + b for a, b in zip(spent.get(stage, [0.0] * 4), counted, strict=True)]
        spans = self._folded_until(math.inf).spans
        return {
            stage: {
                "calls": calls,
                "seconds": spans[self._number_of(stage)][0],
                "concurrent_seconds": concurrent,
                "processor_seconds": processor,
                "disk_bytes": disk,
            }
            for stage, (calls, concurrent, processor, disk) in spent.items()
        }


class NoClock(StageClock):
    """Counts nothing, for calls whose counts nobody reads."""

    counts = False

    @staticmethod
    def _rows() -> NDArray[np.float64]:
        """Return no rows."""
        return np.zeros((0, 9))

    def add(self, stage: str, began: float, index: int, used: tuple[float, float] = NOTHING) -> None:
        """Do nothing."""

    def add_call(self, *call: Any) -> None:
        """Do nothing."""
