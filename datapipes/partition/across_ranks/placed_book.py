"""The book of a partition that ranks write together: the ranges of nodes, and the part of each edge id."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import torch
from torch import Tensor

from datapipes.base.types import ends_of
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placed_graph import PlacedGraph, Shard
from datapipes.partition.across_ranks.placement import as_bytes, window
from datapipes.partition.id_maps import RangeMap, smallest_dtype
from datapipes.partition.native.arrays_folder import BOOK, Array, write_folder
from datapipes.partition.native.manifest import File
from datapipes.partition.native.native_book import NAME
from datapipes.partition.native.native_header import Identity


def write_placed_book(
    graph: PlacedGraph, shard: Shard, identity: Identity, folder: Path, leaders: Collection[int]
) -> dict[str, File]:
    """Write book/ on the leaders; return the size and hash of each file there, {} elsewhere.

    All ranks must call it. The parts of edges are written where edges have attributes, as the Partitioner does by
    default: a rank knows them for the edges of its files, whose ids follow each other.
    """
    ranks = graph.ranks
    arrays = [
        Array(("ranges of nodes", number, ""), torch.int64, (ranks.size + 1,), [nodes.owners.stored()])
        for number, nodes in enumerate(graph.nodes.values())
    ]
    has_edges = any(edges.columns for edges in graph.edges.values())
    if has_edges:
        dtype = smallest_dtype(ranks.size)
        for number, (kind, edges) in enumerate(graph.edges.items()):
            owners = graph.nodes[ends_of(kind)[1]].owners
            found = _parts(ranks, shard.edges[kind][1], owners, edges.first_id, edges.total, leaders)
            arrays.append(Array(("parts of edges", number, ""), dtype, (edges.total,), found))
    if ranks.rank in leaders:
        fields = {"has_edges": has_edges}
        return write_folder(folder, NAME, BOOK, identity, fields, arrays, lambda *_: None)
    for array in arrays:
        for _ in array.pieces:  # this rank's share goes to the leaders
            pass
    return {}


def _parts(
    ranks: Exchange, destinations: Tensor, owners: RangeMap, first_id: int, total: int, leaders: Collection[int]
) -> Iterator[Tensor]:
    """Yield the part of each edge by its id on the leaders; a window of ids at a time."""
    dtype, nothing = smallest_dtype(ranks.size), torch.empty(0, dtype=torch.uint8)
    most = window(1, 8)  # ids, which are looked up in int64
    for first in range(0, total, most):
        low = min(max(first - first_id, 0), destinations.shape[0])
        high = min(max(first + most - first_id, 0), destinations.shape[0])
        mine = as_bytes(owners.part_of(destinations[low:high]).to(dtype))
        came = ranks.to_each([mine if rank in leaders else nothing for rank in range(ranks.size)])
        if ranks.rank in leaders:
            yield torch.cat(came).view(dtype)
