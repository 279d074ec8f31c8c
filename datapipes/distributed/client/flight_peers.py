"""FlightPeers: parts behind servers, asked through Arrow Flight; their requests cut so that answers stay small enough
to send, and the answers put together.
"""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.distributed.address import Address
from datapipes.distributed.arrow import arrow_flight, refuse_forked
from datapipes.distributed.client.connection import Connection
from datapipes.distributed.client.greeting import WHAT, greeted
from datapipes.distributed.client.remote_part import Limits, RemotePart, Send
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.resolver import Replicas
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.distributed.wire.part_codec import (
    BYTES_PER_PAIR,
    RowsSink,
    answered_rows_bytes,
    answered_rows_from_message,
    digest_to_message,
    digests_from_message,
    draw_to_message,
    drawn_from_message,
    edges_to_message,
    found_edges_from_message,
    most_drawn_bytes,
    row_bytes,
    rows_to_message,
)
from datapipes.distributed.wire.refusals import AnswerTooLarge
from datapipes.graph.graph import FoundEdges
from datapipes.partition.native.requests import (
    DigestRequest,
    Digests,
    Drawn,
    DrawRequest,
    EdgesRequest,
    Rows,
    RowsRequest,
    TakeRows,
)

ANSWER_BYTES = 64 * 2**20  # of the rows that one request asks for, about
MOST_IDS = 2**20  # that one request has
MOST_BYTES = 2**31  # of one answer; a server sends less


class Piece(NamedTuple):
    """A part of a RowsRequest.

    Attributes:
        entries: for each entry of `request.rows`, the number of the entry of the whole request that it is cut from.
        firsts: for each, the place there of its first id.
        request: the smaller request.
    """

    entries: tuple[int, ...]
    firsts: tuple[int, ...]
    request: RowsRequest

    def taking(self, whole: RowsRequest, take: TakeRows) -> TakeRows:
        """Return what takes the rows of this piece's answer, for `take` of the whole request."""
        before = [0, *itertools.accumulate(len(rows.names) for rows in whole.rows)]
        places = [
            (before[entry] + number, first)
            for entry, first in zip(self.entries, self.firsts, strict=True)
            for number in range(len(whole.rows[entry].names))
        ]

        def shifted(number: int, first: int, rows: Tensor) -> None:
            of_whole, begin = places[number]
            take(of_whole, begin + first, rows)

        return shifted


