"""Count and time the calls of stages, and keep the last calls for a trace."""

from __future__ import annotations

import math
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

FRESH_CALLS = 256  # calls that NumPy counts together, in a third of the time that Python needs one by one
KEPT_CALLS = 2**16  # a StageClock keeps at least this many calls, and at most 1.5 times as many; 64 bytes a call
MOST_ARRAYS = 1024  # more arrays of calls than this are joined; each read of the counts adds an array
SHORT_S = 1e-3  # a shorter call has not waited for a disk
_BLOCK, _PAGE = 512, resource.getpagesize()  # bytes
GAP_S = 5e-5  # in a shorter call, or a shorter gap between two calls, a thread is taken to have worked all the time


class _Here(threading.local):
    """For each thread: its name, and the resources it had used at the end of its last call."""

    def __init__(self) -> None:
        self.name = threading.current_thread().name
        self.ended = -math.inf  # time.monotonic()
        self.processor_seconds = 0.0
        self.disk_bytes: float | None = None  # at the end of its last call that was not short


class _Process:
    """State that all clocks of this process share: a lock, and whether calls are being moved. A fork renews it."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self.id = os.getpid()
        self.counting = threading.RLock()
        # Whether `_move` runs. A thread that has the lock finds True only in a signal handler that interrupted `_move`.
        self.is_moving = False
        _here.ended, _here.disk_bytes = -math.inf, None  # the thread of a child has used nothing yet


_here = _Here()
_process = _Process()
os.register_at_fork(after_in_child=_process.renew)


def disk_bytes_of_this_thread() -> float:
    """Return how many bytes were read from a disk while this thread waited for them."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    # A network file system counts no blocks; its reads are counted as page faults.
    return max(usage.ru_inblock * _BLOCK, usage.ru_majflt * _PAGE)


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


class _Counted(NamedTuple):
    """The counts of one stage.

    Attributes:
        seconds: time in which at least one call ran.
        concurrent_seconds: the seconds of all calls, added up.
        until: the latest end of a call, in seconds of time.monotonic().
    """

    calls: float = 0.0
    seconds: float = 0.0
    concurrent_seconds: float = 0.0
    processor_seconds: float = 0.0
    disk_bytes: float = 0.0
    until: float = 0.0

    def with_calls(self, calls: NDArray[np.float64]) -> _Counted:
        """Return the counts with `calls` of the stage added. `calls` is an array as in `_Moved.arrays`.

        If a call began before an earlier one had ended, only the time after that end is added to `seconds`.
        """
        _, began, seconds, _, _, _, processor_seconds, disk_bytes = calls[:, calls[1].argsort()]
        ends = np.maximum.accumulate(np.append(self.until, began + seconds))
        ran = np.maximum(ends[1:] - np.maximum(began, ends[:-1]), 0)
        return _Counted(
            self.calls + len(began),
            self.seconds + float(ran.sum()),
            self.concurrent_seconds + float(seconds.sum()),
            self.processor_seconds + float(processor_seconds.sum()),
            self.disk_bytes + float(disk_bytes.sum()),
            float(ends[-1]),
        )


class _Moved(NamedTuple):
    """The calls that a StageClock has counted: the last ones in full, and only counts of the older ones.

    Attributes:
        before: {index of a stage's name: counts of its calls that are no longer kept}.
        arrays: the kept calls, the oldest first, float64 [8, n] each. There is a row for each field of CallRecord; a
            name is replaced by its index in the names of the clock.
    """

    before: dict[float, _Counted]
    arrays: list[NDArray[np.float64]]

    def kept(self) -> NDArray[np.float64]:
        """Return the calls that are kept, as one array."""
        return np.concatenate([np.empty((8, 0)), *self.arrays], 1)

    def with_calls(self, calls: NDArray[np.float64]) -> _Moved:
        """Return a _Moved with `calls` added.

        If 1.5 * KEPT_CALLS calls or more are kept then, only the last KEPT_CALLS stay. The others are counted in
        `before`.
        """
        moved = _Moved(self.before, [*self.arrays, calls])
        if sum(array.shape[1] for array in moved.arrays) >= KEPT_CALLS + KEPT_CALLS // 2:
            kept = moved.kept()
            return _Moved(moved.counted(kept[:, :-KEPT_CALLS]), [kept[:, -KEPT_CALLS:].copy()])
        return _Moved(self.before, [moved.kept()]) if len(moved.arrays) > MOST_ARRAYS else moved

    def counted(self, calls: NDArray[np.float64]) -> dict[float, _Counted]:
        """Return `before` with the counts of `calls` added: {index of a stage's name: its counts}."""
        counted = dict(self.before)
        for stage in np.unique(calls[0]).tolist():
            counted[stage] = counted.get(stage, _Counted()).with_calls(calls[:, calls[0] == stage])
        return counted


