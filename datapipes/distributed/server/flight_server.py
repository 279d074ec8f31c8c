"""The server's end of Arrow Flight: one method, DoGet; its ticket is a request, its stream the answer."""

from __future__ import annotations

import functools
import socket
import threading
from typing import Any

from datapipes.distributed.address import Address
from datapipes.distributed.arrow import arrow_flight, note_server
from datapipes.distributed.server.connections import end_all_connections
from datapipes.distributed.server.service import Service
from datapipes.distributed.tls import Pem
from datapipes.distributed.wire.refusals import Unavailable, error_to_bytes

_FAREWELL_S = 0.5  # for clients to take the end of an answer, and to close their connections, as they are told to
_EVERY_S = 0.1
_MOST_TEXT = 500  # characters of an error for clients that read no more than its text


def flight_server(where: str, service: Service, address: Address, pem: Pem | None) -> Any:
    """Return a Flight server that listens; its `port` is the real one. `close_flight_server` ends it.

    Raises:
        OSError: Nothing can listen there: the message names the address.
    """
    kind = _server_class(where)
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
    except Exception as error:  # of Arrow, which does not say what is wrong
        tls = "" if pem is None else ", or a certificate does not fit its key"
        raise OSError(
            f"{where}: cannot listen on {address}: {error}. Another program may have taken the port meanwhile{tls}."
        ) from error
    note_server(server)
    return server


def close_flight_server(server: Any) -> None:
    """End a server and its connections. All of its answers must have ended."""
    port, ended = server.port, threading.Event()

    def end_connections() -> None:
        pause = _FAREWELL_S
        while not ended.wait(pause):
            end_all_connections(port)
            pause = _EVERY_S

    # Arrow waits for every client to close its connection; one that is stopped, or says nothing, never does.
    thread = threading.Thread(target=end_connections, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there are no threads any more: the interpreter ends
        end_all_connections(port)
    try:
        server.shutdown()
    finally:
        ended.set()
        if thread.ident is not None:
            thread.join()
    server.service = None  # the part is closed with its last reference


@functools.lru_cache
def _server_class(where: str) -> Any:
    flight = arrow_flight(where)

    class FlightServer(flight.FlightServerBase):  # type: ignore[misc,name-defined]
        """Answers DoGet; all other methods are refused by the base."""

        def __init__(self, service: Service, location: str, **secured: Any) -> None:
            self.service: Service | None = service
            super().__init__(location, **secured)

        def do_get(self, context: Any, ticket: Any) -> Any:
            try:
                if self.service is None:
                    raise Unavailable(f"{where}: the server has stopped.")
                schema, batches = self.service.answer(context.peer(), ticket.ticket, context.is_cancelled)
            except BaseException as error:
                kind = flight.FlightUnavailableError if isinstance(error, Unavailable) else flight.FlightServerError
                raise kind(str(error)[:_MOST_TEXT], extra_info=error_to_bytes(error)) from None
            return flight.GeneratorStream(schema, batches)

    return FlightServer


def _try_to_listen(where: str, address: Address) -> None:
    """Listen for a moment, since Arrow does not say why it cannot."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise type(error)(
            error.errno, f"{where}: cannot listen on {address}: {error.strerror}. Name an address of this machine."
        ) from error
    family, kind, _, _, place = found[0]
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
