"""write_shards: the shards of all ranks as one partition in the native layout, a part for each rank.

No rank ever has the whole graph. Each keeps its shard, and the order in which its rows are sent: 16 bytes for each node
and each edge. The values of a part come to its owner in windows, while the owner writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from datapipes.base.folder import sync_files
from datapipes.base.types import ends_of
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placed_graph import PlacedGraph, Shard, place
from datapipes.partition.across_ranks.placed_identity import identity_of_placed
from datapipes.partition.across_ranks.placed_part import part_of_rank, report_of, sources_of_part
from datapipes.partition.across_ranks.placement import as_bytes, window
from datapipes.partition.across_ranks.shared_root import shared_root
from datapipes.partition.cost import Cost
from datapipes.partition.id_maps import RangeMap, smallest_dtype
from datapipes.partition.layouts import MANIFEST
from datapipes.partition.native.manifest import File, Manifest, manifest_bytes
from datapipes.partition.native.native_book import write_book
from datapipes.partition.native.native_header import Identity
from datapipes.partition.native.native_write import write_part
from datapipes.partition.report import PartitionReport


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
            part = part_of_rank(placed)
            sources = sources_of_part(placed, part)
            report = report_of(placed, sources, _left_out(ranks, shard))
        sizes = ranks.gather(_num_bytes(placed))
        about = {"method": "range", "rng_seed": 0, "report": _with_cost(ranks, report, cost).to_json()}
        manifest = Manifest(path, identity, torch.int64, None, about, {})
        manifest_bytes(manifest)  # what it refuses is told before all is written
        with shared_root(ranks, path, lambda members: sum(sizes[rank] for rank in members)) as (folder, leaders):
            with cost.step("write native"):
                files = write_part(folder, identity, part, sources.remote)
                sync_files(folder / f"part_{ranks.rank}")
                of_book = _write_book(placed, shard, identity, folder, {*leaders})
            report = _with_cost(ranks, report, cost)  # after it all files of all ranks are on their disks
            of_parts = _files_of_all(ranks, files)
            if leaders[ranks.rank] == ranks.rank:
                manifest = dataclasses.replace(manifest, files={**of_parts, **of_book})
                (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    return report


def _left_out(ranks: Exchange, shard: Shard) -> list[str]:
    """Return what no part holds, in words."""
    if shard.num_links is None:
        return []
    links = {"train_set": sum(ranks.gather(shard.num_links)), "validation_set": 0, "test_set": 0}
    return [f"{name}, {count} links" for name, count in links.items()]


def _num_bytes(graph: PlacedGraph) -> int:
    """Return about how many bytes this rank's part takes."""
    total = 0
    for nodes in graph.nodes.values():
        total += nodes.placement.num_own * (8 + sum(each.row_bytes for each in nodes.columns.values()))
    for edges in graph.edges.values():
        total += 8 * edges.indptr.shape[0]
        total += edges.placement.num_own * (17 + sum(each.row_bytes for each in edges.columns.values()))
    return total


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
    if any(each.columns for each in graph.edges.values()):
        for kind, each in graph.edges.items():
            owners = graph.nodes[ends_of(kind)[1]].owners
            edges[kind] = _parts(graph.ranks, shard.edges[kind][1], owners, each.first_id, each.total, leaders)
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
