"""What names a partition that ranks write together: the same names that one process gives that has all of the graph.

They are digests of a few rows of large arrays, and of all values of small ones (codec.probe_digest). Each rank sends
those of them that it holds to rank 0: at most two million values of an array, or 4,096 rows. Rank 0 puts them in order.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes.base.codec import Probed, probe_digest, probed_rows
from datapipes.datasets.tfrecord.over_ranks.exchange import Exchange
from datapipes.datasets.tfrecord.over_ranks.placed_graph import PlacedEdges, PlacedGraph
from datapipes.datasets.tfrecord.over_ranks.placement import Column, Placement, message_of, rows_from
from datapipes.graph.typed_relation import typed_digest
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.native_book import content_digest, partition_id_of
from datapipes.partition.native.native_header import Identity


def identity_of_placed(graph: PlacedGraph) -> Identity:
    """Return what every file of the partition says of it.

    Cost: 16 MiB for each array through rank 0 at most, and as much again for their places, unless 4,096 rows are more;
    and the O(nodes) of `partition_id_of` on rank 0.
    """
    ranks = graph.ranks
    topology = {kind: _digest_of_edges(graph, kind, each) for kind, each in graph.edges.items()}
    of_nodes, of_edges = {}, {}
    for kind, nodes in graph.nodes.items():
        columns = nodes.columns.items()
        of_nodes[kind] = {name: _digest(ranks, nodes.placement, nodes.offsets, each) for name, each in columns}
    for kind, edges in graph.edges.items():
        columns = edges.columns.items()
        of_edges[kind] = {name: _digest(ranks, edges.placement, edges.first_positions, each) for name, each in columns}
    num_nodes = graph.num_nodes()
    names = []
    if ranks.rank == 0:
        fingerprint = topology[None] if None in topology else typed_digest(num_nodes, topology)
        book = PartitionBook(ranks.size, {kind: each.owners for kind, each in graph.nodes.items()})
        content = content_digest(fingerprint, None, of_nodes, of_edges)
        names = [fingerprint, partition_id_of(fingerprint, book), content]
    fingerprint, partition_id, content_id = ranks.gather(names)[0]
    return Identity(ranks.size, fingerprint, partition_id, content_id, num_nodes, graph.num_edges())


def _digest_of_edges(graph: PlacedGraph, kind: Any, edges: PlacedEdges) -> str:
    positions = edges.first_positions
    arrays = [_indptr(graph, kind, edges)]
    arrays += [_probed(graph.ranks, edges.placement, positions, each) for each in (edges.sources, edges.ids)]
    return probe_digest(arrays, as_int64=True)


def _digest(ranks: Exchange, placement: Placement, firsts: Sequence[int], column: Column) -> str:
    return probe_digest([_probed(ranks, placement, firsts, column)])


def _indptr(graph: PlacedGraph, kind: Any, edges: PlacedEdges) -> Probed:
    """Return what is read of indptr of the whole graph; the last rank has its last entry too."""
    ranks = graph.ranks
    offsets = graph.nodes[None if kind is None else kind[2]].offsets
    wanted = _wanted((offsets[-1] + 1,))
    ends = [*offsets[:-1], offsets[-1] + 1]
    low, high = torch.searchsorted(wanted, torch.tensor([ends[ranks.rank], ends[ranks.rank + 1]])).tolist()
    values = edges.indptr[wanted[low:high] - offsets[ranks.rank]] + edges.first_positions[ranks.rank]
    return _at_first(ranks, (offsets[-1] + 1,), wanted, torch.arange(low, high), values)


def _probed(ranks: Exchange, placement: Placement, firsts: Sequence[int], column: Column) -> Probed:
    """Return what is read of a column of the whole graph, on rank 0.

    Args:
        firsts: [ranks + 1], where the rows of each owner begin in the whole graph.
    """
    shape = (firsts[-1], *column.shape)
    wanted = _wanted(shape)
    ends = torch.searchsorted(wanted, torch.tensor(firsts)).tolist()
    places, numbers = [], []
    for owner, first in enumerate(firsts[:-1]):
        here, rows = placement.at(owner, wanted[ends[owner] : ends[owner + 1]] - first)
        places.append(here + ends[owner])
        numbers.append(rows)
    return _at_first(ranks, shape, wanted, torch.cat(places), column.of(torch.cat(numbers)))


def _at_first(ranks: Exchange, shape: tuple[int, ...], wanted: Tensor, places: Tensor, rows: Tensor) -> Probed:
    nothing = torch.empty(0, dtype=torch.uint8)
    came = ranks.to_each([message_of(places, rows), *[nothing] * (ranks.size - 1)])
    found = rows_from(came, wanted.shape[0], rows.dtype, shape[1:]) if ranks.rank == 0 else rows
    return Probed(shape, found)


def _wanted(shape: tuple[int, ...]) -> Tensor:
    """Return the rows that are read of an array; none of one without values, however many rows it has."""
    found = probed_rows(shape)
    return torch.arange(shape[0] if math.prod(shape) > 0 else 0) if found is None else found
