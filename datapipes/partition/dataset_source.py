"""The graph of a Dataset with its features, masks and labels as attributes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from datapipes.base.sizes import check_memory
from datapipes.base.types import EdgeType, NodeType, type_text
from datapipes.features import Feature, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.partition.item_attributes import attributes_of_items

_PIECE_BYTES = 2**24  # of rows that are read or compared at a time


def graph_of_dataset(where: str, data: Any) -> tuple[CSCGraph | HeteroCSCGraph, tuple[str, ...]]:
    """Return the graph of a Dataset with all as attributes, and words on what is none; see `source_of`."""
    graph = data.graph
    nodes = {kind: dict(graph.node_attributes_of(kind)) for kind in graph.node_types}
    edges = {kind: dict(graph.relation(kind).edge_attributes) for kind in graph.edge_types}
    for (domain, kind, name), feature in data.features.items():
        known: Any = nodes if domain == "node" else edges
        _refuse_unknown(where, domain, kind, name, known)
        text = f"the {domain} feature {name!r}{_of(kind)}"
        rows = (
            _of_nodes(where, text, graph, kind, feature)
            if domain == "node"
            else _of_edges(where, text, graph, kind, feature)
        )
        if name in known[kind] and not _equal(known[kind][name], rows):
            raise ValueError(
                f"{where}: {text} has the name of a {domain} attribute of the graph with other values. Rename one of "
                "them."
            )
        known[kind].setdefault(name, rows)
    left_out = attributes_of_items(where, data, nodes)
    if getattr(data, "training_graph", None) not in (None, graph):
        left_out.append("training_graph, which differs from graph")
    if getattr(data, "node_names", None):
        left_out.append("node_names")
    return _with_attributes(graph, nodes, edges), tuple(left_out)


def _with_attributes(graph: CSCGraph | HeteroCSCGraph, nodes: Any, edges: Any) -> CSCGraph | HeteroCSCGraph:
    if isinstance(graph, CSCGraph):
        return CSCGraph(
            graph.indptr,
            graph.indices,
            node_attributes=nodes[None],
            edge_attributes=edges[None],
            edge_ids=graph.edge_ids,
        )
    relations = {kind: graph.relation(kind) for kind in graph.edge_types}
    return HeteroCSCGraph(
        {kind: (each.indptr, each.indices) for kind, each in relations.items()},
        graph.num_nodes,
        node_attributes=nodes,
        edge_attributes=edges,
        edge_ids={kind: each.edge_ids for kind, each in relations.items() if each.edge_ids is not None},
    )


def _refuse_unknown(where: str, domain: str, kind: Any, name: str, known: Any) -> None:
    if kind not in known:
        raise ValueError(
            f"{where}: the {domain} feature {name!r} is of the type {kind!r}, which the graph does not have; it has "
            f"{[None if each is None else type_text(each) for each in known]}. Correct the key in the feature store."
        )


def _of_nodes(where: str, text: str, graph: Any, kind: NodeType | None, feature: Feature) -> Tensor:
    count = graph.num_nodes_of(kind)
    _check_count(where, text, feature, count, "nodes")
    if isinstance(feature, TensorFeature) and feature.stored_as is None:
        return feature.tensor
    return _read(where, text, feature, torch.arange(count))


def _of_edges(where: str, text: str, graph: Any, kind: EdgeType | None, feature: Feature) -> Tensor:
    ids = graph.relation(kind).edge_ids
    _check_count(where, text, feature, graph.max_edge_id_of(kind) + 1, "edge ids")
    if isinstance(feature, TensorFeature) and feature.stored_as is None and (ids is None or _counts_up(ids)):
        return feature.tensor
    return _read(where, text, feature, torch.arange(graph.num_edges_of(kind)) if ids is None else ids)


def _check_count(where: str, text: str, feature: Feature, count: int, of: str) -> None:
    if feature.count != count:
        raise ValueError(
            f"{where}: {text} has {feature.count} rows for {count} {of}; it must have one row for each. Check that it "
            "belongs to this graph."
        )


def _counts_up(ids: Tensor) -> bool:
    """Return whether the id of each edge is its position."""
    return all(
        bool(torch.equal(piece, torch.arange(begin, begin + piece.shape[0]))) for begin, piece in _pieces(ids, 8)
    )


def _read(where: str, text: str, feature: Feature, ids: Tensor) -> Tensor:
    """Return the rows at `ids` as a new tensor, read in pieces."""
    row_bytes = math.prod(feature.shape) * torch.empty(0, dtype=feature.dtype).element_size()
    check_memory(where, text, int(ids.shape[0]) * row_bytes, "Its rows must fit into memory.")
    rows = torch.empty((ids.shape[0], *feature.shape), dtype=feature.dtype)
    for begin, piece in _pieces(ids, row_bytes):
        rows[begin : begin + piece.shape[0]] = feature.read(piece)
    return rows


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors hold the same bits. A tensor is not read to compare it with itself."""
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.data_ptr() == other.data_ptr() and one.stride() == other.stride():
        return True
    row_bytes = one[:1].nbytes
    return all(
        torch.equal(mine.contiguous().view(torch.uint8), theirs.contiguous().view(torch.uint8))
        for (_, mine), (_, theirs) in zip(_pieces(one, row_bytes), _pieces(other, row_bytes), strict=True)
    )


def _pieces(rows: Tensor, row_bytes: int) -> Iterator[tuple[int, Tensor]]:
    count = max(_PIECE_BYTES // max(row_bytes, 1), 1)
    for begin in range(0, rows.shape[0], count):
        yield begin, rows[begin : begin + count]


def _of(kind: Any) -> str:
    return "" if kind is None else f" of {type_text(kind)}"
