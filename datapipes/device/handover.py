"""Hand a minibatch from one thread to another: the taking thread makes its current stream wait.

A thread that makes minibatches ahead queues its work on a stream of its own, so that a model that trains on another
stream does not wait for it. The taker of a minibatch waits for the work queued until then, and the memory of the
tensors is recycled only after the taker's work.
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
    """Streams of a thread's own, so that its work on a GPU runs beside the work of other threads.

    One stream for each device, made at first use and then kept: torch has a cache of memory for each stream.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, Stream] = {}
        self._making = threading.Lock()

    def of(self, devices: Sequence[torch.device]) -> list[Stream]:
        """Return one stream for each of the CUDA devices, without repeats.

        The stream of this thread's current device comes last.
        """
        wanted = {cuda().device(device) for device in devices}
        with self._making:
            for device in wanted - self._streams.keys():
                self._streams[device] = cuda().new_stream(device)
        here = cuda().device(torch.device("cuda")) if wanted else None
        return [self._streams[device] for device in sorted(wanted, key=lambda device: (device == here, device.index))]


@contextmanager
def current_streams(streams: Sequence[Stream]) -> Iterator[None]:
    """Make `streams` the current streams of this thread, and the device of the last stream its current device."""
    with ExitStack() as entered:
        for stream in streams:
            entered.enter_context(cuda().on(stream))
        yield


class Queued(NamedTuple):
    """The work that was queued on a stream of `device` until `event`."""

    device: torch.device
    stream: Stream
    event: Event


def on_devices(minibatch: MiniBatch) -> list[Tensor]:
    """Return the tensors of a minibatch that lie in the memory of a device."""
    here = cuda()
    tensors: list[Tensor] = []

    def look(tensor: Tensor) -> Tensor:
        if here.holds(tensor):
            tensors.append(tensor)
        return tensor

    minibatch.map_tensors(look)
    return tensors


def leave(minibatch: MiniBatch) -> list[Queued]:
    """Return the queued work that makes the tensors of a minibatch: all work that this thread has queued on the current
    streams of the tensors' devices. Another thread passes the result to `take`.
    """
    return [queued_now(device) for device in {tensor.device for tensor in on_devices(minibatch)}]


def queued_now(device: torch.device) -> Queued:
    """Return the work that is queued on the current stream of `device` by now."""
    stream, event = cuda().current_stream(device), cuda().new_event()
    event.record(stream)
    return Queued(device, stream, event)


def take(minibatch: MiniBatch, queued: list[Queued]) -> None:
    """Make this thread's current streams wait for `queued`, which `leave` returned. The memory of the tensors is
    recycled only after the work of these streams.
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
    """Pass a minibatch to threads without streams of their own, such as an event loop's: the default streams wait for
    the work that this thread has queued.
    """
    queued = leave(minibatch)
    with current_streams([cuda().default_stream(device) for device, _, _ in queued]):
        take(minibatch, queued)


def take_from_loop(minibatch: MiniBatch) -> None:
    """Do as `take` for a minibatch that the threads of an event loop have made, on the default streams."""
    devices = {tensor.device for tensor in on_devices(minibatch)}
    with current_streams([cuda().default_stream(device) for device in devices]):
        queued = leave(minibatch)
    take(minibatch, queued)
