"""Results that pass between threads and an event loop: a thread waits for a coroutine, a coroutine for a thread.

asyncio ties such futures together in reference cycles, so what they carry, minibatches of many megabytes, would stay
until the garbage collector comes by. Here a future that is done holds its result and nothing that holds the future.
"""

from __future__ import annotations

import asyncio
import contextlib
import weakref
from collections.abc import Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


async def awaited(future: Future[T]) -> T:
    """Return the result of a future that a thread completes, or raise its error; cancelled, it cancels the future."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(_: Future[T]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_wake, done)

    future.add_done_callback(tell)
    try:
        await done
    except asyncio.CancelledError:
        future.cancel()
        raise
    return future.result()


def begun(coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> Future[T]:
    """Begin a coroutine on the loop of another thread; cancelling the future cancels it.

    Raises:
        RuntimeError: The loop is closed.
    """
    future: Future[T] = Future()

    def begin() -> None:
        task = loop.create_task(coroutine)
        task.add_done_callback(partial(_pass_on, future))
        future.add_done_callback(partial(_cancel_too, weakref.ref(task), loop))

    loop.call_soon_threadsafe(begin)
    return future


def _wake(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _pass_on(future: Future[Any], task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if task.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def _cancel_too(task: weakref.ref[asyncio.Task[Any]], loop: asyncio.AbstractEventLoop, future: Future[Any]) -> None:
    running = task() if future.cancelled() else None
    if running is not None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(running.cancel)
