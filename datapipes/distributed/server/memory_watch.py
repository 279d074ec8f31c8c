"""A soft bound on what clients can make a server hold.

gRPC takes a request whole before anybody here can look at its size, and then about six times its size to read it. Where
the process's memory exceeds its bound, all connections end, and gRPC drops what has not come whole. A request that has
come whole is still read, so the bound can be exceeded for a moment; a hard one is the system's, such as a cgroup's.
Clients that did nothing wrong connect again and ask again.

What is freed goes back to the system first, since the allocator keeps hundreds of MB for later requests. It goes back
too when nobody has asked for a second.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from datapipes.base.log import logger
from datapipes.distributed.server.connections import end_all_connections
from datapipes.distributed.server.statistics import Statistics

_EVERY_S = 0.1
_PAUSE_S = 5.0  # after an end: what was freed takes a moment to go back to the system
_QUIET_LOOKS = 10  # without a request, before what is freed goes back


def own_memory() -> int:
    """Return the bytes of memory that are this process's own: not those of mapped files."""
    with open("/proc/self/statm", encoding="ascii") as file:
        resident, shared = map(int, file.read().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def give_back() -> None:
    """Give the memory that is freed back to the system."""
    ctypes.CDLL(None).malloc_trim(0)


class MemoryWatch:
    """A thread that ends all connections to a port while the process's memory exceeds `max_bytes`.

    Args:
        kept_bytes: what the part has made of its attributes since the start, which is allowed on top.
    """

    def __init__(
        self, port: int, max_bytes: int, statistics: Statistics, kept_bytes: Callable[[], int] = lambda: 0
    ) -> None:
        self.port, self.max_bytes, self.statistics, self.kept_bytes = port, max_bytes, statistics, kept_bytes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        pause, count, quiet = _EVERY_S, 0, _QUIET_LOOKS
        while not self._stop.wait(pause):
            pause = _EVERY_S
            if own_memory() > self.max_bytes + self.kept_bytes():
                give_back()
                if self._end_all_if_above():
                    pause = _PAUSE_S
            before, count = count, self.statistics.num_requests()
            quiet = quiet + 1 if count == before else 0
            if quiet == _QUIET_LOOKS:
                give_back()

    def _end_all_if_above(self) -> bool:
        found, allowed = own_memory(), self.max_bytes + self.kept_bytes()
        if found <= allowed:
            return False
        ended = end_all_connections(self.port)
        logger.warning(
            "the memory of this process is %d bytes, allowed are %d: %d connections are ended",
            found,
            allowed,
            ended,
        )
        self.statistics.count_shed()
        return True
