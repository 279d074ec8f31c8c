"""write_shards: writes the shards of all ranks as one partition in the native layout, with one part for each rank.

No rank ever has the whole graph. Each rank keeps its shard, and the order in which it sends its rows: 16 bytes for each
node and each edge. A rank receives the values of its part in windows, and writes them as they arrive.

Several ranks may see the same disk. The lowest of these ranks is their leader: it makes the folder and gives it its
final name (base/folder.py). If each machine has a disk of its own, each machine gets a folder with the parts of its
ranks.
"""

from __future__ import annotations

import dataclasses
import math
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.folder import new_beside, new_folder, room_told, sync_files
from datapipes.base.types import ends_of
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.across_ranks.placed_graph import PlacedGraph, Shard, identity_of_placed, place
from datapipes.partition.across_ranks.placed_rows import as_bytes, window
from datapipes.partition.book import RangeMap, smallest_dtype
from datapipes.partition.layouts import MANIFEST, PARTITION
from datapipes.partition.native.manifest import File, Identity, Manifest, manifest_bytes
from datapipes.partition.native.native_book import write_book
from datapipes.partition.native.native_write import write_part
from datapipes.partition.part_to_write import PartToWrite, remote_sources
from datapipes.partition.partition_report import MOST_MATRIX_PARTS, Cost, PartitionReport
from datapipes.partition.source import TRAIN_MASK


