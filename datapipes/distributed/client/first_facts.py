"""What the servers of a partition agree on, asked of one of them before anything else is known."""

from __future__ import annotations

from datapipes.distributed.address import Address
from datapipes.distributed.arrow import arrow_flight
from datapipes.distributed.client.connection import Connection
from datapipes.distributed.client.greeting import greet
from datapipes.distributed.client.remote_part import Limits, RemotePart
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.forks import refuse_forked
from datapipes.distributed.tls import TLSConfig


def ask_facts(
    where: str, part: int, address: Address, *, tls: TLSConfig | None, deadline: float, partition_id: str | None = None
) -> PartitionFacts:
    """Return the facts that the server of a part has; the connection ends with it.

    Raises:
        ImportError: pyarrow is not installed.
        ServerUnavailable: There was no answer within `deadline` seconds.
        OtherPartition: It has another part, or not `partition_id`, or another version of datapipes.
    """
    arrow_flight(where)
    refuse_forked(where)
    limits, found = Limits(deadline), []

    def connect(timeout: float) -> Connection:
        connection = Connection(f"part {part} at {address}", address, tls, limits.connect_s)
        try:
            found.append(greet(connection, part, timeout, facts=None, partition_id=partition_id))
        except BaseException:
            connection.close()
            raise
        return connection

    remote = RemotePart(part, address, limits, connect)
    try:
        remote.submit(lambda send: None).result()  # to have a connection is all that is asked
    finally:
        remote.close()
    return found[-1]
