"""The base class of channels: two abstract methods, `send` and `recv`, and defaults for everything else.

A message is a flat `dict[str, Tensor]`; minibatches travel as `minibatch.to_message()`. A subclass needs only `send`
and `recv`: by default, the end of an epoch and errors travel as messages with a reserved key.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import torch

from datapipes.base.checks import check_int, shown
from datapipes.base.codec import Message
from datapipes.base.error_message import error_from_message, error_to_message
from datapipes.base.errors import EndOfEpoch

__all__ = ["ChannelBase"]

END_OF_EPOCH = "#END_OF_EPOCH"
ERROR = "#ERROR"
UNLIMITED_S = 1e9  # thirty years; a longer timeout means no limit

Channel = TypeVar("Channel", bound="ChannelBase")


class ChannelBase(ABC):
    """Base of channels, which carry messages (dicts of tensors) from senders to receivers.

    Subclasses define `send` and `recv`, and may override any default. Messages of one sender arrive in order.
    """

    @abstractmethod
    def send(self, msg: Message, **kwargs: Any) -> Any:
        """Send a message. Blocks while there is no room."""

    @abstractmethod
    def recv(self, **kwargs: Any) -> Message:
        """Return the next message. Blocks while there is none."""

    def end_epoch(self, epoch: int | None = None, **kwargs: Any) -> None:
        """Send an end mark: it tells one receiver that this sender has sent all of an epoch. The iteration of that
        receiver, see `messages`, ends after a mark of each sender.

        In ShmChannel and MpChannel `recv` raises EndOfEpoch then. In a channel that defines only `send` and `recv`,
        `recv` returns a message with a reserved key.

        Args:
            epoch: The epoch that ended; by default the one after the epoch that this sender ended last, at first 0.
        """
        ended = self._sending_epoch(epoch)
        self.send({END_OF_EPOCH: torch.tensor(ended)}, **kwargs)
        self._next_epoch = ended + 1

    def send_error(self, error: BaseException, **kwargs: Any) -> Any:
        """Send an error to a receiver, whose iteration raises it with the traceback of this process as its cause.

        In ShmChannel and MpChannel `recv` raises the error too.
        """
        self.send({f"{ERROR}.{name}": part for name, part in error_to_message(error).items()}, **kwargs)

    def messages(self, num_senders: int = 1, **kwargs: Any) -> Iterator[Message]:
        """Yield messages until `num_senders` end marks (calls of `end_epoch`) have arrived.

        Senders must keep in step: if sender A ends its second epoch before sender B ends its first, the two marks of A
        are taken for one of A and one of B. If your senders do not keep in step, put the epoch into the message. Each
        mark reaches one receiver. For several receivers, each sender calls `end_epoch(epoch)` once per receiver.

        Args:
            num_senders: How many senders call `end_epoch` for each epoch.
            **kwargs: Passed to `recv`.
        """
        check_int(type(self).__name__, "num_senders", num_senders, 1)
        return self._messages(num_senders, kwargs)

    def _messages(self, num_senders: int, kwargs: dict[str, Any]) -> Iterator[Message]:
        for _ in range(num_senders):
            while True:
                try:
                    message = self._recv_checked(**kwargs)
                except EndOfEpoch:
                    break
                yield message

    def __iter__(self) -> Iterator[Message]:
        """Yield messages until the epoch ends; see `messages` for several senders."""
        return self.messages()

    def __len__(self) -> int:
        """Return how many messages wait; 0 for a channel that does not count them."""
        return 0

    def __bool__(self) -> bool:
        return True  # without this, len() == 0 would make an empty channel false

    def empty(self) -> bool:
        """Return whether `len` is 0: no message waits, or the channel does not count them."""
        return len(self) == 0

    def reset(self) -> None:
        """Leave the present epoch, as after a `break`. The default does nothing: messages that were sent are still
        received.
        """

    def close(self) -> None:
        """End the channel. May be called more than once. The default does nothing."""

    def __enter__(self: Channel) -> Channel:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    _next_epoch: int = 0  # of this sender

    def _sending_epoch(self, epoch: int | None) -> int:
        return self._next_epoch if epoch is None else check_int(type(self).__name__, "epoch", epoch, 0)

    def _recv_checked(self, **kwargs: Any) -> Message:
        """Return the next message. If its key is reserved, raise EndOfEpoch or the error that was sent."""
        message = self.recv(**kwargs)
        if END_OF_EPOCH in message:
            raise EndOfEpoch(int(message[END_OF_EPOCH]))
        if f"{ERROR}.type" in message:
            raise error_from_message({key.removeprefix(f"{ERROR}."): part for key, part in message.items()})
        return message


def check_timeout(where: str, timeout: Any) -> float | None:
    """Return `timeout` (seconds) as a float; or None, which means no limit, if it is None or above UNLIMITED_S."""
    if timeout is None:
        return None
    if isinstance(timeout, (bool, np.complexfloating)) or not isinstance(timeout, (int, float, np.number)):
        raise TypeError(
            f"{where}: timeout must be a number of seconds or None, got {shown(timeout)} ({type(timeout).__name__}). "
            "Pass a number."
        )
    if isinstance(timeout, np.number):
        timeout = float(timeout)
    if not timeout >= 0:  # refuses NaN, too
        raise ValueError(
            f"{where}: timeout must be 0 or more seconds, got {shown(timeout)}. Pass None to wait without a limit."
        )
    return None if timeout > UNLIMITED_S else float(timeout)  # compared first: an int may be too large for a float


def check_message(where: str, msg: Any) -> Message:
    """Return `msg`, which must be a dict of tensors with str keys; TypeError otherwise."""
    if not isinstance(msg, dict):
        raise TypeError(
            f"{where}: a message must be a dict of tensors, got {type(msg).__name__}. Send minibatch.to_message()."
        )
    for key, value in msg.items():
        check_item(where, key, value)
    return msg


def check_item(where: str, key: Any, value: Any) -> None:
    """Raise TypeError unless `key` is a str and `value` a tensor, as an entry of a message must be."""
    if not isinstance(key, str):
        raise TypeError(
            f"{where}: a key must be a str, got {shown(key)} ({type(key).__name__}). Name the tensors by strings."
        )
    if not isinstance(value, torch.Tensor):
        raise TypeError(
            f"{where}: {key!r} must be a tensor, got {type(value).__name__}. Convert it, as with torch.as_tensor."
        )
