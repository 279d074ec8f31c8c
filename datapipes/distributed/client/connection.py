"""The connections of this process to a server. Connection is one connection; Connections keeps several to the servers
of one part, and gives each request the connection with the fewest requests in flight.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from datapipes.distributed.addresses import Address, Replicas
from datapipes.distributed.arrow import arrow_flight, note_client, refuse_forked
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.arrow_message import Message, to_batches, to_bytes
from datapipes.distributed.wire.arrow_reading import Sink, from_batches
from datapipes.distributed.wire.envelope import check_versions
from datapipes.distributed.wire.refusals import error_from_bytes

_KEPT_BYTES = 31 * 2**20  # glibc's limit is 32 MiB
SLACK_BYTES = 2**16  # a small invalid answer gets its own error, not "too large"


def server_name(kind: str, number: int, place: Address | Replicas) -> str:
    """Return what errors call a server, such as "part 3 at 10.0.0.5:7000".

    Args:
        kind: what `number` identifies, see RemotePart.
        number: id of the part, or rank of the server.
        place: the address of the server, or the addresses of all servers of the part.
    """
    return f"{kind} {number} at {place}"


class Connection:
    """One connection to a server: a gRPC channel with a TCP connection of its own. The constructor does not connect;
    the first request does.

    Many threads may call `ask` at once.

    Args:
        connect_s: seconds that connecting may take, TLS included.
    Attributes:
        in_flight: how many requests are in flight. The class Connections writes this and the next two attributes.
        retired: whether new requests must not use this connection.
        greeted: time.monotonic() when the handshake with the server was done.
    """

    def __init__(self, where: str, address: Address, tls: TLSConfig | None, connect_s: float) -> None:
        refuse_forked(where)
        _keep_freed_memory()
        self.where, self.address, self.in_flight, self.retired = where, address, 0, False
        self.greeted = 0.0  # time of the handshake, by time.monotonic()
        self._flight = arrow_flight(where)
        options: list[tuple[str, int | str]] = [
            ("grpc.use_local_subchannel_pool", 1),  # or channels to one address would share one TCP connection
            ("grpc.enable_http_proxy", 0),  # the environment's proxy is for the web
            ("grpc.min_reconnect_backoff_ms", max(int(connect_s * 1000), 1)),  # bounds one attempt to connect
        ]
        pem = (
            {}
            if tls is None
            else dict(zip(("cert_chain", "private_key", "tls_root_certs"), tls.read(where), strict=True))
        )
        self._client = self._flight.FlightClient(address.uri(tls=tls is not None), generic_options=options, **pem)
        note_client(self._client)

    def ask(self, request: Message, timeout: float, most_bytes: int, sink: Sink | None = None) -> Message:
        """Send `request`, and receive and return the answer, all within `timeout` seconds.

        Args:
            most_bytes: how many bytes the tensors of the answer may have. Up to SLACK_BYTES more are accepted.
            sink: a Sink, which takes the tensors of the answer while they arrive, see from_batches; None: the answer
                has them.

        Raises:
            The error that the server sent, of the same type. Its text begins with the part and the address.
            pyarrow.flight.FlightError: No answer came; see retry.py.
            BadMessage: The answer is no message.
            OtherPartition: The server has another version of datapipes.
        """
        ticket, options = self._flight.Ticket(to_bytes(self.where, request)), self._options(timeout)
        chunks = _Chunks()

        def asked() -> Message:
            chunks.reader = self._client.do_get(ticket, options)
            return from_batches(self.where, chunks.reader.schema, chunks, most_bytes + SLACK_BYTES, sink)

        try:
            answer = self._told(asked)
        finally:
            chunks.end()
        check_versions(self.where, answer.header)
        return answer

    def _options(self, timeout: float) -> Any:
        return self._flight.FlightCallOptions(timeout=max(timeout, 0.001))

    def _told(self, call: Callable[[], Message]) -> Message:
        """Return the result of `call`. If `call` raises a Flight error in which the server sent its own error, raise
        that one.
        """
        try:
            return call()
        except Exception as failure:
            error = error_from_bytes(getattr(failure, "extra_info", None) or b"")
            if error is None:
                raise
        raise error[0](f"{self.where}: {error[1]}")

    def close(self) -> None:
        """Close the channel. Call this only when no request is in flight."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class PushConnection(Connection):
    """A connection for requests that carry data to the server. The answer to such a request has no content: it only
    says that the server took the request.
    """

    def ask(self, request: Message, timeout: float, most_bytes: int = 0, sink: Sink | None = None) -> Message:
        """Send `request` and return an empty Message after the server took it. Raises the errors of Connection.ask."""
        schema, batches = to_batches(self.where, request)
        command = self._flight.FlightDescriptor.for_command(b"")

        def pushed() -> Message:
            writer, _ = self._client.do_put(command, schema, self._options(timeout))
            with writer:  # its end raises the server's error
                for batch in batches:
                    writer.write_batch(batch)
            return Message({}, {})

        return self._told(pushed)


