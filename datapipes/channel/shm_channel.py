"""A channel through one segment of shared memory: one copy, made by the sender, and no descriptor per tensor.

The queue is C++ (csrc/shm/queue.h; csrc/shm/PROTOCOL.md tells the effects of a process's death). This module checks
arguments, turns messages into frames and back, and passes the channel on to other processes. A frame is a message in
shared memory; csrc/bindings/frame.h has the layout and the C++ half, which copies a tensor directly if it is
contiguous, in host memory, and of a dtype that DLPack can name. For any other value the C++ half calls `plain`, which
returns a tensor that can be copied directly, or raises an error that says why the value cannot be sent.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from multiprocessing import reduction, util
from typing import Any

import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack
from torch.utils.dlpack import to_dlpack as to_dlpack  # type: ignore[attr-defined]

from datapipes import _core
from datapipes.base.checks import INT_OF_BYTES, check_int, dtype_name
from datapipes.base.codec import Message
from datapipes.base.error_message import error_from_message, error_to_message
from datapipes.base.errors import ChannelClosed, EndOfEpoch, PeerDied, add_note
from datapipes.base.sizes import parse_size
from datapipes.channel.base import ChannelBase, check_item, check_message, check_timeout
from datapipes.channel.pinning import Pinning
from datapipes.processes.endings import how_it_ended

__all__ = ["ShmChannel"]

_MESSAGE, _END, _ERROR = range(3)  # Kind of csrc/shm/state.h
_MOST_CAPACITY = 2**20


class ShmChannel(ChannelBase):
    """Carries messages through shared memory between any number of senders and receivers on one machine.

    `send` copies a message into the segment. `recv` returns tensors that lie in the segment. The memory of a message is
    reused when its last tensor is gone; messages may be released in any order. Receivers may keep any number of
    messages: once they would leave no free gap of half of the segment, `recv` returns a copy outside of the segment. So
    a message of up to half of `shm_size` always finds room.

    To pass the channel to a process, give it as an argument (every start method works), or send it through a queue of
    multiprocessing. A forked child can use the channel of its parent. `close` in the process that made the channel ends
    the channel for all processes; another process only leaves the channel, when it calls `close` or ends. A forked
    child that keeps tensors received by its parent must clone them: their memory is reused when the parent releases
    them. The death of a process does not damage the channel; csrc/shm/PROTOCOL.md tells the effects.

    Args:
        capacity: The most messages that may wait unread; at that number `send` blocks.
        shm_size: Bytes for messages, as an int or as text ("256MB", "1GB": powers of 1024); all reserved at once. A
            message takes the bytes of its tensors and names, each rounded up to 64 bytes.

    Raises:
        MemoryError: Less memory is left on the machine, or in a cgroup, than `shm_size`.
        OSError: The system refuses the memory, or a descriptor for it.
    """

    def __init__(self, capacity: int = 128, shm_size: int | str = "256MB") -> None:
        capacity = check_int("ShmChannel", "capacity", capacity, 1, _MOST_CAPACITY)
        num_bytes = parse_size("ShmChannel", "shm_size", shm_size)
        self._begin(_core.ShmQueue.create(capacity, num_bytes))

    def _begin(self, shared: _core.ShmQueue) -> None:
        self._shared: _core.ShmQueue | None = shared
        self._enter_process(shared)
        util.register_after_fork(self, ShmChannel._after_fork)

    def _enter_process(self, shared: _core.ShmQueue) -> None:
        self._pid = os.getpid()
        self._next_epoch = shared.epoch
        # At most one registration. A forked child has none: a device belongs to the process that began to use it.
        self._pinned: list[Pinning] = []
        # Leaves the channel when the process exits normally; a peer that ends without leaving counts as dead.
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
        if self._pid != os.getpid():  # forked by os.fork, which runs no hook of multiprocessing
            self._after_fork()
        return shared

    def send(  # type: ignore[override]
        self, msg: Message, timeout: float | None = None, *, epoch: int | None = None
    ) -> bool:
        """Copy a message into the channel. Blocks while `capacity` messages are unread or there is no room.

        Args:
            msg: {name: dense tensor in host memory}. A tensor that is not contiguous is copied twice.
            timeout: Seconds to wait at most; None waits as long as a process lives that could receive.
            epoch: The epoch of the message; by default the one after the epoch that this sender ended last.

        Returns:
            True if the message was sent. False if receivers have left its epoch, so the message was dropped.

        Raises:
            QueueTimeoutError: There was no room in time.
            PeerDied: No process is left that could receive.
            ChannelClosed: The channel was closed.
            ChannelDamaged: A process has overwritten the shared memory. Every other call may raise it too.
            ValueError: The message is larger than the channel; a tensor has more than 64 dimensions; or the sizes other
                than 0 of an empty tensor multiply to 2^63 bytes or more.
            TypeError: The message is not a dict of dense tensors in host memory.
        """
        shared = self._shared
        if shared is None or self._pid != os.getpid():
            shared = self._open("send")  # also sets the epoch of a forked child
        if type(msg) is not dict:
            msg = dict(check_message("ShmChannel.send", msg))
        if timeout is not None:
            timeout = check_timeout("ShmChannel.send", timeout)
        epoch = self._next_epoch if epoch is None else self._sending_epoch(epoch)
        return shared.send(_MESSAGE, epoch, msg, to_dlpack, plain, timeout)

    def recv(  # type: ignore[override]
        self, timeout: float | None = None
    ) -> Message:
        """Return the next message: tensors in shared memory with the dtypes, shapes and keys that were sent.

        Args:
            timeout: Seconds to wait at most; None waits as long as a process lives that could send.

        Raises:
            QueueTimeoutError: There was no message in time.
            EndOfEpoch: A sender has sent all of an epoch.
            PeerDied: A sender has died, and all sent messages are received. `recv` may be called again.
            ChannelClosed: The channel was closed, and all sent messages are received.
            ChannelDamaged: A process has overwritten the shared memory.
            ValueError: A process has overwritten this message. `recv` may be called again.
            Exception: The error that a sender has sent with `send_error`.
        """
        shared = self._shared
        if shared is None or self._pid != os.getpid():
            shared = self._open("recv")
        if timeout is not None:
            timeout = check_timeout("ShmChannel.recv", timeout)
        for pinning in self._pinned:
            pinning.let_go(wait=shared.size() == 0)
        try:
            received = shared.recv(timeout, from_capsule, _as_dtype)
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
        """Tell one receiver that this sender has sent all of an epoch. The receiver's `recv` raises EndOfEpoch.

        Args:
            epoch: The epoch that ended; by default the one after the epoch that this sender ended last.
            timeout: As for `send`.
        """
        shared = self._open("end_epoch")
        ended, timeout = self._sending_epoch(epoch), check_timeout("ShmChannel.end_epoch", timeout)
        shared.send(_END, ended, {}, to_dlpack, plain, timeout)
        self._next_epoch = ended + 1

    def send_error(  # type: ignore[override]
        self, error: BaseException, *, timeout: float | None = None
    ) -> bool:
        """Send an error to a receiver, whose `recv` raises it with the traceback of this process as its cause.

        Returns True if it was sent. Returns False if receivers have left the current epoch, so the error was dropped
        like a message of that epoch. In a small channel only the end of the traceback is kept. A channel of less than
        1 KB may have no room for any error.
        """
        shared = self._open("send_error")
        message = error_to_message(error, most_bytes=shared.data_bytes // 8)
        timeout = check_timeout("ShmChannel.send_error", timeout)
        return shared.send(_ERROR, self._next_epoch, message, to_dlpack, plain, timeout)

    def reset(self, epoch: int | None = None) -> None:
        """Leave the present epoch, as after a `break`.

        Messages of that epoch are dropped, whether they wait or are sent later, so `recv` returns only messages of
        later epochs. A second call changes nothing.

        Args:
            epoch: The first wanted epoch; by default the newest received epoch + 1.

        Raises:
            ValueError: An earlier call named a later epoch.
        """
        if epoch is not None:
            check_int("ShmChannel.reset", "epoch", epoch, 0)
        self._open("reset").reset(epoch)

    def __len__(self) -> int:
        """Return how many messages wait."""
        return self._open("__len__").size()

    def stats(self) -> dict[str, float]:
        """Return counts of the whole channel, over all processes.

        messages, bytes: sent so far; each tensor is rounded up to 64 bytes.
        send_waits, recv_waits, waits: calls that had to wait, and their sum.
        send_wait_s, recv_wait_s: seconds that these calls waited.
        unread: messages in the channel that were not received yet.
        held, held_bytes: messages in the channel that receivers still use, and their bytes.
        used_bytes: bytes of all messages in the channel.
        copied_out: messages that `recv` copied, because receivers held much.
        dropped: messages dropped by a reset.
        deaths: processes that died.
        """
        return self._open("stats").stats()

    def pin_memory(self) -> None:
        """Register the shared memory with CUDA in this process, so that copies to a GPU run asynchronously.

        From then on the memory of a received message is reused only after the copies queued on the current stream and
        on the streams given to `copies_on` are done. Without CUDA this warns and changes nothing.

        Raises:
            MemoryError: The limit of locked memory (`ulimit -l`) is below the size of the channel.
            RuntimeError: CUDA refuses for another reason.
        """
        shared = self._open("pin_memory")
        if not self._pinned and (pinning := Pinning.of(shared)) is not None:
            self._pinned.append(pinning)

    def copies_on(self, stream: torch.cuda.Stream) -> None:
        """Declare that received tensors are also copied on `stream`; call `pin_memory` first."""
        self._open("copies_on")
        for pinning in self._pinned:
            pinning.copies_on(stream)

    def close(self) -> None:
        """End the channel for all processes if this one made it, otherwise leave it. May be called twice.

        Other processes still receive the sent messages; then their calls raise ChannelClosed. Received tensors stay
        valid.
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
        """The descriptor of the shared memory, for `from_descriptor` in another process."""
        return self._open("descriptor").descriptor

    @classmethod
    def from_descriptor(cls, descriptor: int) -> ShmChannel:
        """Return another process's channel, from a descriptor of its memory that came over a Unix socket, say.

        The returned channel owns the descriptor from now on, and closes it.

        Raises:
            ValueError: The descriptor does not belong to a channel.
        """
        check_int("ShmChannel.from_descriptor", "descriptor", descriptor, 0, 2**31 - 1)
        channel = cls.__new__(cls)
        channel._begin(_core.ShmQueue.attach(descriptor))
        return channel

    @property
    def most_bytes_kept(self) -> int:
        """Size in bytes of the largest message that always finds room, however many messages receivers keep."""
        return self._open("most_bytes_kept").data_bytes // 2

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (type(self), reduction.DupFd(self._open("__reduce__").descriptor))

    def __repr__(self) -> str:
        shared = self._shared
        if shared is None:
            return "ShmChannel(closed)"
        return f"ShmChannel(capacity={shared.capacity}, shm_size={shared.data_bytes})"

    def _recv_checked(self, **kwargs: Any) -> Message:
        return self.recv(**kwargs)  # end marks and errors have a kind of their own here, so no key is reserved


