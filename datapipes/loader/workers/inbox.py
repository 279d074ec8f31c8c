"""Inbox: receives the outcomes of worker processes (minibatches, drops and errors) unless they come through a
ShmChannel.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from typing import Any

import torch

from datapipes.base.codec import Message
from datapipes.base.errors import QueueTimeoutError
from datapipes.base.log import logger
from datapipes.base.threads import EndingThread
from datapipes.channel import ChannelBase, MpChannel
from datapipes.processes.endings import runs

LOOK_S = 0.5  # seconds between two checks of a listening thread whether to go on
_WAKE = "#wake"
_SENDER_GONE = (ConnectionError, FileNotFoundError, EOFError)  # fetching tensors from a process that has ended


class Inbox:
    """Receives messages from channels of any class. A thread for each channel waits for its messages."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[Message | BaseException] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._channels: list[ChannelBase] = []
        self._threads: list[threading.Thread] = []

    def listen(self, channel: ChannelBase, sender: Any = None) -> None:
        """Receive messages from one more channel.

        Args:
            sender: the process that sends. The inbox listens until this process has ended; with None, until `close`.
        """
        if sender is None:
            self._channels.append(channel)
        thread = EndingThread(_listen, (channel, self._arrived, self._ended, sender), name="datapipes-inbox")
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        self._threads.append(thread)
        thread.start()

    def get(self, timeout: float) -> Message | None:
        """Return the next message of any channel; None if no message came within `timeout` seconds."""
        try:
            message = self._arrived.get(timeout=timeout)
        except queue.Empty:
            return None
        if isinstance(message, BaseException):
            raise message
        return message

    def close(self) -> None:
        """Stop listening to the channels."""
        self._ended.set()
        for channel in self._channels:  # a thread may wait in recv without a limit
            if not isinstance(channel, MpChannel):
                with contextlib.suppress(Exception):
                    channel.send({_WAKE: torch.empty(0)})
        ends = time.monotonic() + 2 * LOOK_S
        for thread in self._threads:
            thread.join(max(ends - time.monotonic(), 0.0))  # else it could take a message for the next inbox


def _listen(
    channel: ChannelBase,
    arrived: queue.SimpleQueue[Message | BaseException],
    ended: threading.Event,
    sender: Any,
) -> None:
    had_one = False
    while not ended.is_set():
        alive = sender is None or _lives(sender)
        try:
            message = channel.recv(timeout=LOOK_S) if isinstance(channel, MpChannel) else channel.recv()
        except QueueTimeoutError:
            if not alive:
                return
            continue
        except BaseException as error:
            # A killed sender leaves half a message, or takes the memory of its tensors with it. The dispatcher then has
            # the minibatch made again.
            if sender is not None:
                if _lives_on(sender, ended):
                    logger.warning("data_loader: a message of pid %s cannot be read (%r)", sender.pid, error)
                    sender.kill()  # the dispatcher then gives the tasks of this process out again
                return
            if not had_one and isinstance(channel, MpChannel) and isinstance(error, _SENDER_GONE):
                continue  # a message from an ended worker
            if not ended.wait(0.05):  # a moment, so that a death is found before the error that it causes
                arrived.put(error)
            continue
        had_one = True
        if _WAKE not in message:
            arrived.put(message)


def _lives_on(sender: Any, ended: threading.Event) -> bool:
    """Return whether the process `sender` is still alive after LOOK_S seconds; a killed process may take a moment to
    end. Return False as soon as `ended` is set.
    """
    ends = time.monotonic() + LOOK_S
    while time.monotonic() < ends:
        if not _lives(sender) or ended.wait(0.05):
            return False
    return True


def _lives(sender: Any) -> bool:
    # Not is_alive(), which collects the exit status: the dispatcher would find none at that moment.
    try:
        return runs(sender.pid)
    except ValueError:  # the process was waited for and forgotten
        return False
