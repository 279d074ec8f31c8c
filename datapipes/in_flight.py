"""Keep several coroutines in flight and deliver their results in order.

Stages that wait for others (a server, a disk) define `async transform_async`; the coroutines of a run share one
event loop in a thread of its own, so that it makes no difference whether the caller runs a loop as well (as
notebooks do).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")

JOIN_S = 10.0  # how long ending waits for a coroutine that does not give way


class LoopThread:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="datapipes-async", daemon=True)
        self._thread.start()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine; the future carries its result or error."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Cancel what still runs and end the thread."""
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).add_done_callback(lambda _: self._stop())
        self._thread.join(JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


def in_flight(coroutines: Iterable[Coroutine[Any, Any, T]], window: int) -> Iterator[T]:
    """Return the results of `coroutines` in their order, with up to `window` of them running."""
    thread = LoopThread()
    running: deque[Future[T]] = deque()
    try:
        for coroutine in coroutines:
            running.append(thread.submit(coroutine))
            if len(running) >= window:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        thread.close()


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