def cut_rows(request: RowsRequest, facts: PartitionFacts, most_bytes: int = ANSWER_BYTES) -> list[Piece]:
    """Return the pieces of a request, in its order; at least one. A row larger than `most_bytes` is asked for alone."""
    pieces: list[list[tuple[int, int, Rows]]] = [[]]
    room, ids_left = most_bytes, MOST_IDS
    for number, rows in enumerate(request.rows):
        width, done, count = row_bytes(rows, facts), 0, rows.ids.shape[0]
        while True:
            fitting = min(room // width, ids_left) if width > 0 else ids_left
            if fitting == 0 and not pieces[-1]:
                fitting = 1
            taken = min(fitting, count - done)
            if taken > 0 or count == 0:
                pieces[-1].append((number, done, rows._replace(ids=rows.ids[done : done + taken])))
            done, room, ids_left = done + taken, room - taken * width, ids_left - taken
            if done == count:
                break
            pieces.append([])
            room, ids_left = most_bytes, MOST_IDS
    cut = []
    for piece in pieces:
        entries, firsts = tuple(number for number, _, _ in piece), tuple(first for _, first, _ in piece)
        cut.append(Piece(entries, firsts, RowsRequest(tuple(rows for _, _, rows in piece))))
    return cut


def halves_of_rows(request: RowsRequest, facts: PartitionFacts) -> list[Piece]:
    """Return pieces of a request, each with half of the bytes or less; one if it cannot be cut."""
    return cut_rows(request, facts, max(answered_rows_bytes(request, facts) // 2, 1))


def join_rows(request: RowsRequest, pieces: Sequence[Piece], answers: Sequence[list[Tensor]]) -> list[Tensor]:
    """Return the answer to a request of which each piece was answered."""
    answered: list[list[list[Tensor]]] = [[[] for _ in rows.names] for rows in request.rows]
    for piece, answer in zip(pieces, answers, strict=True):
        tensors = iter(answer)
        for number in piece.entries:
            for of_name in answered[number]:
                of_name.append(next(tensors))
    return [pieces[0] if len(pieces) == 1 else torch.cat(pieces) for of_entry in answered for pieces in of_entry]


def most_bytes_of_draw(request: DrawRequest, facts: PartitionFacts) -> int:
    """Return how many bytes the answer to a request may have; with all in-edges, what a server sends at most."""
    most_bytes = most_drawn_bytes(request, facts)
    return MOST_BYTES if most_bytes is None else min(most_bytes, MOST_BYTES)


def cut_draw(request: DrawRequest, most_ids: int = MOST_IDS) -> list[DrawRequest]:
    """Return requests for the same draws of at most so many nodes each, in order; at least one."""
    total = sum(ids.shape[0] for ids in request.ids.values())
    return [request.rows(begin, begin + most_ids) for begin in range(0, max(total, 1), most_ids)]


def halves(request: DrawRequest) -> list[DrawRequest]:
    """Return two requests for the same draws, each of half of the nodes; one if there is one node or none."""
    total = sum(ids.shape[0] for ids in request.ids.values())
    return cut_draw(request, max(-(-total // 2), 1))


def cut_edges(request: EdgesRequest, most_pairs: int = MOST_IDS) -> list[EdgesRequest]:
    """Return requests for the same pairs, at most so many each, in order; at least one."""
    ends = zip(*(torch.split(ids, most_pairs) for ids in (request.destinations, request.sources)), strict=True)
    return [EdgesRequest(request.edge_type, *ids) for ids in ends]


def join_edges(answers: Sequence[FoundEdges]) -> FoundEdges:
    """Return the answer to a request that was cut; the answers are in order."""
    return answers[0] if len(answers) == 1 else FoundEdges(*map(torch.cat, zip(*answers, strict=True)))


def join_draws(answers: Sequence[list[Drawn]]) -> list[Drawn]:
    """Return the answer to a request that was cut; the answers are in order."""
    return answers[0] if len(answers) == 1 else [_joined(drawn) for drawn in zip(*answers, strict=True)]


def _joined(pieces: Sequence[Drawn]) -> Drawn:
    indptr, count = [pieces[0].indptr[:1]], 0
    for piece in pieces:
        indptr.append(piece.indptr[1:] + count)
        count += piece.neighbors.shape[0]
    ids = [piece.edge_ids for piece in pieces if piece.edge_ids is not None]
    return Drawn(torch.cat(indptr), torch.cat([piece.neighbors for piece in pieces]), torch.cat(ids) if ids else None)


_WHERE = "FlightPeers"
_Answer = TypeVar("_Answer")


class FlightPeers:
    """Parts behind servers. Building it starts nothing; a process connects to a server when it first asks.

    In worker processes it goes by its arguments. Each process has for each server up to 4 connections and up to 16
    requests at a time, each with a thread that waits; `close` ends them, and so does the end of the process.

    Args:
        addresses: {part: where its server is}.
        facts: what the servers must agree with; a server that does not is refused when it is met.
        tls: the certificates of this side; None speaks without TLS.
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
        asks = [partial(self._rows, part, piece.request, take) for piece, take in zip(pieces, takes, strict=True)]
        answers = [self.ask(part, ask) for ask in asks]
        return joined(answers, lambda tensors: join_rows(request, pieces, tensors) if take is None else [])

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
            return join_draws([self._drawn(part, half, send) for half in cut])
        return drawn_from_message(self.where(part), answer, request, self.facts)

    def _edges(self, part: int, request: EdgesRequest, send: Send) -> FoundEdges:
        count = request.sources.shape[0]
        try:
            answer = send(edges_to_message(request, self.meant(part)), BYTES_PER_PAIR * count)
        except AnswerTooLarge:
            if count < 2:
                raise
            return join_edges([self._edges(part, half, send) for half in cut_edges(request, -(-count // 2))])
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
            answers = [self._rows(part, piece.request, sink, send) for piece, sink in zip(cut, takes, strict=True)]
            return join_rows(request, cut, answers) if take is None else []
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
        kind = WHAT[self._by_rank]
        with self._changing:
            if part not in self._parts:
                if part not in self._addresses:
                    raise ValueError(
                        f"{_WHERE}: {kind} {shown(part)} is not in the namebook; there are {[*self._addresses]}. "
                        "Name one of these, or add it there."
                    )
                replicas, connect = self._addresses[part], self._connecting(part)
                again = None if self._again is None else partial(self._again, part)
                self._parts[part] = RemotePart(part, replicas, self._limits, connect, kind=kind, again=again)
                if self._closed:
                    self._parts[part].close()
            return self._parts[part]

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._changing:
            self._closed = True
            parts = [*self._parts.values()]
        for part in parts:
            part.stop()
        for part in parts:
            part.close()
        self._end.detach()  # or it would keep this until the peers end, which may connect and close many times

    def _connecting(self, part: int) -> Callable[[Address, float], Connection]:
        facts, limits, tls, wanted = self._facts, self._limits, self._tls, None if self._by_rank else part
        named = f"{WHAT[self._by_rank]} {part} at"
        return lambda address, timeout: greeted(
            wanted, address, limits, timeout, tls=tls, facts=facts, where=f"{named} {address}"
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
            whole.set_result(join([piece.result() for piece in ended_pieces]))
        except BaseException as error:
            whole.set_exception(error)

    for piece in pieces:
        piece.add_done_callback(ended)
    return whole
