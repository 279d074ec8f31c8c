"""StoreThread: the one thread of a call that asks the store of torch.distributed, and keeps a rank's heartbeat there.

A call of a store whose process is stopped may never return. Who asks this thread can wait for a bounded time.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any


class StoreThread:
    """Calls a store.

    Args:
        store: what torch.distributed calls a Store.
        rank: whose heartbeat is counted up.
        beat_s: seconds between two heartbeats.
    """

    def __init__(self, store: Any, rank: int, beat_s: float) -> None:
        self._store, self._beat, self._beat_s = store, beat_key(rank), beat_s
        self._asked: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="datapipes-ranks", daemon=True)
        self._thread.start()

    def ask(self, call: Callable[[Any], Any]) -> Future[Any]:
        """Let the thread call `call(store)`; return what tells of the result."""
        future: Future[Any] = Future()
        self._asked.put((call, future))
        return future

    def close(self) -> None:
        """End the thread; one that hangs in the store ends with the process."""
        self._asked.put(None)
        self._thread.join(self._beat_s)

    def _run(self) -> None:
        next_beat = time.monotonic()
        while True:
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self._beat_s
                with contextlib.suppress(RuntimeError):  # who asks is told
                    self._store.add(self._beat, 1)
            try:
                asked = self._asked.get(timeout=max(next_beat - time.monotonic(), 0))
            except queue.Empty:
                continue
            if asked is None:
                return
            call, future = asked
            try:
                future.set_result(call(self._store))
            except BaseException as error:
                future.set_exception(error)


def beat_key(rank: int) -> str:
    """Return the key under which a rank counts its heartbeats."""
    return f"beat/{rank}"
