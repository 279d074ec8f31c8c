"""Guards: threads of a server, each of which checks something again and again. Two of these checks are here.

**Strangers** ends connections from which no request has come: those that are silent for long, and those above a bound.
Anybody who reaches the port can connect, even without a certificate, and Flight cannot bound the number of connections.
Each connection takes a file descriptor; without free descriptors no client is served.

**MemoryWatch** is a soft bound on the memory that clients make a server hold. gRPC takes a whole request before its
size can be checked here, and then about six times its size to read it. If the process's memory exceeds its bound, up to
three things are done, until it is within the bound again. First, freed memory is given back to the system, since the
allocator keeps hundreds of MB for later requests. Second, the producers (see producers.py) whose chains hold most
memory are ended. Third, all connections are ended, and gRPC drops incomplete requests; honest clients connect again and
ask again. Complete requests are still read, so the bound can be exceeded for a moment. Only the system can set a hard
bound, for example by a cgroup. Freed memory is also given back after a second without requests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from datapipes.base.log import logger
from datapipes.distributed.server.statistics import Statistics
from datapipes.distributed.server.tcp_connections import TcpConnections

_RETRY_S = 0.5
_JOIN_S = 5.0  # for a look that is under way


class Guard:
    """A thread that calls `look` again and again until `close`.

    If `look` raises OSError or MemoryError, the guard goes on. The same failure again and again is logged only once.
    Any other error ends the guard and is passed to `died`, since a server must not go on without its guard.

    Args:
        where: the server, for the log.
        name: what the guard is called in the log, and in the name of its thread.
        look: function that does the check, and returns the seconds until its next call.
        died: function that gets the error which has ended the guard; called in the guard's thread.
    """

    def __init__(self, where: str, name: str, look: Callable[[], float], died: Callable[[BaseException], None]) -> None:
        self._where, self._name, self._look, self._died = where, name, look, died
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"datapipes-{name}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and wait for its end up to 5 s. If the thread itself calls this, do not wait."""
        self._stop.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)

    def _run(self) -> None:
        pause, logged = 0.0, ""
        while not self._stop.wait(pause):
            try:
                pause, logged = self._look(), ""
            except (OSError, MemoryError) as error:
                pause, text = _RETRY_S, f"{type(error).__name__}: {error}"
                if text != logged:
                    logger.error("%s: the %s has met %s; it goes on", self._where, self._name, text)
                logged = text
            except BaseException as error:
                logger.critical("%s: the %s has died, so the server ends", self._where, self._name, exc_info=True)
                self._died(error)
                return


_STRANGERS_EVERY_S = 0.25
_SILENT_S = 10.0  # without a byte; a handshake takes milliseconds, and a request sends bytes all the time
_SHARE = 4  # strangers may have a quarter of the descriptors
_FEWEST = 16


class Strangers:
    """Ends connections to `port` from which no request has come yet: those that are silent for too long, and if too
    many are left, the most silent ones of these.

    Args:
        where: the server, for the log.
    """

    def __init__(self, where: str, port: int, connections: TcpConnections) -> None:
        self.where, self.port, self.connections = where, port, connections
        self._have_asked: set[str] = set()
        self._told = False

    def note_request(self, peer: str) -> None:
        """Record that a request has come from the connection `peer`, which is no stranger from now on."""
        self._have_asked.add(peer)

    def look(self) -> float:
        """End the connections without a request that were silent for 10 s. If more of them are left than a bound, end
        the most silent ones too. The bound is a quarter of the process's file descriptors, at least 16. Return the
        seconds until the next call.
        """
        before = {*self._have_asked}  # before the look: a connection that asks during it stays
        idle = self.connections.to(self.port)
        self._have_asked -= before - idle.keys()
        strangers = sorted((idle_s, peer) for peer, idle_s in idle.items() if peer not in self._have_asked)
        most = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE, _FEWEST)
        silent = {peer for idle_s, peer in strangers if idle_s >= _SILENT_S}
        self.connections.end(silent | {peer for _, peer in strangers[most:]})
        if len(strangers) > most and not self._told:
            logger.warning(
                "%s: %d connections have sent no request yet, at most %d are kept; keep strangers from port %d by a "
                "firewall",
                self.where,
                len(strangers),
                most,
                self.port,
            )
        self._told = len(strangers) > most
        return _STRANGERS_EVERY_S


