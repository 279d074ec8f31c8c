"""Asking parts: the one in this process, and those behind servers, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple

from datapipes.base.errors import add_note
from datapipes.base.threads import num_threads
from datapipes.chain.asynchronous import off_loop
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.wire.peers import Peers
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.graph.rows_digest import sum_of_digests
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.answers import answer_digests, answer_draw, answer_edges, answer_rows
from datapipes.partition.native.part import Part
from datapipes.partition.native.requests import DigestRequest, Digests, DrawRequest, EdgesRequest, RowsRequest


class Ask(NamedTuple):
    """What one part is asked."""

    part: int
    request: DrawRequest | EdgesRequest | RowsRequest


class AsksParts(Graph):
    """A graph in parts, as far as its parts are asked; see DistGraph. What a minibatch asks, HopRequests says.

    Attributes:
        kept_digests: what `ChosenOverParts` has asked so far.
    """

    _in_parts = True
    facts: PartitionFacts
    book: PartitionBook
    peers: Peers
    local_part: Part | None
    _kept_digests: dict[DigestRequest, dict[Any, list[str] | None]]

    def _answers(self, asked: list[Ask]) -> list[Any]:
        """Return the answer of each part. Other parts are asked first, so that they work while the own one does."""
        waiting = self._request(asked)
        answers = {}
        try:
            for ask in sorted(asked, key=lambda ask: ask.part in waiting):
                with _noting_part(ask.part):
                    answers[ask.part] = waiting[ask.part].result() if ask.part in waiting else self._answer_here(ask)
        finally:
            for future in waiting.values():
                future.cancel()  # those that an error leaves behind
        return [answers[ask.part] for ask in asked]

    async def _awaited_answers(self, asked: list[Ask]) -> list[Any]:
        """Return what `_answers` does."""
        waiting = self._request(asked)

        async def answer(ask: Ask) -> Any:
            with _noting_part(ask.part):
                if ask.part in waiting:
                    return await asyncio.wrap_future(waiting[ask.part])
                return await off_loop(self._answer_here, ask)

        tasks = [asyncio.ensure_future(answer(ask)) for ask in asked]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # those that an error leaves behind

    def _digests_of_parts(self, request: DigestRequest) -> list[Digests]:
        """Return the answer of each part, in their order; all are asked at once."""
        waiting = {}
        for part in range(self.facts.num_parts):
            if not self._is_here(part):
                with _noting_part(part):
                    waiting[part] = self.peers.digests(part, request)
        answers = []
        for part in range(self.facts.num_parts):
            with _noting_part(part):
                if part in waiting:
                    answers.append(waiting[part].result())
                else:
                    assert self.local_part is not None
                    answers.append(answer_digests(self.local_part, request))
        return answers

    def _is_here(self, part: int) -> bool:
        """Return whether a part is that of this process, which is read without a request."""
        return self.local_part is not None and self.local_part.part == part

    def _request(self, asked: list[Ask]) -> dict[int, Future[Any]]:
        waiting: dict[int, Future[Any]] = {}
        for part, request in asked:
            if not self._is_here(part):
                with _noting_part(part):
                    if isinstance(request, DrawRequest):
                        waiting[part] = self.peers.draw(part, request)
                    elif isinstance(request, EdgesRequest):
                        waiting[part] = self.peers.edges(part, request)
                    else:
                        waiting[part] = self.peers.rows(part, request)
        return waiting

    def _answer_here(self, ask: Ask) -> Any:
        part, request = self.local_part, ask.request
        assert part is not None
        if isinstance(request, DrawRequest):
            return answer_draw(part, request, num_threads=num_threads())
        if isinstance(request, EdgesRequest):
            return answer_edges(part, request)
        return answer_rows(part, request, num_threads=num_threads())


class ChosenOverParts:
    """What a choice reads of the edge types that a stage samples; see ChosenEdges. Parts make what they draw by when
    they are first asked; the part in this process when the stage is built.
    """

    def __init__(self, graph: AsksParts, where: str, choice: Choice, edge_types: Sequence[Any]) -> None:
        self.graph, self._where, self._reads, self._edge_types = graph, where, choice.reads, tuple(edge_types)
        if self._reads is not None:
            self._reads.check(where, graph, edge_types)
            if graph.local_part is not None:
                for of in edge_types:
                    graph.local_part.chosen(where, self._reads, of)

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
            by_edge_type = zip(*self.graph._digests_of_parts(request), strict=True)
            kept[request] = {of: self._sum(of, each) for of, each in zip(self._edge_types, by_edge_type, strict=True)}
        return kept[request]

    def _sum(self, edge_type: Any, found: Sequence[list[str] | None]) -> list[str] | None:
        lengths = {None if each is None else len(each) for each in found}
        if len(lengths) > 1:
            raise ValueError(
                f"{self._where}: some parts have values of {edge_type} to draw by and others have none. Look at the "
                "servers: their versions, their files."
            )
        given = [each for each in found if each is not None]
        return [sum_of_digests(each) for each in zip(*given, strict=True)] if given else None


@contextmanager
def _noting_part(part: int) -> Iterator[None]:
    """Add to an error which part was asked."""
    try:
        yield
    except Exception as error:
        add_note(error, f"asked of part {part}")
        raise
