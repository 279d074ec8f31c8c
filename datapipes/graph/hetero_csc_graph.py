"""HeteroCSCGraph: a graph with types of nodes and edges; each edge type is stored by destination, as in a CSCGraph.

The in-edges of node v along (src, rel, dst) are `indices[indptr[v]:indptr[v + 1]]` of that relation: v is a node of
`dst`, the entries are nodes of `src`. Nodes are numbered from 0 within their type. Like that of CSCGraph, the
constructor reads O(1) values of each relation; `validate()` reads the whole graph.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_int, dtype_name, shown
from datapipes.base.codec import probe_digest
from datapipes.base.types import EdgeType, by_edge_type, check_node_type, known_edge_type, known_node_type
from datapipes.graph.arrays import as_index_dtype, max_edge_id
from datapipes.graph.checks import (
    MAX_NODES,
    check_attributes,
    check_csc,
    check_edge_ids,
    check_index_dtype,
    check_mapping,
    refuse_negative_ids,
)
from datapipes.graph.graph import Graph

__all__ = ["HeteroCSCGraph"]

_NAME = "HeteroCSCGraph"
MOST_EDGE_TYPES = 2**16  # the random key has room for so many

ByEdgeType = Mapping[EdgeType, Any] | Mapping[str, Any]  # the text "src:rel:dst" is accepted too


@dataclass(frozen=True, slots=True)
class TypedRelation:
    """The edges of one type; see `Relation`."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    edge_attributes: dict[str, Tensor]

    @property
    def num_edges(self) -> int:
        """Number of edges; each parallel edge counts."""
        return int(self.indices.shape[0])


