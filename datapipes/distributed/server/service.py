"""What a server does with a request, from its bytes until the last batch of its answer is sent.

How many bytes an answer will have is told before it is made. gRPC ends an answer when its client closes the connection,
dies, or has passed the deadline of the call. A client that stops reading without any of these would hold the answer's
memory for good; its connection is ended here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from datapipes.base.log import logger
from datapipes.base.threads import threads_of_kernels
from datapipes.base.types import ends_of
from datapipes.distributed.asking_parts import answer_of
from datapipes.distributed.facts import PartitionFacts, greeting_to_message
from datapipes.distributed.server.admission import Admission, Hold
from datapipes.distributed.server.connections import Connections
from datapipes.distributed.server.guards import own_memory
from datapipes.distributed.server.limits import ServerLimits, or_cores, sizes_of
from datapipes.distributed.server.producers import Producers
from datapipes.distributed.server.served import Offers
from datapipes.distributed.server.statistics import Statistics
from datapipes.distributed.wire.arrow_message import Message, to_batches
from datapipes.distributed.wire.arrow_reading import BadMessage, from_bytes
from datapipes.distributed.wire.envelope import OF_CHAINS, Meant, answer_header, check_meant, check_versions, kind_of
from datapipes.distributed.wire.part_codec import (
    BYTES_PER_PAIR,
    answered_rows_bytes,
    answered_rows_to_message,
    digest_from_message,
    digests_to_message,
    draw_from_message,
    drawn_bytes,
    drawn_to_message,
    edges_from_message,
    found_edges_to_message,
    most_drawn_bytes,
    rows_from_message,
)
from datapipes.distributed.wire.refusals import (
    AnswerTooLarge,
    BadRequest,
    OtherPartition,
    Unavailable,
    UnknownProducer,
)
from datapipes.graph.local_graph import LocalGraph
from datapipes.partition.native.answers import answer_draw
from datapipes.partition.native.part import Part
from datapipes.partition.native.requests import DigestRequest, Digests, Draw, DrawRequest, EdgesRequest, RowsRequest

_RESULTS = {  # of what is counted; other errors are those of a request that the part refuses
    BadRequest: "bad_request",
    OtherPartition: "other_partition",
    AnswerTooLarge: "too_large",
    Unavailable: "unavailable",
    UnknownProducer: "unknown_producer",
}
# {kind: (reads a request, writes its answer, what the answer has)}
_OF_PARTS: dict[str, tuple[Callable[[str, Message], Any], Callable[[Any], Message], str]] = {
    "rows": (rows_from_message, answered_rows_to_message, "rows"),
    "edges": (edges_from_message, found_edges_to_message, "answers"),
    "digest": (digest_from_message, digests_to_message, "digests"),
}
_JOIN_S = 1.0  # for threads that have nothing to do any more; one may be inside a kernel
_REFUSED = (ValueError, TypeError, LookupError)


class Service:
    """Answers requests to a part, or to a whole graph, within limits. `close` ends its threads.

    Args:
        part, graph: a part; or a whole graph, of which only minibatches are made.
        offers: what it has for chains; None makes no minibatches.
    Attributes:
        greet: told the name of the connection of each request.
    """

    def __init__(
        self,
        facts: PartitionFacts,
        part: Part | None,
        graph: LocalGraph | None,
        limits: ServerLimits,
        connections: Connections,
        offers: Offers | None = None,
    ) -> None:
        self.facts, self._num_threads = facts, limits.num_threads
        self._max_request_bytes, self._max_answer_bytes, max_bytes_in_flight = sizes_of(limits)
        concurrency = or_cores(limits.concurrency)
        number = 0 if part is None else part.part
        self.meant = Meant(number, facts.partition_id, facts.content_id)
        self.where = "server of a whole graph" if part is None else f"server of part {number}"
        self._part, self._graph = part, graph
        self.producers = None if offers is None else Producers(self.where, offers, limits)
        self.statistics = Statistics()
        self.admission = Admission(self.where, concurrency, limits.max_waiting, max_bytes_in_flight)
        self.answers = Answers(self.statistics, limits.stall_s, connections)
        self.greet: Callable[[str], None] = lambda peer: None
        # gRPC has a thread for each call; without a bound all of them could read at once.
        self._reading = threading.BoundedSemaphore(concurrency)
        self.is_stopping = self.is_leaving = False

    def answer(self, peer: str, ticket: bytes, is_cancelled: Callable[[], bool]) -> tuple[Any, Any]:
        """Return the schema of the answer and its batches, to be sent.

        Args:
            peer: name of the client's connection.
            is_cancelled: whether the client has given up.
        Raises:
            BadRequest, OtherPartition, AnswerTooLarge, Unavailable: See there.
            ValueError, TypeError, LookupError: The part refuses the request: unknown types, features or ids.
        """
        self.greet(peer)
        began, kind, result, sent = time.monotonic(), "unknown", "error", 0
        hold: Hold | None = None
        try:
            message = self._read(ticket, is_cancelled)
            kind = kind_of(self.where, message.header)
            check_meant(self.where, message.header, self.meant)
            answer, hold = self._answer(kind, peer, message, is_cancelled)
            sent, result = answer.num_bytes, "ok"
            schema, batches = to_batches(self.where, answer)
            if hold is None:
                return schema, batches
            return schema, Answer(self.answers, peer, hold, batches)
        except BaseException as error:
            if hold is not None:
                hold.release()
            result = next((name for error_type, name in _RESULTS.items() if isinstance(error, error_type)), "error")
            if not isinstance(error, (*_REFUSED, Unavailable)):
                logger.exception("%s: a request of %s failed", self.where, peer)
            raise
        finally:
            self.statistics.count(kind, result, time.monotonic() - began, received=len(ticket), sent=sent)

    @property
    def part(self) -> Part:
        """The part; BadRequest if it serves a whole graph."""
        if self._part is None:
            raise BadRequest(f"{self.where}: has no part; it makes minibatches of chains only. Serve a partition.")
        return self._part

    @property
    def kept_bytes(self) -> int:
        """Bytes of memory that the part has made for choices so far."""
        return 0 if self._part is None else self._part.kept_bytes

    def end_producers(self, num_bytes: int) -> int:
        """End the producers that hold most, until so many bytes are free; return how many ended."""
        return 0 if self.producers is None else self.producers.end_largest(num_bytes)

    def close(self, grace_s: float) -> bool:
        """Refuse new requests, wait up to `grace_s` for answers under way, end the rest; return whether there was one.

        The connections of the rest are ended.
        """
        self.is_stopping = True
        ends = time.monotonic() + grace_s
        ended = self.admission.close(grace_s)
        if self.producers is not None:
            ended = self.producers.close(max(ends - time.monotonic(), 0.0)) and ended
        self.answers.close()
        self.admission.join(max(grace_s, _JOIN_S))
        return not ended

    def numbers(self) -> dict[str, Any]:
        """Return the statistics, as JSON values."""
        return {
            **self.statistics.values(),
            "waiting": self.admission.num_waiting,
            "working": self.admission.num_working,
            "bytes_in_flight": self.admission.num_bytes,
            "memory_bytes": own_memory(),
            **({} if self.producers is None else {"producers": self.producers.numbers()}),
        }

    def _read(self, ticket: bytes, is_cancelled: Callable[[], bool]) -> Message:
        with self._reading:
            self._refuse_given_up(is_cancelled)
            try:
                message = from_bytes(self.where, ticket, self._max_request_bytes)
            except BadMessage as error:
                raise BadRequest(str(error)) from error
        check_versions(self.where, message.header)
        return message

    def _answer(
        self, kind: str, peer: str, message: Message, is_cancelled: Callable[[], bool]
    ) -> tuple[Message, Hold | None]:
        if kind == "health":
            status = "stopping" if self.is_stopping else "leaving" if self.is_leaving else "serving"
            return Message(answer_header(kind, status=status, part=self.meant.part), {}), None
        if kind == "statistics":
            return Message(answer_header(kind, statistics=self.numbers()), {}), None
        if self.is_stopping:
            raise Unavailable(f"{self.where}: the server stops. Ask the next one.")
        if kind == "hello":
            return greeting_to_message(self.meant.part or 0, self.facts), None
        if kind in OF_CHAINS:
            return self._of_chains(kind, peer, message, is_cancelled)
        if kind == "draw":
            return self._draw(peer, message, is_cancelled)
        return self._of_part(kind, peer, message, is_cancelled)

    def _of_chains(
        self, kind: str, peer: str, message: Message, is_cancelled: Callable[[], bool]
    ) -> tuple[Message, Hold | None]:
        if self.producers is None:
            raise BadRequest(f"{self.where}: makes no minibatches of chains. Start it with chains=True, or --chains.")
        if kind == "producer":
            return self.producers.create(peer, message, is_cancelled)
        if kind == "minibatch":
            return self.producers.minibatch(peer, message, is_cancelled)
        return (self.producers.destroy if kind == "destroy_producer" else self.producers.listed)(message), None

    def _of_part(
        self, kind: str, peer: str, message: Message, is_cancelled: Callable[[], bool]
    ) -> tuple[Message, Hold]:
        """Answer a request whose answer has a known size: for rows, edges or digests."""
        read, write, things = _OF_PARTS[kind]
        with self._reading:
            request = read(self.where, message)
        num_bytes = 0
        if isinstance(request, RowsRequest):
            num_bytes = answered_rows_bytes(request, self.facts)
        elif isinstance(request, EdgesRequest):
            num_bytes = BYTES_PER_PAIR * request.sources.shape[0]

        def work() -> Message:
            with threads_of_kernels(self._num_threads):
                if self._graph is not None and isinstance(request, DigestRequest):
                    return write(_digests_of_graph(self._graph, request))
                return write(answer_of(self.part, request, self._num_threads))

        return self.admission.run(peer, self._within(num_bytes, things), work, is_cancelled)

    def _draw(self, peer: str, message: Message, is_cancelled: Callable[[], bool]) -> tuple[Message, Hold]:
        with self._reading:
            request = draw_from_message(self.where, message)
        num_bytes = most_drawn_bytes(request, self.facts)

        def go_on() -> None:
            self._refuse_given_up(is_cancelled)
            if self.admission.is_closed:
                raise Unavailable(f"{self.where}: the server stops. Ask the next one.")

        def num_edges(draw: Draw, _: int) -> int:
            go_on()
            return _num_edges(self.part, request, draw)

        def count() -> int:
            with threads_of_kernels(self._num_threads):
                return drawn_bytes(request, self.facts, num_edges)

        def work() -> Message:
            with threads_of_kernels(self._num_threads):
                drawn = answer_draw(self.part, request, num_threads=self._num_threads, go_on=go_on)
                return drawn_to_message(drawn)

        if num_bytes is None or num_bytes > self._max_answer_bytes:
            num_bytes, _ = self.admission.run(peer, 0, count, is_cancelled)
        return self.admission.run(peer, self._within(num_bytes, "edges"), work, is_cancelled)

    def _refuse_given_up(self, is_cancelled: Callable[[], bool]) -> None:
        if is_cancelled():
            raise Unavailable(f"{self.where}: the client has given up.")

    def _within(self, num_bytes: int, things: str) -> int:
        if num_bytes > self._max_answer_bytes:
            raise AnswerTooLarge(
                f"{self.where}: the {things} have {num_bytes} bytes; at most {self._max_answer_bytes} are sent at "
                "once. Ask for fewer ids at once."
            )
        return num_bytes


def _digests_of_graph(graph: LocalGraph, request: DigestRequest) -> Digests:
    """Return what answer_digests does, of a whole graph."""
    chosen = graph.choose("the server", request.choice, request.edge_types)
    return [chosen[edge_type].digests() if edge_type in chosen else None for edge_type in request.edge_types]


def _num_edges(part: Part, request: DrawRequest, draw: Draw) -> int:
    """Return how many in-edges a draw gives at most, by the degrees of the nodes; so many, if it is uniform.

    Raises:
        IndexError: A node is not the part's.
        ValueError: There is no such type.
    """
    dst = ends_of(draw.edge_type)[1]
    indptr, rows = part.relation(draw.edge_type).indptr, part.rows_of(request.ids[dst], dst)
    degrees = indptr[rows + 1] - indptr[rows]
    if draw.fanout < 0:
        return int(degrees.sum())
    if request.replace:
        return int(torch.count_nonzero(degrees)) * draw.fanout
    return int(degrees.clamp(max=draw.fanout).sum())


class _Entry:
    """An answer that is being sent; `taken` is when gRPC last took a batch."""

    def __init__(self, peer: str, hold: Hold) -> None:
        self.peer, self.hold, self.taken = peer, hold, time.monotonic()


class Answer:
    """The batches of an answer. Its bytes are in flight until the last batch is sent, or gRPC drops it."""

    def __init__(self, answers: Answers, peer: str, hold: Hold, batches: Iterator[Any]) -> None:
        self._answers, self._batches = answers, batches
        self._entry = answers._add(peer, hold)

    def __iter__(self) -> Answer:
        return self

    def __next__(self) -> Any:
        self._entry.taken = time.monotonic()
        try:
            return next(self._batches)
        except BaseException:
            self._end()
            raise

    def _end(self) -> None:
        self._batches = iter(())
        self._answers._remove(self._entry)

    def __del__(self) -> None:
        if hasattr(self, "_entry"):
            self._end()


class Answers:
    """All answers that are being sent. `look`, for a Guard, ends the connections of clients that read nothing for
    `stall_s`.
    """

    def __init__(self, statistics: Statistics, stall_s: float, connections: Connections) -> None:
        self.stall_s, self.statistics, self.connections = stall_s, statistics, connections
        self._lock = threading.RLock()  # the garbage collector may end an answer where the lock is held
        self._entries: dict[int, _Entry] = {}

    def close(self) -> None:
        """End the connections of all who are still being answered."""
        self.connections.end({entry.peer for entry in self._all()})

    def _add(self, peer: str, hold: Hold) -> _Entry:
        entry = _Entry(peer, hold)
        with self._lock:
            self._entries[id(entry)] = entry
        return entry

    def _remove(self, entry: _Entry) -> None:
        with self._lock:
            self._entries.pop(id(entry), None)
        entry.hold.release()

    def _all(self) -> list[_Entry]:
        with self._lock:
            return [*self._entries.values()]

    def look(self) -> float:
        """Look once; return the seconds until the next look."""
        latest = time.monotonic() - self.stall_s
        stalled = {entry.peer for entry in self._all() if entry.taken < latest}
        for peer in stalled:
            logger.warning("%s has read nothing for %g s; its connection is ended", peer, self.stall_s)
            self.statistics.count_stalled()
        self.connections.end(stalled)
        return self.stall_s / 4
