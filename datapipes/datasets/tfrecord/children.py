"""The child processes that load the entities of a graph: their main function; how the parent starts, reads, ends them.

An entity is the nodes, the edges, the positive or the negative labels; each is loaded in a process of its own.

After a failure, the other processes get a moment to report failures of their own. Then they are terminated, and killed
if they do not end. When `load_all` returns or raises, no process, descriptor or memory is left except its result.

A child sends pickled tuples: ("at", text) before it loads a type, and ("log", level, text). At the end it sends
("failed", traceback), or ("loaded", {(field, type): Form}) and then the file descriptors of the memories. A child ends
when its parent ends, whatever the child is doing. No process outside the program can write to the pipe.

Tensors pass in shared memory, without a copy. A Form tells where a tensor is. Descriptors are sent after all Forms, as
many at once as the system takes. A descriptor on its way keeps its memory alive, so a child may end after it has sent
all.

A process gets threads in proportion to the bytes it has to read. Equal shares would leave processors idle: labels are
soon read, and nodes would go on with a quarter of the threads. Shares are rounded up, so the number of threads exceeds
torch's by at most the number of entities.
"""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import os
import pickle
import signal
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from multiprocessing import connection
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from datapipes.base.errors import sentence
from datapipes.base.log import logger
from datapipes.datasets.tfrecord.data_loader import files_of
from datapipes.datasets.tfrecord.entity_task import WHERE, EntityTask, Loaded, TFRecordLoadError, load_entity
from datapipes.datasets.tfrecord.info import SerializedTFRecordInfo
from datapipes.datasets.tfrecord.torch_memory import received_tensor, shared_tensor
from datapipes.ingest.remote import size_of
from datapipes.processes.child import ChildProcess, begin, begin_as_child, end_all
from datapipes.processes.endings import how_it_exited
from datapipes.processes.main_module import refuse_missing_main, refuse_repetition
from datapipes.processes.mappings import mapping_of
from datapipes.processes.ranks import shortened
from datapipes.processes.sharing import Packed, pack
from datapipes.processes.start import Context, context_of, prepare_server, require_descriptors

LOOK_S = 0.1  # seconds between two checks that processes live and that loading may go on
GRACE_S = 0.25  # seconds after the first failure in which other processes may report failures
END_S = 0.5  # seconds that a process may take to end after a signal
_REMEDY = "run it in a notebook or by `python -c`."


def load_all(
    tasks: Sequence[EntityTask], *, in_parallel: bool, go_on: Callable[[], None] = lambda: None
) -> dict[str, Loaded]:
    """Load each entity (nodes, edges ...) in a process of its own; return {entity: its tensors}.

    Args:
        in_parallel: True: load all entities at once. False: load one after another.
        go_on: called every LOOK_S seconds; an exception from it ends the processes and the call.
    Raises:
        TFRecordLoadError: Entities have failed; the error names each entity that failed by itself.
        TypeError: A loader cannot be pickled.
        RuntimeError: This process may have no children, or a child could not import the main module.
        OSError: Too few file descriptors are left.
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
            loaded.clear()  # or the traceback, which refers to this frame, would keep the memory
            raise
        finally:
            end_all(children)
    return loaded


class Child(ChildProcess):
    """A process that loads an entity, as its parent sees it.

    Attributes:
        loaded: the tensors; None until they have arrived.
        failure: a text that says how the process failed; None unless it has failed.
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
        """Start a process that loads the entity of `task`, and return its Child. `packed` is the pickled task."""
        require_descriptors(f"{WHERE}: the process for {task.entity} cannot be started", "or close some files")
        level = logger.getEffectiveLevel()
        return begin(
            context,
            f"datapipes-load-{task.entity}",
            main,
            lambda there: (there, packed, num_threads, level),
            lambda process, here: cls(task, process, here),
        )

    @property
    def is_done(self) -> bool:
        """Whether the process has loaded or failed."""
        return self.loaded is not None or self.failure is not None

    ends_by_itself = is_done

    def listen(self) -> None:
        """Read the messages that the process has sent so far. If it ended without a result, set `failure`."""
        has_ended = self.watch.has_ended()  # checked first: after its end, all its messages are in the pipe
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
                loaded: Loaded = {}
                for (name, kind), tensor in zip(said[0], receive_tensors(self.pipe, [*said[0].values()]), strict=True):
                    loaded.setdefault(name, {})[kind] = tensor
                self.loaded = loaded
            except (EOFError, ConnectionError):  # the process died before it had sent all descriptors
                raise
            except (OSError, RuntimeError, ValueError) as error:  # raised here, for want of descriptors for example
                self._fail(f"its result could not be taken over: {sentence(error)}")

    def _fail(self, how: str) -> None:
        place = f", at {self._place}" if self._place else ""
        self.failure = f"process {self.pid}{place}: {how}"

    def forget(self) -> None:
        self.loaded = None
        super().forget()


