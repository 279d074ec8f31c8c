"""write_shards: the shards of all ranks as one partition in the native layout, a part for each rank.

No rank ever has the whole graph. Each keeps its shard, and the order in which its rows are sent: 16 bytes for each node
and each edge. The values of a part come to its owner in windows, while the owner writes them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.folder import sync_files
from datapipes.base.types import ends_of
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placed_graph import PlacedGraph, Shard, place
from datapipes.partition.across_ranks.placed_identity import identity_of_placed
from datapipes.partition.across_ranks.placement import as_bytes, window
from datapipes.partition.across_ranks.shared_root import shared_root
from datapipes.partition.cost import Cost
from datapipes.partition.id_maps import RangeMap, smallest_dtype
from datapipes.partition.layouts import MANIFEST
from datapipes.partition.native.manifest import File, Manifest, manifest_bytes
from datapipes.partition.native.native_book import write_book
from datapipes.partition.native.native_header import Identity
from datapipes.partition.native.native_write import write_part
from datapipes.partition.part_source import PartSource
from datapipes.partition.remote import remote_sources
from datapipes.partition.report import MOST_MATRIX_PARTS, PartitionReport
from datapipes.partition.source import TRAIN_MASK


def write_shards(ranks: Exchange, shard: Shard, path: Path) -> PartitionReport:
    """Write the shard of this rank, together with the others.

    The folder is whole when this returns, unless another rank fails.

    Args:
        shard: of the same types, names, dtypes and widths on all ranks.
        path: as `check_root` returns it.
    Returns:
        What the parts look like, the same on all ranks.
    Raises:
        ValueError: Node ids have gaps or repeats, or an edge has an end that is no node.
        FileExistsError: `path` holds something that is not of a partition.
        OSError: The disk is full, or the folder cannot be written.
        RankError: Another rank has failed, has ended, or did not come.
    """
    with Cost() as cost:
        with cost.step("assign"):
            placed = place(ranks, shard)
        with cost.step("name"):
            identity = identity_of_placed(placed)
        with cost.step("measure"):
            remote, counts = _sources(placed)
            report = _report(placed, remote, counts, _left_out(ranks, shard))
        sizes = ranks.gather(_num_bytes(placed.part))
        about = {"method": "range", "rng_seed": 0, "report": _with_cost(ranks, report, cost).to_json()}
        manifest = Manifest(path, identity, torch.int64, None, about, {})
        manifest_bytes(manifest)  # what it refuses is told before all is written
        with shared_root(ranks, path, lambda members: sum(sizes[rank] for rank in members)) as (folder, leaders):
            with cost.step("write native"):
                files = write_part(folder, identity, placed.part, remote)
                sync_files(folder / f"part_{ranks.rank}")
                of_book = _write_book(placed, shard, identity, folder, {*leaders})
            report = _with_cost(ranks, report, cost)  # after it all files of all ranks are on their disks
            of_parts = _files_of_all(ranks, files)
            if leaders[ranks.rank] == ranks.rank:
                manifest = dataclasses.replace(manifest, files={**of_parts, **of_book})
                (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    return report


def _sources(graph: PlacedGraph) -> tuple[dict[Any, tuple[Tensor, Tensor]], dict[Any, Tensor]]:
    """Return what `remote_sources` gives for this rank's part, and {edge type: edges from each part, [ranks]}."""
    size = graph.ranks.size
    counts = {kind: torch.zeros(size, dtype=torch.int64) for kind in graph.part.edges}

    def see(kind: Any, sources: Tensor) -> None:
        counts[kind] += torch.bincount(graph.owners[ends_of(kind)[0]].part_of(sources), minlength=size)

    return remote_sources(graph.part, see), counts