class HeteroCSCGraph(Graph):
    """A heterogeneous graph as compressed sparse columns by edge type; tensors or NumPy arrays, viewed without a copy.

    An edge type is a tuple (src, rel, dst) of three texts; the middle one names the relation. Wherever this class takes
    a tuple, it takes the text "src:rel:dst" too, if that splits in one way only. Several edge types may join the same
    node types, and src may equal dst.

    Args:
        relations: {(src, rel, dst): (indptr, indices)}; at most 65,536 edge types.
            indptr: int64 (or int32, converted) [num_nodes[dst] + 1], from 0 up to the number of edges, not descending.
            indices: int32 or int64 [num_edges], the node of src at the other end of each in-edge. All relations have
            the same dtype; sampled ids have it too.
        num_nodes: {node type: number}; names every type of an edge type. It may name types without edges.
        node_attributes: {node type: {name: [num_nodes, ...]}}.
        edge_attributes: {edge type: {name: [num_edges, ...]}}, aligned with `indices`.
        edge_ids: {edge type: int64 [num_edges]}; the id of the edge at each position, by default the position. Each
            edge type has ids of its own. Edge features are looked up by them.
    Raises:
        TypeError, ValueError: Shapes, dtypes, the ends of indptr or the types do not fit; the message says what is
            allowed, and names the nearest type where one is unknown.

    Attributes:
        node_attributes: {node type: {name: tensor}}; each node type is there.
        edge_attributes: {edge type: {name: tensor}}; each edge type is there.
    """

    def __init__(
        self,
        relations: Mapping[EdgeType, tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
        num_nodes: Mapping[str, int],
        *,
        node_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        edge_attributes: ByEdgeType | None = None,
        edge_ids: ByEdgeType | None = None,
    ) -> None:
        self._num_nodes = _check_num_nodes(num_nodes)
        given = by_edge_type(_NAME, check_mapping(_NAME, "relations", relations, "{edge type: (indptr, indices)}"))
        if len(given) > MOST_EDGE_TYPES:
            raise ValueError(
                f"{_NAME}: {len(given)} edge types; at most {MOST_EDGE_TYPES} are allowed. Merge some, and keep what "
                "tells them apart as an edge attribute."
            )
        ids = _of_known_edge_types("edge_ids", edge_ids, given, "{edge type: ids}")
        attributes = _of_known_edge_types("edge_attributes", edge_attributes, given, "{edge type: {name: values}}")
        self._relations = {
            edge_type: self._relation(edge_type, arrays, ids.get(edge_type), attributes.get(edge_type))
            for edge_type, arrays in given.items()
        }
        _refuse_mixed_dtypes(self._relations)
        of_nodes = check_mapping(_NAME, "node_attributes", node_attributes, "{node type: {name: values}}")
        for node_type in of_nodes:
            known_node_type(f"{_NAME}, node_attributes", node_type, self._num_nodes)
        self.node_attributes = {
            node_type: check_attributes(_NAME, "node", of_nodes.get(node_type), count, f" of {node_type!r}")
            for node_type, count in self._num_nodes.items()
        }
        self._digest: str | None = None
        self._max_edge_ids: dict[EdgeType, int] = {}

    def _relation(self, edge_type: EdgeType, arrays: Any, edge_ids: Any, attributes: Any) -> TypedRelation:
        """Return the arrays of an edge type, checked."""
        src, _, dst = edge_type
        for end in (src, dst):
            known_node_type(f"{_NAME}, num_nodes for {edge_type}", end, self._num_nodes)
        if not isinstance(arrays, (tuple, list)) or len(arrays) != 2:
            raise TypeError(f"{_NAME}: {edge_type} must have a pair (indptr, indices), got {shown(arrays)}. Pass two.")
        of = f" of {edge_type}"
        indptr, indices = check_csc(_NAME, arrays[0], arrays[1], of)
        if indptr.shape[0] != self._num_nodes[dst] + 1:
            raise ValueError(
                f"{_NAME}: indptr{of} has {indptr.shape[0]} entries; it needs {self._num_nodes[dst] + 1}, one more "
                f"than num_nodes[{dst!r}]. Rebuild the offsets, or correct num_nodes."
            )
        num_edges = int(indices.shape[0])
        ids = check_edge_ids(_NAME, edge_ids, num_edges, of)
        return TypedRelation(indptr, indices, ids, check_attributes(_NAME, "edge", attributes, num_edges, of))

    @property
    def is_heterogeneous(self) -> bool:
        """True: nodes and edges have types."""
        return True

    @property
    def node_types(self) -> tuple[str, ...]:
        """The node types, sorted."""
        return tuple(self._num_nodes)

    @property
    def edge_types(self) -> tuple[EdgeType, ...]:
        """The edge types (src, rel, dst), sorted. Their places are part of the random key."""
        return tuple(self._relations)

    @property
    def num_nodes(self) -> dict[str, int]:
        """{node type: number of nodes}."""
        return dict(self._num_nodes)

    @property
    def num_edges(self) -> dict[EdgeType, int]:
        """{edge type: number of edges}; each parallel edge counts."""
        return {edge_type: relation.num_edges for edge_type, relation in self._relations.items()}

    @property
    def edge_attributes(self) -> dict[EdgeType, dict[str, Tensor]]:
        """{edge type: {name: [num_edges, ...]}}, aligned with `indices`; each edge type is there."""
        return {edge_type: relation.edge_attributes for edge_type, relation in self._relations.items()}

    @property
    def index_dtype(self) -> torch.dtype:
        """torch.int32 or torch.int64, the dtype of all `indices` and of sampled ids; int64 without edge types."""
        return next((relation.indices.dtype for relation in self._relations.values()), torch.int64)

    def num_nodes_of(self, node_type: str | None) -> int:
        """Return the number of nodes of a type.

        Raises:
            TypeError, ValueError: There is no such type; the message names the nearest.
        """
        return self._num_nodes[known_node_type(_NAME, node_type, self._num_nodes)]

    def num_edges_of(self, edge_type: EdgeType | str | None) -> int:
        """Return the number of edges of a type; errors as those of `relation`."""
        return self.relation(edge_type).num_edges

    def max_edge_id_of(self, edge_type: EdgeType | str | None) -> int:
        """Return the largest edge id of a type, -1 without edges; errors as those of `relation`.

        Computed once; O(num_edges) if the edges have ids of their own, else O(1).
        """
        known = known_edge_type(_NAME, edge_type, self._relations)
        if known not in self._max_edge_ids:
            relation = self._relations[known]
            self._max_edge_ids[known] = max_edge_id(relation.edge_ids, relation.num_edges)
        return self._max_edge_ids[known]

    def relation(self, edge_type: EdgeType | str | None) -> TypedRelation:
        """Return the edges of a type: an object with indptr, indices, edge_ids (or None) and edge_attributes.

        Raises:
            TypeError, ValueError: There is no such type; the message names the nearest.
        """
        return self._relations[known_edge_type(_NAME, edge_type, self._relations)]

    def validate(self) -> HeteroCSCGraph:
        """Check the whole graph and return it.

        Raises:
            ValueError: indptr descends, a neighbor is no node of the source type, or an edge id is negative. The
                message names the edge type and the first wrong entry.
        """
        for edge_type, relation in self._relations.items():
            num_sources = self._num_nodes[edge_type[0]]
            try:
                _core.validate_csc(relation.indptr.numpy(), relation.indices.numpy(), num_sources=num_sources)
            except ValueError as error:
                raise ValueError(f"graph, edge type {edge_type}: {str(error).removeprefix('graph: ')}") from error
            if relation.edge_ids is not None:
                refuse_negative_ids(relation.edge_ids.numpy(), f" of {edge_type}")
        return self

    def with_index_dtype(self, dtype: torch.dtype) -> HeteroCSCGraph:
        """Return the graph with all `indices` as int32 (half the memory and traffic) or int64; other arrays are shared.

        Raises:
            ValueError: The node ids do not fit into int32.
        """
        dtype = check_index_dtype(dtype, max(self._num_nodes.values(), default=0))
        return HeteroCSCGraph(
            {key: (each.indptr, as_index_dtype(each.indices, dtype)) for key, each in self._relations.items()},
            self._num_nodes,
            node_attributes=self.node_attributes,
            edge_attributes=self.edge_attributes,
            edge_ids=self._edge_ids(),
        )

    def digest(self) -> str:
        """Return a digest of the topology: types, numbers of nodes, and the edges of each type (codec.probe_digest).

        Computed once.
        """
        if self._digest is None:
            digest = hashlib.blake2b(json.dumps(list(self._num_nodes.items())).encode(), digest_size=8)
            for edge_type, each in self._relations.items():
                digest.update(json.dumps(edge_type).encode())
                digest.update(probe_digest((each.indptr, each.indices, each.edge_ids), as_int64=True).encode())
            self._digest = digest.hexdigest()
        return self._digest

    def _edge_ids(self) -> dict[EdgeType, Tensor]:
        return {key: each.edge_ids for key, each in self._relations.items() if each.edge_ids is not None}

    def __repr__(self) -> str:
        return (
            f"{_NAME}({len(self._num_nodes)} node types, {len(self._relations)} edge types, "
            f"{sum(self._num_nodes.values())} nodes, {sum(self.num_edges.values())} edges, "
            f"{dtype_name(self.index_dtype)})"
        )


def _check_num_nodes(num_nodes: Any) -> dict[str, int]:
    """Return {node type: number} in sorted order."""
    given = check_mapping(_NAME, "num_nodes", num_nodes, "{node type: number}", optional=False)
    names = sorted(check_node_type(f"{_NAME}, num_nodes", name) for name in given)
    return {name: check_int(_NAME, f"num_nodes[{name!r}]", given[name], 0, MAX_NODES) for name in names}


def _of_known_edge_types(what: str, given: Any, known: Mapping[EdgeType, Any], form: str) -> dict[EdgeType, Any]:
    found = by_edge_type(f"{_NAME}, {what}", check_mapping(_NAME, what, given, form))
    for edge_type in found:
        known_edge_type(f"{_NAME}, {what}", edge_type, known)
    return found


def _refuse_mixed_dtypes(relations: Mapping[EdgeType, TypedRelation]) -> None:
    first: tuple[EdgeType, torch.dtype] | None = None
    for edge_type, relation in relations.items():
        dtype = relation.indices.dtype
        first = first or (edge_type, dtype)
        if dtype != first[1]:
            raise TypeError(
                f"{_NAME}: indices of {edge_type} are {dtype_name(dtype)}, those of {first[0]} {dtype_name(first[1])}; "
                "all relations must have one dtype. Convert one of them."
            )
