"""Checks of the arrays of a graph, with types or without. Only `refuse_negative_ids` reads all values of an array.

Common arguments: `where` is the class that errors name. `type_` is the node type or edge type of the arrays; None
without types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import as_tensor, check_index_tensor, check_int, dtype_name, shown
from datapipes.base.types import EdgeType, by_edge_type, check_node_type, known_edge_type, known_node_type, of_type
from datapipes.graph.arrays import TypedRelation

_NAME = "HeteroCSCGraph"  # the class that takes arguments by type
MAX_NODES = 2**48  # with more nodes the offsets alone exceed any memory


def check_csc(where: str, indptr: Any, indices: Any, type_: Any = None) -> tuple[Tensor, Tensor]:
    """Check the CSC arrays of an edge type, and return (indptr, indices) as tensors.

    The tensors share the memory of the arguments; only an int32 indptr is copied, to int64.

    Raises:
        TypeError, ValueError: A dtype or shape is not allowed, or indptr does not go from 0 to the number of indices.
    """
    suffix = of_type(type_)
    offsets = check_index_tensor(where, f"indptr{suffix}", indptr).long()
    neighbors = check_index_tensor(where, f"indices{suffix}", indices)
    if offsets.numel() == 0:
        raise ValueError(
            f"{where}: indptr{suffix} is empty; it needs num_nodes + 1 entries, the first of them 0. A graph without "
            "nodes has [0]."
        )
    first, last, num_edges = int(offsets[0]), int(offsets[-1]), int(neighbors.shape[0])
    if first != 0 or last != num_edges:
        raise ValueError(
            f"{where}: indptr{suffix} goes from {first} to {last}; it must go from 0 to the number of indices, "
            f"{num_edges}. Rebuild the offsets, or use {where}.from_edge_index."
        )
    return offsets, neighbors


def check_attributes(where: str, kind: str, attributes: Any, count: int, type_: Any = None) -> dict[str, Tensor]:
    """Check node or edge attributes, and return them as {name: tensor [count, ...]}; None becomes {}.

    Args:
        kind: "node" or "edge".
        attributes: {name: values}, or None.
        count: number of nodes or edges.
    """
    suffix = of_type(type_)
    if attributes is not None and not isinstance(attributes, Mapping):
        raise TypeError(
            f"{where}: {kind}_attributes{suffix} must be a dict {{name: values}}, got {type(attributes).__name__}. "
            "Pass one."
        )
    checked = {}
    for name, value in (attributes or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"{where}: names of {kind} attributes{suffix} must be str, got {shown(name)}. Pass a str.")
        tensor = as_tensor(where, f"{kind} attribute {name!r}{suffix}", value)
        if tensor.ndim == 0 or tensor.shape[0] != count:
            raise ValueError(
                f"{where}: {kind} attribute {name!r}{suffix} has shape {list(tensor.shape)}; its first size must be "
                f"{count}, one row for each {kind}. Check that it belongs to this graph."
            )
        checked[name] = tensor
    return checked


def check_edge_ids(where: str, edge_ids: Any, num_edges: int, type_: Any = None) -> Tensor | None:
    """Check `edge_ids`, and return them as int64 [num_edges]. None stays None."""
    if edge_ids is None:
        return None
    suffix = of_type(type_)
    ids = check_index_tensor(where, f"edge_ids{suffix}", edge_ids).long()
    if ids.shape[0] != num_edges:
        raise ValueError(
            f"{where}: {ids.shape[0]} edge_ids{suffix} for {num_edges} edges; give one for each edge, or None "
            "to use the positions as ids."
        )
    return ids


def check_index_dtype(dtype: Any, num_nodes: int) -> torch.dtype:
    """Return `dtype`; ValueError unless it is int32 or int64 and can represent the ids of `num_nodes` nodes."""
    if dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"graph: index dtype must be torch.int32 or torch.int64, got {shown(dtype)}. Pass one of them."
        )
    if dtype == torch.int32 and num_nodes > 2**31 - 1:
        raise ValueError(f"graph: {num_nodes} nodes do not fit into int32, which holds {2**31 - 1}. Use torch.int64.")
    return dtype  # type: ignore[no-any-return]  # compared above


def refuse_negative_ids(edge_ids: NDArray[np.int64], edge_type: Any) -> None:
    """Raise ValueError if an edge id is negative. Reads all ids."""
    if edge_ids.size > 0 and edge_ids.min() < 0:
        place = int(edge_ids.argmin())
        raise ValueError(
            f"graph: edge_ids[{place}]{of_type(edge_type)} is {edge_ids[place]}, which must be 0 or more. Rebuild the "
            "ids."
        )


def check_mapping(where: str, name: str, value: Any, form: str, *, optional: bool = True) -> Mapping[Any, Any]:
    """Return `value` if it is a dict, otherwise raise TypeError. If `optional`, None is allowed, too, and becomes {}.

    Args:
        name: the argument, for errors.
        form: a text that tells errors what the dict should contain, such as "{edge type: name}".
    """
    if value is None and optional:
        return {}
    if not isinstance(value, Mapping):
        raise TypeError(f"{where}: {name} must be a dict {form}, got {shown(value)}. Pass one.")
    return value


# --- with types


def check_relation(
    edge_type: EdgeType, arrays: Any, num_nodes: Mapping[str, int], edge_ids: Any, attributes: Any
) -> TypedRelation:
    """Check (indptr, indices), the edge ids and the attributes of an edge type; return a TypedRelation."""
    src, _, dst = edge_type
    for end in (src, dst):
        known_node_type(f"{_NAME}, num_nodes for {edge_type}", end, num_nodes)
    if not isinstance(arrays, (tuple, list)) or len(arrays) != 2:
        raise TypeError(f"{_NAME}: {edge_type} must have a pair (indptr, indices), got {shown(arrays)}. Pass two.")
    indptr, indices = check_csc(_NAME, arrays[0], arrays[1], edge_type)
    if indptr.shape[0] != num_nodes[dst] + 1:
        raise ValueError(
            f"{_NAME}: indptr{of_type(edge_type)} has {indptr.shape[0]} entries; it needs {num_nodes[dst] + 1}, one "
            f"more than num_nodes[{dst!r}]. Rebuild the offsets, or correct num_nodes."
        )
    num_edges = int(indices.shape[0])
    ids = check_edge_ids(_NAME, edge_ids, num_edges, edge_type)
    return TypedRelation(indptr, indices, ids, check_attributes(_NAME, "edge", attributes, num_edges, edge_type))


def check_num_nodes(num_nodes: Any) -> dict[str, int]:
    """Check {node type: number of nodes}, and return it sorted by type."""
    counts = check_mapping(_NAME, "num_nodes", num_nodes, "{node type: number}", optional=False)
    names = sorted(check_node_type(f"{_NAME}, num_nodes", name) for name in counts)
    return {name: check_int(_NAME, f"num_nodes[{name!r}]", counts[name], 0, MAX_NODES) for name in names}


def of_known_edge_types(name: str, values: Any, edge_types: Mapping[EdgeType, Any], form: str) -> dict[EdgeType, Any]:
    """Return `values`, {edge type: ...}, with tuples as keys; None becomes {}. ValueError for an unknown edge type.

    Args:
        name: the argument, for errors.
        edge_types: a dict whose keys are the edge types of the graph.
        form: a text that tells errors what the dict should contain.
    """
    by_type = by_edge_type(f"{_NAME}, {name}", check_mapping(_NAME, name, values, form))
    for edge_type in by_type:
        known_edge_type(f"{_NAME}, {name}", edge_type, edge_types)
    return by_type


def refuse_mixed_dtypes(relations: Mapping[EdgeType, TypedRelation]) -> None:
    """Raise TypeError unless the `indices` of all relations have the same dtype."""
    first: tuple[EdgeType, torch.dtype] | None = None
    for edge_type, relation in relations.items():
        dtype = relation.indices.dtype
        first = first or (edge_type, dtype)
        if dtype != first[1]:
            raise TypeError(
                f"{_NAME}: indices of {edge_type} are {dtype_name(dtype)}, those of {first[0]} {dtype_name(first[1])}; "
                "all relations must have one dtype. Convert one of them."
            )