class StageClock:
    """Adds up the calls and seconds of each stage over a run, and keeps the last calls. Can be read during the run."""

    def __init__(self) -> None:
        self._fresh: deque[tuple[Any, ...]] = deque()  # calls that were not moved yet
        self._moved = _Moved({}, [])  # replaced as a whole, since Ctrl-C may come at any time
        self._names: dict[str, int] = {}

    def at_begin(self, began: float) -> float:
        """Return the processor time in seconds that this thread had used when a call began.

        If the thread ended another call less than GAP_S seconds earlier, it is taken to have worked since then. This
        saves a system call.

        Args:
            began: when the call began, in seconds of time.monotonic().
        """
        here = _here
        gap = began - here.ended
        if gap < GAP_S:
            return here.processor_seconds + gap
        if here.disk_bytes is None:
            here.disk_bytes = disk_bytes_of_this_thread()
        return time.thread_time()

    def add(self, stage: str, began: float, index: int, used: float | None = None) -> None:
        """Count one call of `stage` that ends now; `index` is the index of its minibatch.

        A call shorter than GAP_S makes no system call here, one shorter than SHORT_S makes one. Disk reads of calls
        shorter than SHORT_S are added to the thread's next call that is not so short.

        Args:
            began: when the call began, in seconds of time.monotonic().
            used: the result of `at_begin`. None if the thread ran other calls meanwhile, or waited for another thread;
                processor time and disk reads are then not counted.
        """
        here, ended = _here, time.monotonic()
        seconds = ended - began
        processor_seconds = disk_bytes = 0.0
        if used is not None:
            processor_seconds = seconds
            if seconds >= GAP_S:
                processor_seconds = time.thread_time() - used
                ended = time.monotonic()
            here.processor_seconds, here.ended = used + processor_seconds, ended
            if seconds >= SHORT_S:
                before, here.disk_bytes = here.disk_bytes or 0.0, disk_bytes_of_this_thread()
                disk_bytes = here.disk_bytes - before
        call = stage, began, seconds, _process.id, here.name, index, processor_seconds, disk_bytes
        self._fresh.append(call)
        if len(self._fresh) >= FRESH_CALLS:
            self._move_unless_others_do()

    def add_calls(self, calls: Iterable[CallRecord]) -> None:
        """Count calls that were made in other processes."""
        self._fresh.extend(calls)
        if len(self._fresh) >= FRESH_CALLS:
            self._move_unless_others_do()

    def _move_unless_others_do(self) -> None:
        if not _process.is_moving:
            with _process.counting:  # not `acquire` and `try`: Ctrl-C could come between them
                self._move()

    def _move(self) -> None:
        """Move the calls that wait in the queue `_fresh` into the arrays of `_moved`. The caller holds the lock."""
        if _process.is_moving:
            return
        try:
            _process.is_moving = True
            fresh = [self._fresh[place] for place in range(len(self._fresh))]
            if fresh:
                stages, began, seconds, processes, threads, *others = zip(*fresh, strict=True)
                columns = [self._numbers(stages), began, seconds, processes, self._numbers(threads), *others]
                self._moved = self._moved.with_calls(np.array(columns, np.float64))
            for _ in fresh:  # not before they are counted: Ctrl-C would lose them
                self._fresh.popleft()
        finally:
            _process.is_moving = False

    def _numbers(self, names: Iterable[str]) -> list[int]:
        numbers = self._names
        return [numbers.setdefault(name, len(numbers)) for name in names]

    def _read(self) -> tuple[list[str], _Moved]:
        """Return (names, calls). `calls` has all calls until now; index i in it stands for the name names[i]."""
        with _process.counting:
            self._move()
            return list(self._names), self._moved

    def last_calls(self) -> list[CallRecord]:
        """Return the last calls, at most KEPT_CALLS, in the order in which they were counted."""
        names, moved = self._read()
        return [
            CallRecord(names[int(stage)], began, seconds, int(process), names[int(thread)], int(minibatch), *used)
            for stage, began, seconds, process, thread, minibatch, *used in moved.kept()[:, -KEPT_CALLS:].T.tolist()
        ]

    def stats(self) -> dict[str, dict[str, float]]:
        """Return {stage: {"calls": n, "seconds": s, "concurrent_seconds": c, "processor_seconds": p, "disk_bytes": b}}.

        `seconds` is the time in which at least one call of the stage ran, in any thread or process;
        `concurrent_seconds` adds up the seconds of all calls, also of calls that ran at the same time.
        `processor_seconds` and `disk_bytes` are what the threads used in the calls; awaited calls add nothing to these.
        """
        names, moved = self._read()
        counts = {names[int(stage)]: counts._asdict() for stage, counts in moved.counted(moved.kept()).items()}
        for of_stage in counts.values():
            del of_stage["until"]
        return counts


class NoClock(StageClock):
    """A StageClock that counts nothing, for calls whose counts nobody reads."""

    def at_begin(self, began: float) -> float:
        """Return 0: this clock reads no processor time."""
        return 0.0

    def add(self, stage: str, began: float, index: int, used: float | None = None) -> None:
        """Do nothing."""

    def add_calls(self, calls: Iterable[CallRecord]) -> None:
        """Do nothing."""
