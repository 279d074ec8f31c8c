"""Clones: copies of a process that the user's code makes by os.fork() and lets return into this package.

A clone of a worker would go on as the worker, send what the worker sends, and take the worker's tasks. In a thread of
this package a clone has nobody to return to. Both must end. A clone that returns into the user's own code, where a
stage runs in the consumer's thread, is the user's; it is left alone.
"""

from __future__ import annotations

import contextlib
import os

_CLONE = 1  # exit code of a clone


def end_if_clone(pid: int) -> None:
    """End this process at once, without exit handlers, if it is not the process `pid`."""
    if os.getpid() == pid:
        return
    told = (
        f"datapipes: a stage called os.fork() in process {pid} and returned in the child, too. The child, process "
        f"{os.getpid()}, ends here. End it by os._exit() in the stage.\n"
    )
    with contextlib.suppress(OSError):
        os.write(2, told.encode())  # not through sys.stderr: a thread of the parent may have held its lock
    os._exit(_CLONE)
