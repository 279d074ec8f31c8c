"""SamplerSender: sends minibatches to the processes that train; SamplerReceiver is the other end.

A sender sends its minibatches in its own order. Nobody asks for a minibatch by its index, so a dispatcher
(chain/dispatcher.py) is not needed.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Annotated, Any

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.errors import ChannelClosed, QueueTimeoutError, raise_first
from datapipes.base.log import logger
from datapipes.base.records import Count, one_of
from datapipes.distributed.addresses import Address, Replicas
from datapipes.distributed.arrow import arrow_flight, refuse_forked
from datapipes.distributed.client.connection import Connection, PushConnection, own_error
from datapipes.distributed.client.remote_part import Limits, RemotePart
from datapipes.distributed.connecting import Security, check_security, refuse_all_plain
from datapipes.distributed.namebook import read_namebook
from datapipes.distributed.requests.chains import Token, request_to_message, text_up_to
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import Meant
from datapipes.distributed.wire.refusals import NoRoom
from datapipes.graph.graph import Graph
from datapipes.minibatch import MiniBatch

__all__ = ["SamplerSender"]

# --- messages to a receiver: the sender joins, then pushes minibatches and signals, numbered from 0 on

MOST_NAME = 300
MINIBATCH, SIGNAL, LEAVE = "minibatch", "signal", "leave"


@dataclass(frozen=True)
class JoinRequest:
    """Ask a receiver to take this process as one of its senders. The request is sent again on each new connection.

    Attributes:
        sender: a secret that identifies the sender.
        number: index of the next PushRequest.
        name: what error messages call the sender.
        fingerprint: digest of the sampled graph; None if the sender names no graph.
    """

    kind = "join"
    sender: Token
    number: Count
    name: Annotated[str, text_up_to(MOST_NAME)]
    fingerprint: str | None


@dataclass(frozen=True)
class PushRequest:
    """Send a receiver the next thing from a sender, as `what` says. MINIBATCH: a minibatch, whose tensors are in the
    message. SIGNAL: the sender's epoch ends. LEAVE: the sender ends.
    """

    kind = "push"
    sender: Token
    number: Count
    what: Annotated[str, one_of(MINIBATCH, SIGNAL, LEAVE)]


# --- the sender

_NAME = "SamplerSender"
MOST_PENDING = 4  # pushes that wait in a sender for one receiver
_ABANDON_S = 1.0  # for a push that is under way
_LEAST_S = 10.0  # for a push that need not wait for room
_BEAT_S = 1.0  # well below _GONE_S, after which a receiver considers a sender without a connection dead
_EXIT_PRIORITY = 100  # before other finalizers of multiprocessing


class SamplerSender:
    """Sends minibatches to receivers, with a connection to each receiver, and signals the ends of epochs.

    `send` returns at once, unless 4 earlier minibatches to the same receiver are not delivered yet. Do not change the
    tensors of a minibatch after `send`. A cut connection is made again, and no minibatch is lost or doubled. With
    several senders, the order of arrival does not follow from a seed, and there is no state to resume from. A
    RemoteSource has both: an order that follows from the seed, and a state.

    A sender may end, or be garbage-collected, without `close`: earlier minibatches are delivered first. If minibatches
    follow its last `signal`, the receiver then raises an error, since the epoch is incomplete.

    Args:
        namebook: {recv_id: "host:port"}, or the path of a JSON file with such a dict.
        graph: the sampled graph. A receiver with another graph refuses this sender. None: receivers do not check.
        timeout: seconds to wait in the constructor until each receiver runs, and later until a receiver has room.
        tls: the certificates of this side; needed if other machines can reach one of the addresses.
        insecure: allow other machines without TLS, if all of them are trusted.
    Raises:
        TypeError, ValueError: The namebook or an argument is not valid.
        ServerUnavailable: A receiver was not there within `timeout`, or had all its senders already.
        OtherPartition: A receiver has another graph, or another version of datapipes.
        ImportError: pyarrow is not installed.
        RuntimeError: This process was forked from one that had connections to servers.
    """

    def __init__(
        self,
        namebook: Mapping[int, str] | str | Path,
        *,
        graph: Graph | None = None,
        timeout: float = 600.0,
        tls: TLSConfig | None = None,
        insecure: bool = False,
    ) -> None:
        arrow_flight(_NAME)
        refuse_forked(_NAME)
        security = check_security(_NAME, tls, insecure, timeout, "timeout", "600 is a good value.")
        addresses = read_namebook(_NAME, namebook, "receiver")
        if not addresses:
            raise ValueError(f"{_NAME}: the namebook is empty. Name the address of each receiver.")
        many = next((number for number, replicas in addresses.items() if len(replicas) > 1), None)
        if many is not None:
            raise ValueError(f"{_NAME}: the namebook has several addresses for receiver {many}. Give one.")
        refuse_all_plain(_NAME, addresses, security)
        fingerprint = fingerprint_of(_NAME, graph)
        self._streams = {
            number: _Stream(number, replicas, fingerprint, security) for number, replicas in addresses.items()
        }
        self._ending = threading.Event()
        self._end = Finalize(self, _end_all, (self._streams, self._ending), exitpriority=_EXIT_PRIORITY)
        try:
            for joined in [stream.join() for stream in self._streams.values()]:
                joined.result()
            beat = threading.Thread(
                target=_beat, args=(self._streams, self._ending), name="datapipes-beat", daemon=True
            )
            beat.start()
        except BaseException:
            self._abandon()
            raise

    def send(self, nodeflow: MiniBatch, recv_id: int) -> None:
        """Queue a minibatch for sending to the receiver `recv_id`. If 4 earlier ones are not delivered yet, wait first.

        Raises:
            TypeError: `nodeflow` is no MiniBatch.
            ValueError: There is no such receiver.
            QueueTimeoutError: The receiver had no room within `timeout`. The minibatch was not sent; the sender stays
                usable.
            ServerUnavailable: The receiver has ended, or gave no answer to an earlier minibatch.
            ChannelClosed: The sender was closed.
        """
        if not isinstance(nodeflow, MiniBatch):
            raise TypeError(
                f"{_NAME}.send: nodeflow must be a MiniBatch, got {shown(nodeflow)} ({type(nodeflow).__name__}). Send "
                "what the stages of a chain return."
            )
        self._stream(recv_id).push(MINIBATCH, nodeflow.to_message())

    def signal(self, recv_id: int) -> None:
        """Tell the receiver `recv_id` that this sender's epoch is complete. Later minibatches belong to the next epoch.

        Raises:
            The errors of `send`.
        """
        self._stream(recv_id).push(SIGNAL)

    def close(self) -> None:
        """Wait until all minibatches are delivered, then end the connections. May be called twice.

        If `signal` was not called after the last minibatch, this call also signals the end of the epoch.

        Raises:
            ServerUnavailable: A receiver has ended before it took all minibatches.
            QueueTimeoutError: A receiver had no room for the rest within `timeout`; the rest is lost.
        """
        if not self._end.still_active():
            return
        self._end.cancel()
        self._ending.set()
        errors = [stream.close() for stream in self._streams.values()]
        raise_first([error for error in errors if isinstance(error, Exception)])

    def _stream(self, recv_id: Any) -> _Stream:
        stream = self._streams.get(recv_id) if isinstance(recv_id, int) and not isinstance(recv_id, bool) else None
        if stream is None:
            raise ValueError(
                f"{_NAME}: recv_id must be an int, one of {[*self._streams]}, got {shown(recv_id)}. Pass one of these."
            )
        return stream

    def _abandon(self) -> None:
        """End the connections at once, with nothing more delivered. If an epoch is incomplete, its receiver raises an
        error.
        """
        self._end.cancel()
        self._ending.set()
        for stream in self._streams.values():
            stream.abandon()

    def __enter__(self) -> SamplerSender:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._abandon()

    def __repr__(self) -> str:
        return f"{_NAME}({', '.join(stream.remote.where for stream in self._streams.values())})"


def fingerprint_of(where: str, graph: Any) -> str | None:
    """Return the digest of `graph`; None if `graph` is None. Raise TypeError if `graph` is something else."""
    if graph is not None and not isinstance(graph, Graph):
        raise TypeError(f"{where}: graph must be a graph or None, got {shown(graph)} ({type(graph).__name__}).")
    return None if graph is None else graph.digest()


class _Stream:
    """Sends minibatches and signals to one receiver, one after the other, from a queue."""

    def __init__(self, number: int, replicas: Replicas, fingerprint: str | None, security: Security) -> None:
        self._fingerprint = fingerprint
        self._timeout, self._tls = security.deadline, security.tls
        self._token = secrets.token_hex(16)
        self._name = f"process {os.getpid()} of {socket.gethostname()}"[:MOST_NAME]
        self._changed = threading.Condition()
        self._pending: deque[tuple[str, Message]] = deque()  # the first is under way
        self._next = self._sent = 0  # indices of pushes
        self._is_whole = False  # whether all epochs that were begun have ended
        self._is_asking = self._is_closed = False
        self._failure: BaseException | None = None
        self.remote = RemotePart(number, replicas, Limits(self._timeout), self._connect, kind="receiver", requests=1)

    def join(self) -> Future[None]:
        """Let a thread connect to the receiver; it waits if the receiver does not run yet. Return at once, with a
        future that ends when the connection is made. After this, requests to a receiver that has ended fail at once.
        """
        joined = self.remote.submit(lambda send: None)  # connecting is enough
        limits = Limits(max(self._timeout, _LEAST_S), may_return=False)
        joined.add_done_callback(lambda _: setattr(self.remote, "limits", limits))
        return joined

    def push(self, kind: str, tensors: Mapping[str, Tensor] | None = None) -> None:
        with self._changed:
            has_room = self._changed.wait_for(
                lambda: self._is_closed or self._failure or len(self._pending) < MOST_PENDING, self._timeout
            )
            if self._failure is not None:
                raise own_error(self._failure)
            if self._is_closed:
                raise ChannelClosed(f"{_NAME}: was closed. Make a new one.")
            if not has_room:
                raise self._full("another minibatch")
            self._add(kind, tensors)

    def beat(self) -> None:
        """If nothing is being sent, send the receiver a sign of life. If the connection was cut, this connects
        again.
        """
        with self._changed:
            if not (self._is_asking or self._is_closed or self._failure):
                self._ask(self._joining())

    def close(self, *, leaves: bool = True) -> BaseException | None:
        """Deliver what is queued, then tell the receiver that the sender ends (LEAVE). Return the error if this fails,
        else None.

        Args:
            leaves: True sends LEAVE also in the middle of an epoch, which ends the epoch without an error. False: the
                receiver then raises an error.
        """
        with self._changed:
            if not self._is_closed and self._failure is None and (leaves or self._is_whole):
                self._add(LEAVE)
            self._is_closed = True
            is_empty = self._changed.wait_for(lambda: self._failure or not self._pending, self._timeout)
            failure = self._failure or (None if is_empty else self._full("the rest"))
        self.remote.close(None if failure is None else _ABANDON_S)
        return failure

    def abandon(self) -> None:
        """Close the connection without delivering what is queued."""
        self._is_closed = True
        self.remote.close(_ABANDON_S)

    def _full(self, kind: str) -> QueueTimeoutError:
        return QueueTimeoutError(
            f"{self.remote.where}: it had no room for {kind} within {self._timeout:g} s. Call again to go on waiting, "
            "or raise timeout."
        )

    # --- `_add` and `_ask`: the caller holds `_changed`

    def _add(self, kind: str, tensors: Mapping[str, Tensor] | None = None) -> None:
        self._pending.append((kind, request_to_message(PushRequest(self._token, self._next, kind), Meant(), tensors)))
        self._next += 1
        self._is_whole = kind != MINIBATCH
        if not self._is_asking:
            self._ask(self._pending[0][1])

    def _ask(self, message: Message) -> None:
        self._is_asking = True
        self.remote.submit(lambda send: send(message, 0)).add_done_callback(partial(self._asked, message))

    def _asked(self, message: Message, answer: Future[Message]) -> None:
        """Called when `message`, a push or a sign of life, was answered or has failed: record this, and send what is
        next in the queue.
        """
        error = answer.exception()
        with self._changed:
            self._is_asking = False
            if self._pending and message is self._pending[0][1] and not isinstance(error, NoRoom):
                kind, _ = self._pending.popleft()
                self._sent += 1
                error = None if kind == LEAVE else error  # a receiver with all minibatches may end first
            if error is not None and not isinstance(error, NoRoom):
                self._failure = self._failure or error
            if self._pending and self._failure is None:
                self._ask(self._pending[0][1])
            self._changed.notify_all()

    def _joining(self) -> Message:
        return request_to_message(JoinRequest(self._token, self._sent, self._name, self._fingerprint), Meant())

    def _connect(self, address: Address, timeout: float) -> Connection:
        connection = PushConnection(self.remote.where, address, self._tls, self.remote.limits.connect_s)
        try:
            connection.ask(self._joining(), timeout)
        except BaseException:
            connection.close()
            raise
        return connection


def _beat(streams: Mapping[int, _Stream], ending: threading.Event) -> None:
    while not ending.wait(_BEAT_S):
        for stream in streams.values():
            stream.beat()


def _end_all(streams: Mapping[int, _Stream], ending: threading.Event) -> None:
    ending.set()
    for error in [stream.close(leaves=False) for stream in streams.values()]:
        if error is not None:
            logger.error("%s: not all was delivered: %s", _NAME, error)
