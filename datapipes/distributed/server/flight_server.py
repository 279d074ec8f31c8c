"""The server's end of Arrow Flight. A server has one service, for one of two Flight methods. With DoGet a request is a
ticket (bytes), and the answer is a stream. With DoPut a request is a stream, and the answer only says that the request
was taken.
"""

from __future__ import annotations

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from datapipes.base.errors import sentence
from datapipes.base.log import logger
from datapipes.distributed.addresses import Address
from datapipes.distributed.arrow import arrow_flight, note_server
from datapipes.distributed.server.tcp_connections import TcpConnections
from datapipes.distributed.tls import Pem
from datapipes.distributed.wire.refusals import Unavailable, error_to_bytes

_FAREWELL_S = 0.5  # for clients to take the end of an answer, and to close their connections
_EVERY_S = 0.1
_END_S = 10.0  # for a server to end once its connections are cut
_MOST_TEXT = 500  # characters of an error for clients that read no more than its text


class GetService(Protocol):
    """What a server needs to answer Flight's DoGet: requests that get data."""

    def answer(self, peer: str, ticket: bytes, is_cancelled: Callable[[], bool]) -> tuple[Any, Any]:
        """Answer a request: return (Arrow schema, record batches). If this raises an error, the error is sent to the
        client.

        Args:
            peer: name of the client's connection.
            ticket: the request.
            is_cancelled: returns whether the client no longer waits.
        """


class PutService(Protocol):
    """What a server needs to answer Flight's DoPut: requests that bring data."""

    def take(self, peer: str, schema: Any, batches: Iterable[Any]) -> None:
        """Take a request: its Arrow schema and its record batches, which must be read to the end. If this raises an
        error, the error is sent to the client.

        Args:
            peer: name of the client's connection.
        """


def flight_server(where: str, service: GetService | PutService, address: Address, pem: Pem | None) -> Any:
    """Start a Flight server that listens on `address`, and return it. If `address` has port 0, the system chooses the
    port; it is the `port` of the server. End the server with `close_flight_server`.

    Raises:
        OSError: The server cannot listen on `address`; the message names the address.
    """
    kind = _server_class(where, hasattr(service, "take"))
    _try_to_listen(where, address)
    secured: dict[str, Any] = {}
    if pem is not None:
        secured = {
            "tls_certificates": [(pem.cert, pem.key)],
            "verify_client": True,
            "root_certificates": pem.ca,
        }
    try:
        server = kind(service, address.uri(tls=pem is not None), **secured)
    except Exception as error:  # of Arrow, which does not say why
        raise OSError(
            f"{where}: cannot listen on {address}: {sentence(error)} Another program may have taken the port meanwhile."
        ) from error
    note_server(server)
    return server


def close_flight_server(server: Any, connections: TcpConnections) -> bool:
    """End a Flight server and the connections to it. Return True if the server has ended, False if it still runs after
    some 10 s.

    Call this only after all answers of the server have ended.
    """
    port = server.port
    # Arrow waits for every client to close its connection; a stopped or silent client never does.
    thread = threading.Thread(target=server.shutdown, name="datapipes-shutdown", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # the interpreter ends, and starts no more threads
        connections.end_all(port)
        server.shutdown()
    else:
        latest = time.monotonic() + _END_S
        thread.join(_FAREWELL_S)
        while thread.is_alive() and time.monotonic() < latest:
            try:
                connections.end_all(port)
            except OSError as error:
                logger.error("the connections to port %d cannot be ended: %s; it goes on", port, error)
            thread.join(_EVERY_S)
        if thread.is_alive():
            return False
    server.service = None  # the part is closed when its last reference goes
    return True


@functools.lru_cache
def _server_class(where: str, takes: bool) -> Any:
    flight = arrow_flight(where)
    methods = flight.FlightMethod
    refused = {methods.DO_GET if takes else methods.DO_PUT, methods.DO_EXCHANGE, methods.HANDSHAKE}

    class NoStreams(flight.ServerMiddlewareFactory):  # type: ignore[misc,name-defined]
        """Refuses the Flight methods that the service does not have, before anything is read from the client. Otherwise
        a client that opens a stream and then sends nothing would occupy a thread.
        """

        def start_call(self, info: Any, headers: Any) -> None:
            if info.method in refused:
                # Not NotImplementedError: Arrow would send its traceback.
                raise flight.FlightUnauthorizedError(
                    f"{where}: has no {info.method.name}; requests come by {'DoPut' if takes else 'DoGet'}"
                )

    class FlightServer(flight.FlightServerBase):  # type: ignore[misc,name-defined]
        """The Flight server: passes DoGet or DoPut to its service; NoStreams refuses all other methods."""

        def __init__(self, service: Any, location: str, **secured: Any) -> None:
            self.service: Any = service
            super().__init__(location, middleware={"no streams": NoStreams()}, **secured)

        def do_get(self, context: Any, ticket: Any) -> Any:
            with self._told():
                return flight.GeneratorStream(
                    *self._running().answer(context.peer(), ticket.ticket, context.is_cancelled)
                )

        def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
            with self._told():
                self._running().take(context.peer(), reader.schema, _batches(reader))

        def _running(self) -> Any:
            if self.service is None:
                raise Unavailable(f"{where}: the server has stopped.")
            return self.service

        @contextlib.contextmanager
        def _told(self) -> Iterator[None]:
            try:
                yield
            except BaseException as error:
                kind = flight.FlightUnavailableError if isinstance(error, Unavailable) else flight.FlightServerError
                raise kind(str(error)[:_MOST_TEXT], extra_info=error_to_bytes(error)) from None

    return FlightServer


def _batches(reader: Any) -> Iterator[Any]:
    for chunk in reader:
        yield chunk.data


def _try_to_listen(where: str, address: Address) -> None:
    """Listen on `address` for a moment. If that fails, raise OSError with the reason, which Arrow would not state."""
    try:
        addresses = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise type(error)(
            error.errno, f"{where}: cannot listen on {address}: {error.strerror}. Name an address of this machine."
        ) from error
    family, kind, _, _, place = addresses[0]
    with socket.socket(family, kind) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind(place)
            sock.listen()
        except OSError as error:
            raise type(error)(
                error.errno,
                f"{where}: cannot listen on {address}: {error.strerror}. Choose another port, or 0 for any free one; "
                "the address must be one of this machine.",
            ) from error
