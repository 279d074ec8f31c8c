"""Send requests to several parts at once: to the part in this process and to parts behind servers."""

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
    """Asks the owners of parts. Many requests can be in flight. Each request ends in bounded time, with an answer or an
    error.

    A worker process gets a copy without connections, and connects on its first request. Errors have specific types and
    name the part; an error that a server sent has the server's reason.
    """

    def ask(self, part: int, request: Request[Answer]) -> Future[Answer]:
        """Send a request to a part; return a future of the answer at once."""

    def close(self) -> None:
        """End all connections of this process; may be called twice. The next request connects again."""


P = ParamSpec("P")
T = TypeVar("T")


class Ask(NamedTuple):
    """A request to one part."""

    part: int
    request: Request[Any]


class _Thread(threading.local):
    blocks = False  # whether the thread is in `run_here`, without an event loop


_thread = _Thread()


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread, without an event loop. The coroutine may await only here_or_off_loop
    and all_or_failed, which block here.
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
    """Return `fn(*args, **kwargs)`. Call `fn` in this thread if it is within `run_here`, else off the event loop."""
    return fn(*args, **kwargs) if _thread.blocks else await off_loop(fn, *args, **kwargs)


async def all_or_failed(futures: Collection[Future[T]]) -> Collection[Future[T]]:
    """Wait until all futures are done or one has failed. Return the failed futures; if none has failed, all futures."""
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
    """Return the answers in the order of `asks`. Send requests first, so that servers work while `local_part` answers.

    Raises:
        The errors of the requests; a note names the part.
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
    """Context manager that adds a note to an error, saying which part was asked."""
    try:
        yield
    except Exception as error:
        add_note(error, f"asked of part {part}")
        raise
