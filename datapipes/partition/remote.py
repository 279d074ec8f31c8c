"""Which nodes of other parts a part's edges point to, and how often: what a cache of remote rows is filled with."""

from __future__ import annotations

import torch
from torch import Tensor

from datapipes.base.types import NodeType, ends_of
from datapipes.partition.book import PartitionBook
from datapipes.partition.row_chunks import PartRows, refuse_other_book
from datapipes.partition.source import Source


def remote_sources(source: Source, book: PartitionBook, part: int) -> dict[NodeType | None, tuple[Tensor, Tensor]]:
    """Return {source node type: (ids, counts)}: the nodes of other parts at the other end of the part's edges.

    Every node type that is the source of an edge type is there. All its edge types count; each parallel edge does.

    Returns:
        ids: int64 [n], distinct, by descending count, then ascending id.
        counts: int64 [n], the number of edges of the part that come from the node. O(num_nodes) memory.
    Raises:
        ValueError: The graph is corrupt, and the message names the first wrong entry; or the book is of another graph.
    """
    graph = source.graph
    refuse_other_book(graph, book)
    edge_types: dict[NodeType | None, list[tuple[str, str, str] | None]] = {}
    for edge_type in graph.edge_types:
        edge_types.setdefault(ends_of(edge_type)[0], []).append(edge_type)
    found = {}
    for source_type in sorted(edge_types, key=lambda each: each or ""):
        counts = torch.zeros(graph.num_nodes_of(source_type), dtype=torch.int64)
        for edge_type in edge_types[source_type]:
            own = book.nodes(ends_of(edge_type)[1]).ids_of(part)
            for sources in PartRows(graph, edge_type, own).indices():
                counts.index_add_(0, sources, torch.ones_like(sources, dtype=torch.int64))
        counts[book.nodes(source_type).ids_of(part)] = 0
        ids = counts.nonzero().flatten()
        counts, order = counts[ids].sort(descending=True, stable=True)
        found[source_type] = ids[order], counts
    return found
