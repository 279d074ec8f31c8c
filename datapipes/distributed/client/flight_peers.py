"""FlightPeers: ask parts behind servers through Arrow Flight. A large request is cut into pieces, and each piece is
sent as a request of its own. If a server refuses a piece since its answer would be too large, the piece is sent again
as two halves.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from functools import partial
from typing import Any, TypeVar

from datapipes.base.checks import shown
from datapipes.distributed.addresses import Address, Replicas
from datapipes.distributed.arrow import arrow_flight, refuse_forked
from datapipes.distributed.client.connection import Connection, server_name
from datapipes.distributed.client.remote_part import Limits, RemotePart, Send
from datapipes.distributed.partition_facts import PartitionFacts, greeting_from_message, hello_to_message
from datapipes.distributed.requests.request import Answer, Request
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.distributed.wire.refusals import AnswerTooLarge, OtherPartition

MOST_BYTES = 2**31  # of one answer; servers send less
WHAT = ("part", "server")  # what a key of `addresses` identifies, without and with `by_rank`

_WHERE = "FlightPeers"
_Answer = TypeVar("_Answer")


class FlightPeers:
    """Sends requests to the parts of a graph that are behind servers. Building a FlightPeers starts nothing; the first
    request to a server connects to it.

    A copy in a worker process has no connections at first. Each process has up to 4 connections and 16 requests in
    flight for each part, and a waiting thread for each request in flight. `close` ends connections and threads; so does
    the end of the process.

    Args:
        addresses: {part: addresses of its servers}.
        facts: what all parts of the partition share. A server that tells other facts in the handshake is refused.
        tls: the certificates of this side; None for no TLS.
        deadline: seconds for each request, retries included. A request is retried if a retry can help.
        may_return: whether a server that has ended may be started again. True: requests wait for such a server. False:
            they fail at once.
        by_rank: False: the keys of `addresses` are parts. True: the keys are ranks of servers, which may have any part.
        again: function (part) -> present addresses of its servers. It is called when no server of the part can be
            reached. None: the addresses never change.
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
        arrow_flight(_WHERE)  # raise here rather than in a worker
        self.by_rank, self.again = by_rank, again
        self.addresses, self.facts, self.tls, self.limits = dict(addresses), facts, tls, Limits(deadline, may_return)
        # {process id: ({part: RemotePart}, finalizer that ends them)}. A forked child also has its parent's entry.
        self._by_process: dict[int, tuple[dict[int, RemotePart], weakref.finalize[..., FlightPeers]]] = {}

    def ask(self, part: int, request: Request[Answer]) -> Future[Answer]:
        """Send `request` to a server of `part`. Return at once, with a future of the answer. See Peers."""
        pieces = request.pieces(self.facts)
        answers = [self.submit(part, partial(self._ask_once, part, piece)) for piece in pieces]
        return answers[0] if len(answers) == 1 else joined(answers, partial(request.joined, pieces))

    def told(self, part: int, kind: str) -> Future[dict[str, Any]]:
        """Ask a server of `part` about itself: `kind` is "health" or "statistics". Return at once, with a future of the
        answer's header, {name: JSON value}.
        """
        message = Message(request_header(kind, self.meant(part)), {})
        return self.submit(part, lambda send: send(message, 0).header)

    def close(self) -> None:
        """End all connections and threads of this process; may be called twice. The next request connects again.

        Requests in flight end with an error, or with their answer. If a server is stalled, this call waits for the
        requests to it, up to about two thirds of the deadline.
        """
        entry = self._by_process.pop(os.getpid(), None)
        if entry is not None:
            entry[1]()

    def submit(self, part: int, attempt: Callable[[Send], _Answer], *, waits: bool = True) -> Future[_Answer]:
        """Let a thread call `attempt(send)`, again and again until a server of `part` has answered. Return at once,
        with a future of the result of `attempt`.

        `attempt` sends its requests by `send(request, most_bytes)`, which returns the answer. The requests may be sent
        more than once, so they must be idempotent.

        Args:
            waits: whether to wait for a server that has ended. It has no effect if `may_return` is False: then no
                request waits.
        """
        refuse_forked(_WHERE)
        return self._remote_part(part).submit(attempt, waits=waits)

    def _remote_part(self, part: int) -> RemotePart:
        """Return the RemotePart for `part`, which has this process's connections and threads for the part. Make it if
        there is none. A RemotePart must not refer to this FlightPeers: its threads would keep the FlightPeers from
        being garbage-collected.
        """
        pid = os.getpid()
        if (entry := self._by_process.get(pid)) is None:
            added: dict[int, RemotePart] = {}
            # The finalizer also runs before the interpreter ends, so that no thread is left inside the library.
            end = weakref.finalize(self, _close_all, pid, added)
            # setdefault is atomic. A lock could stay taken for ever in a forked child.
            entry = self._by_process.setdefault(pid, (added, end))
            if entry[1] is not end:  # another thread was first
                end.detach()
        remote_parts, end = entry
        if part in remote_parts:
            return remote_parts[part]
        kind = WHAT[self.by_rank]
        if part not in self.addresses:
            raise ValueError(
                f"{_WHERE}: {kind} {shown(part)} is not in the namebook; there are {[*self.addresses]}. Name one of "
                "these, or add it there."
            )
        facts, limits, tls, meant = self.facts, self.limits, self.tls, self.meant(part)

        def connect(address: Address, timeout: float) -> Connection:
            where = server_name(kind, part, address)
            return greeted(where, meant, address, limits, timeout, tls=tls, facts=facts)[0]

        again = None if self.again is None else partial(self.again, part)
        remote_part = RemotePart(part, self.addresses[part], limits, connect, kind=kind, again=again)
        remote_part = remote_parts.setdefault(part, remote_part)  # another thread may be first; building starts nothing
        if not end.alive:  # closed meanwhile
            remote_part.close()
        return remote_part

    def _ask_once(self, part: int, request: Request[Answer], send: Send) -> Answer:
        """Send `request` with `send` and return the answer. If the server says that the answer is too large, send the
        two halves of the request, one after the other, and join their answers.
        """
        where, num_bytes = self.where(part), request.num_bytes(self.facts, MOST_BYTES)
        most_bytes, sink = MOST_BYTES if num_bytes is None else num_bytes, request.sink(where, self.facts)
        try:
            message = send(request.to_message(self.meant(part)), most_bytes, sink)
        except AnswerTooLarge:
            halves = request.halves(self.facts)
            if len(halves) == 1:
                raise
            return request.joined(halves, [self._ask_once(part, half, send) for half in halves])
        return request.answer_from_message(where, message, self.facts)

    def meant(self, part: int) -> Meant:
        """Return the header fields of a request that say which part and which partition the client means."""
        return Meant(None if self.by_rank else part, self.facts.partition_id, self.facts.content_id)

    def where(self, part: int) -> str:
        """Return what errors call the servers of `part`: the part or rank, and the addresses."""
        return server_name(WHAT[self.by_rank], part, self.addresses[part])

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_by_process": {}}

    def __repr__(self) -> str:
        return f"{_WHERE}({', '.join(f'{part}: {address}' for part, address in self.addresses.items())})"


