"""A channel over a queue of torch.multiprocessing: each tensor travels as a descriptor of its own shared memory."""

from __future__ import annotations

import contextlib
import queue
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeVar

import torch
import torch.multiprocessing

from datapipes.base.checks import check_bool, check_int
from datapipes.base.codec import Message
from datapipes.base.error_message import error_from_message, error_to_message
from datapipes.base.errors import ChannelClosed, EndOfEpoch, QueueTimeoutError, sentence
from datapipes.channel.base import ChannelBase, check_message, check_timeout

__all__ = ["MpChannel"]

_MESSAGE, _END, _ERROR = range(3)
_MOST_POLLED_S = 2e6  # 23 days: the poll in recv counts milliseconds in 31 bits. A longer timeout means no limit.
_MOST_WAITING = 2**31 - 1  # the largest count of a semaphore
T = TypeVar("T")


class MpChannel(ChannelBase):
    """Carries messages through a `torch.multiprocessing` queue of the spawn context.

    Only the number of messages is bounded, by `maxsize`. The channel does not notice when a peer dies, so give
    timeouts. A sender must live until its tensors were received. ShmChannel is several times faster; MpChannel carries
    everything that torch can send.

    Args:
        **kwargs: Passed to the queue, which takes `maxsize`: the most messages in it, 0 for no bound.
    """

    def __init__(self, **kwargs: Any) -> None:
        if "maxsize" in kwargs:
            check_int("MpChannel", "maxsize", kwargs["maxsize"], 0, _MOST_WAITING)
        self._queue = torch.multiprocessing.get_context("spawn").Queue(**kwargs)
        self._fence = self._delivered = 0
        self._closed = False

    def send(  # type: ignore[override]
        self, msg: Message, block: bool = True, timeout: float | None = None, *, epoch: int | None = None
    ) -> None:
        """Send a message; `block` and `timeout` mean the same as for `put` of a queue.

        Raises:
            QueueTimeoutError: There was no room within `timeout` seconds; or at once, if `block` is False.
            ChannelClosed: The channel was closed in this process.
            TypeError: The message is not a dict of tensors, or torch cannot pass one of its tensors to another process.
            OSError: /dev/shm has no room for the message, or this process may open no more files.
        """
        checked = check_message("MpChannel.send", msg)
        for key, tensor in checked.items():
            _check_sendable(key, tensor)
        # A tensor with autograd history cannot be pickled. A view would lose its conjugate or negative bit on the way.
        plain = {key: tensor.detach().resolve_conj().resolve_neg() for key, tensor in checked.items()}
        self._put("send", (_MESSAGE, self._sending_epoch(epoch), plain), block, timeout)

    def recv(  # type: ignore[override]
        self, block: bool = True, timeout: float | None = None
    ) -> Message:
        """Return the next message; `block` and `timeout` mean the same as for `get` of a queue.

        Raises:
            QueueTimeoutError: There was no message within `timeout` seconds; or at once, if `block` is False.
            EndOfEpoch: A sender has sent all of an epoch.
            ChannelClosed: The channel was closed in this process.
            Exception: The error that a sender has sent with `send_error`.
        """
        timeout = check_timeout("MpChannel.recv", timeout)
        if timeout is not None and timeout > _MOST_POLLED_S:
            timeout = None
        ends = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if ends is None else max(ends - time.monotonic(), 0.0)
            kind, epoch, message = self._wait("recv", partial(self._get, block, left), block, timeout)
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
        """Tell one receiver that this sender has sent all of an epoch; see ChannelBase.end_epoch."""
        ended = self._sending_epoch(epoch)
        self._put("end_epoch", (_END, ended, {}), block, timeout)
        self._next_epoch = ended + 1

    def send_error(  # type: ignore[override]
        self, error: BaseException, *, block: bool = True, timeout: float | None = None
    ) -> None:
        """Send an error to a receiver, whose `recv` raises it with the traceback of this process as its cause."""
        self._put("send_error", (_ERROR, self._next_epoch, error_to_message(error)), block, timeout)

    def reset(self, epoch: int | None = None) -> None:
        """Leave the present epoch: messages of it that are still to arrive are dropped.

        A second call changes nothing.

        Args:
            epoch: The first wanted epoch; by default the newest received epoch + 1.

        Raises:
            ValueError: An earlier call named a later epoch.
        """
        self._check_open("reset")
        if epoch is not None and check_int("MpChannel.reset", "epoch", epoch, 0) < self._fence:
            raise ValueError(
                f"MpChannel.reset: epochs before {self._fence} are dropped already, got {epoch}. Pass {self._fence} or "
                "a later epoch."
            )
        self._fence = max(self._fence, self._delivered if epoch is None else epoch)

    def __len__(self) -> int:
        """Return about how many messages wait: a message counts even before the queue's thread has written it."""
        self._check_open("__len__")
        return int(self._queue.qsize())

    def empty(self) -> bool:
        """Return whether no message can be received now."""
        self._check_open("empty")
        return bool(self._queue.empty())

    def only_receive(self) -> None:
        """Close the sending end in this process, so that `recv` raises EOFError once all senders have ended."""
        self._queue._writer.close()  # type: ignore[attr-defined]  # the queue's pipe has no public name

    def close(self) -> None:
        """End the channel in this process; messages that were sent still arrive."""
        self._closed = True
        self._queue.close()

    def _check_open(self, call: str) -> None:
        if self._closed:
            raise ChannelClosed(f"MpChannel.{call}: the channel was closed in this process. Make a new one.")

    def _recv_checked(self, **kwargs: Any) -> Message:
        return self.recv(**kwargs)  # end marks and errors have a kind of their own here, so no key is reserved

    def _put(self, call: str, item: tuple[int, int, Message], block: bool, timeout: float | None) -> None:
        timeout = check_timeout(f"MpChannel.{call}", timeout)
        self._check_open(call)
        packed = _packed(call, item)
        try:
            self._wait(call, partial(self._queue.put, packed, block, timeout), block, timeout)
        except BaseException:
            with contextlib.suppress(Exception):
                ForkingPickler.loads(packed)  # takes back the descriptors that were to be sent
            raise

    def _get(self, block: bool, timeout: float | None) -> Any:
        return ForkingPickler.loads(self._queue.get(block, timeout))

    def _wait(self, call: str, act: Callable[[], T], block: bool, timeout: float | None) -> T:
        where = f"MpChannel.{call}"
        self._check_open(call)
        check_bool(where, "block", block)
        try:
            return act()
        except (queue.Empty, queue.Full) as error:
            lack = "no message" if isinstance(error, queue.Empty) else "no room"
            within = f"within {timeout:g} s" if block and timeout is not None else "at once"
            raise QueueTimeoutError(
                f"{where}: {lack} {within}. Check that the other side makes progress, or give a longer timeout."
            ) from None
        except (ValueError, OSError):
            self._check_open(call)  # closed by another thread meanwhile
            raise


