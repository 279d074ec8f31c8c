"""Statistics: the counters of a server, such as requests by kind and result, seconds and bytes."""

from __future__ import annotations

import copy
import threading
from bisect import bisect_left
from typing import Any

# Upper bounds of a histogram's buckets, in seconds. One more bucket has no bound.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Statistics:
    """The counters of one server; any of its threads may use them.

    Attributes:
        stalled_connections: how many connections were ended because their clients did not read. Only one guard writes
            this number, so it needs no lock.
        memory_sheds: how often producers, or all connections, were ended because the memory exceeded its bound. Only
            one guard writes this number too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: dict[str, dict[str, Any]] = {}
        self.stalled_connections = self.memory_sheds = 0

    def count(self, kind: str, result: str, seconds: float, *, received: int, sent: int) -> None:
        """Count one request: by its kind and result, its time and its bytes.

        Args:
            kind: kind of the request; "unknown" if there is no such kind.
            result: "ok", or the reason why the request was refused.
            seconds: from the arrival of the request until its answer is made.
            received, sent: bytes of the request, and bytes of its answer.
        """
        amounts = {"microseconds": round(seconds * 1e6), "received_bytes": received, "sent_bytes": sent}
        with self._lock:
            counts = self._kinds.setdefault(kind, {"results": {}, "buckets": [0] * (len(BUCKETS) + 1)})
            counts["results"][result] = counts["results"].get(result, 0) + 1
            counts["buckets"][bisect_left(BUCKETS, seconds)] += 1
            for name, amount in amounts.items():
                counts[name] = counts.get(name, 0) + amount

    def num_requests(self) -> int:
        """Return how many requests were counted."""
        with self._lock:
            return sum(sum(counts["results"].values()) for counts in self._kinds.values())

    def values(self) -> dict[str, Any]:
        """Return all counters as {name: JSON value}, with integers only. "requests" has for each kind of request: how
        many had which result, their time in all and in buckets of a histogram, and their bytes.
        """
        with self._lock:
            kinds = copy.deepcopy(dict(sorted(self._kinds.items())))
        return {
            "requests": kinds,
            "stalled_connections": self.stalled_connections,
            "memory_sheds": self.memory_sheds,
        }
