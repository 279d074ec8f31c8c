"""Write the native layout of a partition: a folder for each part, one for the book, and partition.json at the end.

A part has one file with all its arrays. The arrays are written in pieces and hashed as they are written, so no more
than a piece of the whole graph is in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.progress import Progress, now_and_then
from datapipes.base.types import NodeType
from datapipes.graph.arena import Array
from datapipes.graph.graph import EarliestNode
from datapipes.partition.book import PartitionBook
from datapipes.partition.layouts import MANIFEST
from datapipes.partition.native.arrays_folder import HOT, PART, Own, PartFields, write_folder
from datapipes.partition.native.manifest import File, Identity, Manifest, manifest_bytes
from datapipes.partition.native.native_book import identity_of, write_book
from datapipes.partition.part_to_write import PartColumn, PartToWrite, check_times, part_of_graph, remote_sources
from datapipes.partition.row_chunks import MOST_EDGES, pieces, refuse_other_book
from datapipes.partition.source import Source


def write_native(
    folder: Path,
    source: Source,
    book: PartitionBook,
    *,
    node_time_attr: str | None,
    about: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Write the native layout into `folder`, which must exist and hold no native layout. Nothing is fsynced.

    Args:
        node_time_attr: a node attribute with times, integers or floats [num_nodes]. Each edge is stored with the time
            of its source, if the source type has the attribute. None: no times are stored.
        about: JSON values for partition.json, such as method and report.
        progress: called a few times a second with (text that names the part, bytes written so far, all bytes).
    Raises:
        TypeError, ValueError: The graph is corrupt, the book is of another graph, or an argument does not fit; the
            message says what is allowed.
        OSError: The disk is full, or a file cannot be written.
    """
    graph = source.graph
    refuse_other_book(graph, book)
    times = check_times("partition", graph, node_time_attr)
    identity = identity_of(graph, book, node_time_attr)
    of_int64 = {kind: of_kind for kind, of_kind in times.items() if of_kind.dtype == torch.int64 and len(of_kind) > 0}
    earliest = None if node_time_attr is None else {kind: EarliestNode.of(of_int64[kind]) for kind in of_int64}
    manifest = Manifest(folder, identity, graph.index_dtype, node_time_attr, about, {}, earliest)
    manifest_bytes(manifest)  # raises its errors before hours of writing
    files: dict[str, File] = {}
    for part in range(book.num_parts):
        rows = part_of_graph(graph, book, part, times)
        files |= write_part(
            folder, identity, rows, remote_sources(rows), partial(now_and_then(progress), f"write part {part}")
        )
    files |= write_book(folder, book, identity, partial(now_and_then(progress), "write the book"))
    (folder / MANIFEST).write_bytes(manifest_bytes(replace(manifest, files=files)))


def write_part(
    root: Path,
    identity: Identity,
    part: PartToWrite,
    remote: Mapping[NodeType | None, tuple[Tensor, Tensor]],
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, File]:
    """Write the folder of a part within `root`; return {path within `root`: File}, sizes and hashes.

    Args:
        remote: the nodes of other parts that the part's edges come from, as `remote_sources` returns them.
        progress: called with (bytes written so far, all bytes).
    """
    arrays = []
    for number, (node_type, nodes) in enumerate(part.nodes.items()):
        hot = zip(HOT, remote.get(node_type, ()), strict=node_type in remote)
        for kind, values in (("node_ids", nodes.ids), *hot):
            arrays.append(Array((kind, number, ""), values.dtype, values.shape, pieces(values, MOST_EDGES)))
        arrays += [_array("node_attributes", number, column, name) for name, column in nodes.attributes.items()]
    for number, edges in enumerate(part.edges.values()):
        for kind in ("indptr", "indices", "edge_ids", "source_times"):
            column = getattr(edges, kind)
            if column is not None:
                arrays.append(_array(kind, number, column))
        arrays += [_array("edge_attributes", number, column, name) for name, column in edges.attributes.items()]
    counts = Own(
        tuple(nodes.ids.shape[0] for nodes in part.nodes.values()),
        tuple(edges.num_edges for edges in part.edges.values()),
    )
    return write_folder(root, f"part_{part.part}", PART, identity, PartFields(part.part, counts), arrays, progress)


def _array(kind: str, number: int, column: PartColumn, name: str = "") -> Array:
    return Array((kind, number, name), column.dtype, column.shape, column.pieces())
