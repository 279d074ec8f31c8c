"""to_partition: the shards of all ranks as one partition in the native layout, a part for each rank.

No rank ever has the whole graph. Each keeps its shard, and the order in which its rows are sent: 16 bytes for each node
and each edge. The values of a part come to its owner in windows, while the owner writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed

from datapipes.base.folder import check_root, sync_files
from datapipes.datasets.tfrecord.graph_tensors import GraphTensors
from datapipes.datasets.tfrecord.over_ranks.exchange import Exchange, exchange
from datapipes.datasets.tfrecord.over_ranks.placed_book import write_placed_book
from datapipes.datasets.tfrecord.over_ranks.placed_graph import PlacedGraph, place
from datapipes.datasets.tfrecord.over_ranks.placed_identity import identity_of_placed
from datapipes.datasets.tfrecord.over_ranks.placed_part import arrays_of_part, report_of, sources_of_part
from datapipes.datasets.tfrecord.over_ranks.shard import Shard, form_of, refuse_other_forms, shard_of
from datapipes.datasets.tfrecord.over_ranks.shared_root import shared_root
from datapipes.partition.cost import Cost
from datapipes.partition.layouts import MANIFEST, PARTITION
from datapipes.partition.native.arrays_folder import PART, write_folder
from datapipes.partition.native.manifest import File, Manifest, manifest_bytes
from datapipes.partition.report import PartitionReport

_WHERE = "to_partition"


def to_partition(graph: GraphTensors, root: str | Path, rank_timeout_s: float) -> PartitionReport:
    """Write the shards of all ranks as a partition; see LoadedGraphTensors.to_partition."""
    with exchange(_WHERE, rank_timeout_s) as ranks:
        _refuse_other_ranks(graph)
        return write_shards(ranks, graph, root)


def write_shards(ranks: Exchange, graph: GraphTensors, root: str | Path) -> PartitionReport:
    """Write the shard of this rank, together with the others; the errors are those of LoadedGraphTensors.to_partition.

    The folder is whole when this returns, unless another rank fails.
    """
    path = check_root(_WHERE, root, replaced=PARTITION)
    refuse_other_forms(_WHERE, ranks.gather(form_of(graph)))
    shard = shard_of(_WHERE, graph)
    with Cost() as cost:
        with cost.step("assign"):
            placed = place(ranks, shard)
        with cost.step("name"):
            identity = identity_of_placed(placed)
        with cost.step("measure"):
            sources = sources_of_part(placed)
            report = report_of(placed, sources, _left_out(ranks, shard))
        sizes = ranks.gather(_num_bytes(placed))
        about = {"method": "range", "rng_seed": 0, "report": _with_cost(ranks, report, cost).to_json()}
        manifest = Manifest(path, identity, torch.int64, None, about, {})
        manifest_bytes(manifest)  # what it refuses is told before all is written
        with shared_root(ranks, path, lambda members: sum(sizes[rank] for rank in members)) as (folder, leaders):
            with cost.step("write native"):
                arrays, own = arrays_of_part(placed, sources.hot)
                part, fields = f"part_{ranks.rank}", {"part": ranks.rank, "own": own}
                files = write_folder(folder, part, PART, identity, fields, arrays, lambda *_: None)
                sync_files(folder / part)
                of_book = write_placed_book(placed, shard, identity, folder, {*leaders})
            report = _with_cost(ranks, report, cost)  # after it all files of all ranks are on their disks
            of_parts = _files_of_all(ranks, files)
            if leaders[ranks.rank] == ranks.rank:
                manifest = dataclasses.replace(manifest, files={**of_parts, **of_book})
                (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    return report


def _refuse_other_ranks(graph: GraphTensors) -> None:
    found = torch.distributed.is_available() and torch.distributed.is_initialized()
    size = torch.distributed.get_world_size() if found else 1
    if graph._num_ranks not in (1, size):
        why = f"torch.distributed has {size}" if found else "torch.distributed is not initialised"
        raise ValueError(
            f"{_WHERE}: the graph was loaded by {graph._num_ranks} ranks, and {why}. Call "
            "torch.distributed.init_process_group in all processes that have loaded a shard, and in no other."
        )


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