@functools.cache
def _keep_freed_memory() -> None:
    """Allocate 31 MiB and free them at once, so that glibc reuses memory: from then on it keeps freed pieces up to this
    size.

    Otherwise gRPC would get fresh memory from the system for each answer. This costs as much time as receiving the
    answer.
    """
    np.empty(_KEPT_BYTES, dtype=np.uint8)


class _Chunks:
    """Iterator over the record batches of an answer that arrives. `end` cancels the stream and drops it: tracebacks may
    keep this object alive, and must not keep the stream alive.
    """

    reader: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.reader.read_chunk().data

    def end(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.cancel()  # stops a server that sends on after an error; no effect after the last chunk


class Connections:
    """Up to `most` connections to the servers of one part, made when they are needed. A stalled connection delays only
    its own requests.

    If there is no connection, one thread connects and the other threads wait for its result. Otherwise all threads
    would connect at once to a server that was started again.

    Args:
        connect: function (seconds) -> connection, handshake included; it raises an error if this fails or takes longer.
    """

    def __init__(self, connect: Callable[[float], Connection], most: int) -> None:
        self._connect, self._most = connect, most
        self._changed = threading.Condition()
        self._live: list[Connection] = []
        self._opening = 0
        self._attempts = 0  # ended attempts to connect
        self._waiting = 0  # threads that wait for an attempt
        self._failure: BaseException | None = None  # of the last attempt, kept while threads wait for it
        self._closed = False

    def take(self, timeout: float) -> Connection:
        """Return the connection that the next request uses; connect if needed. Call `give_back` after the request.

        Raises:
            TimeoutError: No connection was made within `timeout` seconds.
            The errors of `connect`, the argument of the constructor.
        """
        ends = time.monotonic() + timeout
        with self._changed:
            while True:
                best = min(self._live, key=lambda connection: connection.in_flight, default=None)
                if best is not None and (best.in_flight == 0 or len(self._live) + self._opening >= self._most):
                    best.in_flight += 1
                    return best
                if best is not None or self._opening == 0:
                    break
                failure = self._waited(ends)
                if failure is not None and not self._live:
                    try:
                        raise own_error(failure)
                    finally:
                        del failure  # its traceback would hold itself
            self._opening += 1
        return self._opened(ends)

    def _waited(self, ends: float) -> BaseException | None:
        """Wait until another thread has ended its attempt to connect. Return the error of the attempt; None if it
        succeeded.

        Args:
            ends: until when to wait, as a time of time.monotonic(); raises TimeoutError after it.
        """
        before = self._attempts
        self._waiting += 1
        try:
            if not self._changed.wait_for(lambda: self._attempts != before, ends - time.monotonic()):
                raise TimeoutError("connecting took too long")
            return self._failure
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._failure = None  # its traceback would keep the owner of the threads alive

    def _opened(self, ends: float) -> Connection:
        connection, failure = None, None
        try:
            connection = self._connect(ends - time.monotonic())
            connection.greeted = time.monotonic()
            return connection
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._opening -= 1
                self._attempts += 1
                self._failure = failure if self._waiting > 0 else None
                if connection is not None:
                    connection.in_flight = 1
                    connection.retired = self._closed
                    if not self._closed:
                        self._live.append(connection)
                self._changed.notify_all()
            del failure

    def give_back(self, connection: Connection, *, renew: bool) -> None:
        """Take back `connection` after a request. With `renew` also retire it: no new request uses it, and it is closed
        when its last request has ended.
        """
        with self._changed:
            connection.in_flight -= 1
            if renew and not connection.retired:
                connection.retired = True
                self._live.remove(connection)
            ended = connection.retired and connection.in_flight == 0
        if ended:
            connection.close()

    def leave(self, address: Address) -> None:
        """Retire the connections to `address`: no new request uses them, and each is closed when its last request has
        ended.
        """
        self._retire(lambda connection: connection.address == address)

    def close(self) -> None:
        """Retire all connections: no new request uses them, and each is closed when its last request has ended."""
        with self._changed:
            self._closed = True
        self._retire(lambda _: True)

    def _retire(self, is_meant: Callable[[Connection], bool]) -> None:
        with self._changed:
            retired = [connection for connection in self._live if is_meant(connection)]
            self._live = [connection for connection in self._live if connection not in retired]
            for connection in retired:
                connection.retired = True
            ended = [connection for connection in retired if connection.in_flight == 0]
        for connection in ended:
            connection.close()


def own_error(failure: BaseException) -> BaseException:
    """Return a copy of the error `failure`, so that several waiting threads can raise it, each with its own notes and
    traceback. If the error cannot be copied, return `failure` itself.
    """
    try:
        copied = type(failure)(*failure.args)
    except Exception:  # its constructor takes other arguments
        return failure
    copied.__cause__ = failure.__cause__
    return copied
