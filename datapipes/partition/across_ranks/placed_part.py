"""The part of one rank: its arrays as the native layout has them, and what the report says of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.types import ends_of
from datapipes.partition.across_ranks.placed_graph import TRAIN_MASK, PlacedGraph
from datapipes.partition.across_ranks.placement import Column, Placement
from datapipes.partition.native.arrays_folder import HOT, Array
from datapipes.partition.remote import by_count, counts_dtype
from datapipes.partition.report import MOST_MATRIX_PARTS, PartitionReport
from datapipes.partition.row_chunks import MOST_EDGES, pieces


class Sources(NamedTuple):
    """Where the edges of this rank's part come from.

    Attributes:
        hot: {source type: (ids of other parts' nodes, edges from each)}, as `remote_sources` gives them.
        of_parts: edges from each part, [ranks].
        cut: {edge type: edges from other parts}.
    """

    hot: dict[Any, tuple[Tensor, Tensor]]
    of_parts: list[int]
    cut: dict[Any, int]


def sources_of_part(graph: PlacedGraph) -> Sources:
    """Look at the source of each edge of this rank's part; 4 bytes for each node of a type, as `remote_sources`."""
    rank, size = graph.ranks.rank, graph.ranks.size
    hot, cut, of_parts = {}, {}, torch.zeros(size, dtype=torch.int64)
    for source_type in sorted({ends_of(kind)[0] for kind in graph.edges}, key=lambda kind: kind or ""):
        owners = graph.nodes[source_type].owners
        relations = {kind: each for kind, each in graph.edges.items() if ends_of(kind)[0] == source_type}
        counts = torch.zeros(owners.num_ids, dtype=counts_dtype(sum(each.total for each in relations.values())))
        for kind, each in relations.items():
            before = int(of_parts[rank])
            for sources in each.placement.pieces(each.sources):
                counts.index_add_(0, sources, torch.ones_like(sources, dtype=counts.dtype))
                of_parts += torch.bincount(owners.part_of(sources), minlength=size)
            cut[kind] = each.placement.num_own - (int(of_parts[rank]) - before)
        counts[owners.ids_of(rank)] = 0
        hot[source_type] = by_count(counts)
    return Sources(hot, of_parts.tolist(), {kind: cut[kind] for kind in graph.edges})


def arrays_of_part(graph: PlacedGraph, hot: dict[Any, tuple[Tensor, Tensor]]) -> tuple[list[Array], dict[str, Any]]:
    """Return the arrays of this rank's part, whose values come from all ranks while they are written, and its counts.

    The order is that of the native layout. All ranks must write their arrays at the same time.
    """
    arrays = []
    for number, (kind, nodes) in enumerate(graph.nodes.items()):
        ids = nodes.owners.ids_of(graph.ranks.rank)
        arrays.append(_known("node_ids", number, ids))
        if kind in hot:
            arrays += [_known(what, number, each) for what, each in zip(HOT, hot[kind], strict=True)]
        for name, column in nodes.columns.items():
            arrays.append(_sent(("node_attributes", number, name), nodes.placement, column))
    for number, edges in enumerate(graph.edges.values()):
        arrays += [
            _known("indptr", number, edges.indptr),
            _sent(("indices", number, ""), edges.placement, edges.sources),
            _sent(("edge_ids", number, ""), edges.placement, edges.ids),
        ]
        for name, column in edges.columns.items():
            arrays.append(_sent(("edge_attributes", number, name), edges.placement, column))
    own = {
        "nodes": [nodes.placement.num_own for nodes in graph.nodes.values()],
        "edges": [edges.placement.num_own for edges in graph.edges.values()],
    }
    return arrays, own


def report_of(graph: PlacedGraph, sources: Sources, left_out: Sequence[str]) -> PartitionReport:
    """Return what the parts of all ranks look like, as `measure` counts it; the same on all ranks."""
    ranks = graph.ranks
    trained = [_trained(each.placement, each.columns) for each in graph.nodes.values()]
    known = [count for count in trained if count is not None]
    facts = ranks.gather(
        {
            "training": sum(known) if known else None,
            "halos": sum(ids.shape[0] for ids, _ in sources.hot.values()),
            "of parts": sources.of_parts,
            "cut": [*sources.cut.values()],
        }
    )
    rows = [tuple(each["of parts"]) for each in facts]
    return PartitionReport(
        num_parts=ranks.size,
        nodes_by_type={kind: tuple(each.placement.counts) for kind, each in graph.nodes.items()},
        training_nodes=tuple(each["training"] for each in facts) if known else None,
        edges=tuple(map(sum, rows)),
        halo_nodes=tuple(each["halos"] for each in facts),
        edges_by_type={
            kind: (edges.total, sum(each["cut"][number] for each in facts))
            for number, (kind, edges) in enumerate(graph.edges.items())
        },
        edge_matrix=tuple(rows) if ranks.size <= MOST_MATRIX_PARTS else None,
        left_out=tuple(left_out),
        method="range",
    )


def _trained(placement: Placement, columns: dict[str, Column]) -> int | None:
    """Return how many nodes of this rank's part are to be trained on; None if the type says nothing of it."""
    if TRAIN_MASK not in columns:
        return None
    return sum(int(piece.sum()) for piece in placement.pieces(columns[TRAIN_MASK]))


def _known(what: str, number: int, values: Tensor) -> Array:
    return Array((what, number, ""), values.dtype, values.shape, pieces(values, MOST_EDGES))


def _sent(place: tuple[str, int, str], placement: Placement, column: Column) -> Array:
    return Array(place, column.dtype, (placement.num_own, *column.shape), placement.pieces(column))
