"""The handshake: whether a server has the part, the partition and the content that the client means, and the facts of a
partition of which nothing else is known.
"""

from __future__ import annotations

from dataclasses import fields

from datapipes.base.checks import shown
from datapipes.distributed.address import Address
from datapipes.distributed.arrow import arrow_flight, refuse_forked
from datapipes.distributed.client.connection import Connection
from datapipes.distributed.client.remote_part import Limits, RemotePart
from datapipes.distributed.facts import PartitionFacts, greeting_from_message, hello_to_message
from datapipes.distributed.resolver import Replicas
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.envelope import Meant
from datapipes.distributed.wire.refusals import OtherPartition

WHAT = ("part", "server")  # what a number stands for, without and with `by_rank`


def greeted(
    part: int | None,
    address: Address,
    limits: Limits,
    timeout: float,
    *,
    tls: TLSConfig | None,
    facts: PartitionFacts | None,
    partition_id: str | None = None,
    where: str | None = None,
) -> tuple[Connection, PartitionFacts]:
    """Return a new connection to a server, and what it says of its partition, if it is the one that is meant.

    Args:
        part: the part that it must have; None for any.
        where: names the server in errors; by default its part and address do.
        facts: what it must agree with in everything; None if nothing is known yet.
        partition_id: what it must have; by default that of `facts`, or any.
    Raises:
        OtherPartition: The message names both values.
        What Connection.ask raises.
    """
    where = where or f"part {part} at {address}"
    partition_id = partition_id if facts is None else facts.partition_id
    connection = Connection(where, address, tls, limits.connect_s)
    meant = Meant(part, partition_id, None if facts is None else facts.content_id)
    try:
        theirs, their_facts = greeting_from_message(where, connection.ask(hello_to_message(meant), timeout, 0))
        if part is not None and theirs != part:
            raise _other(where, "part", theirs, part)
        if partition_id is not None and their_facts.partition_id != partition_id:
            raise _other(where, "partition_id", their_facts.partition_id, partition_id)
        for field in fields(PartitionFacts) if facts is not None else ():
            here, there = getattr(facts, field.name), getattr(their_facts, field.name)
            if here != there:
                raise _other(where, field.name, there, here)
    except BaseException:
        connection.close()
        raise
    return connection, their_facts


def ask_facts(
    where: str,
    part: int,
    replicas: Replicas,
    *,
    tls: TLSConfig | None,
    deadline: float,
    partition_id: str | None = None,
    by_rank: bool = False,
) -> PartitionFacts:
    """Return the facts that the server of a part has; the connection ends with it.

    Args:
        by_rank: `part` is the number of a server, which may have any part.
    Raises:
        ImportError: pyarrow is not installed.
        ServerUnavailable: There was no answer within `deadline` seconds.
        OtherPartition: It has another part, or not `partition_id`, or another version of datapipes.
    """
    arrow_flight(where)
    refuse_forked(where)
    limits = Limits(deadline)
    received: list[PartitionFacts] = []

    def connect(address: Address, timeout: float) -> Connection:
        connection, facts = greeted(
            None if by_rank else part,
            address,
            limits,
            timeout,
            tls=tls,
            facts=None,
            partition_id=partition_id,
            where=f"{WHAT[by_rank]} {part} at {address}",
        )
        received.append(facts)
        return connection

    remote = RemotePart(part, replicas, limits, connect, kind=WHAT[by_rank])
    try:
        remote.submit(lambda send: None).result()  # to have a connection is all that is asked
    finally:
        remote.close()
    return received[-1]


def _other(where: str, name: str, theirs: object, ours: object) -> OtherPartition:
    return OtherPartition(
        f"{where}: the server has the {name} {shown(theirs)}, expected is {shown(ours)}. Compare the namebook, and the "
        "folder that the server was started on, with the folder that is read here."
    )
