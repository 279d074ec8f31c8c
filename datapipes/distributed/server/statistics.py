"""What a server counts: requests by kind and result, seconds, bytes."""

from __future__ import annotations

import threading
from bisect import bisect_left
from typing import Any

# Upper bounds of a histogram's buckets, in seconds; the last one has none.
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Statistics:
    """Counters of one server, for all of its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: dict[tuple[str, str], int] = {}
        self._buckets: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._bytes: dict[tuple[str, str], int] = {}
        self._stalled = self._shed = 0

    def count(self, kind: str, result: str, seconds: float, *, received: int, sent: int) -> None:
        """Count a request.

        Args:
            kind: of the request; "unknown" if it is none.
            result: "ok", or why it was refused.
            seconds: from its arrival until its answer is made.
            received, sent: bytes of the request and of its answer.
        """
        with self._lock:
            self._requests[kind, result] = self._requests.get((kind, result), 0) + 1
            self._buckets.setdefault(kind, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1
            self._seconds[kind] = self._seconds.get(kind, 0.0) + seconds
            for way, num_bytes in (("received", received), ("sent", sent)):
                self._bytes[kind, way] = self._bytes.get((kind, way), 0) + num_bytes

    def num_requests(self) -> int:
        """Return how many requests were counted."""
        with self._lock:
            return sum(self._requests.values())

    def count_stalled(self) -> None:
        """Count a connection that was ended since its client did not read."""
        with self._lock:
            self._stalled += 1

    def count_shed(self) -> None:
        """Count that producers, or all connections, were ended since the memory exceeded its bound."""
        with self._lock:
            self._shed += 1

    def values(self) -> dict[str, Any]:
        """Return all counts, as JSON values, whole numbers: of each kind its results, time, buckets and bytes."""
        with self._lock:
            kinds = {
                kind: {
                    "results": {name: count for (k, name), count in sorted(self._requests.items()) if k == kind},
                    "microseconds": round(self._seconds[kind] * 1e6),
                    "buckets": [*self._buckets[kind]],
                    "received_bytes": self._bytes[kind, "received"],
                    "sent_bytes": self._bytes[kind, "sent"],
                }
                for kind in sorted(self._seconds)
            }
            return {"requests": kinds, "stalled_connections": self._stalled, "memory_sheds": self._shed}
