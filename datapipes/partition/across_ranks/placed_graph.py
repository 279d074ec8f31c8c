"""PlacedGraph: the shards of all ranks as one graph in parts: who owns what, and how each column gets to its owner."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import ends_of, type_text
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placement import (
    Column,
    Placement,
    column_of,
    placed_by_destination,
    placed_by_id,
)
from datapipes.partition.book import PartitionBook
from datapipes.partition.id_maps import RangeMap
from datapipes.partition.methods.all_nodes import CHUNK, combined_weight
from datapipes.partition.methods.range_parts import BY_ID, cut_by_weight, range_bounds, with_a_node_each
from datapipes.partition.part_source import PartColumn, PartEdges, PartNodes, PartSource
from datapipes.partition.row_chunks import MOST_EDGES, pieces
from datapipes.partition.source import TRAIN_MASK


@dataclass(eq=False)
class Shard:
    """The nodes and edges of one rank, in the order of its files.

    Attributes:
        ids: {node type or None: int64 [n]}, sorted by type.
        of_nodes: {node type: {name: [n, ...]}}, in the order in which a part has them.
        edges: {edge type or None: int64 [2, E]}, sorted by type.
        of_edges: {edge type: {name: [E, ...]}}.
        num_links: how many labels of edges there are, which have no place in a part; None if the task is another.
    """

    ids: dict[Any, Tensor]
    of_nodes: dict[Any, dict[str, Tensor]]
    edges: dict[Any, Tensor]
    of_edges: dict[Any, dict[str, Tensor]]
    num_links: int | None


class PlacedGraph(NamedTuple):
    """The whole graph, as this rank knows it.

    Attributes:
        owners: {node type: the range of each rank}.
        part: this rank's. The values of its columns come from all ranks, which must ask for them together.
        first_ids: {edge type: the edge id of this rank's first edge}; the others follow, in the order of its files.
        first_positions: {edge type: [ranks + 1], where the edges of each part begin in the whole graph}.
    """

    ranks: Exchange
    owners: dict[Any, RangeMap]
    part: PartSource
    first_ids: dict[Any, int]
    first_positions: dict[Any, list[int]]

    def book(self) -> PartitionBook:
        """Return the book of the nodes."""
        return PartitionBook(self.ranks.size, self.owners)


def place(ranks: Exchange, shard: Shard) -> PlacedGraph:
    """Find out where all nodes and edges of all ranks belong.

    Raises:
        ValueError: Ids of nodes have gaps or repeats, an edge has an end that is no node, or there are fewer nodes than
            ranks.
    """
    of_ranks = ranks.gather([[int(ids.shape[0]) for ids in shard.ids.values()], _num_edges(shard)])
    counts = {kind: sum(nodes[number] for nodes, _ in of_ranks) for number, kind in enumerate(shard.ids)}
    owners = _owned_ranges(ranks, shard, counts)
    for edge_type, edge_index in shard.edges.items():
        for row, (end, kind) in enumerate(zip(("source", "destination"), ends_of(edge_type), strict=True)):
            _refuse_unknown(ranks, edge_type, end, edge_index[row], counts, kind)
    edges, first_ids, first_positions = {}, {}, {}
    for number, (edge_type, edge_index) in enumerate(shard.edges.items()):
        offsets = owners[ends_of(edge_type)[1]].stored().tolist()
        placement, indptr = placed_by_destination(ranks, edge_index[1], offsets)
        first_ids[edge_type] = sum(of_edges[number] for _, of_edges in of_ranks[: ranks.rank])
        first_positions[edge_type] = [0, *accumulate(placement.counts)]
        edges[edge_type] = PartEdges(
            first_positions[edge_type][-1],
            PartColumn(torch.int64, indptr.shape, partial(pieces, indptr, MOST_EDGES)),
            placement.column(column_of(edge_index[0])),
            placement.column(Column(torch.int64, (), partial(operator.add, first_ids[edge_type]))),
            None,
            _columns(placement, shard.of_edges[edge_type]),
        )
    nodes = {}
    for kind, ids in shard.ids.items():
        placement = placed_by_id(ranks, ids, owners[kind].stored().tolist())
        columns = _columns(placement, shard.of_nodes[kind])
        nodes[kind] = PartNodes(counts[kind], owners[kind].ids_of(ranks.rank), columns)
    return PlacedGraph(ranks, owners, PartSource(ranks.rank, nodes, edges), first_ids, first_positions)


def _num_edges(shard: Shard) -> list[int]:
    return [int(edge_index.shape[1]) for edge_index in shard.edges.values()]


def _columns(placement: Placement, given: Mapping[str, Tensor]) -> dict[str, PartColumn]:
    return {name: placement.column(column_of(values)) for name, values in given.items()}


def _refuse_unknown(
    ranks: Exchange, edge_type: Any, end: str, ids: Tensor, counts: Mapping[Any, int], kind: Any
) -> None:
    count = counts[kind]
    outside = (ids < 0) | (ids >= count)
    if bool(outside.any()):
        edge = int(outside.nonzero()[0])
        of_edge = "" if edge_type is None else f" of {type_text(edge_type)}"
        of_node = "" if kind is None else f" of {shown(kind)}"
        raise ValueError(
            f"{ranks.where}: edge {edge}{of_edge} of rank {ranks.rank} has the {end} {int(ids[edge])}; the ids of nodes"
            f"{of_node} are in [0, {count}). Drop the edge, or load the node."
        )


def _owned_ranges(ranks: Exchange, shard: Shard, counts: Mapping[Any, int]) -> dict[Any, RangeMap]:
    """Return {node type: the range of each rank}: the map of `method="range"` for the graph of all shards.

    Args:
        counts: {node type: nodes of all ranks}.
    Raises:
        ValueError: Ids have gaps or repeats; or there are fewer nodes than ranks.
    """
    total = sum(counts.values())
    if total < ranks.size:
        raise ValueError(
            f"{ranks.where}: {total} nodes for {ranks.size} ranks; each part needs one. Use at most {total} ranks."
        )
    masks = {kind: _own_mask(ranks, shard, kind, count) for kind, count in counts.items()}
    trained = {kind: 0 if mask is None else int(mask.sum()) for kind, mask in masks.items()}
    of_ranks = ranks.gather([*trained.values()])
    base, _, extra = combined_weight(BY_ID, (total, 0, sum(map(sum, of_ranks))))
    numbers = {kind: number for number, kind in enumerate(counts)}

    def cut(kind: Any) -> NDArray[np.int64]:
        first = _even(counts[kind], ranks.size)
        weights = [base * size + extra * of[numbers[kind]] for size, of in zip(np.diff(first), of_ranks, strict=True)]
        given = _weights(masks[kind], int(np.diff(first)[ranks.rank]), base, extra)
        before, begin = int(sum(weights[: ranks.rank])), int(first[ranks.rank])
        bounds, _ = cut_by_weight(given, int(sum(weights)), ranks.size, before, begin)
        return with_a_node_each(np.max(ranks.gather(bounds.tolist()), axis=0), counts[kind])

    return {kind: RangeMap(bounds) for kind, bounds in range_bounds(counts, ranks.size, cut).items()}


def _even(count: int, num_ranks: int) -> NDArray[np.int64]:
    """Return the offsets of ranges of even length, before the weights are known."""
    return np.array([count * rank // num_ranks for rank in range(num_ranks + 1)], dtype=np.int64)


def _own_mask(ranks: Exchange, shard: Shard, kind: Any, count: int) -> Tensor | None:
    """Return which nodes of this rank's even range are to be trained on; None if the type says nothing of it."""
    offsets = _even(count, ranks.size).tolist()
    _refuse_outside(ranks, shard.ids[kind], kind, count)
    placement = placed_by_id(ranks, shard.ids[kind], offsets)
    _refuse_gaps(ranks, placement, kind, offsets[ranks.rank], count)
    mask = shard.of_nodes[kind].get(TRAIN_MASK)
    if mask is None:
        return None
    return torch.cat([torch.empty(0, dtype=torch.bool), *placement.pieces(column_of(mask))])


def _refuse_outside(ranks: Exchange, ids: Tensor, kind: Any, count: int) -> None:
    outside = (ids < 0) | (ids >= count)
    if bool(outside.any()):
        place = int(outside.nonzero()[0])
        raise ValueError(
            f"{ranks.where}: {_node(kind, int(ids[place]))} of rank {ranks.rank} is outside; {_allowed(kind, count)}"
        )


def _refuse_gaps(ranks: Exchange, placement: Placement, kind: Any, offset: int, count: int) -> None:
    for first, times, places in placement.times_there():
        wrong = (times != 1).nonzero().flatten()
        if wrong.numel() > 0:
            place = int(wrong[0])
            there = [rank for rank, each in enumerate(places) if bool((each == place).any())]
            found = f"is there {int(times[place])} times, on the ranks {shown(there)}" if there else "is missing"
            raise ValueError(f"{ranks.where}: {_node(kind, offset + first + place)} {found}; {_allowed(kind, count)}")


def _node(kind: Any, node: int) -> str:
    return f"node {node}" if kind is None else f"node {node} of {shown(kind)}"


def _allowed(kind: Any, count: int) -> str:
    of = "" if kind is None else f" of {shown(kind)}"
    return f"the {count} nodes{of} of all ranks must have the ids 0 to {count - 1}, each once. Renumber them."


def _weights(mask: Tensor | None, count: int, base: int, extra: int) -> Iterator[NDArray[np.int64]]:
    for begin in range(0, count, CHUNK):
        size = min(CHUNK, count - begin)
        if mask is None:
            yield np.full(size, base, dtype=np.int64)
        else:
            yield base + extra * mask[begin : begin + size].numpy().astype(np.int64)