def guards(
    where: str,
    service: Any,
    port: int,
    connections: TcpConnections,
    looks: Mapping[str, Callable[[], float]],
    died: Callable[[BaseException], None],
) -> contextlib.ExitStack:
    """Start the guards of a server: one that ends strangers (connections without a request), and one for each entry of
    `looks`. Return a stack; its `close` ends the guards.

    Args:
        service: the service of the server. Its attribute `note_request` is set here to a function; the service must
            call the function with the name of the connection at each request.
        looks: {name of a guard: its function `look`}.
        died: see Guard.
    """
    strangers = Strangers(where, port, connections)
    service.note_request = strangers.note_request
    with contextlib.ExitStack() as made:  # the guards end if a later guard fails to start
        for name, look in {"watch of strangers": strangers.look, **looks}.items():
            made.callback(Guard(where, name, look, died).close)
        return made.pop_all()


_STATM = "/proc/self/statm"
_MEMORY_EVERY_S = 0.1
_PAUSE_S = 5.0  # after connections were ended: freed memory takes a moment to go back to the system
_QUIET_LOOKS = 10  # without a request, before freed memory goes back


def own_memory(statm: int | None = None) -> int:
    """Return how many bytes of memory this process has for itself, without mapped files.

    Args:
        statm: an open descriptor of /proc/self/statm. Pass one if the process may have no free descriptor left.
    """
    text = Path(_STATM).read_bytes() if statm is None else os.pread(statm, 200, 0)
    resident, shared = map(int, text.split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGESIZE")


def give_back() -> None:
    """Give memory that was freed, and that the allocator keeps for later, back to the system."""
    ctypes.CDLL(None).malloc_trim(0)


class MemoryWatch:
    """If the memory of this process exceeds `max_bytes`, ends producers of minibatches, and if that is not enough, all
    connections to `port`. A Guard calls `look`.

    Args:
        kept_bytes: function that returns the bytes of arrays that the part has computed from its attributes since the
            start. These bytes are allowed in addition to `max_bytes`.
        end_producers: function (num_bytes) that ends the producers that hold most memory, until `num_bytes` are free.
            It returns how many it ended.
    """

    def __init__(
        self,
        port: int,
        max_bytes: int,
        statistics: Statistics,
        connections: TcpConnections,
        kept_bytes: Callable[[], int] = lambda: 0,
        end_producers: Callable[[int], int] = lambda num_bytes: 0,
    ) -> None:
        self.port, self.max_bytes, self.statistics, self.kept_bytes = port, max_bytes, statistics, kept_bytes
        self.connections, self.end_producers = connections, end_producers
        self._statm = os.open(_STATM, os.O_RDONLY)
        self._count, self._quiet = 0, _QUIET_LOOKS

    def close(self) -> None:
        """Close the file descriptor by which memory is read. Call this only when `look` is not running."""
        os.close(self._statm)

    def look(self) -> float:
        """Compare the memory with its bound. Above the bound, give back freed memory; if that is not enough, end
        producers; if that is not enough, end all connections. Return the seconds until the next call.
        """
        pause = _MEMORY_EVERY_S
        if self._excess() > 0:
            give_back()
            if (excess := self._excess()) > 0 and (ended := self.end_producers(excess)) > 0:
                self._tell(excess, f"{ended} producers end")
                give_back()
            if (excess := self._excess()) > 0:
                self._tell(excess, f"{self.connections.end_all(self.port)} connections end")
                pause = _PAUSE_S
        before, self._count = self._count, self.statistics.num_requests()
        self._quiet = self._quiet + 1 if self._count == before else 0
        if self._quiet == _QUIET_LOOKS:
            give_back()
        return pause

    def _excess(self) -> int:
        """Return by how many bytes the memory exceeds the bound; 0 or less if there is no excess."""
        return own_memory(self._statm) - self.max_bytes - self.kept_bytes()

    def _tell(self, excess: int, what_ends: str) -> None:
        logger.warning("the memory of this process is %d bytes above its bound: %s", excess, what_ends)
        self.statistics.memory_sheds += 1
