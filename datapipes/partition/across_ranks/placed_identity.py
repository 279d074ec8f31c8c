"""What names a partition that ranks write together: the same names that one process gives that has all of the graph.

They are digests of all bytes (base/array_digest.py). The rows of a rank are a range of the whole array, so each rank
hashes the pieces that lie in its range. Of a piece that lies in several, the ranks send their rows to rank 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.array_digest import digest_of_pieces, hashes_of, rows_of_piece
from datapipes.base.types import ends_of
from datapipes.graph.graph_digest import graph_digest
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placed_graph import PlacedGraph
from datapipes.partition.across_ranks.placement import as_bytes
from datapipes.partition.native.native_book import content_digest, partition_id_of
from datapipes.partition.native.native_header import Identity
from datapipes.partition.part_source import PartColumn, PartEdges


def identity_of_placed(graph: PlacedGraph) -> Identity:
    """Return what every file of the partition says of it.

    Cost: each array goes to its owners once more, as for the files; up to 2 MiB (or two rows) of each rank and array go
    to rank 0; and the O(nodes) of `partition_id_of` on rank 0.
    """
    ranks, nodes, edges = graph.ranks, graph.part.nodes, graph.part.edges
    topology = {kind: _digests_of_edges(graph, kind, each) for kind, each in edges.items()}
    of_nodes, of_edges = {}, {}
    for node_type, own in nodes.items():
        offsets = graph.owners[node_type].stored().tolist()
        of_nodes[node_type] = {name: _of_column(ranks, offsets, each) for name, each in own.attributes.items()}
    for edge_type, found in edges.items():
        firsts = graph.first_positions[edge_type]
        of_edges[edge_type] = {name: _of_column(ranks, firsts, each) for name, each in found.attributes.items()}
    num_nodes = {kind: each.total for kind, each in nodes.items()}
    names = []
    if ranks.rank == 0:
        fingerprint = graph_digest(num_nodes, topology)
        content = content_digest(fingerprint, None, of_nodes, of_edges)
        names = [fingerprint, partition_id_of(fingerprint, graph.book()), content]
    fingerprint, partition_id, content_id = ranks.gather(names)[0]
    num_edges = {kind: each.total for kind, each in edges.items()}
    return Identity(ranks.size, fingerprint, partition_id, content_id, num_nodes, num_edges)


def _digests_of_edges(graph: PlacedGraph, kind: Any, edges: PartEdges) -> list[str]:
    ranks, firsts = graph.ranks, graph.first_positions[kind]
    offsets = graph.owners[ends_of(kind)[1]].stored().tolist()
    begins = [*offsets[:-1], offsets[-1] + 1]  # of each rank in indptr: the last one has its last entry too
    indptr = torch.cat([*edges.indptr.pieces()])[: begins[ranks.rank + 1] - begins[ranks.rank]]
    return [
        _digest(ranks, [indptr.add_(firsts[ranks.rank])], begins, torch.int64, ()),
        _of_column(ranks, firsts, edges.indices, as_int64=True),
        _of_column(ranks, firsts, edges.edge_ids, as_int64=True),
    ]


def _of_column(ranks: Exchange, firsts: Sequence[int], column: PartColumn, *, as_int64: bool = False) -> str:
    pieces = column.pieces()
    if as_int64:
        return _digest(ranks, (rows.long() for rows in pieces), firsts, torch.int64, ())
    return _digest(ranks, pieces, firsts, column.dtype, tuple(column.shape[1:]), with_dtype=True)


def _digest(
    ranks: Exchange,
    own: Iterable[Tensor],
    firsts: Sequence[int],
    dtype: torch.dtype,
    row_shape: tuple[int, ...],
    *,
    with_dtype: bool = False,
) -> str:
    """Return the digest of an array of the whole graph on rank 0, something else on the others.

    Args:
        own: the rows of this rank, in pieces; all of them are taken.
        firsts: [ranks + 1], where the rows of each rank begin in the array.
    """
    piece = rows_of_piece(row_shape, dtype)
    split = _split(own, firsts[ranks.rank], piece, torch.empty((0, *row_shape), dtype=dtype))
    nothing = torch.empty(0, dtype=torch.uint8)
    message = torch.cat([as_bytes(split.head), as_bytes(split.hashes), as_bytes(split.rest)])
    came = ranks.to_each([message, *[nothing] * (ranks.size - 1)])
    hashes: list[NDArray[np.uint64]] = []
    if ranks.rank == 0 and piece > 0:
        row_bytes = math.prod(row_shape) * dtype.itemsize
        begun = []  # rows of a piece that more than one rank has
        for each, begin, end in zip(came, firsts[:-1], firsts[1:], strict=True):
            num_head = min(-begin % piece, end - begin)
            num_whole = (end - begin - num_head) // piece
            sizes = [num_head * row_bytes, num_whole * 8]
            head, whole, rest = torch.tensor_split(each, [sizes[0], sum(sizes)])
            begun.append(head)
            if (begin + num_head) % piece == 0:
                hashes += [_hash(begun, dtype, row_shape), whole.clone().view(torch.int64).numpy().view(np.uint64)]
                begun = [rest]
        hashes.append(_hash(begun, dtype, row_shape))
    return digest_of_pieces(dtype, (firsts[-1], *row_shape), hashes, as_int64=not with_dtype)


class _Split(NamedTuple):
    head: Tensor  # rows before the first piece that begins here
    hashes: Tensor  # int64, of the pieces that are here as a whole
    rest: Tensor  # rows after them


def _split(own: Iterable[Tensor], first: int, piece: int, nothing: Tensor) -> _Split:
    head, rest, hashes = [nothing], nothing, [torch.empty(0, dtype=torch.int64)]
    left = -first % piece if piece > 0 else 0
    for rows in own:
        if piece == 0:
            continue
        head.append(rows[:left].clone())
        rest = torch.cat([rest, rows[left:]])
        left -= head[-1].shape[0]
        whole = rest.shape[0] // piece * piece
        hashes.append(torch.from_numpy(hashes_of(rest[:whole]).view(np.int64)))
        rest = rest[whole:].clone()
    return _Split(torch.cat(head), torch.cat(hashes), rest)


def _hash(parts: Sequence[Tensor], dtype: torch.dtype, row_shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Return the hash of one piece, [1], whose rows come as bytes; [0] if there are none."""
    return hashes_of(torch.cat([*parts]).view(dtype).reshape(-1, *row_shape))