def _report(
    graph: PlacedGraph,
    remote: Mapping[Any, tuple[Tensor, Tensor]],
    counts: Mapping[Any, Tensor],
    left_out: Sequence[str],
) -> PartitionReport:
    """Return what the parts of all ranks look like, as `measure` counts it; the same on all ranks."""
    ranks, part = graph.ranks, graph.part
    masks = [each.attributes[TRAIN_MASK] for each in part.nodes.values() if TRAIN_MASK in each.attributes]
    facts = ranks.gather(
        {
            "training": sum(int(piece.sum()) for mask in masks for piece in mask.pieces()),
            "halos": sum(ids.shape[0] for ids, _ in remote.values()),
            "of parts": sum(counts.values(), torch.zeros(ranks.size, dtype=torch.int64)).tolist(),
            "cut": [int(each.sum() - each[ranks.rank]) for each in counts.values()],
        }
    )
    rows = [tuple(each["of parts"]) for each in facts]
    return PartitionReport(
        num_parts=ranks.size,
        nodes_by_type={kind: tuple(each.stored().diff().tolist()) for kind, each in graph.owners.items()},
        training_nodes=tuple(each["training"] for each in facts) if masks else None,
        edges=tuple(map(sum, rows)),
        halo_nodes=tuple(each["halos"] for each in facts),
        edges_by_type={
            kind: (edges.total, sum(each["cut"][number] for each in facts))
            for number, (kind, edges) in enumerate(part.edges.items())
        },
        edge_matrix=tuple(rows) if ranks.size <= MOST_MATRIX_PARTS else None,
        left_out=tuple(left_out),
        method="range",
    )


def _left_out(ranks: Exchange, shard: Shard) -> list[str]:
    """Return what no part holds, in words."""
    if shard.num_links is None:
        return []
    links = {"train_set": sum(ranks.gather(shard.num_links)), "validation_set": 0, "test_set": 0}
    return [f"{name}, {count} links" for name, count in links.items()]


def _num_bytes(part: PartSource) -> int:
    """Return about how many bytes a part takes."""
    columns = [each for nodes in part.nodes.values() for each in nodes.attributes.values()]
    for edges in part.edges.values():
        columns += [edges.indptr, edges.indices, edges.edge_ids, *edges.attributes.values()]
    total = sum(8 * nodes.ids.shape[0] for nodes in part.nodes.values())
    return total + sum(math.prod(each.shape) * each.dtype.itemsize for each in columns)


def _with_cost(ranks: Exchange, report: PartitionReport, cost: Cost) -> PartitionReport:
    """Return the report with the seconds of the slowest rank for each step, and the memory of the largest."""
    seen = ranks.gather([cost.seconds, max(cost.memory_bytes.values(), default=0)])
    seconds = {step: max(each[step] for each, _ in seen) for step in cost.seconds}
    return dataclasses.replace(report, seconds=seconds, memory_bytes=max(memory for _, memory in seen))


def _files_of_all(ranks: Exchange, files: Mapping[str, File]) -> dict[str, File]:
    """Return the files of the parts of all ranks."""
    of_ranks = ranks.gather({name: [*file] for name, file in files.items()})
    return {name: File(*file) for each in of_ranks for name, file in each.items()}


def _write_book(
    graph: PlacedGraph, shard: Shard, identity: Identity, folder: Path, leaders: Collection[int]
) -> dict[str, File]:
    """Write book/ on the leaders; return the size and hash of each file there, {} elsewhere.

    The parts of edges are written where edges have attributes, as the Partitioner does by default: a rank knows them
    for the edges of its files, whose ids follow each other.
    """
    edges = {}
    if any(each.attributes for each in graph.part.edges.values()):
        for kind, each in graph.part.edges.items():
            owners = graph.owners[ends_of(kind)[1]]
            edges[kind] = _parts(graph.ranks, shard.edges[kind][1], owners, graph.first_ids[kind], each.total, leaders)
    if graph.ranks.rank in leaders:
        return write_book(folder, graph.book(), identity, edges=edges)
    for parts in edges.values():
        for _ in parts:  # this rank's share goes to the leaders
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
