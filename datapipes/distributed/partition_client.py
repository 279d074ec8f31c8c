"""connect and PartitionClient: the servers of a partition, asked without a graph."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor
from datapipes.base.types import type_in
from datapipes.distributed.client.flight_peers import FlightPeers
from datapipes.distributed.connecting import check_security, connect_servers
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.tls import TLSConfig
from datapipes.partition.native.requests import Drawn, DrawRequest, Rows, RowsRequest

__all__ = ["PartitionClient", "connect"]

_WHERE, _FETCH = "connect", "PartitionClient.fetch"


def connect(
    namebook: Mapping[int, str] | str | Path,
    *,
    tls: TLSConfig | None = None,
    insecure: bool = False,
    deadline: float = 30.0,
) -> PartitionClient:
    """Return a client of the servers of a partition. One of them is asked at once, the others when they are needed.

    Args:
        namebook: {part: "host:port"} of the parts that will be asked, the path of a JSON file of this form, or
            "torchrun": what `publish_address` published.
        tls: the certificates of this side; needed where an address is not of this machine alone.
        insecure: allow other machines without TLS, where all of them are trusted.
        deadline: seconds for each request in all. Within it a request is asked again, on new connections too.
    Raises:
        TypeError, ValueError: The namebook or an argument is not valid, or names a part that there is not.
        ServerUnavailable: The first server gave no answer within the deadline.
        ImportError: pyarrow is not installed.
        RuntimeError: This process was forked from one with connections.
    """
    return PartitionClient(connect_servers(_WHERE, namebook, check_security(_WHERE, tls, insecure, deadline)))


class PartitionClient:
    """The servers of a partition; `connect` makes it. Any thread may use it.

    It goes to other processes by its arguments; each connects for itself. It is also a FeatureClient: what a
    LocalFeatureStore asks for the rows of other parts.

    Attributes:
        facts: what all servers agree on: numbers of nodes and edges, features, ids of the partition.
    """

    def __init__(self, peers: FlightPeers) -> None:
        self.facts: PartitionFacts = peers.facts
        self._peers = peers

    @property
    def addresses(self) -> dict[int, str]:
        """{part: "host:port"}."""
        return {part: str(address) for part, address in self._peers.addresses.items()}

    def draw(self, part: int, request: DrawRequest) -> Future[list[Drawn]]:
        """Ask a part for in-edges of its nodes; return at once. The future ends within the deadline."""
        return self._peers.draw(part, request)

    def rows(self, part: int, request: RowsRequest) -> Future[list[Tensor]]:
        """Ask a part for rows of features; return at once. The future ends within the deadline."""
        return self._peers.rows(part, request)

    def health(self, part: int) -> dict[str, Any]:
        """Return {"status": "serving", "leaving" or "stopping", "part": its number}, as a server says it."""
        header = self._peers.told(part, "health").result()
        return {name: header.get(name) for name in ("status", "part")}

    def statistics(self, part: int) -> dict[str, Any]:
        """Return the counters of a server: requests by kind and result, seconds, bytes, what waits and is worked on."""
        statistics = self._peers.told(part, "statistics").result().get("statistics")
        return statistics if isinstance(statistics, dict) else {}

    def fetch(
        self, part: int, ids: Tensor, *, is_node_feat: bool, input_type: Any, attr_name: str
    ) -> torch.futures.Future[Tensor]:
        """Ask a part for rows of one attribute; return at once. See FeatureClient."""
        ids = check_index_tensor(_FETCH, "ids", ids)
        rows = Rows("node" if is_node_feat else "edge", self._type(is_node_feat, input_type), (attr_name,), ids)
        answer: torch.futures.Future[Tensor] = torch.futures.Future()

        def pass_on(asked: Future[list[Tensor]]) -> None:
            error = asked.exception()
            if error is None:
                answer.set_result(asked.result()[0])
            else:
                answer.set_exception(error)  # type: ignore[arg-type]

        self._peers.rows(part, RowsRequest((rows,))).add_done_callback(pass_on)
        return answer

    def close(self) -> None:
        """End all connections and threads of this process; may be called twice. The next request connects again."""
        self._peers.close()

    def _type(self, is_node: bool, input_type: Any) -> Any:
        counts: Mapping[Any, int] = self.facts.num_nodes if is_node else self.facts.num_edges
        if None in counts and input_type == (None, None):  # as PyG names an edge type where there are none
            return None
        return type_in(_FETCH, "node" if is_node else "edge", input_type, counts)

    def __enter__(self) -> PartitionClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"PartitionClient({self.addresses})"
