"""The part of one rank: its columns, which come from all ranks, and what the report says of it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.types import ends_of
from datapipes.partition.across_ranks.placed_graph import TRAIN_MASK, PlacedGraph
from datapipes.partition.across_ranks.placement import Column, Placement
from datapipes.partition.part_source import PartColumn, PartEdges, PartNodes, PartSource
from datapipes.partition.remote import remote_sources
from datapipes.partition.report import MOST_MATRIX_PARTS, PartitionReport
from datapipes.partition.row_chunks import MOST_EDGES, pieces


def part_of_rank(graph: PlacedGraph) -> PartSource:
    """Return this rank's part. The values of its columns come from all ranks, which must ask for them together."""
    nodes = {}
    for kind, each in graph.nodes.items():
        ids = each.owners.ids_of(graph.ranks.rank)
        nodes[kind] = PartNodes(each.owners.num_ids, ids, _sent(each.placement, each.columns))
    edges = {}
    for kind, found in graph.edges.items():
        indptr = PartColumn(torch.int64, found.indptr.shape, partial(pieces, found.indptr, MOST_EDGES))
        topology = _sent(found.placement, {"indices": found.sources, "edge_ids": found.ids})
        attributes = _sent(found.placement, found.columns)
        edges[kind] = PartEdges(found.total, indptr, **topology, source_times=None, attributes=attributes)
    return PartSource(graph.ranks.rank, nodes, edges)


def _sent(placement: Placement, columns: dict[str, Column]) -> dict[str, PartColumn]:
    return {
        name: PartColumn(each.dtype, (placement.num_own, *each.shape), partial(placement.pieces, each))
        for name, each in columns.items()
    }


class Sources(NamedTuple):
    """Where the edges of this rank's part come from.

    Attributes:
        remote: as `remote_sources` gives them.
        of_parts: edges from each part, [ranks].
        cut: {edge type: edges from other parts}.
    """

    remote: dict[Any, tuple[Tensor, Tensor]]
    of_parts: list[int]
    cut: dict[Any, int]


def sources_of_part(graph: PlacedGraph, part: PartSource) -> Sources:
    """Look at the source of each edge of this rank's part; 4 bytes for each node of a type, as `remote_sources`."""
    counts = {kind: torch.zeros(graph.ranks.size, dtype=torch.int64) for kind in graph.edges}

    def see(kind: Any, sources: Tensor) -> None:
        owners = graph.nodes[ends_of(kind)[0]].owners
        counts[kind] += torch.bincount(owners.part_of(sources), minlength=graph.ranks.size)

    remote = remote_sources(part, see)
    cut = {kind: int(each.sum() - each[part.part]) for kind, each in counts.items()}
    of_parts = sum(counts.values(), torch.zeros(graph.ranks.size, dtype=torch.int64))
    return Sources(remote, of_parts.tolist(), cut)


def report_of(graph: PlacedGraph, sources: Sources, left_out: Sequence[str]) -> PartitionReport:
    """Return what the parts of all ranks look like, as `measure` counts it; the same on all ranks."""
    ranks = graph.ranks
    trained = [_trained(each.placement, each.columns) for each in graph.nodes.values()]
    known = [count for count in trained if count is not None]
    facts = ranks.gather(
        {
            "training": sum(known) if known else None,
            "halos": sum(ids.shape[0] for ids, _ in sources.remote.values()),
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