def wait_for_all(children: Sequence[Child], go_on: Callable[[], None]) -> None:
    """Wait until all processes have loaded their entities, and call `go_on` meanwhile.

    Raises:
        TFRecordLoadError: A process has failed. The others had GRACE_S seconds to report their own failures.
    """
    _listen_until(children, lambda: any(child.failure for child in children), go_on)
    if any(child.failure for child in children):
        ends = time.monotonic() + GRACE_S
        _listen_until(children, lambda: time.monotonic() > ends, lambda: None)
        failures = {child.task.entity: child.failure for child in children if child.failure}
        stopped = [child.task.entity for child in children if not child.is_done]
        raise TFRecordLoadError.of_entities(children[0].task.rank, failures, stopped)


def _listen_until(children: Sequence[Child], is_over: Callable[[], bool], go_on: Callable[[], None]) -> None:
    """Read messages of the children until all are done or `is_over()` is true; call `go_on` meanwhile."""
    while not is_over() and (waiting := [child for child in children if not child.is_done]):
        connection.wait([child.pipe for child in waiting], LOOK_S)
        go_on()
        for child in waiting:
            child.listen()


def _packed(task: EntityTask) -> Packed:
    try:
        return pack(task)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise TypeError(
            f"{WHERE}: the loader or an object in the metadata cannot be pickled, so it cannot be passed on to a "
            f"process: {sentence(error)} Define its class at the top of a module."
        ) from error


