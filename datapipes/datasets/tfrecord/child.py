"""The process that loads one entity: what it does, and what it tells the process that started it.

Messages are pickled tuples: ("at", text) before each type, ("log", level, text), and in the end ("loaded", {field:
{type: Form}}) with the descriptors of the memories behind it, or ("failed", traceback). The process ends with its
parent, whatever it is doing. Nobody outside the program can write to the pipe.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from datapipes.base.log import logger
from datapipes.datasets.tfrecord.entity_task import load_entity
from datapipes.datasets.tfrecord.errors import WHERE, ends_of
from datapipes.datasets.tfrecord.tensor_passing import send_descriptors, shared_forms
from datapipes.processes.parent import end_with_parent
from datapipes.processes.sharing import Packed

FAILED = 1  # exit code


@dataclass
class ChildStart:
    """What a process is started with: its end of the pipe, a packed EntityTask, threads, level of the caller's log."""

    pipe: Connection
    task: Packed
    num_threads: int
    log_level: int


def main(start: ChildStart) -> None:
    """Load an entity, tell the parent, and end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the parent decides what ends
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # no_interrupt blocked it during the start
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_with_parent()
    with contextlib.suppress(OSError):  # the first to go where memory runs out, before the caller
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    torch.set_num_threads(start.num_threads)
    teller = _Teller(start.pipe)
    try:
        teller.take_log(start.log_level)
        loaded = load_entity(start.task.unpack(), lambda place: teller.tell("at", place))
        places = [(name, kind) for name, by_type in loaded.items() for kind in by_type]
        forms, descriptors, kept = shared_forms([loaded[name][kind] for name, kind in places], WHERE)
        teller.tell("loaded", dict(zip(places, forms, strict=True)))
        send_descriptors(start.pipe, descriptors)
        del kept
    except (BrokenPipeError, ConnectionResetError):
        os._exit(FAILED)  # the parent wants nothing any more
    except BaseException:
        teller.tell("failed", ends_of(traceback.format_exc()))
        raise SystemExit(FAILED) from None


class _Teller(logging.Handler):
    """The end of the pipe, and a handler that passes lines of the log on; several threads may log at once."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe
        self._telling = threading.Lock()

    def tell(self, *message: Any) -> None:
        with self._telling:
            self._pipe.send(message)

    def take_log(self, level: int) -> None:
        """Pass on what the package logs from now on."""
        logger.handlers = [self]
        logger.propagate = False
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the parent has ended; then this process does, too
            self.tell("log", record.levelno, ends_of(record.getMessage()))
