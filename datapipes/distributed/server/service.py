"""Service: answers the requests to a server, from reading the bytes of a request to sending the last batch of its
answer.

The size of an answer is known before it is made. gRPC drops an answer when its client closes the connection, dies, or
has passed the deadline of the call. A client that does none of these, but stops reading, would keep the memory of its
answer occupied for good. So the class Sendings ends the connection of such a client.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.log import logger
from datapipes.base.threads import threads_of_kernels
from datapipes.distributed.partition_facts import PartitionFacts, greeting_to_message
from datapipes.distributed.requests.chains import ClaimRequest, CreateRequest, ListRequest, MinibatchRequest
from datapipes.distributed.requests.digests import DigestRequest
from datapipes.distributed.requests.draw import DrawRequest
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.distributed.requests.request import Request
from datapipes.distributed.requests.rows import RowsRequest
from datapipes.distributed.requests.steps import StepsRequest, WholeRowsRequest
from datapipes.distributed.server.admission import Admission, Hold
from datapipes.distributed.server.guards import own_memory
from datapipes.distributed.server.limits import ServerLimits, or_cores, sizes_of
from datapipes.distributed.server.offers import Offers
from datapipes.distributed.server.producers import Producers
from datapipes.distributed.server.statistics import Statistics
from datapipes.distributed.server.tcp_connections import TcpConnections
from datapipes.distributed.wire.arrow_message import Message, to_batches
from datapipes.distributed.wire.arrow_reading import BadMessage, from_bytes
from datapipes.distributed.wire.envelope import Meant, answer_header, check_meant, check_versions
from datapipes.distributed.wire.refusals import (
    AnswerTooLarge,
    BadRequest,
    OtherPartition,
    Unavailable,
    UnknownProducer,
)
from datapipes.graph.local_graph import LocalGraph
from datapipes.partition.native.part import Part

_RESULTS = {  # names in the statistics; every other error counts as "error"
    BadRequest: "bad_request",
    OtherPartition: "other_partition",
    AnswerTooLarge: "too_large",
    Unavailable: "unavailable",
    UnknownProducer: "unknown_producer",
}
OF_PARTS: dict[str, type[Request[Any]]] = {
    request.kind: request
    for request in (DigestRequest, DrawRequest, EdgesRequest, RowsRequest, StepsRequest, WholeRowsRequest)
}
_OF_CHAINS = {
    CreateRequest.kind: Producers.create,
    MinibatchRequest.kind: Producers.minibatch,
    ClaimRequest.kind: Producers.destroy,
    ListRequest.kind: Producers.listed,
}
_KINDS = sorted(["health", "hello", "statistics", *OF_PARTS, *_OF_CHAINS])
_JOIN_S = 1.0  # for threads that have nothing to do any more; one may be inside a kernel
_REFUSED = (ValueError, TypeError, LookupError)


class Service:
    """Answers the requests of clients to a part, or to a whole graph, within limits. `close` ends its threads.

    Args:
        part, graph: the data: a part, or a whole graph; the other is None. A whole graph is only sampled by chains:
            requests for hops and rows are refused.
        offers: what clients' chains may use. None: the server makes no minibatches of chains.
    Attributes:
        note_request: function that is called at each request, with the name of the client's connection.
    """

    def __init__(
        self,
        facts: PartitionFacts,
        part: Part | None,
        graph: LocalGraph | None,
        limits: ServerLimits,
        connections: TcpConnections,
        offers: Offers | None = None,
    ) -> None:
        self.facts, self._num_threads = facts, limits.num_threads
        self._max_request_bytes, self._max_answer_bytes, max_bytes_in_flight = sizes_of(limits)
        concurrency = or_cores(limits.concurrency)
        number = 0 if part is None else part.part
        self.meant = Meant(number, facts.partition_id, facts.content_id)
        self.where = "server of a whole graph" if part is None else f"server of part {number}"
        self.part, self._graph = part, graph
        self.producers = None if offers is None else Producers(self.where, offers, limits)
        self.statistics = Statistics()
        self.admission = Admission(self.where, concurrency, limits.max_waiting, max_bytes_in_flight)
        self.sendings = Sendings(self.statistics, limits.stall_s, connections)
        self.note_request: Callable[[str], None] = lambda peer: None
        # gRPC has a thread for each call; without a bound all threads could read requests at once.
        self._reading = threading.BoundedSemaphore(concurrency)
        self.is_stopping = self.is_leaving = False

    def answer(self, peer: str, ticket: bytes, is_cancelled: Callable[[], bool]) -> tuple[Any, Any]:
        """Answer a request. Return the answer as (Arrow schema, iterator of record batches), which gRPC then sends.

        Args:
            peer: name of the client's connection.
            ticket: the request.
            is_cancelled: returns whether the client no longer waits.
        Raises:
            BadRequest, OtherPartition, AnswerTooLarge, Unavailable, UnknownProducer: See wire/refusals.py.
            ValueError, TypeError, LookupError: The request has types, features or ids that the part does not have.
        """
        self.note_request(peer)
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
            return schema, self.sendings.add(Sending(hold, batches))
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
    def kept_bytes(self) -> int:
        """Bytes of the arrays that the part has computed so far for sampling by weights or times."""
        return 0 if self.part is None else self.part.kept_bytes

    def end_producers(self, num_bytes: int) -> int:
        """End the producers of minibatches that keep most memory, until `num_bytes` are free. Return how many were
        ended.
        """
        return 0 if self.producers is None else self.producers.end_largest(num_bytes)

    def close(self, grace_s: float) -> bool:
        """Refuse new requests, wait up to `grace_s` seconds for earlier ones, then end the connections of clients that
        are still being answered. Return False if all requests were answered in time, and True if not.
        """
        self.is_stopping = True
        ends = time.monotonic() + grace_s
        ended = self.admission.close(grace_s)
        if self.producers is not None:
            ended = self.producers.close(max(ends - time.monotonic(), 0.0)) and ended
        self.sendings.close()
        self.admission.join(max(grace_s, _JOIN_S))
        return not ended

    def numbers(self) -> dict[str, Any]:
        """Return the statistics of the server as {name: JSON value}."""
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
        if kind in OF_PARTS:
            return self._of_part(OF_PARTS[kind], peer, message, is_cancelled)
        if self.producers is None:
            raise BadRequest(f"{self.where}: makes no minibatches of chains. Start it with chains=True, or --chains.")
        return _OF_CHAINS[kind](self.producers, peer, message, is_cancelled)

    def _of_part(
        self, kind: type[Request[Any]], peer: str, message: Message, is_cancelled: Callable[[], bool]
    ) -> tuple[Message, Hold]:
        part, graph = self.part, self._graph
        with self._reading:
            request = kind.from_message(self.where, message)

        def go_on() -> None:
            self._refuse_given_up(is_cancelled)
            if self.admission.is_closed:
                raise Unavailable(f"{self.where}: the server stops. Ask the next one.")

        def count() -> int:
            with threads_of_kernels(self._num_threads):
                return request.counted_bytes(part, self.facts, go_on) if part is not None else 0

        def work() -> Message:
            with threads_of_kernels(self._num_threads):
                if part is not None:
                    answer = request.answered_by(part, num_threads=self._num_threads, go_on=go_on)
                else:
                    assert graph is not None
                    answer = request.answered_by_graph(self.where, graph)
                return request.answer_to_message(answer)

        num_bytes = request.num_bytes(self.facts, self._max_answer_bytes)
        if num_bytes is None:
            num_bytes, _ = self.admission.run(peer, 0, count, is_cancelled)
        return self.admission.run(peer, self._within(num_bytes, request.things), work, is_cancelled)

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


def kind_of(where: str, header: dict[str, Any]) -> str:
    """Return the kind of a request, such as "draw", from its header.

    Raises:
        BadRequest: There is no such kind.
    """
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BadRequest(f"{where}: there is no request {shown(kind)}; there are {_KINDS}.")
    return kind


class Sending:
    """Iterator over the batches of an answer, for gRPC. It keeps the reservation of the answer's bytes until gRPC has
    taken all batches or drops this object.

    Attributes:
        taken: time.monotonic() when gRPC last took a batch.
    """

    def __init__(self, hold: Hold, batches: Iterator[Any]) -> None:
        self.taken, self.hold, self._batches = time.monotonic(), hold, batches

    def __iter__(self) -> Sending:
        return self

    def __next__(self) -> Any:
        self.taken = time.monotonic()
        try:
            return next(self._batches)
        except BaseException:
            self._batches = iter(())
            self.hold.release()
            raise

    def __del__(self) -> None:
        self.hold.release()


class Sendings:
    """All answers that are being sent. `look` ends the connections of clients that have read nothing for `stall_s`
    seconds; a Guard calls it again and again.
    """

    def __init__(self, statistics: Statistics, stall_s: float, connections: TcpConnections) -> None:
        self.stall_s, self.statistics, self.connections = stall_s, statistics, connections
        self._sendings: weakref.WeakValueDictionary[int, Sending] = weakref.WeakValueDictionary()

    def add(self, sending: Sending) -> Sending:
        """Add an answer that gRPC begins to send, so that `look` watches its client. Return `sending`."""
        self._sendings[id(sending)] = sending
        return sending

    def close(self) -> None:
        """End the connections of all clients that are still being answered."""
        self.connections.end(self._peers(math.inf))

    def look(self) -> float:
        """End the connections of stalled clients; return the seconds until the next call."""
        stalled = self._peers(time.monotonic() - self.stall_s)
        for peer in stalled:
            logger.warning("%s has read nothing for %g s; its connection is ended", peer, self.stall_s)
            self.statistics.stalled_connections += 1
        self.connections.end(stalled)
        return self.stall_s / 4

    def _peers(self, latest: float) -> set[str]:
        """Return the clients that are still being sent an answer, and for which gRPC has taken no batch since the time
        `latest`.
        """
        sendings = [reference() for reference in self._sendings.valuerefs()]  # gRPC may drop a Sending meanwhile
        return {
            sending.hold.client
            for sending in sendings
            if sending is not None and sending.taken < latest and not sending.hold.is_released
        }
