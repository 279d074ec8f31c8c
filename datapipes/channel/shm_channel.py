"""A channel through one segment of shared memory: one copy, on the sending side, and no descriptor per tensor.

The queue is C++ (csrc/shm/queue.h; csrc/shm/PROTOCOL.md says what happens when a process dies). This module checks
arguments, turns messages into frames and back, and lets the channel travel to other processes.
"""

from __future__ import annotations

import os
from multiprocessing import reduction, util
from typing import Any

import torch

from datapipes import _core
from datapipes.base.checks import check_int
from datapipes.base.codec import Message
from datapipes.base.errors import ChannelClosed, EndOfEpoch, PeerDied, add_note, error_from_message, error_to_message
from datapipes.base.sizes import parse_size
from datapipes.channel.base import ChannelBase, check_message, check_timeout
from datapipes.channel.frame import as_dtype, from_capsule, plain, to_dlpack
from datapipes.channel.pinning import Pinning
from datapipes.processes.endings import how_it_ended

_MESSAGE, _END, _ERROR = range(3)  # Kind of csrc/shm/state.h
_MOST_CAPACITY = 2**20


class ShmChannel(ChannelBase):
    """Messages through shared memory between any number of senders and receivers, in any processes of a machine.

    `send` copies a message into the segment; `recv` returns tensors that lie there, and their memory is used again when
    the last of them is gone, in whatever order. So that receivers can keep what they like, `recv` copies a message out
    where keeping it would leave no gap of half of the segment: messages of up to half of `shm_size` always find room.

    The channel is passed to a process as an argument, under every start method, or through a queue of multiprocessing;
    a forked child can use the one of its parent. `close` by the process that made it ends it for all; elsewhere,
    as when a process ends, it leaves. A forked child that wants tensors which its parent has received clones them: they
    are the parent's, and their memory is used again when it lets them go. No process can hurt the channel by dying:
    csrc/shm/PROTOCOL.md says what happens.

    Args:
        capacity: Messages that may wait unread; `send` blocks at that number.
        shm_size: Bytes for messages, as an int or as text ("256MB", "1GB": powers of 1024); reserved at once. A message
            takes its tensors and its names, each rounded up to 64 bytes.

    Raises:
        MemoryError: Less memory is left on the machine, or in a cgroup, than `shm_size`.
        OSError: The system refuses the memory, or a descriptor for it.
        NotImplementedError: The system is not Linux.
    """

    def __init__(self, capacity: int = 128, shm_size: int | str = "256MB") -> None:
        capacity = check_int("ShmChannel", "capacity", capacity, 1, _MOST_CAPACITY)
        num_bytes = parse_size("ShmChannel", "shm_size", shm_size)
        if not hasattr(_core, "ShmQueue"):
            raise NotImplementedError("ShmChannel: needs memfd and futexes, which only Linux has. Use MpChannel.")
        self._begin(_core.ShmQueue.create(capacity, num_bytes))

    def _begin(self, shared: _core.ShmQueue) -> None:
        self._shared: _core.ShmQueue | None = shared
        self._enter_process(shared)
        util.register_after_fork(self, ShmChannel._after_fork)

    def _enter_process(self, shared: _core.ShmQueue) -> None:
        self._pid = os.getpid()
        self._next_epoch = shared.epoch
        # When the process ends in order, this is said: a peer that ends without a word counts as dead.
        # At most one; a forked child has none, since a device belongs to the process that began to use it.
        self._pinned: list[Pinning] = []
        self._goodbye = util.Finalize(self, _say_goodbye, args=(shared, self._pinned), exitpriority=10)

    def _after_fork(self) -> None:
        if self._shared is not None:
            self._shared.release_in_two_steps(False)
            self._enter_process(self._shared)
            self._shared.join(inherited=True)

    def _open(self, call: str) -> _core.ShmQueue:
        shared = self._shared
        if shared is None:
            raise ChannelClosed(f"ShmChannel.{call}: the channel was closed in this process. Make a new one.")
        if self._pid != os.getpid():  # a fork that multiprocessing did not make
            self._after_fork()
        return shared

    def send(  # type: ignore[override]
        self, msg: Message, timeout: float | None = None, *, epoch: int | None = None
    ) -> bool:
        """Copy a message into the channel; blocks while `capacity` messages are unread or there is no room.

        Args:
            msg: Dense tensors in host memory by name. What is not contiguous is copied twice.
            timeout: Seconds to wait at most; None waits as long as somebody lives who could receive.
            epoch: The epoch that it belongs to, by default the number of times that `end_epoch` was called.

        Returns:
            True; False where receivers have left that epoch behind, and the message was dropped.

        Raises:
            QueueTimeoutError: There was no room in time.
            PeerDied: Nobody is left who could receive.
            ChannelClosed: The channel was closed.
            ValueError: The message is larger than the channel.
            TypeError: It is not a dict of dense tensors in host memory.
        """
        shared = self._shared
        if shared is None or self._pid != os.getpid():
            shared = self._open("send")  # in a forked child the epoch may be another one
        if type(msg) is not dict:
            msg = dict(check_message("ShmChannel.send", msg))
        if timeout is not None:
            timeout = check_timeout("ShmChannel.send", timeout)
        epoch = self._next_epoch if epoch is None else self._sending_epoch(epoch)
        return shared.send(_MESSAGE, epoch, msg, to_dlpack, plain, timeout)

    def recv(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> Message:
        """Return the next message: tensors in the shared memory, each dtype, shape and key as it was sent.

        Args:
            timeout: Seconds to wait at most; None waits as long as somebody lives who could send.

        Raises:
            QueueTimeoutError: There was no message in time.
            EndOfEpoch: A sender has sent all of an epoch.
            PeerDied: A sender has died, and all that was sent is received; it can be called again.
            ChannelClosed: The channel was closed, and all that was sent is received.
            Exception: What a sender has sent by `send_error`.
        """
        shared = self._shared
        if shared is None or self._pid != os.getpid():
            shared = self._open("recv")
        if timeout is not None:
            timeout = check_timeout("ShmChannel.recv", timeout)
        for pinning in self._pinned:
            pinning.let_go(wait=shared.size() == 0)
        try:
            received = shared.recv(timeout, from_capsule, as_dtype)
        except PeerDied as died:
            for pid in died.pids:
                if ended := how_it_ended(pid):
                    add_note(died, f"Process {pid}: {ended}.")
            raise
        if isinstance(received, dict):
            return received
        kind, epoch, message = received
        if kind == _END:
            raise EndOfEpoch(epoch)
        raise error_from_message(message)

    def end_epoch(  # type: ignore[override]
        self, epoch: int | None = None, *, timeout: float | None = None
    ) -> None:
        """Tell a receiver that this sender has sent all of an epoch: there `recv` raises EndOfEpoch.

        Args:
            epoch: The one that ended; by default they are counted.
            timeout: As for `send`.
        """
        shared = self._open("end_epoch")
        ended, timeout = self._sending_epoch(epoch), check_timeout("ShmChannel.end_epoch", timeout)
        shared.send(_END, ended, {}, to_dlpack, plain, timeout)
        self._next_epoch = ended + 1

    def send_error(  # type: ignore[override]
        self, error: BaseException, *, timeout: float | None = None
    ) -> bool:
        """Send an error on: there `recv` raises it, with the traceback of this process as its cause.

        Returns True; False where receivers have left its epoch behind, and it was dropped like a message of that epoch.
        Where the channel is small the traceback keeps its end; one of less than 1 KB may have no room for any error.
        """
        shared = self._open("send_error")
        message = error_to_message(error, most_bytes=shared.data_bytes // 8)
        timeout = check_timeout("ShmChannel.send_error", timeout)
        return shared.send(_ERROR, self._next_epoch, message, to_dlpack, plain, timeout)

    def reset(self, epoch: int | None = None) -> None:
        """Leave the epoch that is being received, as after a `break`: what is left of it is dropped, also where a
        sender is about to send it, and the next message is one of a later epoch. Twice is once.

        Args:
            epoch: The first epoch that is still wanted; by default the one after the newest that was received.

        Raises:
            ValueError: A later epoch is already the first that is wanted.
        """
        if epoch is not None:
            check_int("ShmChannel.reset", "epoch", epoch, 0)
        self._open("reset").reset(epoch)

    def __len__(self) -> int:
        """Return how many messages wait."""
        return self._open("__len__").size()

    def stats(self) -> dict[str, float]:
        """Return counts of the whole channel, all processes together.

        `messages` and `bytes` sent, rounded up to 64; `waits` = `send_waits` + `recv_waits`, calls that had to wait,
        and their seconds `send_wait_s` and `recv_wait_s`; `held` messages and `held_bytes` that receivers keep;
        `unread` messages; `used_bytes` of all messages; `copied_out`, messages that were copied out since receivers
        held much; `dropped` by a reset; `deaths` of peers.
        """
        return self._open("stats").stats()

    def pin_memory(self) -> None:
        """Register the shared memory with CUDA in this process, so that copies to a GPU run on their own.

        From then on the memory of a received message is used again only when the copies that were queued on the current
        stream, and on those named to `copies_on`, are done. Without CUDA there is a warning, and nothing changes.

        Raises:
            MemoryError: The limit of locked memory (`ulimit -l`) is below the size of the channel.
            RuntimeError: CUDA refuses for another reason.
        """
        shared = self._open("pin_memory")
        if not self._pinned and (pinning := Pinning.of(shared)) is not None:
            self._pinned.append(pinning)

    def copies_on(self, stream: torch.cuda.Stream) -> None:
        """Say that received tensors are copied on this stream too; needs `pin_memory`."""
        self._open("copies_on")
        for pinning in self._pinned:
            pinning.copies_on(stream)

    def close(self) -> None:
        """End the channel: for all where this process made it, else leave it; may be called twice.

        Others still receive what was sent, then ChannelClosed. Tensors that were received stay.
        """
        shared, self._shared = self._shared, None
        if shared is None:
            return
        try:
            while self._pinned:
                self._pinned.pop().end()
        finally:
            shared.close()
            self._goodbye.cancel()

    @property
    def descriptor(self) -> int:
        """The descriptor of the shared memory, to be passed on to `from_descriptor` in another process."""
        return self._open("descriptor").descriptor

    @classmethod
    def from_descriptor(cls, descriptor: int) -> ShmChannel:
        """Return the channel of another process by a descriptor of its memory, as it arrives over a Unix socket; takes
        the descriptor over.

        Raises:
            ValueError: It is not that of a channel.
        """
        channel = cls.__new__(cls)
        channel._begin(_core.ShmQueue.attach(descriptor))
        return channel

    @property
    def most_bytes_kept(self) -> int:
        """Bytes of the largest message that always finds room, whatever receivers keep."""
        return self._open("most_bytes_kept").data_bytes // 2

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (type(self), reduction.DupFd(self._open("__reduce__").descriptor))

    def __repr__(self) -> str:
        shared = self._shared
        if shared is None:
            return "ShmChannel(closed)"
        return f"ShmChannel(capacity={shared.capacity}, shm_size={shared.data_bytes})"

    def _recv_checked(self, **kwargs: Any) -> Message:
        return self.recv(**kwargs)  # whose frames say themselves what they are; any key can be a tensor's


def _attached(kind: type[ShmChannel], descriptor: Any) -> ShmChannel:
    """Return the channel of another process; `descriptor` is one that multiprocessing has passed on."""
    return kind.from_descriptor(descriptor.detach())


def _say_goodbye(shared: _core.ShmQueue, pinned: list[Pinning]) -> None:
    """When the process ends, or a channel is dropped that nobody closed."""
    exiting = util.is_exiting()
    try:
        for pinning in () if exiting else pinned:
            pinning.end()
    finally:
        shared.leave(by_exit=exiting)