def _attached(kind: type[ShmChannel], descriptor: Any) -> ShmChannel:
    """Return another process's channel, when it is unpickled here. `descriptor` is what multiprocessing passed on."""
    return kind.from_descriptor(descriptor.detach())


def _say_goodbye(shared: _core.ShmQueue, pinned: list[Pinning]) -> None:
    """Leave the channel; called when the process exits, or when an open channel is garbage collected."""
    exiting = util.is_exiting()
    try:
        for pinning in () if exiting else pinned:
            pinning.end()
    finally:
        shared.leave(by_exit=exiting)


_HAS_DLPACK = {
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
}
_MOST_DIMS = 64  # csrc/bindings/frame.cpp has the same number
# The public from_dlpack takes objects with __dlpack__; this function takes a capsule.
from_capsule: Callable[[object], Tensor] = getattr(torch._C, "_from_dlpack", from_dlpack)


def plain(key: Any, value: Any, most_bytes: int) -> tuple[Tensor, str]:
    """Return (tensor, dtype name): a contiguous tensor of a dtype that DLPack can name, with the values of `value`.

    The name is "", unless the tensor has the bits of `value` under another dtype. Then it is the name of the dtype of
    `value`.

    Raises:
        TypeError: The value is not a dense tensor in host memory, or the key is no str; the message says which.
        ValueError: UTF-8 cannot encode the key; the tensor has more than 64 dimensions, or more than `most_bytes`
            bytes; or its strides overflow.
    """
    where = "ShmChannel.send"
    check_item(where, key, value)
    try:
        key.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{where}: key {key!r} cannot be encoded as UTF-8. Rename it.") from error
    if value.is_nested or value.layout is not torch.strided:
        has = f"{'nested ' if value.is_nested else ''}layout {value.layout}"
        remedy = "Send its parts, such as indices and values, or call .to_dense()"
    elif value.is_quantized:
        has, remedy = f"quantized dtype {value.dtype}", "Send .int_repr() and the scale, or call .dequantize()"
    elif value.device.type != "cpu":
        has, remedy = f"device {value.device}", "Call .cpu(), or copy to the device after the channel"
    elif value.dtype not in _HAS_DLPACK and value.dtype.itemsize not in INT_OF_BYTES:
        has, remedy = f"dtype {value.dtype} of {value.dtype.itemsize} bytes", "Convert it"
    else:
        _check_shape(where, key, value, most_bytes)
        tensor, name = value.detach().as_subclass(Tensor).resolve_conj().resolve_neg(), ""
        if tensor.dtype not in _HAS_DLPACK:  # first: torch cannot copy tensors of all these dtypes
            tensor, name = tensor.view(INT_OF_BYTES[tensor.dtype.itemsize]), dtype_name(tensor.dtype)
        tensor = tensor.contiguous()
        if tensor.numel() > 0 and not _has_memory(tensor):
            raise TypeError(
                f"{where}: {key!r} has no memory, so there are no values to send. Send a tensor with values."
            )
        return tensor, name
    raise TypeError(f"{where}: {key!r} has {has}; only dense tensors in host memory can be sent. {remedy}.")


