"""A worker process as its pool sees it: the messages to it and from it, whether it lives, and its end."""

from __future__ import annotations

import json
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import reduction
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from datapipes.channel import ChannelBase, ShmChannel
from datapipes.loader.workers.pool import Task
from datapipes.loader.workers.start import CHANNEL, END, TASK
from datapipes.processes.watch import Watch

END_S = 1.0  # seconds that a worker may take to end by itself, and again after a signal
_UNKNOWN = 255  # exit code of a process whose exit status was collected elsewhere


class WorkerHandle:
    """A worker process as its pool sees it: the process, the pool's end of the pipe, and the messages still to send."""

    def __init__(self, process: Any, pipe: Connection, life: int, channel: ChannelBase | None) -> None:
        self.process = process
        self.pid: int = process.pid
        self.watch = Watch(process)
        self.connection = pipe
        self.life = life
        self.channel = channel  # a channel of its own; None if all workers share one
        self.death_reported = False  # whether its death was reported
        self._forgotten = False
        self._unsent: deque[tuple[bool, Callable[[Connection], None]]] = deque()
        self._sending = threading.RLock()  # held while sending: another thread may close the pool meanwhile

    def has_ended(self) -> bool:
        """Return whether the process has ended, also if its exit status was collected elsewhere."""
        return self._forgotten or self.watch.has_ended()

    def give(self, task: Task) -> None:
        """Tell the worker to make a minibatch."""
        said = TASK + np.array(task.numbers(), np.int64).tobytes()
        self._send(lambda pipe: pipe.send_bytes(said), is_task=True)

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
        """Send a message through the pipe; keep it for later if the worker does not read and the pipe is full."""
        with self._sending:
            self._unsent.append((is_task, how))
        self.send_rest()

    def forget_tasks(self) -> None:
        """Drop the tasks that were not sent yet."""
        with self._sending:
            self._unsent = deque((is_task, how) for is_task, how in self._unsent if not is_task)

    def send_rest(self) -> None:
        with self._sending, suppress(OSError):  # the worker has died; the pool finds that by itself
            while self._unsent and _has_room(self.connection):
                first = self._unsent[0]  # stays until it is sent: an interrupt may come in between
                first[1](self.connection)
                if self._unsent and self._unsent[0] is first:
                    self._unsent.popleft()

    def messages(self) -> list[dict[str, Any]]:
        """Return the messages that the worker has sent since the last call."""
        found = []
        with suppress(EOFError, OSError):
            while self.connection.poll(0):
                found.append(json.loads(self.connection.recv_bytes()))
        return found

    def forget(self) -> None:
        """Give back all that this object holds; called twice, it does nothing."""
        if self._forgotten:
            return
        self.connection.close()
        if self.channel is not None:
            self.channel.close()
        if self.watch.wait(END_S) and self.watch.exit_code() is None:
            self.process._popen.returncode = _UNKNOWN  # else multiprocessing believes for ever that it runs
        self.watch.close()
        with suppress(ValueError):  # it was killed and still runs: the system holds it
            self.process.close()
        self._forgotten = True


def end_all(workers: list[WorkerHandle]) -> None:
    """Wait for processes that were asked to end; end those that do not, and forget all of them."""
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        running = [worker for worker in workers if not worker.has_ended()]
        if number is not None:
            for worker in running:
                worker.watch.send(number)
        ends = time.monotonic() + END_S
        for worker in running:
            worker.watch.wait(max(ends - time.monotonic(), 0.0))
    for worker in workers:
        worker.forget()


def _has_room(pipe: Connection) -> bool:
    poll = select.poll()
    poll.register(pipe.fileno(), select.POLLOUT)
    return bool(poll.poll(0))
