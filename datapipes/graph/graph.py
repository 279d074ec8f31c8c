"""Graph: the interface that stages use for every graph: in one memory or partitioned, with types or without.

A graph without types has the one node type None and the one edge type None. So a stage that loops over `node_types` and
`edge_types` works for graphs with types and without.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_index_tensor, check_pairs, shown
from datapipes.base.html import table_html
from datapipes.base.records import Count
from datapipes.base.types import EdgeType, NodeType, by_edge_type, ends_of, type_in, type_text
from datapipes.graph.choice import Choice, Edges, rows_digest
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.graph.ppr import PprPlan
from datapipes.graph.walks import WalkPlan
from datapipes.seeds import HeteroItemSet, ItemSet

LINK_FIELDS = ("seeds", "edge_ids")  # names of the fields of items that are edges


class Relation(Edges, Protocol):
    """The edges of one type of a graph, in CSC arrays."""

    @property
    def edge_ids(self) -> Tensor | None:
        """int64 [num_edges], the id of each edge; None: the id is the position."""


class FoundEdges(NamedTuple):
    """For n pairs (source, destination) of nodes: how many edges each has, and the id of the first.

    Attributes:
        counts: int64 [n], number of edges from the source to the destination of each pair, parallel ones included.
        first_ids: int64 [n], the id of the pair's first edge among the destination's in-edges; -1 if there is none.
    """

    counts: Tensor
    first_ids: Tensor


class EarliestNode(NamedTuple):
    """The node of a type with the smallest time, and a digest of the times of all nodes of the type.

    Attributes:
        node: the smallest id among the nodes that have the earliest time.
        digest: the digest of all times, see rows_digest.
    """

    node: Count
    digest: str

    @classmethod
    def of(cls, times: Tensor) -> EarliestNode:
        """Return the EarliestNode of a type, given the `times` of its nodes: int64 [num_nodes], not empty."""
        return cls(int((times == times.min()).nonzero()[0]), rows_digest(times.contiguous()))


class Graph(ABC):
    """Base of CSCGraph, HeteroCSCGraph and DistGraph."""

    _in_parts: bool = False  # whether the in-edges are in parts of a partition; few samplers can sample such a graph
    _warned_of: frozenset[Any] = frozenset()  # what users were warned of, so that workers do not warn again
    _anew: str = ""  # a sentence that errors append to the advice to change an attribute

    _topology: KeptTopology | None = None

    @property
    def is_heterogeneous(self) -> bool:
        """Whether nodes and edges have types."""
        return None not in self.node_types

    @property
    @abstractmethod
    def node_types(self) -> tuple[NodeType | None, ...]:
        """The node types in sorted order; (None,) without types."""

    @property
    @abstractmethod
    def edge_types(self) -> tuple[EdgeType | None, ...]:
        """The edge types (src, rel, dst) in sorted order; (None,) without types."""

    @property
    @abstractmethod
    def num_nodes(self) -> int | Mapping[str, int]:
        """Number of nodes; with types {node type: number}."""

    @property
    @abstractmethod
    def num_edges(self) -> int | Mapping[EdgeType, int]:
        """Number of edges, where parallel edges count separately; with types {edge type: number}."""

    @property
    @abstractmethod
    def index_dtype(self) -> torch.dtype:
        """The dtype of neighbors and of sampled ids: torch.int32 or torch.int64."""

    @abstractmethod
    def num_nodes_of(self, node_type: NodeType | None) -> int:
        """Return the number of nodes of a type; ValueError if there is no such type."""

    @abstractmethod
    def num_edges_of(self, edge_type: EdgeType | str | None) -> int:
        """Return the number of edges of a type; ValueError if there is no such type."""

    @abstractmethod
    def max_edge_id_of(self, edge_type: EdgeType | str | None) -> int:
        """Return the largest edge id of a type, -1 without edges; ValueError if there is no such type.

        Computed once; O(num_edges) if the edges have ids of their own, else O(1).
        """

    @abstractmethod
    def relation(self, edge_type: EdgeType | str | None) -> Relation:
        """Return the edges of a type; ValueError if there is no such type."""

    @abstractmethod
    def node_attributes_of(self, node_type: NodeType | None) -> dict[str, Tensor]:
        """Return the attributes of nodes of a type, {name: [num_nodes, ...]}; ValueError if there is no such type."""

    @abstractmethod
    def digest(self) -> str:
        """Return a digest of the topology: equal digests mean equal nodes and edges. Computed once."""

    @abstractmethod
    def hops(
        self, plan: HopPlan, seeds: Any, keys: list[list[int]], choice: Choice, trees: SeedTrees | None = None
    ) -> Sampled:
        """Sample all hops from `seeds`, and return the neighborhood. A DistGraph asks its parts, see its `hops_async`.

        Args:
            plan: the fanouts and edge types of the hops, and other options.
            seeds: ids [num_seeds], repeats allowed; with types {node type: ids}.
            keys, choice: the result of `plan.keyed(rng)` for this minibatch.
            trees: the groups of the seeds, if groups must not share sampled nodes; else None.
        Raises:
            IndexError: A seed is not a node of the graph.
            TypeError: Seeds are no integer ids.
            ValueError: An attribute by which in-edges are drawn, such as weights or times, was changed or replaced
                after the plan was made. Or the plan belongs to another graph, `choice` to another plan, a type of the
                seeds is unknown, or `trees` lacks the times that the choice needs.
            MemoryError: A hop needs more memory than is left; the message names hop, fanout and bytes.
        """

    @abstractmethod
    def drawn(self, plan: WalkPlan | PprPlan, seeds: Tensor, keys: list[int]) -> tuple[Tensor, Tensor | None]:
        """Return what a plan gives for the nodes `seeds` [n]: walks, or neighbors and scores; see RandomWalkSampler and
        PprPlan. `keys` is the result of `plan.keys(rng)`. Errors are as for `hops`.
        """

    @abstractmethod
    def has_edges(self, pairs: Tensor, edge_type: EdgeType | str | None = None) -> FoundEdges:
        """Return how many edges go from the source to the destination of each pair, and the id of the first.

        A DistGraph asks the owners of the destinations. The in-edges of each destination are read, if they are many
        once for all its pairs. Time O(n log n + in-edges).

        Args:
            pairs: int32 or int64 [n, 2], source and destination of each; repeats allowed.
            edge_type: on a graph with types, the edge type of the pairs.
        Raises:
            IndexError: A node is outside the graph.
            TypeError, ValueError: There is no such type, or `pairs` has another dtype or shape.
        """

    @abstractmethod
    def _node_times(self, name: str, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the times of nodes, int64 [n], from the node attribute `name`. A DistGraph asks the owning parts.

        Raises:
            IndexError: A node is outside the graph.
        """

    @abstractmethod
    def _edge_items(self, edge_type: Any, edge_ids: Any) -> ItemSet | HeteroItemSet:
        """Make the item set of edges for ItemSet.of_edges. A DistGraph takes only the edges of this process's part."""

    @abstractmethod
    def _earliest_nodes(self, where: str, name: str) -> Mapping[NodeType | None, EarliestNode]:
        """Return {node type: EarliestNode} for the node types that have the attribute `name`, which holds times.

        Raises:
            ValueError: A partitioned graph was partitioned with other times, or by a release that stored no such nodes.
        """

    @abstractmethod
    def choose(self, where: str, choice: Choice, edge_types: Sequence[Any]) -> Any:
        """Check that the graph has the attributes that `choice` reads, and return the arrays from which it draws.

        The result is stored as `HopPlan.chosen`.

        Raises:
            TypeError, ValueError: The graph lacks an attribute that the choice reads, or a value is not allowed.
            MemoryError: The arrays exceed the memory that is left.
        """

    @abstractmethod
    def _refuse_changes(self, plan: HopPlan | WalkPlan) -> None:
        """Raise ValueError if a value that the choice of `plan` reads has changed since the plan was made."""

    @abstractmethod
    def _choice_digests(self, plan: HopPlan | WalkPlan) -> dict[Any, list[str] | None]:
        """Return {edge type: digests of the values that the choice of `plan` reads}; {} if it reads none."""

    @abstractmethod
    def forms(self) -> Mapping[tuple[str, Any, str], Any]:
        """Return {("node" or "edge", type or None, name): RowForm} of all attributes."""

    def _refuse_source_times(self, where: str, name: str) -> None:  # most graphs have them
        """Raise ValueError if the node attribute `name` cannot be read as times of the sources of in-edges."""

    def topology(self) -> _core.Topology:
        """Return all edges of the graph as the object that the sampling kernels take. Made once in each process."""
        kept = self._topology
        if kept is None or not kept.is_valid:
            counts = {node_type: (self.num_nodes_of(node_type),) for node_type in self.node_types}
            relations = {edge_type: self.relation(edge_type) for edge_type in self.edge_types}
            kept = self._topology = KeptTopology(counts, relations)
        return kept.topology

    def _repr_html_(self) -> str:
        """Return the HTML for notebooks: nodes and edges by type, and their attributes."""
        attributes: dict[Any, list[str]] = {}
        for domain, type_, name in self.forms():
            attributes.setdefault((domain, type_), []).append(name)
        rows: list[tuple[object, ...]] = [("", "count", "attributes")]
        counts: dict[str, Any] = {"node": self.num_nodes_of, "edge": self.num_edges_of}
        for domain, types in (("node", self.node_types), ("edge", self.edge_types)):
            for type_ in types:
                kind = f"{domain}s {name_of(type_)}".rstrip()
                rows.append((kind, counts[domain](type_), ", ".join(sorted(attributes.get((domain, type_), [])))))
        return table_html(repr(self), rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_topology"}


class KeptTopology:
    """A cache of the `_core.Topology` of a graph or a part: the arrays in the form that the C++ kernels take.

    `tensor.share_memory_()`, which torch.multiprocessing calls when it sends a tensor, moves the memory of a tensor and
    frees the old one. So check `is_valid` before each use; if it is False, make a new KeptTopology.

    Args:
        nodes: {node type: (number of nodes,)}, in order; for a part (nodes of the whole graph, nodes that it owns).
        relations: {edge type: Relation}, in order.
    Attributes:
        topology: what the kernels take.
    """

    def __init__(
        self, nodes: Mapping[NodeType | None, tuple[int, ...]], relations: Mapping[EdgeType | None, Any]
    ) -> None:
        numbers = {node_type: number for number, node_type in enumerate(nodes)}
        self._tensors: list[Tensor] = []
        rows = []
        for edge_type, relation in relations.items():
            (src, dst), ids = ends_of(edge_type), relation.edge_ids
            arrays = (relation.indptr.numpy(), relation.indices.numpy(), None if ids is None else ids.numpy())
            rows.append((numbers[src], numbers[dst], *arrays, name_of(edge_type)))
            self._tensors += [relation.indptr, relation.indices, *([] if ids is None else [ids])]
        named: list[Any] = [(name_of(node_type), *counts) for node_type, counts in nodes.items()]
        self.topology = _core.Topology(named, rows)
        self._places = self._now()

    @property
    def is_valid(self) -> bool:
        """Whether the object may still be used: all tensors are at the same address in memory as when it was made."""
        return self._now() == self._places

    def _now(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._tensors]


def name_of(value: Any) -> str:
    """Return a node type or edge type as text, for errors of the kernels; "" in a graph without types."""
    return "" if value is None else type_text(value)


def ends_of_pairs(pairs: Any) -> tuple[Tensor, Tensor]:
    """Check `pairs`, [n, 2], and return its columns (sources, destinations), int64 [n] each.

    Raises:
        TypeError, ValueError: `pairs` does not hold pairs of ids in host memory.
    """
    sources, destinations = check_pairs("has_edges", "pairs", pairs).t().contiguous().long()
    return sources, destinations


def edges_in_rows(relation: Any, rows: Tensor, sources: Tensor, num_sources: int) -> FoundEdges:
    """Look up n pairs (source, destination) of nodes among the edges of `relation`, and return the FoundEdges.

    Args:
        relation: the Relation of a graph or a part.
        rows: int64 [n], for each pair the row in `relation` of its destination.
        sources: int64 [n], the source of each pair, below `num_sources`.
    """
    counts, firsts = _core.find_edges(
        relation.indptr.numpy(), relation.indices.numpy(), rows.numpy(), sources.numpy(), num_sources=num_sources
    )
    first_ids = torch.from_numpy(firsts)
    if relation.edge_ids is not None and relation.edge_ids.shape[0] > 0:
        first_ids = torch.where(first_ids < 0, first_ids, relation.edge_ids[first_ids.clamp(min=0)])
    return FoundEdges(torch.from_numpy(counts), first_ids)


# --- the edges of a graph as items, sorted by destination, then by position among the in-edges of the destination


def edge_items(
    relations: Mapping[Any, Any], nodes: Mapping[Any, Tensor | None], edge_type: Any, ids: Any
) -> ItemSet | HeteroItemSet:
    """Make an item set whose items are edges, as (source, destination) and edge id; see ItemSet.of_edges.

    Args:
        relations: {edge type: Relation}; the type is None without types.
        nodes: {node type: int64 [num_rows], the node of each row; None if row i is node i}.
        edge_type: the edge type to take; None: all.
        ids: the edge ids to take; for several types {edge type: ids}; None: all edges.
    """
    where = "ItemSet.of_edges"
    if edge_type is not None:
        edge_type = type_in(where, "edge", edge_type, relations)
    if None in relations:
        links = items_of(where, relations[None], nodes[None], ids)
        if links[0].shape[0] == 0:
            raise ValueError(f"{where}: found no edges; at least 1 is needed. Take another graph, or other edge_ids.")
        return ItemSet(links, names=LINK_FIELDS)
    chosen = [*relations] if edge_type is None else [edge_type]
    if ids is not None and not isinstance(ids, Mapping):
        if edge_type is None:
            raise TypeError(
                f"{where}: edge_ids must be {{edge type: ids}} here, since the graph has types and edge_type is None, "
                f"got {type(ids).__name__}. Name the edge_type."
            )
        ids = {edge_type: ids}
    if ids is not None:
        ids = {type_in(where, "edge", key, relations): rows for key, rows in by_edge_type(where, ids).items()}
        chosen = [key for key in chosen if key in ids]
        if edge_type is not None and [*ids] != chosen:
            raise ValueError(
                f"{where}: edge_ids has ids for {shown([*map(type_text, ids)])}, but edge_type is "
                f"{type_text(edge_type)!r}. Give only ids of that type, or leave edge_type out."
            )
    item_sets = {}
    for key in chosen:
        links = items_of(where, relations[key], nodes[ends_of(key)[1]], None if ids is None else ids[key])
        if links[0].shape[0] > 0:
            item_sets[key] = ItemSet(links, names=LINK_FIELDS)
    if not item_sets:
        raise ValueError(
            f"{where}: found no edges of {shown([*map(type_text, chosen)])}; at least 1 is needed. Name another type."
        )
    return HeteroItemSet(item_sets)


def items_of(where: str, relation: Any, nodes: Tensor | None, ids: Any) -> tuple[Tensor, Tensor]:
    """Return (pairs [n, 2], edge ids [n]) of the edges of `relation` with the ids `ids`, in this order.

    Args:
        nodes: int64 [num_rows], the node of each row of `relation`; None if row i is node i.
        ids: edge ids; None: all edges.
    Raises:
        IndexError: No edge has one of the ids.
    """
    indices = relation.indices
    if ids is None:
        destinations = destinations_of(relation, nodes)
        all_ids = torch.arange(len(indices)) if relation.edge_ids is None else relation.edge_ids
        return torch.stack((indices, destinations.to(indices.dtype)), 1), all_ids
    wanted = check_index_tensor(where, "edge_ids", ids).long()
    places = wanted
    if relation.edge_ids is not None:
        order = relation.edge_ids.argsort()
        ranks = torch.searchsorted(relation.edge_ids[order], wanted).clamp(max=max(len(order) - 1, 0))
        places = order[ranks] if len(order) > 0 else wanted
    outside = (places < 0) | (places >= len(indices))
    if relation.edge_ids is not None and not bool(outside.any()):
        outside = relation.edge_ids[places] != wanted
    if bool(outside.any()):
        raise IndexError(
            f"{where}: found the edge id {int(wanted[outside][0])}, which no edge here has. Take edge ids of this "
            "graph; over a DistGraph, of the local part."
        )
    rows = torch.searchsorted(relation.indptr, places, right=True) - 1
    destinations = rows if nodes is None else nodes[rows]
    return torch.stack((indices[places], destinations.to(indices.dtype)), 1), wanted


def destinations_of(relation: Any, nodes: Tensor | None) -> Tensor:
    rows = torch.arange(len(relation.indptr) - 1) if nodes is None else nodes
    return rows.repeat_interleave(relation.indptr.diff(), output_size=len(relation.indices))
