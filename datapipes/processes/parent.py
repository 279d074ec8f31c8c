"""Ending with the parent: a process ends when the one that started it has ended."""

from __future__ import annotations

import contextlib
import functools
import os
import select
import threading
from multiprocessing import parent_process

from datapipes.processes.endings import runs

LOOK_S = 1.0  # seconds between two looks whether the parent runs, where there is no pidfd
_ORPHAN = 3  # exit code of a worker whose parent has ended


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, whatever this one is doing."""
    parent = parent_process()
    if parent is None or parent.pid is None:
        return
    watched: list[int] = [parent.sentinel]
    look_s: float | None = LOOK_S
    with contextlib.suppress(OSError, AttributeError):  # a forked sibling may hold the pipe of the sentinel open
        watched.append(os.pidfd_open(parent.pid))
        look_s = None
    if not parent.is_alive():
        os._exit(_ORPHAN)
    wait = functools.partial(_wait_for_end, parent.pid, watched, look_s)
    threading.Thread(target=wait, name="datapipes-parent", daemon=True).start()


def _wait_for_end(pid: int, watched: list[int], look_s: float | None) -> None:
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    while not poll.poll(None if look_s is None else 1000 * look_s) and runs(pid):
        pass
    os._exit(_ORPHAN)
