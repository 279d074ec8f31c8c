"""Ending with the parent: a process ends when the one that started it has ended."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from multiprocessing import parent_process

_ORPHAN = 3  # exit code of a worker whose parent has ended


def end_with_parent() -> None:
    """End this process as soon as the one that started it has ended, whatever this one is doing."""
    parent = parent_process()
    if parent is None or parent.pid is None:
        return
    watched: list[int] = [parent.sentinel]
    with contextlib.suppress(OSError, AttributeError):  # a forked sibling may hold the pipe of the sentinel open
        watched.append(os.pidfd_open(parent.pid))
    if not parent.is_alive():
        os._exit(_ORPHAN)
    threading.Thread(target=_wait_for_end, args=(watched,), name="datapipes-parent", daemon=True).start()


def _wait_for_end(watched: list[int]) -> None:
    poll = select.poll()
    for descriptor in watched:
        poll.register(descriptor, select.POLLIN)
    poll.poll()
    os._exit(_ORPHAN)
