"""The relations of a HeteroCSCGraph, and the checks of its arguments. O(1) reads for each relation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_int, dtype_name, shown
from datapipes.base.types import EdgeType, by_edge_type, check_node_type, known_edge_type, known_node_type
from datapipes.graph.checks import MAX_NODES, check_attributes, check_csc, check_edge_ids, check_mapping

_NAME = "HeteroCSCGraph"


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


def check_relation(
    edge_type: EdgeType, arrays: Any, num_nodes: Mapping[str, int], edge_ids: Any, attributes: Any
) -> TypedRelation:
    """Return the arrays of an edge type, checked."""
    src, _, dst = edge_type
    for end in (src, dst):
        known_node_type(f"{_NAME}, num_nodes for {edge_type}", end, num_nodes)
    if not isinstance(arrays, (tuple, list)) or len(arrays) != 2:
        raise TypeError(f"{_NAME}: {edge_type} must have a pair (indptr, indices), got {shown(arrays)}. Pass two.")
    of = f" of {edge_type}"
    indptr, indices = check_csc(_NAME, arrays[0], arrays[1], of)
    if indptr.shape[0] != num_nodes[dst] + 1:
        raise ValueError(
            f"{_NAME}: indptr{of} has {indptr.shape[0]} entries; it needs {num_nodes[dst] + 1}, one more "
            f"than num_nodes[{dst!r}]. Rebuild the offsets, or correct num_nodes."
        )
    num_edges = int(indices.shape[0])
    ids = check_edge_ids(_NAME, edge_ids, num_edges, of)
    return TypedRelation(indptr, indices, ids, check_attributes(_NAME, "edge", attributes, num_edges, of))


def check_num_nodes(num_nodes: Any) -> dict[str, int]:
    """Return {node type: number} in sorted order."""
    given = check_mapping(_NAME, "num_nodes", num_nodes, "{node type: number}", optional=False)
    names = sorted(check_node_type(f"{_NAME}, num_nodes", name) for name in given)
    return {name: check_int(_NAME, f"num_nodes[{name!r}]", given[name], 0, MAX_NODES) for name in names}


def of_known_edge_types(what: str, given: Any, known: Mapping[EdgeType, Any], form: str) -> dict[EdgeType, Any]:
    """Return an argument by edge type, {} for None; refuse a type that the graph does not have."""
    found = by_edge_type(f"{_NAME}, {what}", check_mapping(_NAME, what, given, form))
    for edge_type in found:
        known_edge_type(f"{_NAME}, {what}", edge_type, known)
    return found


def refuse_mixed_dtypes(relations: Mapping[EdgeType, TypedRelation]) -> None:
    """Raise TypeError if the neighbors of two relations have different dtypes."""
    first: tuple[EdgeType, torch.dtype] | None = None
    for edge_type, relation in relations.items():
        dtype = relation.indices.dtype
        first = first or (edge_type, dtype)
        if dtype != first[1]:
            raise TypeError(
                f"{_NAME}: indices of {edge_type} are {dtype_name(dtype)}, those of {first[0]} {dtype_name(first[1])}; "
                "all relations must have one dtype. Convert one of them."
            )
