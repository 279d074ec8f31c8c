"""The threads beside an event loop, in which synchronous work runs while the loop goes on.

They belong to one event loop. They start when work comes and none of them is free, and end when they are closed, within
a bounded time. They hold the work that was given to them and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from datapipes.base.outcome import as_error
from datapipes.base.threads import threads_of_kernels
from datapipes.processes.clone import end_if_clone

THREADS = "datapipes-async-call"
_here = threading.local()  # `threads`: those of the event loop that runs in this thread
MOST = 2  # while one thread is in a long call, the other serves the short ones; more would only share the same cores


class Work(NamedTuple):
    """A call to be made, and the future that gets what comes of it."""

    call: Callable[[], Any]
    context: Context
    future: asyncio.Future[Any]


class OffLoopThreads:
    """Up to MOST threads that make calls for the event loop `loop`.

    Args:
        kernel_threads: how many threads the kernels of a call may use; None for as many as torch uses.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, kernel_threads: int | None) -> None:
        self._loop = loop
        self._kernel_threads = kernel_threads
        self._process = os.getpid()
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0  # calls given and not delivered; counted by the loop's thread alone
        self._ended = False

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Make a call in one of the threads; only the loop's own thread may ask for it.

        Raises:
            RuntimeError: There is no thread, and none can be started. A later call tries again.
        """
        if self._under_way >= len(self._threads) and len(self._threads) < MOST:
            self._start_one()
        self._under_way += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.put(Work(call, copy_context(), future))
        return future

    def close(self, until: float) -> None:
        """Drop the calls that have not begun, and wait for those under way, to time.monotonic() `until` at most."""
        self._ended = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # which collects the loop, and ends by itself
                thread.join(max(until - time.monotonic(), 0.0))

    def _start_one(self) -> None:
        name = f"{THREADS}-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the process may have no more threads
            if len(self._threads) == 0:
                raise  # else the call waits for the one there is
        else:
            self._threads.append(thread)

    def _serve(self) -> None:
        with threads_of_kernels(self._kernel_threads):
            while (work := self._waiting.get()) is not None and not self._ended:
                result = error = None
                try:
                    if not work.future.cancelled():  # else nobody waits for it any more
                        result = work.context.run(work.call)
                except BaseException as raised:
                    error = error_of(raised)
                end_if_clone(self._process)  # a clone has its parent's loop, and would answer in its place
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(self._deliver, work.future, result, error)
                del work, result, error  # or a thread that waits would keep a minibatch alive

    def _deliver(self, future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        self._under_way -= 1
        if future.done():  # its coroutine was cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)


def threads_here() -> OffLoopThreads | None:
    """Return the threads of the event loop that runs in this thread; None if it has none, as a caller's own loop."""
    found: OffLoopThreads | None = getattr(_here, "threads", None)
    return found


def run_loop(loop: asyncio.AbstractEventLoop, threads: OffLoopThreads, kernel_threads: int | None) -> None:
    """Run an event loop in this thread until it is stopped, with `threads` beside it, and close it.

    Its own thread closes it, as nobody else can do so in every case: who stops it may be this thread itself, or may
    have waited for it in vain.
    """
    _here.threads = threads
    try:
        with threads_of_kernels(kernel_threads):
            loop.run_forever()
    finally:
        loop.close()


def error_of(raised: BaseException) -> Exception:
    """Return what a call raised as an error that a future can carry and that ends neither the loop nor a task."""
    if isinstance(raised, (StopIteration, asyncio.CancelledError)):
        error = RuntimeError(f"a call beside the event loop raised {type(raised).__name__}: {raised}. Raise an error.")
        error.__cause__ = raised
        return error
    return raised if isinstance(raised, Exception) else as_error(raised)
