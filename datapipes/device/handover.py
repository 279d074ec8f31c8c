"""Pass a minibatch from one thread to another while its GPU work is still queued: the taker's stream waits for it.

A thread that makes minibatches ahead queues its work on a stream of its own, so that a model that trains on another
stream does not wait for it. Whoever takes a minibatch waits for the work that makes it, and the memory of its tensors
is recycled only after the taker's work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from datapipes.device.runtime import Event, Stream, cuda
from datapipes.minibatch import MiniBatch


class SideStreams:
    """CUDA streams that only one stage or thread uses, so that its work on a GPU runs beside other work.

    There is one stream for each device. It is made at first use and then kept, since torch has a cache of memory for
    each stream.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, Stream] = {}
        self._making = threading.Lock()

    def of(self, devices: Sequence[torch.device]) -> list[Stream]:
        """Return one stream for each CUDA device, without repeats; that of this thread's current device is last."""
        wanted = {cuda().device(device) for device in devices}
        with self._making:
            for device in wanted - self._streams.keys():
                self._streams[device] = cuda().new_stream(device)
        here = cuda().device(torch.device("cuda")) if wanted else None
        return [self._streams[device] for device in sorted(wanted, key=lambda device: (device == here, device.index))]


@contextmanager
def current_streams(streams: Sequence[Stream]) -> Iterator[None]:
    """Context manager: make `streams` the current streams of this thread.

    The device of the last stream becomes the current device.
    """
    with ExitStack() as entered:
        for stream in streams:
            entered.enter_context(cuda().on(stream))
        yield


class Queued(NamedTuple):
    """Work on `stream` of `device`: all that was queued there before `event`."""

    device: torch.device
    stream: Stream
    event: Event


def on_devices(minibatch: MiniBatch) -> list[Tensor]:
    """Return the tensors of a minibatch that lie in GPU memory."""
    here = cuda()
    tensors: list[Tensor] = []

    def look(tensor: Tensor) -> Tensor:
        if here.holds(tensor):
            tensors.append(tensor)
        return tensor

    minibatch.map_tensors(look)
    return tensors


def leave(minibatch: MiniBatch) -> list[Queued]:
    """Call this before another thread gets the minibatch. Return a list for `take`.

    The list has, for each GPU that holds tensors of the minibatch, an event behind all work that this thread has queued
    so far on its current stream there.
    """
    return [queued_now(device) for device in {tensor.device for tensor in on_devices(minibatch)}]


def queued_now(device: torch.device) -> Queued:
    """Return what is queued so far on this thread's current stream of `device`."""
    stream, event = cuda().current_stream(device), cuda().new_event()
    event.record(stream)
    return Queued(device, stream, event)


def take(minibatch: MiniBatch, queued: list[Queued]) -> None:
    """Take a minibatch from another thread: this thread's current streams wait for `queued`, the result of `leave`.

    The memory of the tensors is recycled only after the work of these streams.
    """
    if not queued:
        return
    streams = {}
    for device, stream, event in queued:
        streams[device] = here = cuda().current_stream(device)
        if here != stream:
            here.wait_event(event)
    for tensor in on_devices(minibatch):
        if tensor.device in streams:
            cuda().used_on(tensor, streams[tensor.device])


def give_to_loop(minibatch: MiniBatch) -> None:
    """Pass a minibatch to threads that use the default streams, such as an event loop's.

    The default streams wait for the work that this thread has queued.
    """
    queued = leave(minibatch)
    with current_streams([cuda().default_stream(device) for device, _, _ in queued]):
        take(minibatch, queued)


def take_from_loop(minibatch: MiniBatch) -> None:
    """Take a minibatch from threads that use the default streams, such as an event loop's.

    This thread's current streams wait for the work on the default streams, as in `take`.
    """
    devices = {tensor.device for tensor in on_devices(minibatch)}
    with current_streams([cuda().default_stream(device) for device in devices]):
        queued = leave(minibatch)
    take(minibatch, queued)
