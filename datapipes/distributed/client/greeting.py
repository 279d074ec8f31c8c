"""The handshake: whether a server has the part, the partition and the content that the client means."""

from __future__ import annotations

from dataclasses import fields

from datapipes.base.checks import shown
from datapipes.distributed.client.connection import Connection
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.wire.envelope import Meant
from datapipes.distributed.wire.hello_codec import greeting_from_message, hello_to_message
from datapipes.distributed.wire.refusals import OtherPartition


def greet(
    connection: Connection, part: int, timeout: float, *, facts: PartitionFacts | None, partition_id: str | None
) -> PartitionFacts:
    """Return what a server says of its partition, if it is the one that is meant.

    Args:
        facts: what it must agree with in everything; None if nothing is known yet.
        partition_id: what it must have; None for any.
    Raises:
        OtherPartition: The message names both values.
        What Connection.ask raises.
    """
    where = connection.where
    meant = Meant(part, partition_id, None if facts is None else facts.content_id)
    theirs, found = greeting_from_message(where, connection.ask(hello_to_message(meant), timeout, 0))
    if theirs != part:
        raise _other(where, "part", theirs, part)
    if partition_id is not None and found.partition_id != partition_id:
        raise _other(where, "partition_id", found.partition_id, partition_id)
    for field in fields(PartitionFacts) if facts is not None else ():
        here, there = getattr(facts, field.name), getattr(found, field.name)
        if here != there:
            raise _other(where, field.name, there, here)
    return found


def _other(where: str, name: str, theirs: object, ours: object) -> OtherPartition:
    return OtherPartition(
        f"{where}: the server has the {name} {shown(theirs)}, expected is {shown(ours)}. Compare the namebook, and the "
        "folder that the server was started on, with the folder that is read here."
    )