def write_shards(ranks: Exchange, shard: Shard, path: Path) -> PartitionReport:
    """Partition the graph whose shards the ranks hold, and write it to the folder `path`. All ranks call this together.

    Part r is written by rank r, from the rows of all shards. The folder is whole when this returns, unless another rank
    fails.

    Args:
        shard: the nodes and edges of this rank; types, names, dtypes and widths must be the same on all ranks.
        path: the folder to write, as `check_root` returns it.
    Returns:
        The report on the parts, the same on all ranks.
    Raises:
        ValueError: Node ids have gaps or repeats, or an edge has an end that is no node.
        FileExistsError: `path` holds something that is not of a partition.
        OSError: The disk is full, or the folder cannot be written.
        RankError: Another rank has failed, has ended, or did not call this in time.
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
        manifest_bytes(manifest)  # raises its errors before files are written
        with shared_root(ranks, path, lambda members: sum(sizes[rank] for rank in members)) as (folder, leaders):
            with cost.step("write native"):
                files = write_part(folder, identity, placed.part, remote)
                sync_files(folder / f"part_{ranks.rank}")
                of_book = _write_book(placed, shard, identity, folder, {*leaders})
            report = _with_cost(ranks, report, cost)  # once it returns, all files of all ranks are on disk
            of_parts = _files_of_all(ranks, files)
            if leaders[ranks.rank] == ranks.rank:
                manifest = dataclasses.replace(manifest, files={**of_parts, **of_book})
                (folder / MANIFEST).write_bytes(manifest_bytes(manifest))
    return report


def _sources(graph: PlacedGraph) -> tuple[dict[Any, tuple[Tensor, Tensor]], dict[Any, Tensor]]:
    """Count the sources of the edges of this rank's part, and return (remote, counts).

    remote: as `remote_sources` returns it. counts: {edge type: int64 [ranks]}, how many of the edges come from each
    part.
    """
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
    """Return the PartitionReport on the parts of all ranks, as `measure` would return it. It is equal on all ranks.

    Args:
        remote, counts: as `_sources` returns them.
        left_out: texts that name the data that no part holds.
    """
    ranks, part = graph.ranks, graph.part
    masks = [nodes.attributes[TRAIN_MASK] for nodes in part.nodes.values() if TRAIN_MASK in nodes.attributes]
    facts = ranks.gather(
        {
            "training": sum(int(piece.sum()) for mask in masks for piece in mask.pieces()),
            "halos": sum(ids.shape[0] for ids, _ in remote.values()),
            "of parts": sum(counts.values(), torch.zeros(ranks.size, dtype=torch.int64)).tolist(),
            "cut": [int(of_parts.sum() - of_parts[ranks.rank]) for of_parts in counts.values()],
        }
    )
    rows = [tuple(of_rank["of parts"]) for of_rank in facts]
    return PartitionReport(
        num_parts=ranks.size,
        nodes_by_type={kind: tuple(ranges.stored().diff().tolist()) for kind, ranges in graph.owners.items()},
        training_nodes=tuple(of_rank["training"] for of_rank in facts) if masks else None,
        edges=tuple(map(sum, rows)),
        halo_nodes=tuple(of_rank["halos"] for of_rank in facts),
        edges_by_type={
            kind: (edges.total, sum(of_rank["cut"][number] for of_rank in facts))
            for number, (kind, edges) in enumerate(part.edges.items())
        },
        edge_matrix=tuple(rows) if ranks.size <= MOST_MATRIX_PARTS else None,
        left_out=tuple(left_out),
        method="range",
    )


def _left_out(ranks: Exchange, shard: Shard) -> list[str]:
    """Return a text for each item set with edge labels, such as "train_set, 500 links": no part stores these.

    Return [] if the task has no edge labels.
    """
    if shard.num_links is None:
        return []
    links = {"train_set": sum(ranks.gather(shard.num_links)), "validation_set": 0, "test_set": 0}
    return [f"{name}, {count} links" for name, count in links.items()]


def _num_bytes(part: PartToWrite) -> int:
    """Return about how many bytes the files of `part` will take on the disk."""
    columns = [column for nodes in part.nodes.values() for column in nodes.attributes.values()]
    for edges in part.edges.values():
        columns += [edges.indptr, edges.indices, edges.edge_ids, *edges.attributes.values()]
    total = sum(8 * nodes.ids.shape[0] for nodes in part.nodes.values())
    return total + sum(math.prod(column.shape) * column.dtype.itemsize for column in columns)


def _with_cost(ranks: Exchange, report: PartitionReport, cost: Cost) -> PartitionReport:
    """Return `report` with its costs: for each step the seconds of the slowest rank, and the highest peak memory."""
    seen = ranks.gather([cost.seconds, max(cost.memory_bytes.values(), default=0)])
    seconds = {step: max(of_rank[step] for of_rank, _ in seen) for step in cost.seconds}
    return dataclasses.replace(report, seconds=seconds, memory_bytes=max(memory for _, memory in seen))


def _files_of_all(ranks: Exchange, files: Mapping[str, File]) -> dict[str, File]:
    """Return {file name: File}, for partition.json, of the part files of all ranks. `files` has those of this rank."""
    of_ranks = ranks.gather({name: [*file] for name, file in files.items()})
    return {name: File(*file) for of_rank in of_ranks for name, file in of_rank.items()}


def _write_book(
    graph: PlacedGraph, shard: Shard, identity: Identity, folder: Path, leaders: Collection[int]
) -> dict[str, File]:
    """On a leader, write the folder book/ and return {file name: File}; on other ranks, return {}. All ranks call this.

    The part of each edge (the edge map) is written if edges have attributes, as the Partitioner does by default. Each
    rank looks up the parts of its shard's edges, which have consecutive edge ids, and sends them to the leaders.
    """
    edges = {}
    if any(own_edges.attributes for own_edges in graph.part.edges.values()):
        for kind, (total, *_) in graph.part.edges.items():
            owners = graph.owners[ends_of(kind)[1]]
            edges[kind] = _parts(graph.ranks, shard.edges[kind][1], owners, graph.first_ids[kind], total, leaders)
    if graph.ranks.rank in leaders:
        return write_book(folder, graph.book(), identity, edges=edges)
    for parts in edges.values():
        for _ in parts:  # sends this rank's share to the leaders
            pass
    return {}


def _parts(
    ranks: Exchange, destinations: Tensor, owners: RangeMap, first_id: int, total: int, leaders: Collection[int]
) -> Iterator[Tensor]:
    """On a leader, yield the part of each edge, in pieces, by ascending edge id. On other ranks, yield nothing.

    All ranks must call this together, and iterate to the end.

    Args:
        destinations: int64, the destinations of this rank's edges, whose edge ids begin with `first_id`.
        owners: the part of each node of the destination type.
        total: the number of edges of all ranks.
    """
    dtype, nothing = smallest_dtype(ranks.size), torch.empty(0, dtype=torch.uint8)
    most = window(1, 8)  # the parts are looked up as int64
    for first in range(0, total, most):
        low = min(max(first - first_id, 0), destinations.shape[0])
        high = min(max(first + most - first_id, 0), destinations.shape[0])
        mine = as_bytes(owners.part_of(destinations[low:high]).to(dtype))
        came = ranks.to_each([mine if rank in leaders else nothing for rank in range(ranks.size)])
        if ranks.rank in leaders:
            yield torch.cat(came).view(dtype)


# --- one folder for the ranks that see the same disk


@contextmanager
def shared_root(ranks: Exchange, path: Path, num_bytes: Callable[[list[int]], int]) -> Iterator[tuple[Path, list[int]]]:
    """Yield (folder, leaders): the hidden folder in which this rank writes its part, and a list of all ranks' leaders.

    A rank's leader is the lowest rank that sees the same disk; it makes the folder. When the leader's with statement
    ends without an error, the folder gets the name `path`. So `path` appears whole or not at all. The caller ensures
    that all ranks have written before that.

    Args:
        path: the final folder, as `check_root` returns it.
        num_bytes: function (list of ranks) -> about how many bytes these ranks will write.
    Raises:
        FileNotFoundError: This rank does not see the folder that its leader has made.
        The errors of `new_folder`, on the leader.
    """
    leaders = _leaders(ranks, path)
    mine, hidden = leaders[ranks.rank], new_beside(path)
    members = [rank for rank, leader in enumerate(leaders) if leader == mine]
    is_leader = mine == ranks.rank
    with (
        new_folder(ranks.where, path, num_bytes(members), replaced=PARTITION)
        if is_leader
        else nullcontext(hidden) as folder
    ):
        if is_leader:
            _clear_marks(path)
        try:
            with room_told(ranks.where, path):
                ranks.vote()
                if not folder.is_dir():
                    raise FileNotFoundError(
                        f"{ranks.where}: {folder}, which rank {mine} has made, is not there for rank {ranks.rank}. "
                        "Choose a folder on a disk that shows all ranks the same, or one on each machine."
                    )
                yield folder, leaders
        except FileNotFoundError:
            ranks.look()  # raises the error of a leader that failed, and so removed the folder
            raise
        except BaseException as error:
            ranks.tell_failure(error)  # before the folder is removed: another rank might notice that first
            raise


def _leaders(ranks: Exchange, path: Path) -> list[int]:
    """Return for each rank its leader: the lowest rank that sees the same disk at `path`. All ranks call this together.

    Each rank creates an empty file beside `path`, its mark, and looks for the marks of the others. Each mark has a new
    name, so no file system has cached that it is missing.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    mark = path.parent / f"{_mark(path)}{secrets.token_hex(8)}"
    try:
        mark.touch()
        names = ranks.gather(mark.name)
        seen = (rank for rank, name in enumerate(names) if (path.parent / name).exists())
        return ranks.gather(next(seen, ranks.rank))  # after this, no rank looks for marks
    finally:
        mark.unlink(missing_ok=True)


def _clear_marks(path: Path) -> None:
    """Remove the marks (see `_leaders`) beside `path` that were left by ranks which were killed during an election.

    Only the process that holds the lock of the new folder may call this.
    """
    for entry in path.parent.iterdir():
        if entry.name.startswith(_mark(path)):
            entry.unlink(missing_ok=True)


def _mark(path: Path) -> str:
    return f".{path.name}.datapipes-rank-"
