"""A channel over a queue of torch.multiprocessing: each tensor travels as a descriptor of its own shared memory."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
import torch.multiprocessing

from datapipes.base.checks import check_bool, check_int
from datapipes.base.codec import Message
from datapipes.base.errors import (
    ChannelClosed,
    EndOfEpoch,
    QueueTimeoutError,
    error_from_message,
    error_to_message,
)
from datapipes.channel.base import ChannelBase, check_message, check_timeout

_MESSAGE, _END, _ERROR = range(3)
T = TypeVar("T")


class MpChannel(ChannelBase):
    """Messages through a `torch.multiprocessing` queue of the spawn context.

    Its size is bounded by `maxsize` messages only, it knows nothing of its peers' lives (so give timeouts), and a
    sender has to live until its tensors were received. ShmChannel is several times faster; this one carries whatever
    torch can send.

    Args:
        **kwargs: For the queue: `maxsize`, 0 for no bound.
    """

    def __init__(self, **kwargs: Any) -> None:
        self._queue = torch.multiprocessing.get_context("spawn").Queue(**kwargs)
        self._fence = self._delivered = 0
        self._closed = False

    def send(  # type: ignore[override]
        self, msg: Message, block: bool = True, timeout: float | None = None, *, epoch: int | None = None
    ) -> None:
        """Send a message; `block` and `timeout` as `put` of the queue has them.

        Raises:
            QueueTimeoutError: There was no room within `timeout` seconds, or at once without `block`.
            ChannelClosed: The channel was closed in this process.
        """
        checked = check_message("MpChannel.send", msg)
        # One with a history cannot be pickled, and a view that conjugates or negates would arrive without doing so.
        plain = {key: tensor.detach().resolve_conj().resolve_neg() for key, tensor in checked.items()}
        self._put("send", (_MESSAGE, self._sending_epoch(epoch), plain), block, timeout)

    def recv(  # type: ignore[override]
        self, block: bool = True, timeout: float | None = None
    ) -> Message:
        """Return the next message; `block` and `timeout` as `get` of the queue has them.

        Raises:
            QueueTimeoutError: There was no message within `timeout` seconds, or at once without `block`.
            EndOfEpoch: A sender has sent all of an epoch.
            ChannelClosed: The channel was closed in this process.
            Exception: What a sender has sent by `send_error`.
        """
        timeout = check_timeout("MpChannel.recv", timeout)
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if ends is None else max(ends - time.monotonic(), 0.0)
            kind, epoch, message = self._wait("recv", partial(self._queue.get, block, left), block, timeout)
            if epoch < self._fence:
                continue
            self._delivered = max(self._delivered, epoch + 1)
            if kind == _END:
                raise EndOfEpoch(epoch)
            if kind == _ERROR:
                raise error_from_message(message)
            return dict(message)

    def end_epoch(  # type: ignore[override]
        self, epoch: int | None = None, *, block: bool = True, timeout: float | None = None
    ) -> None:
        """Tell a receiver that this sender has sent all of an epoch; by default they are counted from 0."""
        ended = self._sending_epoch(epoch)
        self._put("end_epoch", (_END, ended, {}), block, timeout)
        self._next_epoch = ended + 1

    def send_error(  # type: ignore[override]
        self, error: BaseException, *, block: bool = True, timeout: float | None = None
    ) -> None:
        """Send an error on: there `recv` raises it, with the traceback of this process as its cause."""
        self._put("send_error", (_ERROR, self._next_epoch, error_to_message(error)), block, timeout)

    def reset(self, epoch: int | None = None) -> None:
        """Leave the epoch that is being received: what is left of it is dropped when it arrives. Twice is once.

        Args:
            epoch: The first epoch that is still wanted; by default the one after the newest that was received.

        Raises:
            ValueError: A later epoch is already the first that is wanted.
        """
        self._check_open("reset")
        if epoch is not None and check_int("MpChannel.reset", "epoch", epoch, 0) < self._fence:
            raise ValueError(
                f"MpChannel.reset: epochs before {self._fence} are dropped already, got {epoch}. An epoch can only be "
                "left behind."
            )
        self._fence = max(self._fence, self._delivered if epoch is None else epoch)

    def __len__(self) -> int:
        """Return how many messages wait, about: the queue counts before its thread has written them."""
        self._check_open("__len__")
        return int(self._queue.qsize())

    def empty(self) -> bool:
        """Return whether no message can be received now."""
        self._check_open("empty")
        return bool(self._queue.empty())

    def only_receive(self) -> None:
        """Send no more from this process, so that `recv` raises EOFError when all who send have ended."""
        self._queue._writer.close()  # type: ignore[attr-defined]  # its pipe has no other name

    def close(self) -> None:
        """End the channel in this process; what was sent still arrives."""
        self._closed = True
        self._queue.close()

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ChannelClosed(f"MpChannel.{call}: the channel was closed in this process. Make a new one.")

    def _recv_checked(self, **kwargs: Any) -> Message:
        return self.recv(**kwargs)  # whose frames say themselves what they are; any key can be a tensor's

    def _put(self, call: str, item: tuple[int, int, Message], block: bool, timeout: float | None) -> None:
        timeout = check_timeout(f"MpChannel.{call}", timeout)
        self._wait(call, partial(self._queue.put, item, block, timeout), block, timeout)

    def _wait(self, call: str, act: Callable[[], T], block: bool, timeout: float | None) -> T:
        where = f"MpChannel.{call}"
        self._check_open(call)
        check_bool(where, "block", block)
        try:
            return act()
        except (queue.Empty, queue.Full) as error:
            found = "no message" if isinstance(error, queue.Empty) else "no room"
            within = f"within {timeout:g} s" if block and timeout is not None else "at once"
            raise QueueTimeoutError(
                f"{where}: {found} {within}. Look whether the other side goes on, or give a longer timeout."
            ) from None
        except (ValueError, OSError):
            self._check_open(call)  # closed by another thread meanwhile
            raise
