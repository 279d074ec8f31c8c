"""A plain client of a partition server for tests: it asks, and raises the error that the server tells."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import torch
from partitions import attributes_of, write

import datapipes as dp
from datapipes.distributed import PartitionBook, PartitionServer, ServerLimits
from datapipes.distributed.partition_facts import PartitionFacts, greeting_from_message, hello_to_message
from datapipes.distributed.requests.request import Answer, Request
from datapipes.distributed.wire.arrow_message import Message, to_bytes
from datapipes.distributed.wire.arrow_reading import from_batches
from datapipes.distributed.wire.envelope import Meant, request_header
from datapipes.distributed.wire.refusals import error_from_bytes

TIMEOUT_S = 30.0  # of every call
TYPES = {"author": 40, "paper": 30}
RELATIONS = (("author", "knows", "author"), ("author", "writes", "paper"), ("paper", "cites", "paper"))


def plain_graph(num_nodes: int = 60, num_edges: int = 600, rng_seed: int = 0) -> dp.CSCGraph:
    """A graph without types, with attributes of several dtypes, one of them labels "y"."""
    generator = torch.Generator().manual_seed(rng_seed)
    nodes = {**attributes_of(num_nodes, rng_seed), "y": torch.randint(5, (num_nodes,), generator=generator)}
    return dp.CSCGraph.from_edge_index(
        torch.randint(num_nodes, (2, num_edges), generator=generator),
        num_nodes,
        node_attributes=nodes,
        edge_attributes=attributes_of(num_edges, rng_seed + 1),
    )


def typed_graph() -> dp.HeteroCSCGraph:
    """A graph of two node types and three relations, with attributes."""
    generator = torch.Generator().manual_seed(0)
    edges = {
        key: torch.stack([torch.randint(TYPES[end], (200,), generator=generator) for end in (key[0], key[2])])
        for key in RELATIONS
    }
    return dp.HeteroCSCGraph.from_edge_index(
        edges,
        TYPES,
        node_attributes={name: attributes_of(count, 1) for name, count in TYPES.items()},
        edge_attributes={key: attributes_of(200, 2) for key in RELATIONS},
    )


def in_parts(root: Path, graph: Any, num_parts: int = 2) -> Path:
    """Write a graph in parts: node i belongs to part i % num_parts. Return the folder."""
    owners = {kind: torch.arange(graph.num_nodes_of(kind)) % num_parts for kind in graph.node_types}
    return write(root, graph, PartitionBook(num_parts, owners))


class PlainClient:
    """One connection. Calls raise the typed errors that the server tells, or those of Flight if it tells none."""

    def __init__(self, address: str, meant: Meant | None = None, *, tls: bool = False, **options: Any) -> None:
        self.client = flight.connect(f"grpc+{'tls' if tls else 'tcp'}://{address}", **options)
        self.meant = Meant() if meant is None else meant
        self.facts: PartitionFacts | None = None

    def open(self, ticket: bytes) -> Any:
        """Return the stream of an answer, of which only the schema was read."""
        options = flight.FlightCallOptions(timeout=TIMEOUT_S)
        try:
            return self.client.do_get(flight.Ticket(ticket), options)
        except flight.FlightError as error:
            raise typed(error) from error

    def ask_bytes(self, ticket: bytes) -> Message:
        stream = self.open(ticket)
        try:
            return from_batches("client", stream.schema, (each.data for each in stream), 2**30)
        except flight.FlightError as error:
            raise typed(error) from error

    def ask(self, message: Message) -> Message:
        return self.ask_bytes(to_bytes("client", message))

    def say(self, kind: str) -> dict:
        """The header of the answer to a request that has nothing but a kind."""
        return self.ask(Message(request_header(kind, self.meant), {})).header

    def hello(self) -> tuple[int, PartitionFacts]:
        """The handshake; from then on all requests name the part and its ids."""
        part, self.facts = greeting_from_message("client", self.ask(hello_to_message(self.meant)))
        self.meant = Meant(part, self.facts.partition_id, self.facts.content_id)
        return part, self.facts

    def answer(self, request: Request[Answer]) -> Answer:
        message = self.ask(request.to_message(self.meant))
        return request.answer_from_message("client", message, self.facts)

    def close(self) -> None:
        self.client.close()

    def __enter__(self) -> "PlainClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def greeted(root: Path, part: int = 1, **limits: Any) -> Iterator[tuple[PartitionServer, PlainClient]]:
    """A server of a part in this process, with such limits, and a client that it has greeted."""
    server = PartitionServer(root, part, limits=ServerLimits(**limits))
    with server, PlainClient(server.address) as client:
        client.hello()
        yield server, client


def typed(error: flight.FlightError) -> Exception:
    """The error that a server tells; the one of Flight if it tells none."""
    told = error_from_bytes(error.extra_info)
    return error if told is None else told[0](told[1])
