"""connect and PartitionClient: ask servers for rows, in-edges and minibatches of whole chains, without a DistGraph."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, as_completed, wait
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor, check_int
from datapipes.base.errors import ServerUnavailable, raise_first
from datapipes.base.log import logger
from datapipes.base.rng import check_epoch
from datapipes.base.types import type_in
from datapipes.chain.stage import Stage
from datapipes.distributed.addresses import Namebook, Replicas
from datapipes.distributed.chain_description import describe_chain
from datapipes.distributed.client.flight_peers import FlightPeers, joined
from datapipes.distributed.connecting import check_security, connect_servers
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.chains import (
    MOST_KEY,
    ClaimRequest,
    Created,
    CreateRequest,
    Listed,
    ListRequest,
    Made,
    MinibatchRequest,
    made_from_message,
    request_to_message,
    told_from_message,
)
from datapipes.distributed.requests.draw import Drawn, DrawRequest
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.refusals import UnknownProducer
from datapipes.minibatch import MiniBatch
from datapipes.partition.book import PartitionBook, RangeMap

__all__ = ["PartitionClient", "connect"]

_WHERE, _FETCH = "connect", "PartitionClient.fetch"
_CREATE, _MINIBATCH = "PartitionClient.create_producer", "PartitionClient.minibatch"
_FAREWELL_S = 1.0
MOST_BYTES = 2**34  # of a minibatch, whatever size the server states
_default: PartitionClient | None = None  # the client that `connect` returned last
_Send = Callable[[Message, int], Message]


class _Producer(NamedTuple):
    """A producer that this client has created, with the arguments to create it again on a restarted server."""

    created: Created
    chain: Message
    worker_key: str | None
    num_workers: int


def connect(
    namebook: Namebook,
    *,
    tls: TLSConfig | None = None,
    insecure: bool = False,
    deadline: float = 30.0,
) -> PartitionClient:
    """Return a client of the servers in `namebook`. This call asks one server; other servers are asked when they are
    needed. RemoteReceivingChannel by default uses the client that the latest call of `connect` returned.

    Args:
        namebook: {server rank: "host:port"}, with a list for replicas; the path of a JSON file with such a dict;
            "torchrun" for the addresses of `publish_address`; or a Resolver. Choose any ranks: each server tells which
            part it has, and servers may have the same part. With "torchrun" or a Resolver, the rank is the part's id.
        tls: the certificates of this side; needed if other machines can reach one of the addresses.
        insecure: allow other machines without TLS, if all of them are trusted.
        deadline: seconds for each request, retries included. A request may be retried on a new connection.
    Raises:
        TypeError, ValueError: The namebook or an argument is not valid.
        ServerUnavailable: The first server gave no answer within the deadline.
        ImportError: pyarrow is not installed.
        RuntimeError: This process was forked from one that had connections to servers.
    """
    global _default
    client = PartitionClient(connect_servers(_WHERE, namebook, check_security(_WHERE, tls, insecure, deadline)))
    _default = client
    return client


def default_client(where: str) -> PartitionClient:
    """Return the client that `connect` made last in this process; raise RuntimeError if there is none."""
    if _default is None:
        raise RuntimeError(
            f"{where}: no client is given, and datapipes.distributed.connect was not called. Pass "
            "client=connect(namebook)."
        )
    return _default


class PartitionClient:
    """A client of the servers of one partition, or of one whole graph; `connect` makes it. Any thread may use it.

    A copy in another process makes its own connections. A PartitionClient is also a FeatureClient, which a
    LocalFeatureStore asks for rows of other parts.

    Attributes:
        facts: the facts that all servers share: how many nodes and edges there are, the features, the partition_id.
    """

    def __init__(self, peers: FlightPeers) -> None:
        self.facts: PartitionFacts = peers.facts
        self._peers = peers
        self._ranks: dict[int, int] = {}  # {part: rank of a server that has the part}
        self._token = secrets.token_hex(16)  # names this client in its claims on producers
        self._producers: dict[tuple[int, int], _Producer] = {}  # by (server rank, producer id)
        self._claims: set[tuple[int, int]] = set()  # (server rank, producer id), as servers have recorded
        self._closed = 0  # number of calls of `close`

    @property
    def deadline(self) -> float:
        """Seconds for each request, retries included."""
        return self._peers.limits.deadline

    @property
    def addresses(self) -> dict[int, Any]:
        """{server rank: "host:port", or a list of the replicas' addresses}, as in the namebook."""
        return {rank: replicas.plain() for rank, replicas in self._peers.addresses.items()}

    def where(self, server_rank: int) -> str:
        """Return the name of a server in errors: its rank and address."""
        return self._peers.where(server_rank)

    def draw(self, part: int, request: DrawRequest) -> Future[Drawn]:
        """Ask a server of `part` to draw in-edges of nodes. Return at once; the future ends within the deadline."""
        return self._peers.ask(self._rank_of(part), request)

    def rows(self, part: int, request: RowsRequest) -> Future[list[Tensor]]:
        """Ask a server of `part` for rows of features. Return at once; the future ends within the deadline."""
        return self._peers.ask(self._rank_of(part), request)

    def health(self, server_rank: int) -> dict[str, Any]:
        """Return a server's state: {"status": "serving", "leaving" or "stopping"; "part": the id of its part}."""
        health = self._peers.told(server_rank, "health").result()
        return {"status": health.get("status"), "part": health.get("part")}

    def statistics(self, server_rank: int) -> dict[str, Any]:
        """Return a server's counters: requests by kind and result, seconds, bytes, waiting requests."""
        statistics = self._peers.told(server_rank, "statistics").result().get("statistics")
        return statistics if isinstance(statistics, dict) else {}

    # --- producers

    def graph(self) -> DistGraph:
        """Return a DistGraph for building and describing chains. It stands for the whole graph that the servers have.

        Raises:
            ValueError: The graph is in several parts. DistGraph.connect(book, namebook) returns a graph in parts.
        """
        facts = self.facts
        if facts.num_parts > 1:
            raise ValueError(
                f"PartitionClient.graph: the servers have a graph in {facts.num_parts} parts, and the owners of "
                "its nodes are in its book. Use DistGraph.connect(book, namebook)."
            )
        maps = {node_type: RangeMap(torch.tensor([0, count])) for node_type, count in facts.num_nodes.items()}
        all_ = Replicas(address for replicas in self._peers.addresses.values() for address in replicas)
        peers = FlightPeers({0: all_}, facts, tls=self._peers.tls, deadline=self._peers.limits.deadline)
        return DistGraph(facts, PartitionBook(1, maps), peers)

    def create_producer(
        self, server_rank: int, chain: Stage | Message, worker_key: str | None = None, *, num_workers: int = 0
    ) -> int:
        """Let a server make minibatches of `chain`. The server's object for this is called a producer; return its id.

        The id is a hash of the chain and of the server's data. So a chain has the same id after a restart of the
        server, and on all servers with the same data. The server records that this client uses the producer; the record
        is called a claim. After a restart of the server, `minibatch` creates the producer again.

        Args:
            chain: the last stage of the chain, or the description of the chain by `describe_chain`.
            worker_key: a name under which clients share one chain; the server refuses another chain with the same key.
                If this client gives a producer another key, the new key replaces the old one.
            num_workers: processes that make the minibatches; 0 makes them in threads of the server. The log has a
                warning if the server allows fewer, or if the producer exists with another number of processes.
        Raises:
            ValueError, TypeError, LookupError: The chain cannot be described, or the server cannot build it, or
                `worker_key` belongs to another chain; the message has the server's reason.
            ServerUnavailable: There was no answer within the deadline.
        """
        description = describe_chain(chain) if isinstance(chain, Stage) else chain
        if not isinstance(description, Message):
            raise TypeError(
                f"{_CREATE}: chain must be a Stage, or what describe_chain returns, got {type(chain).__name__}. Pass "
                "the last stage."
            )
        workers = check_int(_CREATE, "num_workers", num_workers, 0)
        if worker_key is not None and (not isinstance(worker_key, str) or len(worker_key) > MOST_KEY):
            raise TypeError(f"{_CREATE}: worker_key must be a text of up to {MOST_KEY} characters, or None.")
        create = partial(self._created_by, server_rank, description, worker_key, workers)
        created = self._peers.submit(server_rank, create).result()
        if created.num_workers != workers:
            logger.warning(
                "%s: producer %d of %s has %d worker processes; %d were asked for. The server allows no more, or the "
                "producer was there already",
                *(_CREATE, created.producer, self.where(server_rank), created.num_workers, workers),
            )
        self._producers[server_rank, created.producer] = _Producer(created, description, worker_key, workers)
        self._claims.add((server_rank, created.producer))
        return created.producer

    def described(self, server_rank: int, producer_id: int) -> Message | None:
        """Return the description of a producer's chain; None if this client has not created the producer."""
        producer = self._producers.get((server_rank, producer_id))
        return None if producer is None else producer.chain

    def create_on(self, server_ranks: Sequence[int], producer_id: int) -> dict[int, ServerUnavailable]:
        """Create a producer, which this client has created on one server, on other servers too.

        Returns:
            {server rank: error} of the servers that gave no answer within the deadline. On these servers `minibatch`
            creates the producer later.
        Raises:
            ValueError: A server has other data, so the producer's id would differ; or a server cannot build the chain.
        """
        producer = next((made for (_, number), made in [*self._producers.items()] if number == producer_id), None)
        if producer is None:
            return {}
        others = [rank for rank in server_ranks if (rank, producer_id) not in self._producers]
        answers = {rank: self._peers.submit(rank, partial(self._again, rank, producer_id, producer)) for rank in others}
        silent = {}
        for rank, answer in answers.items():
            try:
                answer.result()
            except ServerUnavailable as error:
                silent[rank] = error
            self._producers[rank, producer_id] = producer
        return silent

    def num_batches(self, server_rank: int, producer_id: int) -> int:
        """Return how many minibatches an epoch has; raise UnknownProducer if this client does not use the producer."""
        producer = self._producers.get((server_rank, self._checked_id(producer_id)))
        if producer is not None:
            return producer.created.num_batches
        for created in self.list_producers(server_rank):
            if created.producer == producer_id:
                return created.num_batches
        raise UnknownProducer(
            f"{self.where(server_rank)}: producer {producer_id} is not one of this client's. Call "
            "create_producer first: the same chain has the same number."
        )

    def destroy_producer(self, server_rank: int, producer_id: int) -> None:
        """Tell the server that this client needs the producer no more. May be called twice. A producer that no client
        needs is ended by the server.
        """
        self._producers.pop((server_rank, producer_id), None)
        self._claims.discard((server_rank, producer_id))
        self._peers.submit(server_rank, self._destroying(server_rank, self._checked_id(producer_id))).result()

    def list_producers(self, server_rank: int) -> list[Created]:
        """Return the producers of a server that this client uses: a Created for each."""
        message = request_to_message(ListRequest(self._token), self._peers.meant(server_rank))
        answer = self._peers.submit(server_rank, lambda send: send(message, 0)).result()
        return [*told_from_message(Listed, self.where(server_rank), answer).producers]

    def minibatch(self, server_rank: int, producer_id: int, epoch: int, index: int) -> Future[MiniBatch | None]:
        """Ask a server for the minibatch with this index in this epoch; return a future at once.

        The future ends within the deadline: with the minibatch, with None if a stage drops it, or with the error of a
        stage or of the server.
        """
        return joined([self._made(server_rank, producer_id, epoch, index)], lambda made: made[0].value())

    def _made(self, server_rank: int, producer_id: int, epoch: int, index: int, *, waits: bool = True) -> Future[Made]:
        """Like `minibatch`, but the future has a Made: the minibatch, or the error of a stage as a value.

        Args:
            waits: True waits for a server that has ended; False lets the future fail at once if nothing listens.
        """
        number = self._checked_id(producer_id)
        epoch, index = check_epoch(_MINIBATCH, epoch), check_int(_MINIBATCH, "index", index, 0)
        request = MinibatchRequest(self._token, number, epoch, index)
        message = request_to_message(request, self._peers.meant(server_rank))
        where, closed, producer = self.where(server_rank), self._closed, self._producers.get((server_rank, number))

        def is_wanted() -> bool:
            return producer is self._producers.get((server_rank, number)) and closed == self._closed

        def answered(send: _Send) -> Message:
            try:
                return send(message, MOST_BYTES)
            except UnknownProducer:
                if producer is None or not is_wanted():
                    raise
                self._again(server_rank, number, producer, send)
                if not is_wanted():  # destroyed or closed meanwhile
                    self._destroying(server_rank, number)(send)
                    raise
            return send(message, MOST_BYTES)

        return self._peers.submit(
            server_rank, lambda send: made_from_message(where, answered(send), request), waits=waits
        )

    def _created_by(
        self, server_rank: int, chain: Message, worker_key: str | None, num_workers: int, send: _Send
    ) -> Created:
        request, where = CreateRequest(self._token, chain.header, worker_key, num_workers), self.where(server_rank)
        message = request_to_message(request, self._peers.meant(server_rank), chain.tensors)
        return told_from_message(Created, where, send(message, 0))

    def _again(self, server_rank: int, number: int, producer: _Producer, send: _Send) -> None:
        """Create the producer again: on a server that has restarted, or on another server. `number` is its id."""
        other = self._created_by(server_rank, *producer[1:], send).producer
        if other != number:
            self._destroying(server_rank, other)(send)
            raise ValueError(
                f"{self.where(server_rank)}: the chain of producer {number} is producer {other} there: that server "
                "has other data. Serve the same graph and features on all servers."
            )
        self._claims.add((server_rank, number))

    def _destroying(self, server_rank: int, number: int) -> Callable[[_Send], Message]:
        message = request_to_message(ClaimRequest(self._token, number), self._peers.meant(server_rank))
        return lambda send: send(message, 0)

    def _checked_id(self, producer_id: Any) -> int:
        return check_int("PartitionClient", "producer_id", producer_id, 0, 2**63 - 1)

    def _rank_of(self, part: int) -> int:
        """Return the rank of a server that has `part`. If none is known yet, ask the servers which part they have."""
        check_int("PartitionClient", "part", part, 0, self.facts.num_parts - 1)
        if part in self._ranks:
            return self._ranks[part]
        unknown = [rank for rank in self._peers.addresses if rank not in self._ranks.values()]
        healths = {self._peers.told(rank, "health"): rank for rank in unknown}
        silent: list[Exception] = []
        for answer in as_completed(healths):
            try:
                self._ranks.setdefault(answer.result().get("part", -1), healths[answer])
            except ServerUnavailable as error:
                silent.append(error)
            if part in self._ranks:
                return self._ranks[part]
        raise_first(silent)
        raise ValueError(f"{_WHERE}: no server in the namebook has part {part}. Add the address of one.")

    def fetch(
        self, part: int, ids: Tensor, *, is_node_feat: bool, input_type: Any, attr_name: str
    ) -> torch.futures.Future[Tensor]:
        """Ask a server of `part` for rows of one attribute; return a future at once. See FeatureClient.fetch."""
        ids = check_index_tensor(_FETCH, "ids", ids)
        rows = Rows("node" if is_node_feat else "edge", self._type(is_node_feat, input_type), (attr_name,), ids)
        answer: torch.futures.Future[Tensor] = torch.futures.Future()

        def pass_on(fetched: Future[list[Tensor]]) -> None:
            error = fetched.exception()
            if error is None:
                answer.set_result(fetched.result()[0])
            else:
                answer.set_exception(error)  # type: ignore[arg-type]

        self.rows(part, RowsRequest((rows,))).add_done_callback(pass_on)
        return answer

    def close(self) -> None:
        """Tell servers, for up to a second, that this client's producers are no more in use. Then end its connections
        and threads. May be called twice. A later request connects again, and `minibatch` creates its producer again.
        """
        global _default
        _default = None if _default is self else _default
        self._closed += 1  # first: requests in flight must not create a producer again
        claims, self._claims = self._claims, set()
        with contextlib.suppress(RuntimeError):  # a forked child has no connections
            wait([self._peers.submit(rank, self._destroying(rank, number)) for rank, number in claims], _FAREWELL_S)
        self._peers.close()

    def _type(self, is_node: bool, input_type: Any) -> Any:
        counts: Mapping[Any, int] = self.facts.num_nodes if is_node else self.facts.num_edges
        if None in counts and input_type == (None, None):  # PyG's edge type in a graph without types
            return None
        return type_in(_FETCH, "node" if is_node else "edge", input_type, counts)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_token": secrets.token_hex(16), "_claims": set()}  # a copy has claims of its own

    def __enter__(self) -> PartitionClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PartitionClient({self.addresses})"
