"""Write the native layout of a partition: a folder for each part, one for the book, and partition.json at the end.

A part has one file with all arrays of its rows. They are written in pieces and hashed as they are written, so no more
than a piece of the whole graph is in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.progress import Progress
from datapipes.base.types import NodeType
from datapipes.graph.arena import Array
from datapipes.graph.graph import EarliestNode, Graph
from datapipes.partition.book import PartitionBook
from datapipes.partition.layouts import MANIFEST
from datapipes.partition.native.arrays_folder import HOT, PART, Own, PartFields, write_folder
from datapipes.partition.native.manifest import File, Manifest, manifest_bytes
from datapipes.partition.native.native_book import identity_of, write_book
from datapipes.partition.native.native_header import Identity
from datapipes.partition.part_source import PartColumn, PartSource, part_of_graph
from datapipes.partition.remote import remote_sources
from datapipes.partition.row_chunks import MOST_EDGES, pieces, refuse_other_book
from datapipes.partition.source import Source
from datapipes.partition.time_values import TIMES, are_times

_TOLD_S = 0.3  # seconds between two reports of progress


def write_native(
    folder: Path,
    source: Source,
    book: PartitionBook,
    *,
    node_time_attr: str | None,
    about: Mapping[str, Any],
    progress: Progress,
) -> None:
    """Write the native layout into `folder`, which exists and has none. Nothing is fsynced.

    Args:
        node_time_attr: a node attribute, integers or floats [num_nodes]; relations from the types that have it store
            the value of the source of each edge. Or None.
        about: JSON values for partition.json, such as method and report.
        progress: called with the bytes written of each part, a few times a second.
    Raises:
        TypeError, ValueError: The graph is corrupt, the book is of another graph, or an argument does not fit; the
            message says what is allowed.
        OSError: The disk is full, or a file cannot be written.
    """
    graph = source.graph
    refuse_other_book(graph, book)
    times = check_times("partition", graph, node_time_attr)
    identity = identity_of(graph, book, node_time_attr)
    earliest = {of: EarliestNode.of(each) for of, each in times.items() if each.dtype == torch.int64 and len(each) > 0}
    known = None if node_time_attr is None else earliest
    manifest = Manifest(folder, identity, graph.index_dtype, node_time_attr, about, {}, known)
    manifest_bytes(manifest)  # what it refuses is told before hours of writing
    files: dict[str, File] = {}
    for part in range(book.num_parts):
        given = part_of_graph(graph, book, part, times)
        files |= write_part(folder, identity, given, remote_sources(given), _Told(progress, f"write part {part}"))
    files |= write_book(folder, book, identity, _Told(progress, "write the book"))
    (folder / MANIFEST).write_bytes(manifest_bytes(replace(manifest, files=files)))


def check_times(where: str, graph: Graph, node_time_attr: str | None) -> dict[NodeType | None, Tensor]:
    """Return {node type: its values of `node_time_attr`}, of the types that have it.

    Raises:
        ValueError: No type has it, or its values are not one time for each node.
    """
    if node_time_attr is None:
        return {}
    attributes = {node_type: graph.node_attributes_of(node_type) for node_type in graph.node_types}
    times = {key: values[node_time_attr] for key, values in attributes.items() if node_time_attr in values}
    if not times:
        known = sorted({name for values in attributes.values() for name in values})
        raise ValueError(
            f"{where}: node_time_attr {shown(node_time_attr)} is no node attribute of the graph; it has {shown(known)}."
            " Name one of these."
        )
    for node_type, values in times.items():
        if not are_times(values):
            of = "" if node_type is None else f" of {node_type!r}"
            raise ValueError(
                f"{where}: node_time_attr {shown(node_time_attr)}{of} is {dtype_name(values.dtype)} "
                f"{list(values.shape)}; times are {TIMES} [num_nodes], floats of 16 bits or more. Convert it, or name "
                "another."
            )
    return times


def write_part(
    root: Path,
    identity: Identity,
    part: PartSource,
    remote: Mapping[NodeType | None, tuple[Tensor, Tensor]],
    told: Callable[[int, int], None] = lambda done, total: None,
) -> dict[str, File]:
    """Write the folder of a part within `root`; return the size and hash of each file.

    Args:
        remote: the nodes of other parts that its edges come from, as `remote_sources` gives them.
        told: called with the bytes that are written, and all of them.
    """
    arrays = []
    for number, (node_type, nodes) in enumerate(part.nodes.items()):
        arrays.append(_known("node_ids", number, nodes.ids))
        if node_type in remote:
            arrays += [_known(kind, number, each) for kind, each in zip(HOT, remote[node_type], strict=True)]
        arrays += [_array("node_attributes", number, each, name) for name, each in nodes.attributes.items()]
    for number, edges in enumerate(part.edges.values()):
        for kind in ("indptr", "indices", "edge_ids", "source_times"):
            column = getattr(edges, kind)
            if column is not None:
                arrays.append(_array(kind, number, column))
        arrays += [_array("edge_attributes", number, each, name) for name, each in edges.attributes.items()]
    own = Own(
        tuple(nodes.ids.shape[0] for nodes in part.nodes.values()),
        tuple(edges.num_edges for edges in part.edges.values()),
    )
    return write_folder(root, f"part_{part.part}", PART, identity, PartFields(part.part, own), arrays, told)


def _known(kind: str, number: int, values: Tensor) -> Array:
    return Array((kind, number, ""), values.dtype, values.shape, pieces(values, MOST_EDGES))


def _array(kind: str, number: int, column: PartColumn, name: str = "") -> Array:
    return Array((kind, number, name), column.dtype, column.shape, column.pieces())


class _Told:
    """Passes on the progress of one file, a few times a second."""

    def __init__(self, progress: Progress, text: str) -> None:
        self._progress, self._text = progress, text
        self._next = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if now >= self._next or done >= total:
            self._next = now + _TOLD_S
            self._progress(self._text, done, total)
