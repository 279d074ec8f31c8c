"""PartToWrite: one part in the form that writers of partitions read: its node ids, and its columns in pieces.

A part comes from a whole graph in this process (`part_of_graph`), or from the shards of many ranks
(across_ranks/placed_graph.py). With shards, the values come from all ranks while they are read, so all ranks must read
the same columns in the same order.

This module also finds the remote sources of a part (nodes that other parts own, and from which edges of this part
come), and checks the node attribute that gives times. A native part stores its remote sources; with node_time_attr, it
also stores the time of each edge's source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.types import EdgeType, NodeType, ends_of, of_type
from datapipes.graph.graph import Graph
from datapipes.partition.book import PartitionBook
from datapipes.partition.row_chunks import PartRows, refuse_other_book, rows_of_nodes

_MOST = 2**31 - 1  # the largest int32


class PartColumn(NamedTuple):
    """One array of a part, such as an attribute, that is read in pieces.

    Each call of `pieces` reads the values again from the beginning, in order.
    """

    dtype: torch.dtype
    shape: Sequence[int]
    pieces: Callable[[], Iterable[Tensor]]


class PartNodes(NamedTuple):
    """The part's own nodes of one type.

    Attributes:
        total: number of nodes of this type in all parts.
        ids: int64 [n], the ids of the nodes that the part owns, ascending.
        attributes: {name: PartColumn [n, ...]}.
    """

    total: int
    ids: Tensor
    attributes: dict[str, PartColumn]


class PartEdges(NamedTuple):
    """The in-edges of the part's nodes along one edge type, as PartColumns.

    Attributes:
        total: number of edges of this type in all parts.
        indptr: int64 [own nodes of the destination type + 1].
        indices: [num_edges], the global id of each edge's source.
        edge_ids: int64 [num_edges].
        source_times: [num_edges], the time of each edge's source; None if nodes of the source type have no times.
        attributes: {name: PartColumn [num_edges, ...]}.
    """

    total: int
    indptr: PartColumn
    indices: PartColumn
    edge_ids: PartColumn
    source_times: PartColumn | None
    attributes: dict[str, PartColumn]

    @property
    def num_edges(self) -> int:
        """How many edges the part has."""
        return self.indices.shape[0]


class PartToWrite(NamedTuple):
    """A part: its id, its nodes of each type, and its edges of each type. The types are sorted."""

    part: int
    nodes: dict[NodeType | None, PartNodes]
    edges: dict[EdgeType | None, PartEdges]


def part_of_graph(
    graph: Graph, book: PartitionBook, part: int, times: Mapping[NodeType | None, Tensor] | None = None
) -> PartToWrite:
    """Return the PartToWrite of a part of `graph`. Only ids and offsets are read here; values are read with the pieces.

    Args:
        times: {node type: the time of each node}; edges from these types are stored with the time of their source.
    Raises:
        ValueError: The book is of another graph, or `indptr` is corrupt. Other faults of the graph raise ValueError
            when pieces are taken.
    """
    refuse_other_book(graph, book)
    nodes = {}
    for node_type in graph.node_types:
        ids = book.nodes(node_type).ids_of(part)
        attributes = {name: _of_nodes(values, ids) for name, values in graph.node_attributes_of(node_type).items()}
        nodes[node_type] = PartNodes(graph.num_nodes_of(node_type), ids, attributes)
    edges = {}
    for edge_type in graph.edge_types:
        src, dst = ends_of(edge_type)
        edges[edge_type] = _edges(graph, edge_type, nodes[dst].ids, (times or {}).get(src))
    return PartToWrite(part, nodes, edges)


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


# --- the nodes of other parts at the other end of a part's edges


def remote_sources(
    part: PartToWrite, see: Callable[[EdgeType | None, Tensor], None] = lambda edge_type, sources: None
) -> dict[NodeType | None, tuple[Tensor, Tensor]]:
    """Find the nodes of other parts that the part's edges come from; return {source node type: (ids, counts)}.

    Every node type that is the source type of an edge type has an entry. Its counts include the edges of all edge types
    with this source type; parallel edges are counted each. Memory: 4 bytes for each node of the type (8 for more than
    2^31 - 1 edges), and 24 for each found node.

    Args:
        see: called with (edge type, sources) for each piece of the part's edges; lets the caller count, too.
    Returns:
        ids: int64 [n], distinct, by descending count, then ascending id.
        counts: int64 [n], the number of edges of the part that come from the node.
    Raises:
        ValueError: The graph is corrupt, and the message names the first wrong entry.
    """
    remote = {}
    source_types = {ends_of(edge_type)[0] for edge_type in part.edges}
    for source_type in sorted(source_types, key=lambda node_type: node_type or ""):
        relations = {kind: edges for kind, edges in part.edges.items() if ends_of(kind)[0] == source_type}
        nodes, num_edges = part.nodes[source_type], sum(edges.total for edges in relations.values())
        counts = torch.zeros(nodes.total, dtype=torch.int32 if num_edges <= _MOST else torch.int64)
        for kind, edges in relations.items():
            for sources in edges.indices.pieces():
                counts.index_add_(0, sources, torch.ones_like(sources, dtype=counts.dtype))
                see(kind, sources)
        counts[nodes.ids] = 0
        remote[source_type] = by_count(counts)
    return remote


def by_count(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return (ids, counts), int64 each, of the ids with a count above 0, by descending count, then ascending id.

    `counts` is [num_ids]: entry i is the count of id i.
    """
    ids = counts.nonzero().flatten()
    if counts.dtype == torch.int32 and counts.shape[0] <= _MOST + 1:
        # Pack count and id into one int64, and sort in place: a stable sort by count would take three times the memory.
        keys = (_MOST - counts[ids]).long().bitwise_left_shift_(32).bitwise_or_(ids)
        del ids
        keys.numpy().sort()
        return keys & 0xFFFFFFFF, keys.bitwise_right_shift_(32).neg_().add_(_MOST)
    descending, order = counts[ids].long().sort(descending=True, stable=True)
    return ids[order], descending


# --- times

TIMES = "integers or floats"
_TIME_DTYPES = {
    *(torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}


def are_times(values: Tensor) -> bool:
    """Return whether `values` can be times: a tensor [n] of integers or floats.

    Floats of less than 16 bits cannot be compared, so they are no times.
    """
    return values.ndim == 1 and values.dtype in _TIME_DTYPES


def check_times(where: str, graph: Graph, node_time_attr: str | None) -> dict[NodeType | None, Tensor]:
    """Check the node attribute that is to give times, and return {node type: its values} for the types that have it.

    {}: `node_time_attr` is None.

    Raises:
        ValueError: No type has the attribute, or its values are not one time for each node.
    """
    if node_time_attr is None:
        return {}
    attributes = {node_type: graph.node_attributes_of(node_type) for node_type in graph.node_types}
    times = {key: values[node_time_attr] for key, values in attributes.items() if node_time_attr in values}
    if not times:
        names = sorted({name for values in attributes.values() for name in values})
        raise ValueError(
            f"{where}: node_time_attr {shown(node_time_attr)} is no node attribute of the graph; "
            + (f"it has {shown(names)}. Name one of these." if names else "it has none. Add it to the graph.")
        )
    for node_type, values in times.items():
        if not are_times(values):
            raise ValueError(
                f"{where}: node_time_attr {shown(node_time_attr)}{of_type(node_type)} is {dtype_name(values.dtype)} "
                f"{list(values.shape)}; times must be {TIMES} of shape [num_nodes], and floats must have 16 bits or "
                "more. Convert the attribute, or name another."
            )
    return times
