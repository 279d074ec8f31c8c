"""Minibatches that copies still read: they are kept until the event of their copy has passed.

Memory that datapipes has page-locked, such as a slot of a channel, is unknown to torch. A queued copy reads it after
its tensors are gone, unless somebody keeps them.
"""

from __future__ import annotations

import os
import threading
from collections import deque

from datapipes.device.runtime import Event
from datapipes.minibatch import MiniBatch

__all__: list[str] = []


class KeptSources:
    """The sources of copies in flight, the oldest first."""

    def __init__(self) -> None:
        self._kept: deque[tuple[Event, MiniBatch]] = deque()
        self._changing = threading.RLock()  # the garbage collector may call `finish` inside any other call
        self._process = os.getpid()

    def add(self, event: Event, source: MiniBatch) -> None:
        """Keep `source` until `event` has passed; let go those whose event has passed by now."""
        if self._process != os.getpid():  # a forked child has the sources of its parent, and none of its events
            self._kept, self._changing, self._process = deque(), threading.RLock(), os.getpid()
        with self._changing:
            self._kept.append((event, source))
            while self._kept and self._kept[0][0].query():
                self._kept.popleft()

    def finish(self) -> None:
        """Wait for the copies in flight, and let their sources go."""
        if self._process != os.getpid():
            return
        with self._changing:
            while self._kept:
                self._kept[0][0].synchronize()
                self._kept.popleft()

    def __len__(self) -> int:
        return len(self._kept)
