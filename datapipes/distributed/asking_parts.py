"""Send requests to several parts of a graph at once. One part may be in this process; the others are behind servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Any, NamedTuple, ParamSpec, Protocol, TypeVar

from datapipes.base.errors import add_note
from datapipes.base.threads import num_threads
from datapipes.chain.asynchronous import off_loop
from datapipes.distributed.requests.request import Answer, Request
from datapipes.partition.native.part import Part


class Peers(Protocol):
    """Sends requests to the servers of the parts of a graph. Many requests can be in flight. Each request ends in
    bounded time, with an answer or an error.

    A copy in a worker process has no connections at first, and connects with its first request. Errors have specific
    types and name the part; if a server sent the error, the text has the server's reason.
    """

    def ask(self, part: int, request: Request[Answer]) -> Future[Answer]:
        """Send `request` to the server of `part`. Return at once, with a future of the answer."""

    def close(self) -> None:
        """End all connections of this process; may be called twice. The next request connects again."""


P = ParamSpec("P")
T = TypeVar("T")


class Ask(NamedTuple):
    """A request together with the id of the part to which it is to be sent."""

    part: int
    request: Request[Any]


class _Thread(threading.local):
    blocks = False  # whether the thread is in `run_here`, without an event loop


_thread = _Thread()


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run `coroutine` to its end in this thread, without an event loop, and return its result. So a synchronous method
    can share the code of its async twin.

    The coroutine may await only `here_or_off_loop` and `all_or_failed`; these two block while they run under
    `run_here`.
    """
    before, _thread.blocks = _thread.blocks, True
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        _thread.blocks = before
    raise AssertionError("the coroutine awaits something else than here_or_off_loop and all_or_failed")


async def here_or_off_loop(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `fn` and return its result. Under `run_here` the call is made in this thread. Otherwise it is made in
    another thread, so that it does not block the event loop.
    """
    return fn(*args, **kwargs) if _thread.blocks else await off_loop(fn, *args, **kwargs)


async def all_or_failed(futures: Collection[Future[T]]) -> Collection[Future[T]]:
    """Wait until all `futures` are done, or until one has failed. Return the futures that have failed; if none has
    failed, return all of them.
    """
    if all(future.done() for future in futures):
        return futures
    if _thread.blocks:
        ended: SimpleQueue[Future[T]] = SimpleQueue()
        for future in futures:
            future.add_done_callback(ended.put)  # `futures.wait` would hang on a cancelled future
        for _ in futures:
            if _has_failed(ended.get()):
                break
    else:
        with suppress(Exception):  # the future keeps the error
            await asyncio.gather(*map(asyncio.wrap_future, futures))
    done = [future for future in futures if future.done()]
    return [future for future in done if _has_failed(future)] or futures


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


async def ask_all(asks: Sequence[Ask], peers: Peers, local_part: Part | None) -> list[Any]:
    """Send each request of `asks` to its part, and return the answers in the order of `asks`. `local_part`, the part in
    this process, answers here; the requests to servers are sent first, so that the servers work meanwhile.

    Raises:
        The errors of the requests; a note on the error names the part.
    """
    part_of: dict[Future[Any], int] = {}
    answers = {}
    try:
        for part, request in asks:
            if local_part is None or part != local_part.part:
                with _noting_part(part):
                    part_of[peers.ask(part, request)] = part
        for part, request in asks:
            if local_part is not None and part == local_part.part:
                with _noting_part(part):
                    answers[part] = await here_or_off_loop(_answered_here, request, local_part)
        for future in await all_or_failed(part_of):  # `result` raises if the future has failed
            with _noting_part(part_of[future]):
                answers[part_of[future]] = future.result()
    finally:
        for future in part_of:
            future.cancel()  # after an error some futures are unfinished
    return [answers[ask.part] for ask in asks]


def _answered_here(request: Request[Answer], part: Part) -> Answer:
    return request.answered_by(part, num_threads=num_threads())


@contextmanager
def _noting_part(part: int) -> Iterator[None]:
    """Context manager: if the `with` statement raises an error, add the note that `part` was asked."""
    try:
        yield
    except Exception as error:
        add_note(error, f"asked of part {part}")
        raise
