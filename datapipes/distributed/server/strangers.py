"""Strangers: the connections from which no request has come yet. Only so many are kept, and none that stays silent.

Whoever reaches the port can connect, also without a certificate, and gRPC has no bound for such connections that Flight
lets a server set. Each takes a descriptor, and without descriptors no client is served.
"""

from __future__ import annotations

import resource

from datapipes.base.log import logger
from datapipes.distributed.server.connections import Connections

_EVERY_S = 0.25
_SILENT_S = 10.0  # without a byte; a handshake takes milliseconds, and a request sends bytes all the time
_SHARE = 4  # strangers may have a quarter of the descriptors
_FEWEST = 16


class Strangers:
    """Ends connections to `port` from which no request has come, where they are silent or too many.

    Args:
        where: the server, for the log.
    """

    def __init__(self, where: str, port: int, connections: Connections) -> None:
        self.where, self.port, self.connections = where, port, connections
        self._known: set[str] = set()
        self._told = False

    def greet(self, peer: str) -> None:
        """Note that a request has come from a connection."""
        self._known.add(peer)

    def look(self) -> float:
        """End those that are silent, then those that are too many, the longest silent first; see Guard."""
        known = {*self._known}  # before the look: who is greeted during it stays
        found = {each.peer: each.idle_s for each in self.connections.to(self.port)}
        self._known -= known - found.keys()
        strangers = sorted((idle_s, peer) for peer, idle_s in found.items() if peer not in self._known)
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
        return _EVERY_S
