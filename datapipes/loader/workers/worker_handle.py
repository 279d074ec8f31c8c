"""The pool's side of a worker process: its start arguments, the messages to it and from it, and its end."""

from __future__ import annotations

import json
import select
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from datapipes.chain.pool import Task
from datapipes.channel import ChannelBase, ShmChannel
from datapipes.processes.child import ChildProcess
from datapipes.processes.sharing import Packed

# The first byte of each message that the pool sends through the pipe.
TASK = b"T"  # then generation, epoch and index of a Task, int64 each
END = b"E"
CHANNEL = b"C"  # then the descriptor of a ShmChannel


@dataclass
class Start:
    """The start arguments of a worker process.

    Attributes:
        worker: the worker's index, from 0.
        life: how often a worker of this index was started before.
        loader_id: a random id of the loader for messages.
        connection: the worker's end of its pipe.
        chain: (last stage before the cut, worker_init_fn), and maybe a third entry: function (Calls) -> Evaluator.
        board: the shared memory in which the worker writes the tasks that it is making (board.py).
        channel: the channel for outcomes. None: the pool makes one once it knows how large a minibatch is.
        own_channel: whether the pool made the channel. Only from such a channel can messages of abandoned epochs be
            dropped.
        explicit_size: whether the user has chosen the channel's size. True: a minibatch that does not fit is refused.
            False: it is sent in parts.
        num_threads: how many threads a kernel of this package may use.
    """

    worker: int
    life: int
    loader_id: int
    connection: Connection
    chain: Packed | tuple[Any, ...]
    board: Packed
    channel: ChannelBase | None
    own_channel: bool
    explicit_size: bool
    num_threads: int


class WorkerHandle(ChildProcess):
    """The pool's side of a worker process: the process, the pool's end of the pipe, and the messages still to send."""

    def __init__(self, process: Any, pipe: Connection, life: int, channel: ChannelBase | None) -> None:
        super().__init__(process, pipe)
        self.life = life
        self.channel = channel  # the worker's own channel; None if all workers share a channel
        self.death_reported = False  # whether its death was reported
        self._unsent: deque[tuple[bool, Callable[[Connection], None]]] = deque()
        self._sending = threading.RLock()  # held while sending: another thread may close the pool meanwhile

    def give(self, task: Task) -> None:
        """Tell the worker to make a minibatch."""
        message = TASK + np.array(task, np.int64).tobytes()
        self._send(lambda pipe: pipe.send_bytes(message), is_task=True)

    def give_channel(self, channel: ShmChannel) -> None:
        """Give the worker the channel for its outcomes."""
        descriptor = channel.descriptor

        def send(pipe: Connection) -> None:
            pipe.send_bytes(CHANNEL)
            reduction.send_handle(pipe, descriptor, 0)

        self._send(send)

    def ask_to_end(self) -> None:
        """Tell the worker to end after the task that it is making."""
        self._send(lambda pipe: pipe.send_bytes(END))

    def _send(self, how: Callable[[Connection], None], *, is_task: bool = False) -> None:
        """Send a message through the pipe. If the pipe is full, since the worker does not read, keep the message for
        later.

        Args:
            how: function that writes the message to the pipe.
            is_task: whether the message is a task, which `forget_tasks` may drop.
        """
        with self._sending:
            self._unsent.append((is_task, how))
        self.send_rest()

    def forget_tasks(self) -> None:
        """Drop the tasks that were not sent to the worker yet."""
        with self._sending:
            self._unsent = deque((is_task, how) for is_task, how in self._unsent if not is_task)

    def send_rest(self) -> None:
        with self._sending, suppress(OSError):  # the worker has died; the pool will notice
            while self._unsent and _has_room(self.pipe):
                first = self._unsent[0]  # stays until it is sent: an interrupt may come in between
                first[1](self.pipe)
                if self._unsent and self._unsent[0] is first:
                    self._unsent.popleft()

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages that the worker has sent since the last call."""
        messages = []
        with suppress(EOFError, OSError):
            while self.pipe.poll(0):
                messages.append(json.loads(self.pipe.recv_bytes()))
        return messages

    def forget(self) -> None:
        super().forget()
        if self.channel is not None:
            self.channel.close()


def _has_room(pipe: Connection) -> bool:
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLOUT)
    return bool(poll.poll(0))
