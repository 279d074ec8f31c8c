"""A worker process: it takes tasks from a pipe and sends outcomes through the channel.

It works until the pool asks it to end, or until its parent has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from bdb import BdbQuit
from collections import deque
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from datapipes.base.error_message import error_to_json
from datapipes.base.errors import ChannelClosed, ChannelDamaged, PeerDied, add_note
from datapipes.base.outcome import as_error
from datapipes.base.threads import preempt_nobody, threads_of_kernels
from datapipes.chain.asynchronous import async_window
from datapipes.chain.pool import Outcome, Task
from datapipes.chain.stage_graph import StageGraph
from datapipes.channel import ShmChannel
from datapipes.loader.workers.board import OwnRow
from datapipes.loader.workers.making import work
from datapipes.loader.workers.outcome_messages import num_bytes_of, to_messages
from datapipes.loader.workers.worker_handle import CHANNEL, TASK, Start
from datapipes.processes.child import begin_as_child, end_if_clone
from datapipes.processes.sharing import Packed

NO_TERMINAL = (
    "a debugger has no terminal in a worker process. Debug with num_workers=0, or make the one minibatch here: "
    "loader.minibatch(epoch, index)"
)
NICENESS = 5  # if cores are few, the consumer's own work goes first


def main(start: Start) -> None:
    """Run a worker until the pool asks it to end."""
    process = os.getpid()
    begin_as_child()
    torch.set_num_threads(1)  # before any kernel: after a fork OpenMP would wait for threads that are gone
    with contextlib.suppress(OSError):  # some sandboxes know no priorities
        os.nice(NICENESS)
    preempt_nobody()
    try:
        chain = start.chain.unpack() if isinstance(start.chain, Packed) else start.chain
        root, init, *evaluator = chain
        row = OwnRow(start.board, start.worker)
        if init is not None:
            init(start.worker)
    except BaseException as raised:
        end_if_clone(process)
        error = as_error(raised, "worker_init_fn", "Raise an error, or return.")
        _tell(start.connection, {"error": error_to_json(error)})
        raise SystemExit(1) from None
    end_if_clone(process)
    row.ready()
    graph = StageGraph(root)
    tasks = _Tasks(start.connection, read_elsewhere=async_window(graph) > 0)
    sender = _Sender(start, tasks, graph.numbering.labels())
    try:
        with threads_of_kernels(start.num_threads):
            for outcome in work(start.worker, root, tasks.take, row, *evaluator):
                end_if_clone(process)
                if isinstance(outcome.error, BdbQuit):
                    add_note(outcome.error, NO_TERMINAL)
                sender.send(outcome)
    except (ChannelClosed, ChannelDamaged, PeerDied, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the pool has ended or will end: the outcomes have no receiver any more


class _Tasks:
    """Reads what the pool sends through the pipe: tasks, and the channel. Tasks of older generations are dropped.

    Args:
        read_elsewhere: whether one thread takes tasks and another thread waits for the channel. Then only the thread
            that takes tasks reads the pipe.
    """

    def __init__(self, connection: Connection, *, read_elsewhere: bool) -> None:
        self._connection = connection
        self._read_elsewhere = read_elsewhere
        self._waiting: deque[Task] = deque()
        self._newest = 0
        self._ended = False
        self._told = threading.Event()  # set when the channel came, or nothing more will come
        self.channel: ShmChannel | None = None

    def take(self) -> Task | None:
        """Wait for a task and return it. None: the worker is to stop."""
        try:
            while not self._ended:
                while self._connection.poll(0):  # read all messages first: they may make waiting tasks stale
                    self._read()
                while self._waiting and self._waiting[0].generation < self._newest:
                    self._waiting.popleft()
                if self._waiting:
                    return self._waiting.popleft()
                if not self._ended:
                    self._read()
        except BaseException:
            self._ended = True
            raise
        finally:
            if self._ended:
                self._told.set()
        return None

    def wait_for_channel(self) -> ShmChannel:
        while self.channel is None:
            if self._ended:
                raise ChannelClosed("datapipes: the loader was closed.")
            if self._read_elsewhere:
                self._told.wait()
            else:
                self._read()
        return self.channel

    def _read(self) -> None:
        said = self._connection.recv_bytes()
        if said[:1] == TASK:
            task = Task(*np.frombuffer(said[1:], np.int64).tolist())
            self._newest = max(self._newest, task.generation)
            self._waiting.append(task)
        elif said[:1] == CHANNEL:
            self.channel = ShmChannel.from_descriptor(reduction.recv_handle(self._connection))
            self._told.set()
        else:
            self._ended = True


class _Sender:
    """Sends a worker's outcomes to the pool. If there is no channel yet, asks the pool for one."""

    def __init__(self, start: Start, tasks: _Tasks, stages: list[str]) -> None:
        self._start = start
        self._tasks = tasks
        self._stages = stages
        self._channel = start.channel

    def send(self, outcome: Outcome) -> None:
        try:
            self._send(outcome)
        except (ChannelClosed, ChannelDamaged, PeerDied):
            raise
        except Exception as error:  # the channel refuses the minibatch, for a sparse tensor, say, or has no room
            self._tell(Outcome(outcome.worker, outcome.task, error=error, calls=outcome.calls))

    def _tell(self, outcome: Outcome) -> None:
        """Send an outcome that has no minibatch (a drop or an error) through the pipe, not through the channel."""
        (message,) = to_messages(outcome, self._start.loader_id, self._start.life, self._stages, None)
        _tell(self._start.connection, {"outcome": {name: part.tolist() for name, part in message.items()}})

    def _send(self, outcome: Outcome) -> None:
        if self._channel is None and self._tasks.channel is None:
            if outcome.minibatch is None and outcome.error is None:
                self._tell(outcome)  # a stage dropped the minibatch: a channel of its size would be too small
                return
            size = 0 if outcome.minibatch is None else num_bytes_of(outcome.minibatch.to_message())
            _tell(self._start.connection, {"bytes": size})
        channel = self._channel = self._channel or self._tasks.wait_for_channel()
        limit = channel.most_bytes_kept if isinstance(channel, ShmChannel) else None
        if limit is not None and self._start.explicit_size:
            _refuse_large(outcome, limit)
        for message in to_messages(outcome, self._start.loader_id, self._start.life, self._stages, limit):
            if isinstance(channel, ShmChannel) and self._start.own_channel:
                channel.send(message, epoch=outcome.task.generation)
            else:
                channel.send(message)


def _refuse_large(outcome: Outcome, most_bytes: int) -> None:
    """Raise ValueError if the outcome needs a larger channel than the user has chosen."""
    size = 0 if outcome.minibatch is None else num_bytes_of(outcome.minibatch.to_message())
    if size > most_bytes:
        raise ValueError(
            f"data_loader: minibatch {outcome.task.index} of epoch {outcome.task.epoch} takes {size} bytes; the "
            f"channel takes messages of up to half of its size, here {most_bytes}. Give it shm_size={2 * size} or "
            "more, or leave it out."
        )


def _tell(connection: Connection, message: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(message).encode())
