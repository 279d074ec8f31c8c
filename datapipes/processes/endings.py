"""Tells whether a process runs or is stopped, and how it ended, as texts for error messages."""

from __future__ import annotations

import os
import signal
from pathlib import Path


def how_it_ended(pid: int) -> str | None:
    """Return how a child process of this process ended, as a text such as "it was killed by SIGKILL".

    None: the child runs, or the system does not tell. The exit status is not collected; others can still collect it.
    """
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except (OSError, AttributeError):  # not our child, or waited for already
        return None
    if ended is None:
        return None
    return how_it_exited(ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


def how_it_exited(code: int | None) -> str:
    """Return an exit code as a text, such as "it exited with code 1".

    A code below 0 means that the signal -code ended the process. None: the exit status was collected elsewhere.
    """
    if code is None:
        return "it ended; its exit status was collected elsewhere"
    if code >= 0:
        return f"it exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"it was killed by {name}" + (", perhaps since memory ran out" if name == "SIGKILL" else "")


def runs(pid: int) -> bool:
    """Return whether there is a process with this id that has not ended. A zombie has ended."""
    state = _state(pid)
    if state is not None:
        return state not in "ZX"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # the process runs, and belongs to another user
        pass
    return True


def why_it_stands_still(pid: int) -> str | None:
    """Return a clause that says what has stopped a process: a signal or a debugger.

    None: the process is not stopped.
    """
    ways = {
        "T": f"is stopped by a signal (SIGSTOP, Ctrl-Z); `kill -CONT {pid}` lets it go on",
        "t": "is stopped by a debugger",
    }
    return ways.get(_state(pid) or "")


def _state(pid: int) -> str | None:
    """Return the letter of a process's state, such as "S", from /proc. None: there is no such process, or no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()[0]