def _refuse_no_children() -> None:
    if multiprocessing.current_process().daemon:
        raise RuntimeError(
            f"{WHERE}: this is a daemonic process, such as a worker; a daemonic process may start no others. Load the "
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


MOST_LOOKED_AT = 100  # files of an entity whose size is looked up; their mean is taken as the size of other files


def thread_shares(tasks: Sequence[EntityTask]) -> list[int]:
    """Return how many threads each task gets: in proportion to the bytes to read, at least 1.

    If sizes are unknown, all tasks get equally many.
    """
    most = torch.get_num_threads()
    try:
        sizes = [sum(map(_num_bytes, task.infos.values())) for task in tasks]
    except (OSError, ValueError, ImportError):  # the process will report the fault, or its loader reads no files
        sizes = [0]
    if sum(sizes) == 0:
        return [max(most // len(tasks), 1)] * len(tasks)
    return [max(math.ceil(most * size / sum(sizes)), 1) for size in sizes]


def _num_bytes(info: SerializedTFRecordInfo) -> float:
    files = files_of("thread_shares", info)
    return len(files) * mean(size_of(file) for file in islice(files, MOST_LOOKED_AT))


FAILED = 1  # exit code


def main(start: tuple[Connection, Packed, int, int]) -> None:
    """The main function of the child process: load an entity and send its tensors to the parent.

    Args:
        start: (this process's end of the pipe, packed EntityTask, number of threads, log level of the caller).
    """
    pipe, task, num_threads, log_level = start
    begin_as_child()
    with contextlib.suppress(OSError):  # if memory runs out, the system kills this process before the caller
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    torch.set_num_threads(num_threads)
    teller = _Teller(pipe)
    try:
        teller.take_log(log_level)
        loaded = load_entity(task.unpack(), lambda place: teller.tell("at", place))
        places = [(name, kind) for name, by_type in loaded.items() for kind in by_type]
        forms, descriptors, kept = shared_forms([loaded[name][kind] for name, kind in places], WHERE)
        teller.tell("loaded", dict(zip(places, forms, strict=True)))
        send_descriptors(pipe, descriptors)
        del kept
    except (BrokenPipeError, ConnectionResetError):
        os._exit(FAILED)  # the parent has closed the pipe
    except BaseException:
        teller.tell("failed", shortened(traceback.format_exc()))
        raise SystemExit(FAILED) from None


class _Teller(logging.Handler):
    """Sends messages of a child process to its parent. As a log handler it sends log lines too. Any thread may log."""

    def __init__(self, pipe: Connection) -> None:
        super().__init__()
        self._pipe = pipe
        self._telling = threading.Lock()

    def tell(self, *message: Any) -> None:
        with self._telling:
            self._pipe.send(message)

    def take_log(self, level: int) -> None:
        """Send the package's log lines of this level or above to the parent, from now on."""
        logger.handlers = [self]
        logger.propagate = False
        logger.setLevel(level)

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):  # the parent has ended; this process ends soon, too
            self.tell("log", record.levelno, shortened(record.getMessage()))


# --- tensors on their way to the parent

MOST_AT_ONCE = 250  # descriptors in one message; the system takes 253
WAIT_S = 10.0  # seconds within which announced descriptors must arrive; the sender has them ready


@dataclass(frozen=True)
class Form:
    """Describes a tensor to another process: dtype, shape, and where its values are in the memories that were sent.

    `memory` is the index of the tensor's memory among them; None for a tensor without values.
    """

    dtype: torch.dtype
    shape: tuple[int, ...]
    memory: int | None = None
    offset: int = 0  # bytes


def shared_forms(tensors: Sequence[Tensor], who: str) -> tuple[list[Form], list[int], list[Any]]:
    """Return (forms, descriptors, kept), which are needed to send `tensors` to another process.

    They are a Form for each tensor, the file descriptors of the memories, and objects that keep these descriptors open.
    A tensor that is in ordinary memory or not contiguous is copied into shared memory.
    """
    forms: list[Form] = []
    descriptors: list[int] = []
    shared = [shared_tensor(tensor.contiguous(), who) for tensor in tensors]
    kept: list[Any] = [*shared]
    for tensor in shared:
        place: tuple[int, ...] = ()
        if tensor.numel() > 0:
            mapped = mapping_of(tensor)
            assert mapped is not None
            memory, mapping = mapped
            kept.append(memory)
            if memory.descriptor not in descriptors:
                descriptors.append(memory.descriptor)
            place = descriptors.index(memory.descriptor), tensor.data_ptr() - mapping.address
        forms.append(Form(tensor.dtype, tuple(tensor.shape), *place))
    return forms, descriptors, kept


def send_descriptors(pipe: Connection, descriptors: Sequence[int]) -> None:
    """Send file descriptors through `pipe`, which must be a socket. The receiver must know how many there are."""
    with _socket_of(pipe) as channel:
        for begin in range(0, len(descriptors), MOST_AT_ONCE):
            socket.send_fds(channel, [b"D"], descriptors[begin : begin + MOST_AT_ONCE])


def receive_tensors(pipe: Connection, forms: Sequence[Form]) -> list[Tensor]:
    """Receive file descriptors, and return the tensors that `forms` describe, in the memory of the sender.

    `forms` must be from the message just before the descriptors.

    Raises:
        EOFError, OSError: The sender has ended, or this process may open no more descriptors.
    """
    count = 1 + max((form.memory for form in forms if form.memory is not None), default=-1)
    descriptors: list[int] = []
    try:
        with _socket_of(pipe) as channel:
            channel.settimeout(WAIT_S)
            while len(descriptors) < count:
                at_once = min(count - len(descriptors), MOST_AT_ONCE)
                message, arrived, _, _ = socket.recv_fds(channel, 1, at_once, socket.MSG_CMSG_CLOEXEC)
                descriptors.extend(arrived)
                if not message:
                    raise EOFError("the process ended before it had sent all descriptors")
                if len(arrived) < at_once:
                    raise OSError(f"{len(arrived)} of {at_once} descriptors arrived; raise the limit (ulimit -n)")
        return [
            torch.empty(form.shape, dtype=form.dtype)
            if form.memory is None
            else received_tensor(descriptors[form.memory], form.offset, form.shape, form.dtype)
            for form in forms
        ]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


@contextlib.contextmanager
def _socket_of(pipe: Connection) -> Iterator[socket.socket]:
    with socket.socket(fileno=os.dup(pipe.fileno())) as channel:
        yield channel
