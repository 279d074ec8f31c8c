"""Asking parts: the one in this process, and those behind servers, all at once."""

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
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.request import Answer, Request
from datapipes.graph.choice import Choice, sum_of_digests
from datapipes.graph.graph import Graph
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.part import Part


class Peers(Protocol):
    """Asks the owners of parts. Many requests can be in flight; each ends within a bound, with an answer or an error.

    It goes to worker processes as arguments only: each process connects for itself, when it first asks. The errors are
    typed and name the part; those of the server come with its reason.
    """

    def ask(self, part: int, request: Request[Answer]) -> Future[Answer]:
        """Ask a part; return at once."""

    def close(self) -> None:
        """End all connections of this process; may be called twice. The next request connects again."""


P = ParamSpec("P")
T = TypeVar("T")


class Ask(NamedTuple):
    """What one part is asked."""

    part: int
    request: Request[Any]


class _Thread(threading.local):
    waits = False


_thread = _Thread()


def run_here(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end in this thread, without an event loop: `beside` and `settled` block."""
    before, _thread.waits = _thread.waits, True
    try:
        coroutine.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    finally:
        _thread.waits = before
    raise AssertionError("the coroutine awaits something else than beside and settled")


async def beside(fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return `fn(*args, **kwargs)`, called off the event loop; in `run_here` called at once."""
    return fn(*args, **kwargs) if _thread.waits else await off_loop(fn, *args, **kwargs)


async def settled(futures: Collection[Future[T]]) -> Collection[Future[T]]:
    """Wait until all futures are done or one has failed; return all, or those that have failed."""
    if all(future.done() for future in futures):
        return futures
    if _thread.waits:
        ended: SimpleQueue[Future[T]] = SimpleQueue()
        for future in futures:
            future.add_done_callback(ended.put)  # also of one that is cancelled, for which `wait` would wait for ever
        for _ in futures:
            if _has_failed(ended.get()):
                break
    else:
        with suppress(Exception):  # it is in its future
            await asyncio.gather(*map(asyncio.wrap_future, futures))
    done = [future for future in futures if future.done()]
    return [future for future in done if _has_failed(future)] or futures


def _has_failed(future: Future[Any]) -> bool:
    return future.cancelled() or future.exception() is not None


class AsksParts(Graph):
    """A graph in parts, as far as its parts are asked; see DistGraph. HopRequests says what a minibatch asks."""

    _in_parts = True
    facts: PartitionFacts
    book: PartitionBook
    peers: Peers
    local_part: Part | None
    _kept_digests: dict[DigestRequest, dict[Any, list[str] | None]]  # what `ChosenOverParts` has asked so far

    async def _answers(self, asks: Sequence[Ask]) -> list[Any]:
        """Return the answer of each part. Other parts are asked first, so that they work while this one does."""
        waiting: dict[Future[Any], int] = {}
        answers = {}
        try:
            for ask in asks:
                if not self._is_here(ask.part):
                    with _noting_part(ask.part):
                        waiting[self.peers.ask(ask.part, ask.request)] = ask.part
            for ask in asks:
                if self._is_here(ask.part):
                    with _noting_part(ask.part):
                        answers[ask.part] = await beside(self._answer_here, ask.request)
            for future in await settled(waiting):
                with _noting_part(waiting[future]):
                    answers[waiting[future]] = future.result()
        finally:
            for future in waiting:
                future.cancel()  # those that an error leaves behind
        return [answers[ask.part] for ask in asks]

    def _is_here(self, part: int) -> bool:
        """Return whether a part is that of this process, which is read without a request."""
        return self.local_part is not None and self.local_part.part == part

    def _answer_here(self, request: Request[Answer]) -> Answer:
        assert self.local_part is not None
        return request.answered_by(self.local_part, num_threads=num_threads())


class ChosenOverParts:
    """What a choice reads of the edge types that a stage samples; see HopPlan. Parts make what they draw by when
    they are first asked; the part in this process when the stage is built.
    """

    def __init__(self, graph: AsksParts, where: str, choice: Choice, edge_types: Sequence[Any]) -> None:
        self.graph, self._where, self._reads, self._edge_types = graph, where, choice.reads, tuple(edge_types)
        if self._reads is not None:
            self._reads.check(where, graph, edge_types)
            if graph.local_part is not None:
                for edge_type in edge_types:
                    graph.local_part.chosen(where, self._reads, edge_type)

    def refuse_change(self) -> None:
        """Raise ValueError if an array of the part in this process was changed in place."""
        if self._reads is not None and self.graph.local_part is not None:
            self.graph.local_part.refuse_change()

    def digests(self) -> dict[Any, list[str] | None]:
        """Return the sums of the digests of all parts. They are asked at once, when this is called first.

        They are part of a sampler's fingerprint, so a state moves between the whole graph and any parts.

        Raises:
            ValueError: The parts do not agree on what there is to read.
            What the requests raise, see DistGraph.connect. A note names the part.
        """
        if self._reads is None:
            return {}
        kept, request = self.graph._kept_digests, DigestRequest(self._edge_types, self._reads)
        if request not in kept:
            asks = [Ask(part, request) for part in range(self.graph.facts.num_parts)]
            by_edge_type = zip(*run_here(self.graph._answers(asks)), strict=True)
            kept[request] = dict(zip(self._edge_types, map(self._sum, self._edge_types, by_edge_type), strict=True))
        return kept[request]

    def _sum(self, edge_type: Any, of_parts: Sequence[list[str] | None]) -> list[str] | None:
        lengths = {None if digests is None else len(digests) for digests in of_parts}
        if len(lengths) > 1:
            raise ValueError(
                f"{self._where}: some parts have values of {edge_type} to draw by and others have none. Look at the "
                "servers: their versions, their files."
            )
        present = [digests for digests in of_parts if digests is not None]
        return [sum_of_digests(digests) for digests in zip(*present, strict=True)] if present else None


@contextmanager
def _noting_part(part: int) -> Iterator[None]:
    """Add to an error which part was asked."""
    try:
        yield
    except Exception as error:
        add_note(error, f"asked of part {part}")
        raise
