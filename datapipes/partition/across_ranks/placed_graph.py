"""PlacedGraph: the shards of all ranks as one partitioned graph. It says who owns each row, and sends rows to owners.

The digests in the headers of the partition, such as the partition id, are the same as if one process had partitioned
the whole graph. A digest is computed from the bytes of whole arrays, hashed in pieces (base/array_digest.py). Each rank
owns a range of the rows of an array, and hashes the pieces that lie within its range. If a piece lies in the ranges of
several ranks, these ranks send its rows to rank 0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.array_digest import digest_of_pieces, hashes_of, rows_of_piece
from datapipes.base.checks import shown
from datapipes.base.types import ends_of, of_type
from datapipes.graph.arrays import graph_digest
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placed_rows import (
    Column,
    PlacedRows,
    as_bytes,
    column_of,
    placed_by_destination,
    placed_by_id,
)
from datapipes.partition.book import PartitionBook, RangeMap
from datapipes.partition.methods.all_nodes import combined_weight, node_weights
from datapipes.partition.methods.assign import BY_ID, cut_by_weight, range_bounds, with_a_node_each
from datapipes.partition.native.manifest import Identity
from datapipes.partition.native.native_book import content_digest, partition_id_of
from datapipes.partition.part_to_write import PartColumn, PartEdges, PartNodes, PartToWrite
from datapipes.partition.row_chunks import MOST_EDGES, pieces
from datapipes.partition.source import TRAIN_MASK


@dataclass(eq=False)
class Shard:
    """The nodes and edges that one rank has loaded, in the order of its files. They may belong to any part.

    Attributes:
        ids: {node type or None: int64 [n]}, the ids of this rank's nodes; the types are sorted.
        of_nodes: {node type: {name: [n, ...]}}, attributes in the order in which parts store them.
        edges: {edge type or None: int64 [2, E]}, sources in row 0 and destinations in row 1; the types are sorted.
        of_edges: {edge type: {name: [E, ...]}}, attributes.
        num_links: number of edge labels, which no part stores. None: the task has no edge labels.
    """

    ids: dict[Any, Tensor]
    of_nodes: dict[Any, dict[str, Tensor]]
    edges: dict[Any, Tensor]
    of_edges: dict[Any, dict[str, Tensor]]
    num_links: int | None


class PlacedGraph(NamedTuple):
    """The whole graph as one rank knows it: the owner of every node, and this rank's own part.

    Attributes:
        owners: {node type: RangeMap}; rank r owns a contiguous range of the node ids.
        part: this rank's part. Its values come from all ranks, so all ranks must read the same column at the same time.
        first_ids: {edge type: the edge id of the first edge in this rank's shard}; the shard's further edges have the
            next ids.
        first_positions: {edge type: [ranks + 1]}. In the CSC of the whole graph, the edges of part r are at the
            positions from entry r up to entry r + 1.
    """

    ranks: Exchange
    owners: dict[Any, RangeMap]
    part: PartToWrite
    first_ids: dict[Any, int]
    first_positions: dict[Any, list[int]]

    def book(self) -> PartitionBook:
        """Return the PartitionBook: the part of each node. It has no edge map."""
        return PartitionBook(self.ranks.size, self.owners)


def place(ranks: Exchange, shard: Shard) -> PlacedGraph:
    """Choose the owner of each node and edge of all shards, and return the PlacedGraph. All ranks call this together.

    `shard` is this rank's share of the graph. Each rank then owns a range of the node ids, and the edges whose
    destinations it owns.

    Raises:
        ValueError: Ids of nodes have gaps or repeats, an edge has an end that is no node, or there are fewer nodes than
            ranks.
    """
    num_edges = [edge_index.shape[1] for edge_index in shard.edges.values()]
    of_ranks = ranks.gather([[len(ids) for ids in shard.ids.values()], num_edges])
    counts = {kind: sum(nodes[number] for nodes, _ in of_ranks) for number, kind in enumerate(shard.ids)}
    owners = _owned_ranges(ranks, shard, counts)
    for edge_type, edge_index in shard.edges.items():
        for row, (end, kind) in enumerate(zip(("source", "destination"), ends_of(edge_type), strict=True)):
            if (edge := _first_outside(edge_index[row], counts[kind])) is not None:
                raise ValueError(
                    f"{ranks.where}: edge {edge}{of_type(edge_type)} of rank {ranks.rank} has the {end} "
                    f"{int(edge_index[row, edge])}; the ids of nodes{of_type(kind)} are in [0, {counts[kind]}). Drop "
                    "the edge, or load the node."
                )
    edges, first_ids, first_positions = {}, {}, {}
    for number, (edge_type, edge_index) in enumerate(shard.edges.items()):
        offsets = owners[ends_of(edge_type)[1]].stored().tolist()
        placed, indptr = placed_by_destination(ranks, edge_index[1], offsets)
        first_ids[edge_type] = sum(of_edges[number] for _, of_edges in of_ranks[: ranks.rank])
        first_positions[edge_type] = [0, *accumulate(placed.counts)]
        edges[edge_type] = PartEdges(
            first_positions[edge_type][-1],
            PartColumn(torch.int64, indptr.shape, partial(pieces, indptr, MOST_EDGES)),
            placed.column(column_of(edge_index[0])),
            placed.column(Column(torch.int64, (), partial(operator.add, first_ids[edge_type]))),
            None,
            _columns(placed, shard.of_edges[edge_type]),
        )
    nodes = {}
    for kind, ids in shard.ids.items():
        placed = placed_by_id(ranks, ids, owners[kind].stored().tolist())
        columns = _columns(placed, shard.of_nodes[kind])
        nodes[kind] = PartNodes(counts[kind], owners[kind].ids_of(ranks.rank), columns)
    return PlacedGraph(ranks, owners, PartToWrite(ranks.rank, nodes, edges), first_ids, first_positions)


def _columns(placed: PlacedRows, attributes: Mapping[str, Tensor]) -> dict[str, PartColumn]:
    return {name: placed.column(column_of(values)) for name, values in attributes.items()}


def _first_outside(ids: Tensor, count: int) -> int | None:
    outside = ((ids < 0) | (ids >= count)).nonzero()
    return int(outside[0]) if outside.shape[0] > 0 else None


def _owned_ranges(ranks: Exchange, shard: Shard, counts: Mapping[Any, int]) -> dict[Any, RangeMap]:
    """Return {node type: RangeMap}: the parts that Partitioner(method="range") would make of the graph of all shards.

    Args:
        counts: {node type: number of nodes of all ranks}.
    Raises:
        ValueError: Ids have gaps or repeats, or there are fewer nodes than ranks.
    """
    total = sum(counts.values())
    if total < ranks.size:
        raise ValueError(
            f"{ranks.where}: {total} nodes for {ranks.size} ranks; each part needs one. Use at most {total} ranks."
        )
    masks = {kind: _own_mask(ranks, shard, kind, count) for kind, count in counts.items()}
    trained = {kind: 0 if mask is None else int(mask.sum()) for kind, mask in masks.items()}
    of_ranks = ranks.gather([*trained.values()])
    combined = combined_weight(BY_ID, (total, 0, sum(map(sum, of_ranks))))
    numbers = {kind: number for number, kind in enumerate(counts)}

    def cut(kind: Any) -> NDArray[np.int64]:
        first = _even(counts[kind], ranks.size)
        sizes = np.diff(first)
        base, _, extra = combined
        weights = [base * size + extra * train[numbers[kind]] for size, train in zip(sizes, of_ranks, strict=True)]
        mask = masks[kind]
        of_nodes = node_weights(combined, int(sizes[ranks.rank]), None if mask is None else mask.numpy())
        before, begin = int(sum(weights[: ranks.rank])), int(first[ranks.rank])
        bounds, _ = cut_by_weight(of_nodes, int(sum(weights)), ranks.size, before, begin)
        return with_a_node_each(np.max(ranks.gather(bounds.tolist()), axis=0), counts[kind])

    return {kind: RangeMap(bounds) for kind, bounds in range_bounds(counts, ranks.size, cut).items()}


def _even(count: int, num_ranks: int) -> NDArray[np.int64]:
    """Return the offsets, int64 [num_ranks + 1], that cut `count` ids into ranges whose lengths differ by at most one.

    These ranges share out the work of weighing: rank r weighs the nodes of range r. The weights decide who owns a node.
    """
    return np.array([count * rank // num_ranks for rank in range(num_ranks + 1)], dtype=np.int64)


def _own_mask(ranks: Exchange, shard: Shard, kind: Any, count: int) -> Tensor | None:
    """Return the mask of training nodes, bool, for the range of ids that `_even` gives to this rank.

    It is gathered from all ranks. None: nodes of the type `kind` have no such mask. This also checks the ids of all
    ranks; `count` is the number of nodes of the type.

    Raises:
        ValueError: The ids have gaps or repeats.
    """
    offsets = _even(count, ranks.size).tolist()
    ids = shard.ids[kind]
    place, of_kind = _first_outside(ids, count), of_type(kind)
    allowed = f"the {count} nodes{of_kind} of all ranks must have the ids 0 to {count - 1}, each once. Renumber them."
    if place is not None:
        raise ValueError(f"{ranks.where}: node {int(ids[place])}{of_kind} of rank {ranks.rank} is outside; {allowed}")
    placed = placed_by_id(ranks, ids, offsets)
    for first, times, places in placed.times_there():
        wrong = (times != 1).nonzero().flatten()
        if wrong.numel() > 0:
            place = int(wrong[0])
            there = [rank for rank, of_rank in enumerate(places) if bool((of_rank == place).any())]
            how = f"is there {int(times[place])} times, on the ranks {shown(there)}" if there else "is missing"
            raise ValueError(f"{ranks.where}: node {offsets[ranks.rank] + first + place}{of_kind} {how}; {allowed}")
    mask = shard.of_nodes[kind].get(TRAIN_MASK)
    if mask is None:
        return None
    return torch.cat([torch.empty(0, dtype=torch.bool), *placed.pieces(column_of(mask))])


# --- the ids of the partition


def identity_of_placed(graph: PlacedGraph) -> Identity:
    """Return the Identity: the counts and digests that every header of the partition states. It is equal on all ranks.

    Cost: each array is sent to its owners here, and a second time when the files are written. Each rank also sends up
    to 2 MiB (or two rows) of each array to rank 0, where `partition_id_of` takes time O(nodes).
    """
    ranks, nodes, edges = graph.ranks, graph.part.nodes, graph.part.edges
    topology = {kind: _digests_of_edges(graph, kind, own_edges) for kind, own_edges in edges.items()}
    of_nodes, of_edges = {}, {}
    for node_type, own_nodes in nodes.items():
        of_nodes[node_type] = _of_columns(ranks, graph.owners[node_type].stored().tolist(), own_nodes.attributes)
    for edge_type, own_edges in edges.items():
        of_edges[edge_type] = _of_columns(ranks, graph.first_positions[edge_type], own_edges.attributes)
    num_nodes = {kind: own_nodes.total for kind, own_nodes in nodes.items()}
    names = []
    if ranks.rank == 0:
        fingerprint = graph_digest(num_nodes, topology)
        content = content_digest(fingerprint, None, of_nodes, of_edges)
        names = [fingerprint, partition_id_of(fingerprint, graph.book()), content]
    fingerprint, partition_id, content_id = ranks.gather(names)[0]
    num_edges = {kind: own_edges.total for kind, own_edges in edges.items()}
    return Identity(ranks.size, fingerprint, partition_id, content_id, num_nodes, num_edges)


def _digests_of_edges(graph: PlacedGraph, kind: Any, edges: PartEdges) -> list[str]:
    ranks, firsts = graph.ranks, graph.first_positions[kind]
    offsets = graph.owners[ends_of(kind)[1]].stored().tolist()
    begins = [*offsets[:-1], offsets[-1] + 1]  # where each rank begins in indptr; the last rank also has its last entry
    indptr = torch.cat([*edges.indptr.pieces()])[: begins[ranks.rank + 1] - begins[ranks.rank]]
    return [
        _digest(ranks, [indptr.add_(firsts[ranks.rank])], begins, torch.int64, ()),
        _of_column(ranks, firsts, edges.indices, as_int64=True),
        _of_column(ranks, firsts, edges.edge_ids, as_int64=True),
    ]


def _of_columns(ranks: Exchange, firsts: Sequence[int], columns: Mapping[str, PartColumn]) -> dict[str, str]:
    return {name: _of_column(ranks, firsts, column) for name, column in columns.items()}


def _of_column(ranks: Exchange, firsts: Sequence[int], column: PartColumn, *, as_int64: bool = False) -> str:
    pieces = column.pieces()
    if as_int64:
        return _digest(ranks, (rows.long() for rows in pieces), firsts, torch.int64, ())
    return _digest(ranks, pieces, firsts, column.dtype, tuple(column.shape[1:]), with_dtype=True)


def _digest(
    ranks: Exchange,
    of_rank: Iterable[Tensor],
    firsts: Sequence[int],
    dtype: torch.dtype,
    row_shape: tuple[int, ...],
    *,
    with_dtype: bool = False,
) -> str:
    """On rank 0, return the digest of an array whose rows are spread over all ranks.

    On other ranks, the returned text has no meaning. All ranks call this together.

    Args:
        of_rank: the rows of this rank, in pieces; the iterable is read to its end.
        firsts: [ranks + 1], the row of the array where the rows of each rank begin.
        dtype, row_shape: those of the array, whose shape is [firsts[-1], *row_shape].
        with_dtype: whether the name of the dtype is part of the digest.
    """
    piece = rows_of_piece(row_shape, dtype)
    head, hashes_here, rest = _split(of_rank, firsts[ranks.rank], piece, torch.empty((0, *row_shape), dtype=dtype))
    nothing = torch.empty(0, dtype=torch.uint8)
    message = torch.cat([as_bytes(head), as_bytes(hashes_here), as_bytes(rest)])
    came = ranks.to_each([message, *[nothing] * (ranks.size - 1)])
    hashes: list[NDArray[np.uint64]] = []
    if ranks.rank == 0 and piece > 0:
        row_bytes = math.prod(row_shape) * dtype.itemsize
        begun = []  # rows of a piece that lies on more than one rank
        for message, begin, end in zip(came, firsts[:-1], firsts[1:], strict=True):
            num_head = min(-begin % piece, end - begin)
            num_whole = (end - begin - num_head) // piece
            sizes = [num_head * row_bytes, num_whole * 8]
            head, whole, rest = torch.tensor_split(message, [sizes[0], sum(sizes)])
            begun.append(head)
            if (begin + num_head) % piece == 0:
                hashes += [_hash(begun, dtype, row_shape), whole.clone().view(torch.int64).numpy().view(np.uint64)]
                begun = [rest]
        hashes.append(_hash(begun, dtype, row_shape))
    return digest_of_pieces(dtype, (firsts[-1], *row_shape), hashes, as_int64=not with_dtype)


def _split(of_rank: Iterable[Tensor], first: int, piece: int, nothing: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Split a rank's rows at the boundaries of pieces, and return (head, hashes, rest). A piece is `piece` rows.

    Pieces are counted from row 0 of the whole array, in which this rank's rows begin at row `first`.

    head: the rows before the first piece that begins on this rank; hashes: int64, the hash of each whole piece; rest:
    the rows after the last whole piece. `nothing` is an empty tensor with the dtype and row shape.
    """
    head, rest, hashes = [nothing], nothing, [torch.empty(0, dtype=torch.int64)]
    left = -first % piece if piece > 0 else 0
    for rows in of_rank:
        if piece == 0:
            continue
        head.append(rows[:left].clone())
        rest = torch.cat([rest, rows[left:]])
        left -= head[-1].shape[0]
        whole = rest.shape[0] // piece * piece
        hashes.append(torch.from_numpy(hashes_of(rest[:whole]).view(np.int64)))
        rest = rest[whole:].clone()
    return torch.cat(head), torch.cat(hashes), rest


def _hash(parts: Sequence[Tensor], dtype: torch.dtype, row_shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return the hash of one piece, uint64 [1]; `parts` are the bytes of its rows. Without rows, return uint64 [0]."""
    return hashes_of(torch.cat([*parts]).view(dtype).reshape(-1, *row_shape))