def _packed(call: str, item: tuple[int, int, Message]) -> bytes:
    """Pickle `item`, with its tensors put into shared memory, and return the bytes. If the queue's own thread did this,
    it would print an error instead of raising it, and drop the item.

    Args:
        call: the name of the calling method, for errors.
        item: (kind, epoch, message); the kind is a message, an end mark or an error.
    Raises:
        OSError: /dev/shm has no room for the tensors, or another limit of the system was reached.
    """
    try:
        return bytes(ForkingPickler.dumps(item))
    except (OSError, RuntimeError) as error:
        num_bytes = sum(tensor.numel() * tensor.element_size() for tensor in item[2].values())
        raise OSError(
            f"MpChannel.{call}: a message of {num_bytes} bytes cannot be put into shared memory: {sentence(error)} "
            "Enlarge /dev/shm (of a container by --shm-size), or the limit named here; or use a ShmChannel, in a "
            "DataLoader channel='shm', which needs no /dev/shm."
        ) from error


def _check_sendable(key: str, tensor: torch.Tensor) -> None:
    """Raise TypeError with a remedy for tensors on which torch crashes, or raises an error that names no remedy."""
    if tensor.device.type == "meta":
        problem, remedy = "is on device meta", "Make it on a device with memory"
    elif tensor.layout is torch._mkldnn:  # type: ignore[attr-defined]
        problem, remedy = "has the layout of MKL-DNN", "Call .to_dense()"
    elif tensor.is_nested and tensor.layout is torch.strided:
        problem, remedy = "is nested and strided", "Make it with layout=torch.jagged, or send its parts"
    elif tensor._is_zerotensor():
        problem, remedy = "has no memory", "Send torch.zeros of its shape"
    else:
        return
    raise TypeError(f"MpChannel.send: {key!r} {problem}; only tensors with values in memory can be sent. {remedy}.")
