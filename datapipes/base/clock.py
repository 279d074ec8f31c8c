"""Count and time the calls of stages, and keep the last calls for a trace."""

from __future__ import annotations

import itertools
import os
import threading
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KEPT_CALLS = 2**16  # calls that a StageClock keeps, 56 bytes each


class CallRecord(NamedTuple):
    """One call of a stage: when and where it ran.

    `began` is in seconds of time.monotonic, which all processes of a machine share.
    """

    stage: str
    began: float
    seconds: float
    process: int
    thread: str
    minibatch: int


class StageClock:
    """Adds up the calls and seconds of each stage over a run, and keeps the last calls. Can be read during the run."""

    def __init__(self) -> None:
        # By stage and thread, so each entry has one writer. A lock might be held by a thread that a fork leaves out.
        self._spent: dict[tuple[str, int], list[float]] = {}
        self._kept: NDArray[np.float64] | None = None
        self._number = itertools.count()
        self._names: dict[str, int] = {}
        self._next_name = itertools.count()

    def add(self, stage: str, began: float, index: int) -> None:
        """Count one call that ends now."""
        seconds = time.monotonic() - began
        self.add_call(CallRecord(stage, began, seconds, os.getpid(), threading.current_thread().name, index))

    def add_call(self, call: CallRecord) -> None:
        """Count a call of this process or of another one."""
        entry = self._spent.setdefault((call.stage, threading.get_ident()), [0.0, 0.0])
        entry[0] += 1
        entry[1] += call.seconds
        if self._kept is None:
            self._kept = np.zeros((KEPT_CALLS, 7))
        number = next(self._number)
        stage, thread = (self._number_of(name) for name in (call.stage, call.thread))
        self._kept[number % KEPT_CALLS] = (
            *(number + 1, stage, call.began, call.seconds, call.process, thread, call.minibatch),
        )

    def _number_of(self, name: str) -> int:
        number = self._names.get(name)
        return self._names.setdefault(name, next(self._next_name)) if number is None else number

    def last_calls(self) -> list[CallRecord]:
        """Return the last calls, at most KEPT_CALLS, in the order in which they were counted."""
        if self._kept is None:
            return []
        names = {number: name for name, number in list(self._names.items())}
        rows = self._kept[self._kept[:, 0] > 0]
        return [
            CallRecord(names[int(stage)], began, seconds, int(process), names[int(thread)], int(minibatch))
            for _, stage, began, seconds, process, thread, minibatch in rows[rows[:, 0].argsort()].tolist()
        ]

    def stats(self) -> dict[str, dict[str, float]]:
        """Return {stage: {"calls": n, "seconds": s}}."""
        shown: dict[str, dict[str, float]] = {}
        for (stage, _), (calls, seconds) in list(self._spent.items()):
            entry = shown.setdefault(stage, {"calls": 0.0, "seconds": 0.0})
            entry["calls"] += calls
            entry["seconds"] += seconds
        return shown
