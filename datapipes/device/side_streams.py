"""Streams of a thread's own, so that what it queues on a GPU runs beside what other threads queue there."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch

from datapipes.device.runtime import Stream, cuda

__all__: list[str] = []


class SideStreams:
    """One stream for each device, made when it is first asked for and then kept: torch's cache of memory is one for
    each stream.
    """

    def __init__(self) -> None:
        self._streams: dict[torch.device, Stream] = {}
        self._making = threading.Lock()

    def of(self, devices: Sequence[torch.device]) -> list[Stream]:
        """Return the streams of CUDA devices, each once; that of this thread's current device comes last."""
        wanted = {cuda().device(device) for device in devices}
        with self._making:
            for device in wanted - self._streams.keys():
                self._streams[device] = cuda().new_stream(device)
        here = cuda().device(torch.device("cuda")) if wanted else None
        return [self._streams[device] for device in sorted(wanted, key=lambda device: (device == here, device.index))]


@contextmanager
def current_streams(streams: Sequence[Stream]) -> Iterator[None]:
    """Make these the current streams of this thread, and the device of the last one its current device."""
    with ExitStack() as entered:
        for stream in streams:
            entered.enter_context(cuda().on(stream))
        yield
