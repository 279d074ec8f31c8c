"""SamplerReceiver: iterates over the minibatches that SamplerSenders send to it, epoch after epoch."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from datapipes.base.checks import check_int, one_line, shown
from datapipes.base.errors import ChannelClosed, PeerDied, QueueTimeoutError
from datapipes.base.log import logger
from datapipes.distributed.addresses import Address, parse_address
from datapipes.distributed.arrow import arrow_flight, refuse_forked
from datapipes.distributed.connecting import check_security
from datapipes.distributed.requests.chains import minibatch_of, request_from_message
from datapipes.distributed.sampler_sender import (
    LEAVE,
    MINIBATCH,
    SIGNAL,
    JoinRequest,
    PushRequest,
    fingerprint_of,
)
from datapipes.distributed.server.flight_server import close_flight_server, flight_server
from datapipes.distributed.server.guards import guards
from datapipes.distributed.server.tcp_connections import TcpConnections
from datapipes.distributed.tls import TLSConfig, refuse_plain
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import MOST_REQUEST_HEADER_BYTES, BadMessage, from_batches, header_of
from datapipes.distributed.wire.envelope import check_versions
from datapipes.distributed.wire.refusals import BadRequest, NoRoom, OtherPartition, Unavailable, UnknownSender
from datapipes.graph.graph import Graph
from datapipes.minibatch import MiniBatch

__all__ = ["SamplerReceiver"]

_NAME = "SamplerReceiver"
_MOST_UNREAD = 256 * 2**20  # bytes of all senders; each has an equal share, or one minibatch if that is larger
_MOST_BYTES = 2**31  # of one minibatch
_MOST_WAITING = 4  # pushes of a sender at once: the current attempt, and attempts that the sender has given up
_LOOK_S = 0.5
_GONE_S = 4.0  # without a connection; a sender makes a cut connection again within a second
_SILENT_S = 5  # of a machine, before its connections are ended
_ROOM_S = 0.5  # for which a push waits for room; then the sender must push again
_EACH_BYTES = 2**14  # memory of a minibatch or a signal besides tensors


class SamplerReceiver:
    """Receives the minibatches of `num_sender` SamplerSenders, which connect to it, in the order of arrival.

    An epoch ends when each sender has signalled its end; iterate again for the next epoch. A sender that is ahead waits
    while its minibatches that were not returned yet fill its share of 256 MB. When a sender closes, another sender may
    take its place and go on with the next epoch.

    The order of arrival does not follow from a seed, and there is no state to resume from. A RemoteSource has both: an
    order that follows from the seed, and a state.

    Args:
        graph: the graph of the minibatches; senders that name another graph are refused. None accepts all.
        addr: "host:port" to listen on; the same as in the namebooks of the senders.
        num_sender: number of senders; the constructor returns when all have connected.
        timeout: seconds to wait for the senders, and later for each minibatch.
        tls: the certificates of this side; needed if other machines can reach the address.
        insecure: allow other machines without TLS, if all of them are trusted.
    Raises:
        TypeError, ValueError: An argument is not valid.
        OSError: The receiver cannot listen on the address: it is in use, or is not an address of this machine.
        TimeoutError: Not all senders came in time.
        ImportError: pyarrow is not installed.
    """

    def __init__(
        self,
        graph: Graph | None,
        addr: str,
        num_sender: int,
        *,
        timeout: float = 600.0,
        tls: TLSConfig | None = None,
        insecure: bool = False,
    ) -> None:
        arrow_flight(_NAME)
        refuse_forked(_NAME)
        count = check_int(_NAME, "num_sender", num_sender, 1)
        security = check_security(_NAME, tls, insecure, timeout, "timeout", "600 is a good value.")
        address = parse_address(_NAME, "addr", addr)
        refuse_plain(_NAME, address, tls, insecure)
        self.timeout = security.deadline
        self._senders = _Senders(count, fingerprint_of(_NAME, graph))
        self._end = weakref.finalize(self, _close, os.getpid(), _listening(self._senders, address, tls))
        self.address = str(address)
        logger.info("%s listens on %s for %d senders", _NAME, address, count)
        try:
            self._senders.wait_for_all(self.timeout)
        except BaseException:
            self.close()
            raise

    @property
    def epoch(self) -> int:
        """The epoch of the next minibatch. It equals the number of epochs that have ended."""
        return self._senders.epoch

    def __iter__(self) -> SamplerReceiver:
        return self

    def __next__(self) -> MiniBatch:
        """Return the next minibatch of the epoch.

        Raises:
            StopIteration: All senders have signalled the end of the epoch. The next call begins the next epoch.
            PeerDied: A sender ended in the middle of an epoch; the text names the sender. Earlier calls have returned
                all its minibatches. The next call goes on; the epoch ends when another sender has taken the place and
                signalled the end.
            QueueTimeoutError: No minibatch came in time; the text names the late senders. The next call goes on.
            ChannelClosed: The receiver was closed.
        """
        item = self._senders.next(self.timeout)
        if item is None:
            raise StopIteration
        return item

    def close(self) -> None:
        """End all connections. Minibatches not yet received are lost, and senders that go on get an error. May be
        called twice.
        """
        self._end()

    def __enter__(self) -> SamplerReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{_NAME}({self.address}, {len(self._senders.places)} senders, epoch {self.epoch})"


class _Place:
    """One of the `num_sender` slots of a receiver; a slot has one sender at a time. When its sender has left, the next
    sender in the slot begins with the epoch after the last one whose end was signalled. A push is a minibatch or signal
    that a sender sends.

    Attributes:
        peers: the sender's connections.
        next: index of the sender's next push.
        items: the pushes that _Senders.next has not returned yet: [(index of arrival, item, bytes)]. An item is a
            minibatch, None for the end of an epoch, or the error of a lost sender.
        signals: how many ends of epochs were pushed by all senders in this slot.
        epoch: how many ends of epochs were taken from `items`.
        is_whole: whether the sender's last push ended an epoch.
    """

    def __init__(self) -> None:
        self.token, self.name, self.next, self.is_whole, self.is_here = "", "nobody", 0, False, False
        self.peers: set[str] = set()
        self.gone_since: float | None = None
        self.items: deque[tuple[int, MiniBatch | PeerDied | None, int]] = deque()
        self.signals = self.epoch = self.num_bytes = self.waiting = 0

    def enter(self, request: JoinRequest) -> None:
        self.token, self.name, self.next, self.is_whole = request.sender, one_line(request.name), 0, False


class _Senders:
    """The receiving side: it takes what all senders push (as the service of a Flight server) and gives it to the
    SamplerReceiver. Any thread may call its methods.
    """

    def __init__(self, count: int, fingerprint: str | None) -> None:
        self.places, self.epoch = [_Place() for _ in range(count)], 0
        self.note_request: Callable[[str], None] = lambda peer: None
        self._fingerprint, self._share = fingerprint, _MOST_UNREAD // count
        self._changed = threading.Condition()
        self._arrivals = 0
        self._ended: BaseException | None = None

    def wait_for_all(self, timeout: float) -> None:
        """Wait until `num_sender` senders have connected; raise TimeoutError after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or all(place.token for place in self.places), timeout)
            self._refuse_ended()
            there = [place.name for place in self.places if place.token]
        if len(there) < len(self.places):
            raise TimeoutError(
                f"{_NAME}: {len(there)} of {len(self.places)} senders came within {timeout:g} s: {there}. Look whether "
                "the others run, and whether their namebook has this address; or raise timeout."
            )

    def next(self, timeout: float) -> MiniBatch | None:
        """Return the next minibatch; None at the end of an epoch. Raises the errors of SamplerReceiver.__next__."""
        ends = time.monotonic() + timeout
        with self._changed:
            while True:
                self._refuse_ended()
                if all(place.epoch > self.epoch for place in self.places):
                    self.epoch += 1
                    return None
                filled = [place for place in self.places if place.items and place.epoch == self.epoch]
                if filled:
                    place = min(filled, key=lambda place: place.items[0][0])
                    _, item, num_bytes = place.items.popleft()
                    place.num_bytes -= num_bytes
                    self._changed.notify_all()
                    if isinstance(item, PeerDied):
                        raise item
                    if item is not None:
                        return item
                    place.epoch += 1
                elif not self._changed.wait(max(ends - time.monotonic(), 0.0)) and time.monotonic() >= ends:
                    raise self._late(timeout)

    def take(self, peer: str, schema: Any, batches: Iterable[Any]) -> None:
        """Take a request of a sender: a JoinRequest, or a PushRequest (a minibatch or a signal). See
        flight_server.PutService.

        Raises:
            BadRequest: The message is no such request, or an earlier push has not arrived yet.
            OtherPartition: The sender has another version, or another graph.
            UnknownSender: The sender has not joined, or another sender has taken its slot.
            NoRoom: There is no room for the push yet.
            Unavailable: All senders are there already, too many pushes wait, or the receiver ends.
        """
        try:
            header = header_of(_NAME, schema, MOST_REQUEST_HEADER_BYTES)
            check_versions(_NAME, header)
            request = request_from_message(_NAME, Message(header, {}), JoinRequest, PushRequest)
            self.note_request(peer)
            if isinstance(request, JoinRequest):
                self._join(peer, request)
                _read_to_the_end(batches)
            else:
                self._push(peer, request, schema, batches)
        except BadMessage as error:
            raise BadRequest(str(error)) from error

    def look(self, port: int, connections: TcpConnections) -> float:
        """Find senders whose connections have ended; return the seconds until the next call. A Guard calls this."""
        connections.keep_alive(port, _SILENT_S)
        with self._changed:
            before = {id(place): {*place.peers} for place in self.places}
        there, now = connections.to(port).keys(), time.monotonic()
        with self._changed:
            for place in self.places:
                place.peers -= before[id(place)] - there
                if place.peers or not place.is_here:
                    place.gone_since = None
                elif place.gone_since is None:
                    place.gone_since = now
                elif now - place.gone_since >= _GONE_S:
                    self._lose(place)
        return _LOOK_S

    def end(self, error: BaseException) -> None:
        """Make all calls of `next`, present and later ones, raise `error`."""
        with self._changed:
            self._ended = self._ended or error
            self._changed.notify_all()

    def _join(self, peer: str, request: JoinRequest) -> None:
        if None not in (self._fingerprint, request.fingerprint) and request.fingerprint != self._fingerprint:
            raise OtherPartition(
                f"{_NAME}: its graph has the fingerprint {self._fingerprint}, the sender's has "
                f"{shown(request.fingerprint)}. Sample from the same graph, or name no graph on one side."
            )
        with self._changed:
            place = self._place_of(request.sender)
            if place is None:
                if request.number > 0:
                    raise self._unknown()
                free = [place for place in self.places if not place.is_here]
                if not free:
                    raise Unavailable(f"{_NAME}: all {len(self.places)} senders are there already.")
                place = min(free, key=lambda place: place.signals)  # in the earliest epoch
                place.enter(request)
            place.is_here, place.gone_since = True, None
            place.peers.add(peer)
            self._changed.notify_all()

    def _push(self, peer: str, request: PushRequest, schema: Any, batches: Iterable[Any]) -> None:
        with self._changed:
            place = self._place_of(request.sender)
            if place is None:
                raise self._unknown()
            if place.waiting >= _MOST_WAITING:
                raise Unavailable(f"{_NAME}: {place.waiting} pushes of the sender wait already.")
            place.peers.add(peer)  # gRPC may have connected again by itself
            if request.number > place.next:
                raise BadRequest(f"{_NAME}: push {request.number} comes out of turn, {place.next} is next.")
            place.waiting += 1
        try:
            self._wait_for_room(place, request.number)
            item: MiniBatch | None = None
            num_bytes = 0
            if request.what == MINIBATCH and request.number == place.next:
                message = from_batches(_NAME, schema, batches, _MOST_BYTES)
                item, num_bytes = minibatch_of(_NAME, "the push", message.tensors), message.num_bytes
            else:
                _read_to_the_end(batches)
            with self._changed:
                if request.number == place.next and place.token == request.sender:
                    self._add(place, request.what, item, num_bytes)
        finally:
            with self._changed:
                place.waiting -= 1

    def _wait_for_room(self, place: _Place, number: int) -> None:
        with self._changed:
            if not self._changed.wait_for(
                lambda: self._ended or place.num_bytes < self._share or place.next != number, _ROOM_S
            ):
                raise NoRoom(f"{_NAME}: minibatches not yet received fill the room of this sender.")
            if self._ended is not None:
                raise Unavailable(f"{_NAME}: it ends.")

    def _add(self, place: _Place, kind: str, item: MiniBatch | None, num_bytes: int) -> None:
        place.next += 1
        place.is_here, place.gone_since = kind != LEAVE, None
        if kind == LEAVE:
            place.peers = set()
        if kind in (MINIBATCH, SIGNAL) or not place.is_whole:
            self._keep(place, item, num_bytes)
            place.signals += kind != MINIBATCH
        place.is_whole = kind != MINIBATCH
        self._changed.notify_all()

    def _keep(self, place: _Place, item: MiniBatch | PeerDied | None, num_bytes: int = 0) -> None:
        num_bytes += _EACH_BYTES
        place.items.append((self._arrivals, item, num_bytes))
        place.num_bytes += num_bytes
        self._arrivals += 1

    def _lose(self, place: _Place) -> None:
        """Record that the sender in `place` has ended. If its epoch is incomplete, `next` will raise PeerDied."""
        place.is_here = False
        if place.is_whole:
            return
        lost = PeerDied(
            f"{_NAME}: the sender {place.name!r} has ended, or its machine is away, in the middle of an epoch: after "
            f"{place.next} pushes, the last of which was no signal. Look for its own error. A new sender may take its "
            "place and signal the end of the epoch."
        )
        self._keep(place, lost)
        self._changed.notify_all()

    def _place_of(self, token: str) -> _Place | None:
        return next((place for place in self.places if place.token == token), None)

    def _refuse_ended(self) -> None:
        if self._ended is not None:
            raise self._ended

    def _unknown(self) -> UnknownSender:
        return UnknownSender(
            f"{_NAME}: has no such sender: the receiver was started anew, or has taken this sender for dead and let "
            "another take its place. Start the sender anew."
        )

    def _late(self, timeout: float) -> QueueTimeoutError:
        waited_for = [
            place.name if place.is_here else f"one in place of {place.name}"
            for place in self.places
            if place.epoch == self.epoch
        ]
        return QueueTimeoutError(
            f"{_NAME}: no minibatch came within {timeout:g} s. Epoch {self.epoch} ends when these senders have called "
            f"signal: {waited_for}. Look what they do; or raise timeout."
        )


def _listening(senders: _Senders, address: Address, tls: TLSConfig | None) -> contextlib.ExitStack:
    """Start the Flight server of a receiver and the threads that watch it. Return a stack; its `close` ends them."""
    pem = None if tls is None else tls.checked(_NAME)
    with contextlib.ExitStack() as made:  # ended if a later piece fails
        connections = made.enter_context(contextlib.closing(TcpConnections()))
        server = flight_server(_NAME, senders, address, pem)
        made.callback(close_flight_server, server, connections)
        looks = {"watch of senders": partial(senders.look, server.port, connections)}
        made.push(guards(_NAME, senders, server.port, connections, looks, senders.end))
        made.callback(senders.end, ChannelClosed(f"{_NAME}: was closed. Make a new one."))
        return made.pop_all()


def _close(process: int, made: contextlib.ExitStack) -> None:
    if os.getpid() == process:  # a forked process must leave the parent's server alone
        made.close()


def _read_to_the_end(batches: Iterable[Any]) -> None:
    for _ in batches:  # else the sender gets an error from a closed stream
        pass