def _close_all(pid: int, remote_parts: dict[int, RemotePart]) -> None:
    """Close all connections and threads of the process `pid`. In any other process do nothing: a process forked from
    `pid` has only copies of them.
    """
    if os.getpid() == pid:
        for remote_part in [*remote_parts.values()]:
            remote_part.stop()
        for remote_part in [*remote_parts.values()]:
            remote_part.close()


_Piece = TypeVar("_Piece")
_Whole = TypeVar("_Whole")


def joined(pieces: Sequence[Future[_Piece]], join: Callable[[list[_Piece]], _Whole]) -> Future[_Whole]:
    """Return one future for all `pieces`. It ends after all of them have ended. Its result is `join(answers)`, with the
    answers in the order of `pieces`. If pieces have failed, it has the error of the first failed piece instead.
    """
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
        kept.clear()  # the pieces hold this function: break the cycle, so that answers are freed
        try:
            whole.set_result(join([piece.result() for piece in ended_pieces]))
        except BaseException as error:
            whole.set_exception(error)

    for piece in pieces:
        piece.add_done_callback(ended)
    return whole


# --- the handshake: whether a server has the part, the partition and the content that the client means


def greeted(
    where: str,
    meant: Meant,
    address: Address,
    limits: Limits,
    timeout: float,
    *,
    tls: TLSConfig | None,
    facts: PartitionFacts | None,
) -> tuple[Connection, PartitionFacts]:
    """Connect to the server at `address`, within `timeout` seconds, and check in a handshake that it is the right
    server. Return (connection, facts of the server's partition).

    Args:
        where: what errors call the server.
        meant: the part and partition that the server must have.
        facts: the facts that the server must have; None if they are not known yet.
    Raises:
        OtherPartition: The server has another part, or other facts; the message names both values.
        The errors of Connection.ask.
    """
    connection = Connection(where, address, tls, limits.connect_s)
    try:
        part, their_facts = greeting_from_message(where, connection.ask(hello_to_message(meant), timeout, 0))
        if meant.part is not None and part != meant.part:
            raise _other(where, "part", part, meant.part)
        if meant.partition_id is not None and their_facts.partition_id != meant.partition_id:
            raise _other(where, "partition_id", their_facts.partition_id, meant.partition_id)
        for field in fields(PartitionFacts) if facts is not None else ():
            here, there = getattr(facts, field.name), getattr(their_facts, field.name)
            if here != there:
                raise _other(where, field.name, there, here)
    except BaseException:
        connection.close()
        raise
    return connection, their_facts


def _other(where: str, name: str, theirs: object, ours: object) -> OtherPartition:
    return OtherPartition(
        f"{where}: the server has the {name} {shown(theirs)}, expected is {shown(ours)}. Compare the namebook, and the "
        "folder that the server was started on, with the folder that is read here."
    )
