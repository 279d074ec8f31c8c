"""Connection: one channel to one server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from datapipes.distributed.address import Address
from datapipes.distributed.arrow import arrow_flight
from datapipes.distributed.forks import note_client, refuse_forked
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.arrow_message import Message, to_bytes
from datapipes.distributed.wire.arrow_reading import Sink, from_batches
from datapipes.distributed.wire.envelope import check_versions
from datapipes.distributed.wire.refusals import error_from_bytes

SLACK_BYTES = 2**16  # a small invalid answer gets its own error, not "too large"


class Connection:
    """One channel to a server, with a TCP connection of its own. Making it connects nothing yet; requests do.

    Many threads may ask at once.

    Args:
        connect_s: seconds that connecting may take, TLS included.
    Attributes:
        in_flight, retired, greeted: kept by Connections.
    """

    def __init__(self, where: str, address: Address, tls: TLSConfig | None, connect_s: float) -> None:
        refuse_forked(where)
        self.where, self.in_flight, self.retired = where, 0, False
        self.greeted = 0.0  # when the server had greeted, by time.monotonic()
        self._flight = arrow_flight(where)
        options: list[tuple[str, int | str]] = [
            ("grpc.use_local_subchannel_pool", 1),  # or channels to one address would share one TCP connection
            ("grpc.enable_http_proxy", 0),  # the environment's proxy is for the web
            ("grpc.min_reconnect_backoff_ms", max(int(connect_s * 1000), 1)),  # is what bounds one attempt to connect
        ]
        pem = (
            {}
            if tls is None
            else dict(zip(("cert_chain", "private_key", "tls_root_certs"), tls.read(where), strict=True))
        )
        self._client = self._flight.FlightClient(address.uri(tls=tls is not None), generic_options=options, **pem)
        note_client(self._client)

    def ask(self, request: Message, timeout: float, most_bytes: int, sink: Sink | None = None) -> Message:
        """Return the answer to a request, or raise what prevented it; `timeout` seconds at most.

        Args:
            most_bytes: of the tensors of the answer, but for some slack.
            sink: takes the tensors of the answer as they arrive; see from_batches.

        Raises:
            The error of the server, by its type; the text begins with part and address.
            pyarrow.flight.FlightError: No answer came; see retry.py.
            BadMessage: What came is no message.
            OtherPartition: The server speaks another version.
        """
        options = self._flight.FlightCallOptions(timeout=max(timeout, 0.001))
        ticket = self._flight.Ticket(to_bytes(self.where, request))
        chunks = _Chunks()
        try:
            chunks.reader = self._client.do_get(ticket, options)
            answer = from_batches(self.where, chunks.reader.schema, chunks, most_bytes + SLACK_BYTES, sink)
        except Exception as failure:
            told = error_from_bytes(getattr(failure, "extra_info", None) or b"")
            if told is None:
                raise
            kind, text = told
        else:
            check_versions(self.where, answer.header)
            return answer
        finally:
            chunks.end()
        raise kind(f"{self.where}: {text}")

    def close(self) -> None:
        """End the channel; nobody may be asking."""
        client, self._client = self._client, None
        if client is not None:
            client.close()


class _Chunks:
    """The batches of an answer. Tracebacks hold it, so it must not hold the stream when all is over."""

    reader: Any = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return self.reader.read_chunk().data

    def end(self) -> None:
        reader, self.reader = self.reader, None
        if reader is not None:
            reader.cancel()  # after an error the server would go on sending; after the last chunk it does nothing
