"""Watching a process that multiprocessing has started: whether it has ended, and how.

The sentinel of a process is the end of a pipe, which ends only when nobody holds a copy of its other end. A child that
the process has forked holds one, and under fork so does a sibling that another thread starts at the same moment. So a
pidfd is watched instead, which tells of the process alone. Linux has it since 5.3; elsewhere the sentinel, the exit
status and the state of the process are looked at in turn.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from multiprocessing import connection
from typing import Any

from datapipes.processes.endings import runs

LOOK_S = 0.05  # seconds between two looks where there is no pidfd
COLLECT_S = 1.0  # seconds in which the fork server must tell how its child ended


class Watch:
    """Watches `process`, which has been started; `close` gives the descriptor back."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self._pid: int = process.pid
        self._pidfd: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # no such call, forbidden, or no descriptor left
            self._pidfd = os.pidfd_open(self._pid)
        if self._sentinel_tells(0):  # it had ended before, so the pidfd may be that of a younger process
            self.close()

    def has_ended(self) -> bool:
        """Return whether the process has ended, also if its exit status was collected elsewhere."""
        return self.wait(0.0)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the process to end; return whether it has."""
        if self._pidfd is not None:
            return bool(connection.wait([self._pidfd], timeout))
        ends = time.monotonic() + timeout
        while True:
            left = max(ends - time.monotonic(), 0.0)
            if self._sentinel_tells(min(left, LOOK_S)) or self._process.exitcode is not None or not runs(self._pid):
                return True
            if left <= 0:
                return False

    def exit_code(self) -> int | None:
        """Return the exit code of the process, which has ended; None if it was collected elsewhere."""
        if self._process.exitcode is None:
            self._sentinel_tells(COLLECT_S)  # a fork server collects its children itself, and then says how they ended
        code: int | None = self._process.exitcode
        return code

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, unless it has ended."""
        with contextlib.suppress(OSError):  # it has just ended, or may not be sent signals
            if not self.has_ended():
                os.kill(self._pid, number)

    def close(self) -> None:
        """Give the descriptor back; may be called twice."""
        pidfd, self._pidfd = self._pidfd, None
        if pidfd is not None:
            os.close(pidfd)

    def _sentinel_tells(self, timeout: float) -> bool:
        return bool(connection.wait([self._process.sentinel], timeout))
