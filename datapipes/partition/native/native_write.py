"""Write the native layout of a partition: a folder for each part, one for the book, and partition.json at the end.

A part has one file with all arrays of its rows. They are written in pieces and hashed as they are written, so no more
than a piece of the whole graph is in memory.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.types import NodeType, ends_of
from datapipes.graph.graph import Graph
from datapipes.partition.book import PartitionBook
from datapipes.partition.layouts import MANIFEST
from datapipes.partition.native.arrays_folder import HOT, PART, Array, write_folder
from datapipes.partition.native.manifest import File, Manifest, manifest_bytes
from datapipes.partition.native.native_book import identity_of, write_book
from datapipes.partition.remote import remote_sources
from datapipes.partition.row_chunks import MOST_EDGES, PartRows, pieces, refuse_other_book, rows_of_nodes
from datapipes.partition.source import Progress, Source
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
    manifest = Manifest(folder, identity, graph.index_dtype, node_time_attr, about, {})
    manifest_bytes(manifest)  # what it refuses is told before hours of writing
    files: dict[str, File] = {}
    for part in range(book.num_parts):
        arrays, own = _arrays_of(source, book, part, times)
        told = _Told(progress, f"write part {part}")
        files |= write_folder(folder, f"part_{part}", PART, identity, {"part": part, "own": own}, arrays, told)
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


def _arrays_of(
    source: Source, book: PartitionBook, part: int, times: Mapping[NodeType | None, Tensor]
) -> tuple[list[Array], dict[str, list[int]]]:
    """Return the arrays of a part, and how many nodes and edges of each type it has."""
    graph = source.graph
    own = {node_type: book.nodes(node_type).ids_of(part) for node_type in graph.node_types}
    hot = remote_sources(source, book, part)
    arrays, num_edges = [], []
    for number, (node_type, ids) in enumerate(own.items()):
        arrays.append(_array("node_ids", number, ids))
        if node_type in hot:
            arrays += [_array(kind, number, each) for kind, each in zip(HOT, hot[node_type], strict=True)]
        for name, values in graph.node_attributes_of(node_type).items():
            shape = (ids.shape[0], *values.shape[1:])
            arrays.append(Array(("node_attributes", number, name), values.dtype, shape, rows_of_nodes(values, ids)))
    for number, edge_type in enumerate(graph.edge_types):
        src, dst = ends_of(edge_type)
        rows, relation = PartRows(graph, edge_type, own[dst]), graph.relation(edge_type)
        count = rows.num_edges
        num_edges.append(count)
        arrays += [
            Array(("indptr", number, ""), torch.int64, (own[dst].shape[0] + 1,), rows.indptr()),
            Array(("indices", number, ""), relation.indices.dtype, (count,), rows.indices()),
            Array(("edge_ids", number, ""), torch.int64, (count,), rows.edge_ids()),
        ]
        if src in times:
            values = times[src]
            arrays.append(Array(("source_times", number, ""), values.dtype, (count,), rows.of_sources(values)))
        for name, values in relation.edge_attributes.items():
            shape = (count, *values.shape[1:])
            arrays.append(Array(("edge_attributes", number, name), values.dtype, shape, rows.of_edges(values)))
    return arrays, {"nodes": [ids.shape[0] for ids in own.values()], "edges": num_edges}


def _array(kind: str, number: int, values: Tensor) -> Array:
    return Array((kind, number, ""), values.dtype, values.shape, pieces(values, MOST_EDGES))


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
