"""An event loop in a thread, for stages that wait for something else (a server, a disk): `async transform_async`.

The coroutines of an epoch share one event loop in a thread of its own, so the caller may run an event loop as well (as
notebooks do). Synchronous work runs in threads beside the loop, while the loop goes on.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from contextvars import Context, copy_context
from typing import Any, NamedTuple, TypeVar

from datapipes.base.outcome import as_error
from datapipes.base.threads import EndingThread, add_thread, share_here, threads_of_kernels
from datapipes.processes.child import end_if_clone
from datapipes.processes.unforkable import refuse_forked

T = TypeVar("T")

JOIN_S = 10.0  # seconds that close() waits for a coroutine that does not end


class LoopThread:
    """An event loop in a thread, and threads beside it for calls that would hold up the loop.

    Kernels in the loop use as many threads as kernels in the thread that builds this object.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._process = os.getpid()
        self._beside = OffLoopThreads(self._loop, share_here())
        self._thread = EndingThread(run_loop, (self._loop, self._beside, share_here()), name="datapipes-async")
        try:
            self._thread.start()
        except RuntimeError:  # the process may have no more threads
            self._loop.close()
            raise

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the event loop. The returned future carries its result or error."""
        return asyncio.run_coroutine_threadsafe(_Guarded(coroutine, self._process), self._loop)

    def close(self) -> None:
        """Cancel all running coroutines, and end the thread of the event loop. Call it only once."""
        if os.getpid() != self._process:
            return  # in a forked child there is no thread, and the loop's wake-up pipe is the parent's
        until = time.monotonic() + JOIN_S
        asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop).add_done_callback(lambda _: self._stop())
        if self._thread is threading.current_thread():
            self._beside.close(0.0)
            return  # the loop's own thread collects this object; the thread then ends by itself
        self._thread.join(JOIN_S)
        self._beside.close(until)

    def refuse_other_processes(self) -> None:
        """Raise RuntimeError in a forked child, where nothing would ever finish."""
        refuse_forked(self._process, "asynchronous stages", "event loop")

    def _stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


class _Guarded(Coroutine[Any, Any, T]):
    """A coroutine whose steps cannot end the event loop. If a step runs in a clone, a copy of the process that a stage
    has made by os.fork(), the step ends the clone.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], process: int) -> None:
        self._coroutine = coroutine
        self._process = process

    def send(self, value: Any) -> Any:
        return self._step(self._coroutine.send, value)

    def throw(self, *thrown: Any) -> Any:
        return self._step(self._coroutine.throw, *thrown)

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def _step(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except (SystemExit, KeyboardInterrupt) as raised:  # would end the loop, and no other result would ever come
            raise as_error(raised) from raised
        finally:
            end_if_clone(self._process)  # a clone has its parent's loop, and would take the parent's results


async def _cancel_all() -> None:
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


# --- threads beside an event loop

THREADS = "datapipes-async-call"
_here = threading.local()  # `threads`: those of the event loop that runs in this thread
MOST = 2  # while one thread is in a long call, the other serves the short ones; more would only share the same cores


class Work(NamedTuple):
    """A call to be made, and the future of its result."""

    call: Callable[[], Any]
    context: Context
    future: asyncio.Future[Any]


class OffLoopThreads:
    """Up to MOST threads that make calls for the event loop `loop`.

    A thread starts when work is submitted and no thread is free. `close` ends all threads within a bounded time. The
    threads keep nothing alive but this object and the submitted work.

    Args:
        kernel_threads: how many threads the kernels of a call may use; None: as many as torch uses.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, kernel_threads: int | None) -> None:
        self._loop = loop
        self._kernel_threads = kernel_threads
        self._process = os.getpid()
        self._waiting: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = 0  # calls whose results are not delivered yet; only the loop's thread changes this
        self._ended = False

    def submit(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Let one of the threads beside the event loop make a call; return the future of its result. Only the loop's
        own thread may do this.

        Raises:
            RuntimeError: There is no thread, and none can be started. A later call tries again.
        """
        if self._under_way >= len(self._threads) and len(self._threads) < MOST:
            add_thread(self._threads, THREADS, self._serve)  # else the call waits for an existing thread
        self._under_way += 1
        future: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.put(Work(call, copy_context(), future))
        return future

    def close(self, until: float) -> None:
        """Drop the calls that have not begun. Wait for the running calls, at most until time.monotonic() is `until`."""
        self._ended = True
        for _ in self._threads:
            self._waiting.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():  # this thread collects the loop, and ends by itself
                thread.join(max(until - time.monotonic(), 0.0))

    def _serve(self) -> None:
        with threads_of_kernels(self._kernel_threads):
            while (work := self._waiting.get()) is not None and not self._ended:
                result = error = None
                try:
                    if not work.future.cancelled():  # else its result is no longer awaited
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
    """Return the threads beside the event loop that runs in this thread. None: the loop has none, as a user's loop; or
    no loop runs here.
    """
    threads: OffLoopThreads | None = getattr(_here, "threads", None)
    return threads


def run_loop(loop: asyncio.AbstractEventLoop, threads: OffLoopThreads, kernel_threads: int | None) -> None:
    """Run an event loop in this thread until it is stopped, with `threads` beside it, and close it.

    The loop is closed here, in its own thread: the thread that stops the loop may be this thread, or may have given up
    waiting for this thread.
    """
    _here.threads = threads
    try:
        with threads_of_kernels(kernel_threads):
            loop.run_forever()
    finally:
        loop.close()


def error_of(raised: BaseException) -> Exception:
    """Return `raised` as an error that a future can carry and that ends neither the loop nor a task."""
    return as_error(raised, "a call beside the event loop", "Raise an error.")
