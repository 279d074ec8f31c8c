"""The first steps of DistGraph.connect and of PartitionClient's `connect`. The user gives a namebook, and maybe the
folder of the partition. From these come the facts of the partition, the partition book, the connections to servers, and
the part in this process.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from datapipes.base.checks import check_bool, check_int, check_seconds, shown
from datapipes.distributed.addresses import Address, Replicas
from datapipes.distributed.arrow import arrow_flight, refuse_forked
from datapipes.distributed.client.connection import Connection, server_name
from datapipes.distributed.client.flight_peers import WHAT, FlightPeers, greeted
from datapipes.distributed.client.remote_part import Limits, RemotePart
from datapipes.distributed.namebook import addresses_in, check_complete, is_asked_again
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.tls import TLSConfig, check_tls, refuse_plain
from datapipes.distributed.wire.envelope import Meant
from datapipes.distributed.wire.refusals import OtherPartition
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.native_book import open_book, partition_id_of
from datapipes.partition.native.part import Part

_ADVICE = "It bounds each request in all; 30 is a good value."
_AGAIN_S = 1.0  # for an answer of a Resolver that is asked again
_PROBE_S = 1.0  # for a probe whether a server listens


class Security(NamedTuple):
    """The arguments of `connect` that say how servers are reached: certificates, trust in other machines, and the
    deadline.
    """

    tls: TLSConfig | None
    insecure: bool
    deadline: float


def check_security(
    where: str, tls: Any, insecure: Any, deadline: Any, name: str = "deadline", advice: str = _ADVICE
) -> Security:
    """Check the arguments `tls`, `insecure` and `deadline` of a caller, and return them as a Security.

    Args:
        where: the caller, for error messages.
        name: what error messages call the argument `deadline`.
        advice: the remedy in an error about `deadline`.
    """
    check_tls(where, tls, insecure)
    seconds = check_seconds(where, name, deadline, advice)
    if tls is not None:
        tls.checked(where)
    return Security(tls, insecure, float(seconds))


def connect_parts(
    where: str, root_or_book: Any, namebook: Any, local_part: int | None, security: Security, *, mmap: bool
) -> tuple[PartitionFacts, PartitionBook, FlightPeers, Part | None]:
    """Return the arguments for the constructor of a DistGraph: (facts, book, peers, local part or None).

    The local part is opened, and its facts are used. If there is no local part, one server is asked for the facts.
    Other servers are not asked before they are needed.
    """
    book, part = _book_and_part(where, root_or_book, local_part, check_bool(where, "mmap", mmap))
    addresses = addresses_of_others(where, namebook, book.num_parts, local_part, security)
    facts = PartitionFacts.of(part) if part is not None else _facts_of_servers(where, book, addresses, security)
    return facts, book, peers_at(where, addresses, facts, namebook, security), part


def addresses_of_others(
    where: str, namebook: Any, num_parts: int, local_part: int | None, security: Security
) -> dict[int, Replicas]:
    """Look up the addresses of all parts but `local_part` in a namebook; return {part: its Replicas}.

    Raises:
        TypeError, ValueError: The namebook is not valid, or lacks a part. Or other machines can reach an address, and
            `security` has neither TLS nor `insecure`.
        TimeoutError: A resolver gave no address in time.
    """
    wanted = [number for number in range(num_parts) if number != local_part]
    addresses = addresses_in(where, namebook, wanted, security.deadline)
    addresses = check_complete(where, addresses, num_parts, local_part)
    refuse_all_plain(where, addresses, security)
    return addresses


def peers_at(
    where: str,
    addresses: Mapping[int, Replicas],
    facts: PartitionFacts,
    namebook: Any,
    security: Security,
    *,
    by_rank: bool = False,
) -> FlightPeers:
    """Return FlightPeers that send requests to the servers at `addresses`.

    Args:
        addresses: {part: its Replicas}, or with `by_rank` {server rank: its Replicas}; the result of a look-up in
            `namebook`.
        namebook: asked again when no server of a part can be reached, if its addresses may change.
    """
    again = partial(_asked_again, where, namebook, security) if is_asked_again(namebook) else None
    return FlightPeers(addresses, facts, tls=security.tls, deadline=security.deadline, by_rank=by_rank, again=again)


def _asked_again(where: str, namebook: Any, security: Security, part: int) -> Replicas:
    addresses = addresses_in(where, namebook, [part], _AGAIN_S)
    refuse_all_plain(where, addresses, security)
    return addresses[part]


def connect_servers(where: str, namebook: Any, security: Security) -> FlightPeers:
    """Ask one server of the namebook for the facts of its partition. Return FlightPeers that send requests to servers
    by their rank, not by part.
    """
    addresses = addresses_in(where, namebook, [0], security.deadline)
    if not addresses:
        raise ValueError(f"{where}: the namebook is empty. Name the address of each server.")
    refuse_all_plain(where, addresses, security)
    heard = (rank for rank, replicas in addresses.items() if len(addresses) > 1 and replicas.is_heard(_PROBE_S))
    rank = next(heard, next(iter(addresses)))
    facts = ask_facts(where, rank, addresses[rank], security, by_rank=True)
    if is_asked_again(namebook):
        addresses = addresses_of_others(where, namebook, facts.num_parts, None, security)
    return peers_at(where, addresses, facts, namebook, security, by_rank=True)


def refuse_all_plain(where: str, addresses: Mapping[int, Replicas], security: Security) -> None:
    """Raise ValueError if other machines can reach one of `addresses`, and `security` has neither TLS nor
    `insecure`.
    """
    for replicas in addresses.values():
        for address in replicas:
            refuse_plain(where, address, security.tls, security.insecure)


def _book_and_part(where: str, root_or_book: Any, local_part: Any, mmap: bool) -> tuple[PartitionBook, Part | None]:
    if isinstance(root_or_book, PartitionBook):
        if local_part is not None:
            raise ValueError(
                f"{where}: local_part {shown(local_part)} is read from the folder of the partition, but a book was "
                "given. Pass the folder, or leave local_part out."
            )
        book = root_or_book
    elif isinstance(root_or_book, (str, Path)):
        book = open_book(root_or_book)
    else:
        raise TypeError(
            f"{where}: root_or_book must be the folder of a partition or a PartitionBook, got {shown(root_or_book)} "
            f"({type(root_or_book).__name__})."
        )
    if local_part is None and not mmap:
        raise ValueError(
            f"{where}: mmap=False reads the local part into memory, but there is none. Give local_part, or leave mmap "
            "out."
        )
    if local_part is None:
        return book, None
    check_int(where, "local_part", local_part, 0, book.num_parts - 1)
    return book, Part.open(root_or_book, local_part, book=book, mmap=mmap)


def _facts_of_servers(
    where: str, book: PartitionBook, addresses: Mapping[int, Replicas], security: Security
) -> PartitionFacts:
    part, replicas = next(iter(addresses.items()))
    facts = ask_facts(where, part, replicas, security, partition_id=book.partition_id)
    ours = partition_id_of(facts.fingerprint, book)
    if ours != facts.partition_id:
        raise OtherPartition(
            f"{where}: part {part} at {replicas}: the server has the partition_id {facts.partition_id}, the book has "
            f"{ours}. Compare the namebook, and the folder of the server, with the book."
        )
    return facts


def ask_facts(
    where: str,
    part: int,
    replicas: Replicas,
    security: Security,
    *,
    partition_id: str | None = None,
    by_rank: bool = False,
) -> PartitionFacts:
    """Ask a server of `part` for the facts of its partition, and close the connection.

    Args:
        by_rank: True: `part` is the rank of a server, which may have any part.
    Raises:
        ImportError: pyarrow is not installed.
        ServerUnavailable: There was no answer within the deadline.
        OtherPartition: The server has another part, another partition than `partition_id` (if this is not None), or
            another version of datapipes.
    """
    arrow_flight(where)
    refuse_forked(where)
    limits, received, kind = Limits(security.deadline), list[PartitionFacts](), WHAT[by_rank]
    meant = Meant(None if by_rank else part, partition_id)

    def connect(address: Address, timeout: float) -> Connection:
        name = server_name(kind, part, address)
        connection, facts = greeted(name, meant, address, limits, timeout, tls=security.tls, facts=None)
        received.append(facts)
        return connection

    remote = RemotePart(part, replicas, limits, connect, kind=kind)
    try:
        remote.submit(lambda send: None).result()  # connecting is enough: the facts come with the handshake
    finally:
        remote.close()
    return received[-1]
