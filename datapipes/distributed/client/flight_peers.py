"""FlightPeers: parts behind servers, asked through Arrow Flight."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.distributed.address import Address
from datapipes.distributed.arrow import arrow_flight, refuse_forked
from datapipes.distributed.client.connection import Connection
from datapipes.distributed.client.cut import (
    cut_draw,
    cut_edges,
    cut_rows,
    halves,
    halves_of_rows,
    join_draws,
    join_edges,
    join_rows,
    most_bytes_of_draw,
)
from datapipes.distributed.client.greeting import WHAT, greeted
from datapipes.distributed.client.remote_part import Limits, RemotePart, Send
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.resolver import Replicas
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.digest_codec import digest_to_message, digests_from_message
from datapipes.distributed.wire.draw_codec import draw_to_message, drawn_from_message
from datapipes.distributed.wire.edges_codec import BYTES_PER_PAIR, edges_to_message, found_edges_from_message
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.distributed.wire.refusals import AnswerTooLarge
from datapipes.distributed.wire.rows_codec import (
    RowsSink,
    answered_rows_bytes,
    answered_rows_from_message,
    rows_to_message,
)
from datapipes.graph.graph import FoundEdges
from datapipes.partition.native.requests import (
    DigestRequest,
    Digests,
    Drawn,
    DrawRequest,
    EdgesRequest,
    RowsRequest,
    TakeRows,
)

_WHERE = "FlightPeers"
_Answer = TypeVar("_Answer")


class FlightPeers:
    """Parts behind servers. Building it starts nothing; a process connects to a server when it first asks.

    In worker processes it goes by its arguments. Each process has for each server up to 4 connections and up to 16
    requests at a time, each with a thread that waits; `close` ends them, and so does the end of the process.

    Args:
        addresses: {part: where its server is}.
        facts: what the servers must agree with; a server that does not is refused when it is met.
        tls: what client and server prove to each other who they are with; None: neither does.
        deadline: seconds for each request in all, within which it is asked again as often as it helps.
        may_return: whether a server that is gone is waited for; else a request to it fails at once.
        by_rank: the numbers are those of servers, which may have any part, and not of parts.
        again: tells where a part is now, asked when none of its servers can be reached.
    Raises:
        ImportError: pyarrow is not installed.
    """

    def __init__(
        self,
        addresses: Mapping[int, Replicas],
        facts: PartitionFacts,
        *,
        tls: TLSConfig | None,
        deadline: float,
        may_return: bool = True,
        by_rank: bool = False,
        again: Callable[[int], Replicas] | None = None,
    ) -> None:
        arrow_flight(_WHERE)  # here rather than in a worker
        self.by_rank, self.again = by_rank, again
        self.addresses, self.facts, self.tls, self.limits = dict(addresses), facts, tls, Limits(deadline, may_return)
        self._here: dict[int, _Here] = {}  # by process; at most one is of this one

    def draw(self, part: int, request: DrawRequest) -> Future[list[Drawn]]:
        """Ask a part for a hop; return at once. See Peers."""
        pieces = cut_draw(request)
        return joined([self.ask(part, partial(self._drawn, part, piece)) for piece in pieces], join_draws)

    def rows(self, part: int, request: RowsRequest, take: TakeRows | None = None) -> Future[list[Tensor]]:
        """Ask a part for rows of features; return at once. See Peers."""
        pieces = cut_rows(request, self.facts)
        takes = [None if take is None else piece.taking(request, take) for piece in pieces]
        answers = [
            self.ask(part, partial(self._rows, part, piece.request, each))
            for piece, each in zip(pieces, takes, strict=True)
        ]
        return joined(answers, lambda found: join_rows(request, pieces, found) if take is None else [])

    def edges(self, part: int, request: EdgesRequest) -> Future[FoundEdges]:
        """Ask a part whether pairs are edges; return at once. See Peers."""
        pieces = cut_edges(request)
        return joined([self.ask(part, partial(self._edges, part, piece)) for piece in pieces], join_edges)

    def digests(self, part: int, request: DigestRequest) -> Future[Digests]:
        """Ask a part for digests of what it draws by; return at once. See Peers."""

        def ask(send: Send) -> Digests:
            answer = send(digest_to_message(request, self.meant(part)), 0)
            return digests_from_message(self.where(part), answer, request)

        return self.ask(part, ask)

    def told(self, part: int, kind: str) -> Future[dict[str, Any]]:
        """Ask a server what it says of itself, "health" or "statistics"; return at once."""
        message = Message(request_header(kind, self.meant(part)), {})
        return self.ask(part, lambda send: send(message, 0).header)

    def close(self) -> None:
        """End all connections and threads of this process; may be called twice. The next request connects again.

        Requests in flight end with an error, or with their answer. Those whose server stands still are waited for, two
        thirds of the deadline at most.
        """
        here = self._here.pop(os.getpid(), None)
        if here is not None:
            here.close()

    def ask(self, part: int, ask: Callable[[Send], _Answer]) -> Future[_Answer]:
        """Let `ask(send)` ask a server, as often as it takes; return at once.

        `send(request, most_bytes)` returns the answer. Requests may be made again: they must be idempotent.
        """
        refuse_forked(_WHERE)
        # Atomic, so that no lock is needed, which a fork could leave taken.
        here = self._here.get(os.getpid()) or self._here.setdefault(os.getpid(), _Here(self))
        return here.part(part).submit(ask)

    def _drawn(self, part: int, request: DrawRequest, send: Send) -> list[Drawn]:
        try:
            answer = send(draw_to_message(request, self.meant(part)), most_bytes_of_draw(request, self.facts))
        except AnswerTooLarge:
            cut = halves(request)
            if len(cut) == 1:
                raise
            return join_draws([self._drawn(part, each, send) for each in cut])
        return drawn_from_message(self.where(part), answer, request, self.facts)

    def _edges(self, part: int, request: EdgesRequest, send: Send) -> FoundEdges:
        count = request.sources.shape[0]
        try:
            answer = send(edges_to_message(request, self.meant(part)), BYTES_PER_PAIR * count)
        except AnswerTooLarge:
            if count < 2:
                raise
            return join_edges([self._edges(part, each, send) for each in cut_edges(request, -(-count // 2))])
        return found_edges_from_message(self.where(part), answer, request)

    def _rows(self, part: int, request: RowsRequest, take: TakeRows | None, send: Send) -> list[Tensor]:
        where = self.where(part)
        sink = None if take is None else RowsSink(where, request, self.facts, take)
        try:
            answer = send(rows_to_message(request, self.meant(part)), answered_rows_bytes(request, self.facts), sink)
        except AnswerTooLarge:
            cut = halves_of_rows(request, self.facts)
            if len(cut) == 1:
                raise
            takes = [None if take is None else piece.taking(request, take) for piece in cut]
            found = [self._rows(part, piece.request, each, send) for piece, each in zip(cut, takes, strict=True)]
            return join_rows(request, cut, found) if take is None else []
        if sink is not None:
            return []
        return answered_rows_from_message(where, answer, request, self.facts)

    def meant(self, part: int) -> Meant:
        """Return what the header of a request to a server says of whom it means."""
        return Meant(None if self.by_rank else part, self.facts.partition_id, self.facts.content_id)

    def where(self, part: int) -> str:
        """Return how errors name a server."""
        return f"{WHAT[self.by_rank]} {part} at {self.addresses[part]}"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_here": {}}

    def __repr__(self) -> str:
        return f"{_WHERE}({', '.join(f'{part}: {address}' for part, address in self.addresses.items())})"


class _Here:
    """What one process has of FlightPeers: the remote parts that it has asked. It ends with its process."""

    def __init__(self, peers: FlightPeers) -> None:
        self._pid = os.getpid()
        self._addresses, self._limits = peers.addresses, peers.limits
        self._facts, self._tls, self._by_rank, self._again = peers.facts, peers.tls, peers.by_rank, peers.again
        self._parts: dict[int, RemotePart] = {}
        self._changing = threading.Lock()
        self._closed = False
        # Before the interpreter ends, or a thread would be caught inside the library.
        self._end = weakref.finalize(peers, self.close)

    def part(self, part: int) -> RemotePart:
        with self._changing:
            if part not in self._parts:
                if part not in self._addresses:
                    raise ValueError(
                        f"{_WHERE}: {WHAT[self._by_rank]} {shown(part)} is not in the namebook; there are "
                        f"{[*self._addresses]}."
                    )
                again = None if self._again is None else partial(self._again, part)
                self._parts[part] = RemotePart(
                    part,
                    self._addresses[part],
                    self._limits,
                    self._connecting(part),
                    what=WHAT[self._by_rank],
                    again=again,
                )
                if self._closed:
                    self._parts[part].close()
            return self._parts[part]

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._changing:
            self._closed = True
            parts = [*self._parts.values()]
        for each in parts:
            each.stop()
        for each in parts:
            each.close()
        self._end.detach()  # or it would keep this until the peers end, which may connect and close many times

    def _connecting(self, part: int) -> Callable[[Address, float], Connection]:
        facts, limits, tls, wanted = self._facts, self._limits, self._tls, None if self._by_rank else part
        named = f"{WHAT[self._by_rank]} {part} at"
        return lambda address, timeout: greeted(
            wanted,
            address,
            limits,
            timeout,
            tls=tls,
            facts=facts,
            partition_id=facts.partition_id,
            where=f"{named} {address}",
        )[0]


_Piece = TypeVar("_Piece")
_Whole = TypeVar("_Whole")


def joined(pieces: Sequence[Future[_Piece]], join: Callable[[list[_Piece]], _Whole]) -> Future[_Whole]:
    """Return a future of `join` of all answers, or of the first error in the order of `pieces`, when all have ended."""
    whole: Future[_Whole] = Future()
    whole.set_running_or_notify_cancel()
    left, lock = len(pieces), threading.Lock()
    kept = [*pieces]

    def ended(_: Future[_Piece]) -> None:
        nonlocal left
        with lock:
            left -= 1
            if left > 0:
                return
        ended_pieces = [*kept]
        kept.clear()  # they hold this function, which must not hold them and their answers
        try:
            whole.set_result(join([each.result() for each in ended_pieces]))
        except BaseException as error:
            whole.set_exception(error)

    for each in pieces:
        each.add_done_callback(ended)
    return whole