def _check_shape(where: str, key: str, value: Tensor, most_bytes: int) -> None:
    """Raise ValueError, before copying, for a shape that `recv` would refuse, or a tensor too large for the channel."""
    if value.dim() > _MOST_DIMS:
        raise ValueError(
            f"{where}: {key!r} has {value.dim()} dimensions; at most {_MOST_DIMS} can be sent. Call .flatten() or "
            ".reshape() first."
        )
    if math.prod(max(size, 1) for size in value.shape) * value.dtype.itemsize >= 2**63 and 0 in value.shape:
        raise ValueError(
            f"{where}: {key!r} has shape {tuple(value.shape)}; its sizes without 0, times {value.dtype.itemsize} "
            "bytes, must stay below 2^63. Send it in another shape, such as (0,)."
        )
    num_bytes = math.prod(value.shape) * value.dtype.itemsize
    if num_bytes > most_bytes:
        raise ValueError(
            f"{where}: {key!r} takes {num_bytes} bytes, the channel has {most_bytes}. Give a larger shm_size, or send "
            "it in parts."
        )


def _as_dtype(tensor: Tensor, name: str) -> Tensor:
    """Return `tensor`, which `plain` made, as a tensor of its original dtype `name`."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or dtype.itemsize != tensor.itemsize:
        raise ValueError(
            f"ShmChannel.recv: the message names dtype {name!r}, which does not fit values of {tensor.itemsize} bytes. "
            "Use the same version of torch and datapipes in all processes."
        )
    return tensor.view(dtype)


def _has_memory(tensor: Tensor) -> bool:
    try:
        return tensor.data_ptr() != 0
    except RuntimeError:  # tensor subclasses without storage raise
        return False
