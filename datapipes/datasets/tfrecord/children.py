"""The processes that load entities: what each does, and how its parent starts, hears and ends it, whatever happens.

Once an entity has failed, the others get a moment to say that they failed too. Then they are terminated, and killed if
that does not help. A call of `load_all` leaves no process, no descriptor and no memory behind, but for its result.

Messages are pickled tuples: ("at", text) before each type, ("log", level, text), and in the end ("loaded", {field:
{type: Form}}) with the descriptors of the memories behind it, or ("failed", traceback). A child ends with its parent,
whatever it is doing. Nobody outside the program can write to the pipe.

A process gets threads in proportion to the bytes it has to read. Equal shares would leave processors idle: labels are
read in no time, and then the nodes would go on with a quarter of the threads. Shares are rounded up, so there are at
most as many threads too many as there are entities.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from datapipes.base.log import logger
from datapipes.datasets.tfrecord.data_loader import files_of
from datapipes.datasets.tfrecord.entity_task import WHERE, EntityTask, Loaded, TFRecordLoadError, load_entity
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo
from datapipes.datasets.tfrecord.tensor_passing import Form, receive_tensors, send_descriptors, shared_forms
from datapipes.ingest.remote import size_of
from datapipes.processes.child import ChildProcess, begin, begin_as_child, end_all
from datapipes.processes.endings import how_it_exited
from datapipes.processes.main_module import refuse_missing_main, refuse_repetition
from datapipes.processes.ranks import shortened
from datapipes.processes.sharing import Packed, pack
from datapipes.processes.start import Context, context_of, prepare_server, require_descriptors

LOOK_S = 0.1  # seconds between two looks whether a process lives, and whether to go on
GRACE_S = 0.25  # seconds in which others may fail too, after the first failure
END_S = 0.5  # seconds that a process may take to end after a signal
_REMEDY = "run it in a notebook or by `python -c`."


def load_all(
    tasks: Sequence[EntityTask], *, in_parallel: bool, go_on: Callable[[], None] = lambda: None
) -> dict[str, Loaded]:
    """Load entities, each in a process of its own: all at once, or one after another in the order given.

    Args:
        go_on: called every LOOK_S; what it raises ends the processes and the call.
    Raises:
        TFRecordLoadError: Entities have failed; all are named that did so by themselves.
        TypeError: A loader cannot be passed on to a process.
        RuntimeError: This process may have no children, or they could not import the main module.
        OSError: Too few descriptors are left.
    """
    context = context_of(None)
    _refuse_no_children()
    packed = [_packed(task) for task in tasks]
    prepare_server(context)
    loaded: dict[str, Loaded] = {}
    pairs = list(zip(tasks, packed, strict=True))
    for group in [pairs] if in_parallel else [[pair] for pair in pairs]:
        children: list[Child] = []
        try:
            for (task, its), num_threads in zip(group, thread_shares([task for task, _ in group]), strict=True):
                children.append(Child.started(context, task, its, num_threads))
            wait_for_all(children, go_on)
            loaded.update({child.task.entity: child.loaded for child in children if child.loaded is not None})
        except BaseException:
            loaded.clear()  # the traceback keeps this frame, and so would the memory be kept
            raise
        finally:
            end_all(children)
    return loaded


class Child(ChildProcess):
    """A process that loads an entity: what it has told, and whether it lives.

    Attributes:
        loaded: the tensors, once they have come.
        failure: how it failed, once it has.
    """

    end_s = END_S

    def __init__(self, task: EntityTask, process: Any, pipe: Connection) -> None:
        super().__init__(process, pipe)
        self.task = task
        self.loaded: Loaded | None = None
        self.failure: str | None = None
        self._place = ""

    @classmethod
    def started(cls, context: Context, task: EntityTask, packed: Packed, num_threads: int) -> Child:
        """Start the process."""
        require_descriptors(f"{WHERE}: the process for {task.entity} cannot be started", "or close some files")
        level = logger.getEffectiveLevel()
        return begin(
            context,
            f"datapipes-load-{task.entity}",
            main,
            lambda there: ChildStart(there, packed, num_threads, level),
            lambda process, here: cls(task, process, here),
        )

    @property
    def is_done(self) -> bool:
        """Whether it has loaded or failed."""
        return self.loaded is not None or self.failure is not None

    @property
    def ends_by_itself(self) -> bool:
        return self.is_done

    def listen(self) -> None:
        """Read what it has told; notice if it has ended without a result."""
        has_ended = self.watch.has_ended()  # first: what it told before its end is in the pipe then
        try:
            while not self.is_done and self.pipe.poll(0):
                self._take(*self.pipe.recv())
        except (EOFError, OSError) as error:
            has_ended = self.watch.wait(END_S)
            if not has_ended:
                self._fail(f"its pipe broke while it ran ({type(error).__name__}: {error}).")
        if has_ended and not self.is_done:
            self._fail(f"{_ending_text(self.watch.exit_code())}.")

    def _take(self, kind: str, *said: Any) -> None:
        if kind == "at":
            self._place = said[0]
        elif kind == "log":
            logger.log(said[0], "%s", said[1])
        elif kind == "failed":
            self._fail(f"it raised an error.\n{said[0]}")
        else:
            assert kind == "loaded"
            try:
                self.loaded = _received(self.pipe, said[0])
            except (EOFError, ConnectionError):  # it died before it had sent all
                raise
            except (OSError, RuntimeError, ValueError) as error:  # of this process, such as too few descriptors
                self._fail(f"its result could not be taken over: {error}.")

    def _fail(self, how: str) -> None:
        place = f", at {self._place}" if self._place else ""
        self.failure = f"process {self.pid}{place}: {how}"

    def forget(self) -> None:
        self.loaded = None
        super().forget()


def wait_for_all(children: Sequence[Child], go_on: Callable[[], None]) -> None:
    """Wait until all have loaded; raise TFRecordLoadError soon after one has failed."""
    _listen_until(children, lambda: any(child.failure for child in children), go_on)
    if any(child.failure for child in children):
        ends = time.monotonic() + GRACE_S
        _listen_until(children, lambda: time.monotonic() > ends, lambda: None)
        failures = {child.task.entity: child.failure for child in children if child.failure}
        stopped = [child.task.entity for child in children if not child.is_done]
        raise TFRecordLoadError.of_entities(children[0].task.rank, failures, stopped)


def _listen_until(children: Sequence[Child], is_over: Callable[[], bool], go_on: Callable[[], None]) -> None:
    """Listen until all children are done, or something is over."""
    while not is_over() and (waiting := [child for child in children if not child.is_done]):
        connection.wait([child.pipe for child in waiting], LOOK_S)
        go_on()
        for child in waiting:
            child.listen()


def _received(pipe: Connection, forms: dict[tuple[str, Any], Form]) -> Loaded:
    loaded: Loaded = {}
    for (name, kind), tensor in zip(forms, receive_tensors(pipe, [*forms.values()]), strict=True):
        loaded.setdefault(name, {})[kind] = tensor
    return loaded


def _packed(task: EntityTask) -> Packed:
    try:
        return pack(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"{WHERE}: the loader, or what the metadata holds, cannot be passed on to a process, since it cannot be "
            f"pickled: {error}. Define its class at the top of a module."
        ) from error


def _refuse_no_children() -> None:
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            f"{WHERE}: this is a daemonic process, such as a worker, which may have no processes of its own. Load the "
            "graph in the process that started it, and pass the tensors on."
        )
    refuse_missing_main(WHERE, _REMEDY)
    refuse_repetition(is_building=False, where=WHERE, what="this call", remedy=_REMEDY)


def _ending_text(code: int | None) -> str:
    if code == -signal.SIGKILL:
        return (
            "it was killed by SIGKILL, probably out of memory. Load on more ranks, with fewer features or a narrower "
            "feature_dtype, or give the machine more memory"
        )
    return f"{how_it_exited(code)} without a result"


MOST_LOOKED_AT = 100  # files of an entity whose size is asked for; the others count as much on average


def thread_shares(tasks: Sequence[EntityTask]) -> list[int]:
    """Return the number of threads for each task, at least 1; equal ones where sizes cannot be told."""
    most = torch.get_num_threads()
    try:
        sizes = [sum(map(_num_bytes, task.infos.values())) for task in tasks]
    except (OSError, ValueError, ImportError):  # its process will say what is wrong, or its loader reads no files
        sizes = [0]
    if sum(sizes) == 0:
        return [max(most // len(tasks), 1)] * len(tasks)
    return [max(math.ceil(most * size / sum(sizes)), 1) for size in sizes]


def _num_bytes(info: SerializedTFRecordInfo) -> float:
    files = files_of("thread_shares", info)
    return len(files) * mean(size_of(file) for file in islice(files, MOST_LOOKED_AT))


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
    begin_as_child()
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
        teller.tell("failed", shortened(traceback.format_exc()))
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
            self.tell("log", record.levelno, shortened(record.getMessage()))
