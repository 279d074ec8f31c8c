"""Page-locks a channel's shared memory for CUDA, and keeps its slots until copies to a GPU are done.

A slot holds one message. A copy with `non_blocking=True` may still read a tensor that is freed already. So a slot whose
tensors are gone is freed in two steps: the next `recv` records an event on each stream that copies; once these events
have passed, the slot is free.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from typing import Any

import torch

from datapipes import _core
from datapipes.device import host_memory
from datapipes.device.runtime import cuda

_WARNED = False
_ANY_DEVICE = torch.device("cuda")  # this thread's current device


class Pinning:
    """Keeps one channel's memory page-locked in one process."""

    def __init__(self, shared: _core.ShmQueue) -> None:
        self._shared = shared
        address, num_bytes = shared.memory
        remedy = "give a smaller shm_size; a channel that is no DataLoader's may go without pin_memory"
        self._pinned = host_memory.pin_range("ShmChannel.pin_memory", address, num_bytes, shared, remedy)
        self._lock = threading.Lock()
        self._streams: list[torch.cuda.Stream] = []
        self._waiting: deque[tuple[list[Any], list[int]]] = deque()  # (events, slots that are free once these passed)
        shared.release_in_two_steps(True)

    @classmethod
    def of(cls, shared: _core.ShmQueue) -> Pinning | None:
        """Page-lock the memory of the channel `shared`, and return the object that keeps it so. None: there is no CUDA;
        the first such call warns.
        """
        global _WARNED
        if cuda().device_count() > 0:
            return cls(shared)
        if not _WARNED:
            _WARNED = True
            warnings.warn(
                "ShmChannel.pin_memory: there is no CUDA device here, so nothing is pinned. Do not call pin_memory "
                "without a GPU.",
                stacklevel=3,
            )
        return None

    def copies_on(self, stream: torch.cuda.Stream) -> None:
        """From now on, wait for the copies on `stream` too before a slot is freed."""
        if stream not in self._streams:
            self._streams.append(stream)

    def let_go(self, wait: bool) -> None:
        """Free the slots whose tensors are gone and whose copies to GPUs are done.

        Args:
            wait: True waits first for all copies under way.
        """
        with self._lock:  # several threads may receive
            self._let_go(wait)

    def _let_go(self, wait: bool) -> None:
        if dropped := self._shared.dropped_slots():
            events = []
            for stream in (cuda().current_stream(cuda().device(_ANY_DEVICE)), *self._streams):
                event = cuda().new_event()
                event.record(stream)
                events.append(event)
            self._waiting.append((events, dropped))
        while self._waiting:
            events, slots = self._waiting[0]
            if not all(event.query() for event in events):
                if not wait:
                    return
                for event in events:
                    event.synchronize()
            self._waiting.popleft()
            self._shared.let_go(slots)

    def end(self) -> None:
        """Wait for all copies, free the slots, and unlock the memory. Tensors that exist stay valid, but unpinned."""
        self.let_go(wait=True)
        cuda().synchronize()  # waits for copies from tensors that still exist
        self._shared.release_in_two_steps(False)
        self._shared.let_go(self._shared.dropped_slots())
        self._pinned.release()
