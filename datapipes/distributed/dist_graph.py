"""DistGraph: a partitioned graph, for use in stages. One of its parts may be in this process; the others are behind
servers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, NodeType, ends_of, of_type, type_in
from datapipes.distributed.addresses import Namebook
from datapipes.distributed.asking_parts import Ask, Peers, ask_all, here_or_off_loop, run_here
from datapipes.distributed.connecting import check_security, connect_parts
from datapipes.distributed.hop_requests import HopRequests
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.digests import DigestRequest, joined_digests
from datapipes.distributed.requests.edges import EdgesRequest
from datapipes.distributed.requests.request import Request
from datapipes.distributed.requests.rows import Rows, RowsRequest
from datapipes.distributed.tls import TLSConfig
from datapipes.distributed.walk_steps import ppr_over_parts, walks_over_parts
from datapipes.graph.choice import Choice
from datapipes.graph.graph import EarliestNode, FoundEdges, Graph, Relation, edge_items, ends_of_pairs, name_of
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.graph.ppr import PprPlan
from datapipes.graph.walks import WalkPlan
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.part import Part
from datapipes.partition.native.part_arrays import refuse_other_times
from datapipes.partition.source import TRAIN_MASK
from datapipes.seeds import HeteroItemSet, ItemSet

__all__ = ["DistGraph"]

_CONNECT = "DistGraph.connect"
_PARTITION_AGAIN = "call it on the whole graph, and partition the result"
_OWN_ROWS = "local_part.relation(edge_type) has the in-edges of the part in this process"


class DistGraph(Graph):
    """A partitioned graph; `DistGraph.connect` makes one. Its `digest()` equals that of the undivided graph.

    The samplers of datapipes and DistFeatureStore read a DistGraph. Other code cannot read its rows, so a Sampler class
    that defines its own `draw` or `sample` refuses a DistGraph. What asks parts raises the errors of requests, see
    `connect`, with a note that names the part; or TypeError or ValueError if an answer does not fit.

    Attributes:
        facts: the facts that all parts share, such as how many nodes there are, the features, and the partition_id.
        book: tells which part owns each node.
        peers: sends requests to the servers of the other parts.
        local_part: the part in this process; None if all parts are behind servers.
    """

    _in_parts = True
    _anew = " Then partition the graph again."

    def __init__(
        self, facts: PartitionFacts, book: PartitionBook, peers: Peers, local_part: Part | None = None
    ) -> None:
        self.facts, self.book, self.peers, self.local_part = facts, book, peers, local_part
        self._kept_digests: dict[DigestRequest, dict[Any, list[str] | None]] = {}  # answers of the parts so far
        self._core_graphs: dict[str, tuple[_core.GraphInParts, list[int]]] = {}  # {stage name: (graph, map addresses)}

    @classmethod
    def connect(
        cls,
        root_or_book: str | Path | PartitionBook,
        namebook: Namebook,
        *,
        local_part: int | None = None,
        tls: TLSConfig | None = None,
        insecure: bool = False,
        deadline: float = 30.0,
        mmap: bool = True,
    ) -> DistGraph:
        """Return a partitioned graph. One part may be in this process, the others are behind servers.

        A process connects to a server with its first request to that server. Without `local_part`, this call asks one
        server for the facts of the partition. A pickled DistGraph has no connections: each worker process maps the
        local part and makes its own connections.

        Args:
            root_or_book: the folder of the partition, with partition.json, book/ and the folder of the local part; or a
                PartitionBook, without a local part.
            namebook: {part: "host:port"} of all parts; the local part may be left out. A list of addresses names
                replicas: if a replica gives no answer, another replica is asked. Also allowed are the path of a JSON
                file with such a dict; "torchrun" for the addresses of `publish_address`; or a Resolver, which is asked
                again when no server of a part can be reached.
            local_part: the part to read from the folder, without a server.
            tls: the certificates of this side; needed if other machines can reach one of the addresses.
            insecure: allow other machines without TLS, if all of them are trusted.
            deadline: seconds for each request, retries included. A request is retried, also on new connections, until
                the deadline; then it raises ServerUnavailable.
            mmap: True leaves the local part on disk, see Part.open; False reads the part into memory, which is faster.
        Raises:
            TypeError, ValueError: The namebook or an argument is not valid, a part has no address, or the server has
                another partition.
            FileNotFoundError: The folder holds no partition, or a file is missing.
            ServerUnavailable: The server gave no answer within the deadline.
            TimeoutError: An address was not published within the deadline.
            ImportError: pyarrow is not installed.
            RuntimeError: This process was forked from one that had connections to servers.
        """
        security = check_security(_CONNECT, tls, insecure, deadline)
        return cls(*connect_parts(_CONNECT, root_or_book, namebook, local_part, security, mmap=mmap))

    @property
    def is_heterogeneous(self) -> bool:
        return None not in self.facts.num_nodes

    @property
    def node_types(self) -> tuple[NodeType | None, ...]:
        return tuple(self.facts.num_nodes)

    @property
    def edge_types(self) -> tuple[EdgeType | None, ...]:
        return tuple(self.facts.num_edges)

    @property
    def num_nodes(self) -> int | Mapping[str, int]:
        counts: Any = self.facts.num_nodes
        return counts[None] if None in counts else MappingProxyType(dict(counts))

    @property
    def num_edges(self) -> int | Mapping[EdgeType, int]:
        counts: Any = self.facts.num_edges
        return counts[None] if None in counts else MappingProxyType(dict(counts))

    @property
    def index_dtype(self) -> torch.dtype:
        return self.facts.index_dtype

    def num_nodes_of(self, node_type: NodeType | None) -> int:
        counts = self.facts.num_nodes
        return counts[type_in("DistGraph", "node", node_type, counts)]

    def num_edges_of(self, edge_type: EdgeType | str | None) -> int:
        counts = self.facts.num_edges
        return counts[type_in("DistGraph", "edge", edge_type, counts)]

    def max_edge_id_of(self, edge_type: EdgeType | str | None) -> int:
        """Return the largest edge id of a type, -1 if there are no edges. If the partition has no edge map, return the
        number of edges minus 1.
        """
        known_type = type_in("DistGraph", "edge", edge_type, self.facts.num_edges)
        return (self.book.edges(known_type).num_ids if self.book.has_edges else self.facts.num_edges[known_type]) - 1

    def relation(self, edge_type: EdgeType | str | None) -> Relation:
        self._refuse("relation", _OWN_ROWS)

    def node_attributes_of(self, node_type: NodeType | None) -> dict[str, Tensor]:
        self._refuse("node_attributes_of", "a DistFeatureStore over it reads attributes")

    def to_undirected(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("to_undirected", _PARTITION_AGAIN)

    def reversed(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("reversed", _PARTITION_AGAIN)

    def add_self_loops(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("add_self_loops", _PARTITION_AGAIN)

    def remove_self_loops(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("remove_self_loops", _PARTITION_AGAIN)

    def in_degrees(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("in_degrees", _OWN_ROWS)

    def out_degrees(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("out_degrees", "call it on the whole graph before you partition it")

    def topology(self) -> Any:
        self._refuse("topology", "sample_neighbor samples it")

    def hops(
        self, plan: HopPlan, seeds: Any, keys: list[list[int]], choice: Choice, trees: SeedTrees | None = None
    ) -> Sampled:
        """Sample hop by hop: ask the owning parts, and wait for their answers; see Graph.hops."""
        return run_here(self.hops_async(plan, seeds, keys, choice, trees))

    def drawn(self, plan: WalkPlan | PprPlan, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor | None]:
        drawn: tuple[Tensor, Tensor | None] = run_here(self.drawn_async(plan, seeds, keys))
        return drawn

    async def drawn_async(self, plan: WalkPlan | PprPlan, seeds: Tensor, keys: list[int]) -> Any:
        """Coroutine that returns what `drawn` returns, and does not block the event loop while the parts answer."""
        plan.refuse_other(self)
        over_parts: Any = walks_over_parts if isinstance(plan, WalkPlan) else ppr_over_parts
        return await over_parts(self, plan, seeds, keys)

    async def hops_async(
        self, plan: HopPlan, seeds: Any, keys: list[list[int]], choice: Choice, trees: SeedTrees | None = None
    ) -> Sampled:
        """Coroutine that returns what `hops` returns, and does not block the event loop while the parts answer."""
        checked = plan.checked(self, seeds, choice, trees)
        hops = HopRequests(self, self._core_graph(plan.name), plan, checked, keys, choice, trees)
        asks: list[Ask] | None = await here_or_off_loop(hops.start)
        while asks is not None:
            asks = await here_or_off_loop(hops.advance, await self._ask_all(asks))
        return hops.neighborhood()

    def has_edges(self, pairs: Tensor, edge_type: EdgeType | str | None = None) -> FoundEdges:
        """Ask the parts that own the destinations, and wait for their answers; see Graph.has_edges."""
        return run_here(self.has_edges_async(pairs, edge_type))

    async def has_edges_async(self, pairs: Tensor, edge_type: EdgeType | str | None = None) -> FoundEdges:
        """Coroutine that returns what `has_edges` returns, and does not block the event loop while the parts answer."""
        known_type: Any = type_in("has_edges", "edge", edge_type, self.facts.num_edges)
        sources, destinations = ends_of_pairs(pairs)

        def request(at: Tensor) -> EdgesRequest:
            return EdgesRequest(known_type, destinations[at], sources[at])

        return FoundEdges(*await self._asked_of_owners(destinations, ends_of(known_type)[1], request, 2))

    def _node_times(self, name: str, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        return run_here(self._node_times_async(name, ids, node_type))

    async def _node_times_async(self, name: str, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Coroutine that returns the times of the nodes `ids`, int64 [n]: their rows of the node attribute `name`."""

        def request(at: Tensor) -> RowsRequest:
            return RowsRequest((Rows("node", node_type, (name,), ids[at]),))

        return (await self._asked_of_owners(ids, node_type, request, 1))[0]

    async def _asked_of_owners(
        self, ids: Tensor, node_type: Any, request: Callable[[Tensor], Request[Any]], width: int
    ) -> list[Tensor]:
        """Ask for values of the nodes `ids` [n] at the parts that own them. Each answer has `width` columns, int64;
        return these columns for all nodes, [n] each, in the order of `ids`. `request` takes positions in `ids`, and
        returns the request for the nodes there. Raise IndexError if a node is outside the graph.
        """
        by_part = await here_or_off_loop(self._by_owner, ids, node_type)
        answers = await self._ask_all([Ask(part, request(at)) for part, at in by_part])
        columns = [torch.empty(ids.shape[0], dtype=torch.int64) for _ in range(width)]
        for (_, at), answer in zip(by_part, answers, strict=True):
            for column, values in zip(columns, answer, strict=True):
                column[at] = values
        return columns

    async def _ask_all(self, asks: Sequence[Ask]) -> list[Any]:
        return await ask_all(asks, self.peers, self.local_part)

    def _by_owner(self, ids: Tensor, node_type: Any) -> list[tuple[int, Tensor]]:
        """Group the nodes `ids` by the part that owns them: return [(part, positions of its nodes in `ids`), ...]."""
        owners = self.book.get_partition_ids_from_nids(ids, node_type).numpy()
        order = np.argsort(owners, kind="stable")
        parts, begins = np.unique(owners[order], return_index=True)
        return [*zip(parts.tolist(), map(torch.from_numpy, np.split(order, begins[1:])), strict=False)]

    def _edge_items(self, edge_type: Any, edge_ids: Any) -> ItemSet | HeteroItemSet:
        part = self.local_part
        if part is None:
            raise ValueError(
                "ItemSet.of_edges: all parts are behind servers, and the items are edges of the part in this process. "
                "Connect with local_part=, the part of this rank."
            )
        relations = {type_: part.relation(type_) for type_ in part.edge_types}
        return edge_items(relations, {type_: part.node_ids(type_) for type_ in part.node_types}, edge_type, edge_ids)

    def local_items(self, mask: str = TRAIN_MASK, label: str | None = "y") -> ItemSet | HeteroItemSet:
        """Return the seeds of the local part: its own nodes where `mask` is True, with their labels.

        Pass the result to `DistributedItemSampler(..., local_items=True)`. The partitioner stores the item sets of a
        data set as "train_mask", "val_mask" and "test_mask", and the labels as "y".

        Args:
            mask: name of a node attribute, bool [own nodes]. Node types without this attribute, or whose mask is all
                False, are left out.
            label: name of the node attribute that becomes `labels`; None for seeds without labels.
        Returns:
            In a graph without types an ItemSet, empty if the mask is all False; with types a HeteroItemSet.
        Raises:
            ValueError: There is no local part; no node type has the mask; or a type with the mask lacks the label. In a
                graph with types, also if the mask is False for all nodes of the part.
        """
        where, part = "DistGraph.local_items", self.local_part
        if part is None:
            raise ValueError(f"{where}: all parts are behind servers. Connect with local_part=, the part of this rank.")
        items_of: dict[Any, ItemSet] = {}
        for kind in part.node_types:
            attributes = part.node_attributes_of(kind)
            chosen = attributes.get(mask)
            if chosen is None or chosen.dtype != torch.bool or chosen.ndim != 1:
                continue
            if label is not None and label not in attributes:
                raise ValueError(
                    f"{where}: the nodes{of_type(kind)} have no attribute {shown(label)}; they have "
                    f"{sorted(attributes)}. Name the attribute of their labels, or pass label=None."
                )
            ids = part.node_ids(kind)[chosen]
            items_of[kind] = ItemSet(ids if label is None else (ids, attributes[label][chosen]))
        filled = {kind: items for kind, items in items_of.items() if len(items) > 0}
        if not items_of or not (filled or None in items_of):
            names = sorted({name for kind, _, name in self.forms() if kind == "node"})
            no_mask = f"has no mask {shown(mask)}, a node attribute bool [num_nodes]"
            why = f"has no node where {shown(mask)} is True" if items_of else no_mask
            raise ValueError(f"{where}: part {part.part} {why}; node attributes are {names}. Name another mask.")
        return items_of[None] if None in items_of else HeteroItemSet(filled)

    def choose(self, where: str, choice: Choice, edge_types: Sequence[Any]) -> None:
        """Check that the graph has the attributes that `choice`, the way of drawing in-edges, reads. Prepare the draws
        of the local part; every other part prepares its own when its first request comes.
        """
        if choice.reads is None:
            return
        choice.reads.check(where, self, edge_types)
        if self.local_part is not None:
            for edge_type in edge_types:
                self.local_part.chosen(where, choice.reads, edge_type)

    def _refuse_changes(self, plan: HopPlan | WalkPlan) -> None:
        if plan.choice.reads is not None and self.local_part is not None:
            self.local_part.refuse_change()

    def _choice_digests(self, plan: HopPlan | WalkPlan) -> dict[Any, list[str] | None]:
        """Return {edge type: digests of the weights or times that the plan's choice reads}; None for an edge type from
        which no values are read; {} if the choice reads none at all. The digests are sums over all parts. Only the
        first call asks the parts.

        The digests are part of a sampler's fingerprint. They do not depend on the partition, so a saved state fits the
        whole graph and any partition of it.
        """
        if plan.choice.reads is None:
            return {}
        kept, request = self._kept_digests, DigestRequest(plan.edge_types, plan.choice.reads)
        if request not in kept:
            answers = run_here(self._ask_all([Ask(part, request) for part in range(self.facts.num_parts)]))
            kept[request] = joined_digests(plan.name, plan.edge_types, answers)
        return kept[request]

    def forms(self) -> Mapping[tuple[str, Any, str], Any]:
        """Return {("node" or "edge", type or None, name): RowForm}: the dtype and row shape of each partitioned
        attribute.
        """
        return self.facts.features

    def _refuse_source_times(self, where: str, name: str) -> None:
        refuse_other_times(where, name, self.facts.node_time_attr)

    def _earliest_nodes(self, where: str, name: str) -> Mapping[NodeType | None, EarliestNode]:
        self._refuse_source_times(where, name)
        if self.facts.earliest_nodes is None:
            raise ValueError(
                f"{where}: the partition does not tell the earliest node of each type, which negatives with "
                f"node_time_attr need; it was written by an older version. Partition the graph again with "
                f"node_time_attr={name!r}."
            )
        return self.facts.earliest_nodes

    def digest(self) -> str:
        if self.local_part is not None:
            self.local_part.refuse_change()
        return self.facts.fingerprint

    def close(self) -> None:
        """End the connections of this process; may be called twice. The next request connects again."""
        self.peers.close()

    def _core_graph(self, name: str) -> _core.GraphInParts:
        """Return the C++ object for this graph, which has its types and views of the maps in the partition book. It is
        kept, and made again if the memory of a map has moved, for example by `tensor.share_memory_()`.

        Args:
            name: the stage's name, for errors of the C++ core. Each name gets an object of its own.
        """
        maps = [self.book.nodes(node_type).stored() for node_type in self.node_types]
        places = [ids.data_ptr() for ids in maps]
        kept = self._core_graphs.get(name)
        if kept is None or kept[1] != places:
            numbers = {node_type: number for number, node_type in enumerate(self.node_types)}
            counts = self.facts.num_nodes
            nodes = [(name_of(type_), counts[type_], ids.numpy()) for type_, ids in zip(numbers, maps, strict=True)]
            ends = [(type_, *ends_of(type_)) for type_ in self.edge_types]
            relations = [(numbers[src], numbers[dst], name_of(type_)) for type_, src, dst in ends]
            kept = _core.GraphInParts(self.facts.num_parts, nodes, relations, name), places
            self._core_graphs[name] = kept
        return kept[0]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_core_graphs": {}}

    def _refuse(self, method: str, instead: str) -> NoReturn:
        raise TypeError(f"DistGraph: has no {method}, since its rows are in {self.facts.num_parts} parts; {instead}.")

    def __repr__(self) -> str:
        here = "all behind servers" if self.local_part is None else f"part {self.local_part.part} is here"
        nodes, edges = self.facts.num_nodes, self.facts.num_edges
        types = "" if None in nodes else f"{len(nodes)} node types, {len(edges)} edge types, "
        counts = f"{types}{sum(nodes.values())} nodes, {sum(edges.values())} edges"
        return f"DistGraph({self.facts.num_parts} parts, {here}, {counts})"
