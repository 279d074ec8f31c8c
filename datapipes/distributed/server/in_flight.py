"""Answers that are being sent, and the end of those that nobody reads.

gRPC ends an answer when its client closes the connection, dies, or has passed the deadline of the call. A client that
stops reading without any of these would hold the answer's memory for good; its connection is ended here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from datapipes.base.log import logger
from datapipes.distributed.server.admission import Hold
from datapipes.distributed.server.connections import end_connections
from datapipes.distributed.server.statistics import Statistics


class _Entry:
    """An answer that is being sent; `taken` is when gRPC last took a batch."""

    def __init__(self, peer: str, hold: Hold) -> None:
        self.peer, self.hold, self.taken = peer, hold, time.monotonic()


class Answer:
    """The batches of an answer. Its bytes are in flight until the last batch is sent, or gRPC drops it."""

    def __init__(self, answers: Answers, peer: str, hold: Hold, batches: Iterator[Any]) -> None:
        self._answers, self._batches = answers, batches
        self._entry = answers._add(peer, hold)

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Any:
        self._entry.taken = time.monotonic()
        try:
            return next(self._batches)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._batches = iter(())
        self._answers._remove(self._entry)

    def __del__(self) -> None:
        if hasattr(self, "_entry"):
            self._end()


class Answers:
    """All answers that are being sent; a thread ends the connections of clients that read nothing for `stall_s`."""

    def __init__(self, statistics: Statistics, stall_s: float) -> None:
        self.stall_s, self.statistics = stall_s, statistics
        self._lock = threading.RLock()  # the garbage collector may end an answer where the lock is held
        self._entries: dict[int, _Entry] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the connections of all who are still being answered, and the thread."""
        self._stop.set()
        end_connections({entry.peer for entry in self._all()})
        self._thread.join()

    def _add(self, peer: str, hold: Hold) -> _Entry:
        entry = _Entry(peer, hold)
        with self._lock:
            self._entries[id(entry)] = entry
        return entry

    def _remove(self, entry: _Entry) -> None:
        with self._lock:
            self._entries.pop(id(entry), None)
        entry.hold.release()

    def _all(self) -> list[_Entry]:
        with self._lock:
            return [*self._entries.values()]

    def _watch(self) -> None:
        while not self._stop.wait(self.stall_s / 4):
            latest = time.monotonic() - self.stall_s
            stalled = {entry.peer for entry in self._all() if entry.taken < latest}
            for peer in stalled:
                logger.warning("%s has read nothing for %g s; its connection is ended", peer, self.stall_s)
                self.statistics.count_stalled()
            end_connections(stalled)
