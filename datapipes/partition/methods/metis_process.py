"""Starting, watching and ending the process in which METIS runs (metis_child.py)."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datapipes.partition.source import Progress
from datapipes.processes.endings import how_it_exited

__all__ = ["MetisError"]

SCRIPT = Path(__file__).with_name("metis_child.py")
LOOK_S = 0.25  # seconds between two calls of `progress`
MOST_LOG = 2000  # bytes of its output in an error


class MetisError(RuntimeError):
    """The process in which METIS ran has ended without a result; the message says how, and what it printed last."""


def run_metis(request: Mapping[str, Any], memory: int, progress: Progress) -> None:
    """Run the script with a request and the descriptor of the memory that it names; return when it has ended well.

    Whatever this call raises, KeyboardInterrupt too, the process is gone then. It also ends with the calling thread.

    Raises:
        MetisError: It ended with another exit code than 0, or was killed.
    """
    if not sys.executable:
        raise MetisError("Partitioner: METIS needs a process of its own, and sys.executable names no Python. Set it.")
    log = os.memfd_create("datapipes-metis-log", os.MFD_CLOEXEC)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", str(SCRIPT)],  # -I: neither the current folder nor the environment adds modules
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            pass_fds=(memory,),
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # the threads of NumPy would do nothing
            start_new_session=True,  # Ctrl-C reaches this process only, which then ends that one
        )
        try:
            # "" is the current folder; Python skips what is no str, such as a Path
            path = [each for each in sys.path if isinstance(each, str) and each]
            _send(process, {**request, "memory": memory, "parent": os.getpid(), "path": path})
            _wait(process, progress)
        finally:
            process.kill()  # does nothing once the process was waited for
            process.wait()
        if process.returncode != 0:
            raise MetisError(
                f"Partitioner: METIS's process ended without a result: {how_it_exited(process.returncode)}. Its last "
                f"output: {_tail(log) or 'none'}. Give it more memory, or use method='fennel', which needs little."
            )
    finally:
        os.close(log)


def _send(process: subprocess.Popen[bytes], request: dict[str, Any]) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # it has ended: its exit code says more
        pipe.write(json.dumps(request).encode())


def _wait(process: subprocess.Popen[bytes], progress: Progress) -> None:
    began = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(LOOK_S)
            return
        seconds = int(time.monotonic() - began)
        progress(f"METIS, {seconds} s", seconds, 0)


def _tail(log: int) -> str:
    size = os.fstat(log).st_size
    text = os.pread(log, MOST_LOG, max(size - MOST_LOG, 0)).decode(errors="replace")
    return " | ".join(line.strip() for line in text.splitlines() if line.strip())
