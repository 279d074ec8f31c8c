"""A soft bound on what clients can make a server hold.

gRPC takes a request whole before anybody here can look at its size, and then about six times its size to read it. Where
the process's memory exceeds its bound, the producers whose chains hold most end first. If that frees too little, all
connections end, and gRPC drops what has not come whole. A request that has come whole is still read, so the bound can
be exceeded for a moment; a hard one is the system's, such as a cgroup's. Clients that did nothing wrong connect again
and ask again.

What is freed goes back to the system first, since the allocator keeps hundreds of MB for later requests. It goes back
too when nobody has asked for a second.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path

from datapipes.base.log import logger
from datapipes.distributed.server.connections import Connections
from datapipes.distributed.server.statistics import Statistics

_STATM = "/proc/self/statm"
_EVERY_S = 0.1
_PAUSE_S = 5.0  # after an end: what was freed takes a moment to go back to the system
_QUIET_LOOKS = 10  # without a request, before what is freed goes back


def own_memory(statm: int | None = None) -> int:
    """Return the bytes of memory that are this process's own: not those of mapped files.

    Args:
        statm: a descriptor of /proc/self/statm, for those who may have no other to open it with.
    """
    text = Path(_STATM).read_bytes() if statm is None else os.pread(statm, 200, 0)
    resident, shared = map(int, text.split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def give_back() -> None:
    """Give the memory that is freed back to the system."""
    ctypes.CDLL(None).malloc_trim(0)


class MemoryWatch:
    """Ends producers, then all connections to a port, while the process's memory exceeds `max_bytes`; `look` is for a
    Guard.

    Args:
        kept_bytes: what the part has made of its attributes since the start, which is allowed on top.
        end_producers: ends those that hold most, until so many bytes are free; returns how many.
    """

    def __init__(
        self,
        port: int,
        max_bytes: int,
        statistics: Statistics,
        connections: Connections,
        kept_bytes: Callable[[], int] = lambda: 0,
        end_producers: Callable[[int], int] = lambda num_bytes: 0,
    ) -> None:
        self.port, self.max_bytes, self.statistics, self.kept_bytes = port, max_bytes, statistics, kept_bytes
        self.connections, self.end_producers = connections, end_producers
        self._statm = os.open(_STATM, os.O_RDONLY)
        self._count, self._quiet = 0, _QUIET_LOOKS

    def close(self) -> None:
        """Close the descriptor; no look may be under way."""
        os.close(self._statm)

    def look(self) -> float:
        """Look once; return the seconds until the next look."""
        pause = _EVERY_S
        if self._excess() > 0:
            give_back()
            if self._end_producers_if_above():
                give_back()
            if self._end_all_if_above():
                pause = _PAUSE_S
        before, self._count = self._count, self.statistics.num_requests()
        self._quiet = self._quiet + 1 if self._count == before else 0
        if self._quiet == _QUIET_LOOKS:
            give_back()
        return pause

    def _excess(self) -> int:
        """Return by how many bytes the memory exceeds the bound; 0 or less if it does not."""
        return own_memory(self._statm) - self.max_bytes - self.kept_bytes()

    def _end_producers_if_above(self) -> bool:
        excess = self._excess()
        ended = self.end_producers(excess) if excess > 0 else 0
        if ended:
            logger.warning("the memory of this process is %d bytes above its bound: %d producers end", excess, ended)
            self.statistics.count_shed()
        return ended > 0

    def _end_all_if_above(self) -> bool:
        found, allowed = own_memory(self._statm), self.max_bytes + self.kept_bytes()
        if found <= allowed:
            return False
        ended = self.connections.end_all(self.port)
        logger.warning(
            "the memory of this process is %d bytes, allowed are %d: %d connections are ended",
            found,
            allowed,
            ended,
        )
        self.statistics.count_shed()
        return True
