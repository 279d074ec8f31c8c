"""The results of coroutines that have an order but no index: the calls of an asynchronous stage behind a carrier.

Before the first carrier a minibatch has an index, and is made by a pool (loop_pool.py) under the dispatcher.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, TypeVar

from datapipes.chain.loop_thread import LoopThread

T = TypeVar("T")


class InFlight(Iterator[T]):
    """The results of `coroutines` in their order, with up to `window` of them running.

    Up to `window` results run or wait for the caller. While the next result takes long, later coroutines run and their
    results are kept, up to 2 * window in all; so a slow coroutine holds up the others only after a while. If the
    iterable raises, the running coroutines deliver first, then the error is raised. The next call may continue. An
    error of a coroutine ends the iterator.
    """

    def __init__(self, coroutines: Iterable[Coroutine[Any, Any, T]], window: int) -> None:
        self._coroutines = iter(coroutines)
        self._window = window
        self._kept: deque[Future[T]] = deque()
        self._ended = False
        self._late_error: BaseException | None = None
        self._thread = LoopThread()
        self.close = weakref.finalize(self, self._thread.close)  # runs also when this object is collected, and at exit

    def __next__(self) -> T:
        self._thread.refuse_other_processes()
        while True:
            self._fill()
            if not self._kept:
                break
            if self._kept[0].done():
                return self._oldest()
            wait(self._running(), return_when=FIRST_COMPLETED)
        if self._late_error is not None:
            late, self._late_error = self._late_error, None
            raise late
        self.close()
        raise StopIteration

    def _running(self) -> list[Future[T]]:
        return [future for future in self._kept if not future.done()]

    def _may_begin(self) -> bool:
        is_late = len(self._kept) > 0 and not self._kept[0].done()
        room = 2 * self._window if is_late else self._window
        return not self._ended and self._late_error is None and len(self._kept) < room

    def _fill(self) -> None:
        """Begin coroutines while there is room. Once the next result is there, begin at most one more."""
        while self._may_begin() and len(self._running()) < self._window:
            try:
                future = self._thread.submit(next(self._coroutines))
            except StopIteration:
                self._ended = True
            except BaseException as error:
                self._late_error = error
            else:
                self._kept.append(future)
                if self._kept[0].done():
                    return

    def _oldest(self) -> T:
        try:
            return self._kept.popleft().result()
        except BaseException:
            self._ended = True
            self._kept.clear()
            self.close()
            raise
