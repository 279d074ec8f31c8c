"""SamplerPool: runs a user's own loop in forked processes, which share the memory of the graph. A loop may sample
minibatches and send them, for example.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from datapipes.base.checks import check_int
from datapipes.base.error_message import error_from_json, error_to_json
from datapipes.base.errors import PeerDied, add_note
from datapipes.processes.child import ChildProcess, begin, begin_as_child, end_all
from datapipes.processes.endings import how_it_exited
from datapipes.processes.start import context_of, require_descriptors
from datapipes.processes.unforkable import why_not_to_fork

__all__ = ["SamplerPool"]

_WHERE = "SamplerPool.start"
_DONE = b"done"
_LOOK_S = 0.1  # between two checks that the processes live


class SamplerPool(ABC):
    """Runs `worker` in processes forked from this process. The processes share its memory, so a graph is stored once.
    Write a subclass that defines `worker`, as for the class SamplerPool of DGL.
    """

    @abstractmethod
    def worker(self, args: Any) -> None:
        """The work of one process; define it in a subclass. Torch uses one thread, unless `worker` sets another number.

        Args:
            args: the `args` that `start` got, the same in all processes.
        """

    def start(self, num_worker: int, args: Any = None) -> None:
        """Fork `num_worker` processes that run `worker(args)`. Return when all of them have ended.

        If one process fails, the others are ended. If this process ends, all of them end.

        Args:
            num_worker: number of processes, 1 or more.
        Raises:
            ValueError: `num_worker` is not in its range.
            RuntimeError: This process has used CUDA or is connected to servers, and neither survives a fork.
            PeerDied: A process ended before `worker` returned; for example it was killed.
            The error that `worker` raised, with the traceback as its cause; RemoteError if this process cannot make an
            error of that type.
        """
        count = check_int(_WHERE, "num_worker", num_worker, 1)
        reason = why_not_to_fork()
        if reason is not None:
            raise RuntimeError(
                f"{_WHERE}: this process {reason.has}, which does not survive a fork. Start the pool before, or "
                f"{reason.instead}."
            )
        context, children = context_of("fork"), list[_Child]()
        try:
            for number in range(count):
                require_descriptors(f"{_WHERE}: worker {number} cannot be started", "or start fewer")
                name, start = f"datapipes-sampler-{number}", partial(_Start, pool=self, args=args)
                children.append(begin(context, name, _main, start, partial(_Child, number)))
            _wait_for_all(children)
        finally:
            end_all(children)


class _Start(NamedTuple):
    pipe: Connection
    pool: SamplerPool
    args: Any


class _Child(ChildProcess):
    """A worker process of a SamplerPool, as the parent sees it: whether it has ended, and how."""

    def __init__(self, number: int, process: Any, pipe: Connection) -> None:
        super().__init__(process, pipe)
        self.number, self.is_done, self.has_returned = number, False, False

    @property
    def ends_by_itself(self) -> bool:
        return self.is_done

    def listen(self) -> None:
        """Read what the process has sent, and check whether it has ended. If it has failed, raise its error, or
        PeerDied if it sent no error.
        """
        has_ended = self.watch.has_ended()  # before the poll: a process that has ended sends no more
        said = b""
        with suppress(EOFError, OSError):
            if self.pipe.poll(0):
                said = self.pipe.recv_bytes()
        where = f"in worker {self.number} (pid {self.pid}) of a SamplerPool"
        if said == _DONE:
            self.has_returned = True
        elif said:
            error = error_from_json(json.loads(said), own_types=True)
            add_note(error, where)
            self.is_done = True
            raise error
        self.is_done = has_ended
        code = self.watch.exit_code() if has_ended else 0
        if has_ended and (code != 0 or not self.has_returned):
            how = how_it_exited(code) if code != 0 else "its process ended before worker() returned"
            raise PeerDied(
                f"{_WHERE}: worker {self.number} (pid {self.pid}) did not end well: {how}. The others were ended.",
                [self.pid],
            )


def _wait_for_all(children: Sequence[_Child]) -> None:
    while waiting := [child for child in children if not child.is_done]:
        connection.wait([child.pipe for child in waiting], _LOOK_S)
        for child in waiting:
            child.listen()


def _main(start: _Start) -> None:
    begin_as_child()
    torch.set_num_threads(1)  # before any kernel: after a fork OpenMP would wait for threads that are gone
    try:
        start.pool.worker(start.args)
        start.pipe.send_bytes(_DONE)
    except SystemExit as ended:
        if ended.code in (None, 0):
            start.pipe.send_bytes(_DONE)
        raise  # the exit code tells the parent
    except BaseException as error:
        with suppress(OSError):  # the parent has gone
            start.pipe.send_bytes(json.dumps(error_to_json(error)).encode())
        raise SystemExit(1) from None
