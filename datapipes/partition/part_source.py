"""PartSource: one part as its writers ask for it: its own ids, and the columns of its nodes and edges, piece by piece.

A part comes from a whole graph in this process (`part_of_graph`), or from the shards of many ranks
(across_ranks/placed_graph.py). Values of the latter come from all ranks while they are asked for, so all ranks must go
through the same columns in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from datapipes.base.types import EdgeType, NodeType, ends_of
from datapipes.graph.graph import Graph
from datapipes.partition.book import PartitionBook
from datapipes.partition.row_chunks import PartRows, refuse_other_book, rows_of_nodes


class PartColumn(NamedTuple):
    """An array of a part; `pieces` makes its values anew, in order, each time it is called."""

    dtype: torch.dtype
    shape: Sequence[int]
    pieces: Callable[[], Iterable[Tensor]]


class PartNodes(NamedTuple):
    """The nodes of one type.

    Attributes:
        total: nodes of all parts.
        ids: int64 [n], those that the part owns, ascending.
        attributes: {name: [n, ...]}.
    """

    total: int
    ids: Tensor
    attributes: dict[str, PartColumn]


class PartEdges(NamedTuple):
    """The in-edges of the part's nodes along one edge type.

    Attributes:
        total: edges of all parts.
        indptr: int64 [own nodes of the destination type + 1].
        indices: [num_edges], the source of each edge by its global id.
        edge_ids: int64 [num_edges].
        source_times: [num_edges], the time of the source of each edge; None if the source type has none.
        attributes: {name: [num_edges, ...]}.
    """

    total: int
    indptr: PartColumn
    indices: PartColumn
    edge_ids: PartColumn
    source_times: PartColumn | None
    attributes: dict[str, PartColumn]

    @property
    def num_edges(self) -> int:
        """Number of edges of the part."""
        return self.indices.shape[0]


class PartSource(NamedTuple):
    """A part; nodes and edges by type, sorted."""

    part: int
    nodes: dict[NodeType | None, PartNodes]
    edges: dict[EdgeType | None, PartEdges]


def part_of_graph(
    graph: Graph, book: PartitionBook, part: int, times: Mapping[NodeType | None, Tensor] | None = None
) -> PartSource:
    """Return a part of a graph; nothing but ids and numbers of edges is looked at yet.

    Args:
        times: {node type: the time of each node}; relations from these types have source times.
    Raises:
        ValueError: The book is of another graph, or `indptr` is corrupt. So do the pieces of a corrupt graph.
    """
    refuse_other_book(graph, book)
    nodes = {}
    for node_type in graph.node_types:
        ids = book.nodes(node_type).ids_of(part)
        given = graph.node_attributes_of(node_type)
        attributes = {name: _of_nodes(values, ids) for name, values in given.items()}
        nodes[node_type] = PartNodes(graph.num_nodes_of(node_type), ids, attributes)
    edges = {}
    for edge_type in graph.edge_types:
        src, dst = ends_of(edge_type)
        edges[edge_type] = _edges(graph, edge_type, nodes[dst].ids, (times or {}).get(src))
    return PartSource(part, nodes, edges)


def _of_nodes(values: Tensor, ids: Tensor) -> PartColumn:
    return PartColumn(values.dtype, (ids.shape[0], *values.shape[1:]), lambda: rows_of_nodes(values, ids))


def _edges(graph: Graph, edge_type: EdgeType | None, ids: Tensor, times: Tensor | None) -> PartEdges:
    rows, relation = PartRows(graph, edge_type, ids), graph.relation(edge_type)
    count = rows.num_edges

    def attribute(values: Tensor) -> PartColumn:
        return PartColumn(values.dtype, (count, *values.shape[1:]), lambda: rows.of_edges(values))

    return PartEdges(
        int(relation.indices.shape[0]),
        PartColumn(torch.int64, (ids.shape[0] + 1,), rows.indptr),
        PartColumn(relation.indices.dtype, (count,), rows.indices),
        PartColumn(torch.int64, (count,), rows.edge_ids),
        None if times is None else PartColumn(times.dtype, (count,), lambda: rows.of_sources(times)),
        {name: attribute(values) for name, values in relation.edge_attributes.items()},
    )
