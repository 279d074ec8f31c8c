"""Which nodes of other parts a part's edges point to, and how often: what a cache of remote rows is filled with."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from datapipes.base.types import EdgeType, NodeType, ends_of
from datapipes.partition.part_source import PartSource

_MOST = 2**31 - 1  # of an int32


def remote_sources(
    part: PartSource, see: Callable[[EdgeType | None, Tensor], None] = lambda edge_type, sources: None
) -> dict[NodeType | None, tuple[Tensor, Tensor]]:
    """Return {source node type: (ids, counts)}: the nodes of other parts at the other end of the part's edges.

    Every node type that is the source of an edge type is there. All its edge types count; each parallel edge does. It
    takes 4 bytes for each node of the type (8 for more than 2^31 - 1 edges), and 24 for each that is found.

    Args:
        see: called with the sources of all edges of the part, a piece at a time.
    Returns:
        ids: int64 [n], distinct, by descending count, then ascending id.
        counts: int64 [n], the number of edges of the part that come from the node.
    Raises:
        ValueError: The graph is corrupt, and the message names the first wrong entry.
    """
    found = {}
    for source_type in sorted({ends_of(edge_type)[0] for edge_type in part.edges}, key=lambda each: each or ""):
        relations = {kind: edges for kind, edges in part.edges.items() if ends_of(kind)[0] == source_type}
        nodes, num_edges = part.nodes[source_type], sum(edges.total for edges in relations.values())
        counts = torch.zeros(nodes.total, dtype=_counts_dtype(num_edges))
        for kind, edges in relations.items():
            for sources in edges.indices.pieces():
                counts.index_add_(0, sources, torch.ones_like(sources, dtype=counts.dtype))
                see(kind, sources)
        counts[nodes.ids] = 0
        found[source_type] = by_count(counts)
    return found


def _counts_dtype(num_edges: int) -> torch.dtype:
    """Return a dtype that holds the number of all edges."""
    return torch.int32 if num_edges <= _MOST else torch.int64


def by_count(counts: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids with a count, and the counts, by descending count, then ascending id."""
    ids = counts.nonzero().flatten()
    if counts.dtype == torch.int32 and counts.shape[0] <= _MOST + 1:
        # Both in one int64, sorted in its place: a stable sort by count would take three times the memory.
        keys = (_MOST - counts[ids]).long().bitwise_left_shift_(32).bitwise_or_(ids)
        del ids
        keys.numpy().sort()
        return keys & 0xFFFFFFFF, keys.bitwise_right_shift_(32).neg_().add_(_MOST)
    found, order = counts[ids].long().sort(descending=True, stable=True)
    return ids[order], found
