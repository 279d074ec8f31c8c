"""Write a partition in PyG's layout, as PyG's Partitioner does: plain dicts of tensors, each file by torch.save.

All node and edge attributes are written; PyG writes `x` and `edge_attr` only. Ids are int64. The in-edges of a node
stay in their original order, except where times order them. The arrays of one part at a time are made in scratch
files, from which torch.save writes. The process itself has a few pieces in memory, so the graph may be larger than
memory. The system writes pages of scratch files to disk when memory is short. A scratch file loses its name as soon as
it is mapped, and no descriptor stays open, since a part of many types needs many tensors. So a scratch file vanishes
with its tensor, or when the process ends, however it ends.

Times order the in-edges of a node. If the user names a node attribute, its values are the times of the sources. Else,
as in PyG, the times of an edge type are its edge attribute "edge_time", or else "time". If no edge type has either, the
node attribute "time" has the times of the sources.
"""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.errors import text_of
from datapipes.base.progress import Progress
from datapipes.base.rows import bits_of
from datapipes.base.types import EdgeType, NodeType, ends_of, of_type
from datapipes.partition.book import IdMap, PartitionBook, with_edge_map
from datapipes.partition.part_to_write import are_times, check_times
from datapipes.partition.pyg.pyg_names import (
    EDGE_FEATS,
    EDGE_TIME,
    GRAPH,
    META,
    NODE_FEATS,
    TIME,
    PygMisfit,
    check_file_names,
    map_file,
    meta_of,
    offsets_of,
)
from datapipes.partition.row_chunks import MOST_EDGES, PartRows, pieces, refuse_other_book, rows_at, rows_of_nodes
from datapipes.partition.source import Source

_MOST_OVERHEAD = 2**20  # bytes in a file of torch.save that are no values of tensors


def write_pyg(
    folder: Path, source: Source, book: PartitionBook, *, node_time_attr: str | None, progress: Progress
) -> None:
    """Write META.json, the maps of nodes and edges, and the folders of all parts into `folder`.

    While a part is written, it takes twice the disk space of its files, because of scratch files.

    Args:
        folder: exists, and holds nothing of this layout.
        node_time_attr: node attribute that holds times, written as `time`. The in-edges of a node are then ordered by
            the time of their source. None: as in PyG, the edge attribute "edge_time" or "time" has the times, or else
            the node attribute "time".
        progress: called with (text that names the part, number of edges written so far, number of all edges).
    Raises:
        ValueError: The name of a type cannot be a file name. Or no node type has `node_time_attr`, or it holds no
            times. Or the edge ids of a type are not 0 to num_edges - 1, each once. Or the graph is corrupt.
        OSError: The disk is full.
    """
    times = check_pyg(source, node_time_attr)
    refuse_other_book(source.graph, book)
    book = book if book.has_edges else with_edge_map(book, source.graph)
    _write_maps(folder, source, book)
    writer = _Writer(folder, source, book, times, progress)
    for part in range(book.num_parts):
        writer.write(part)
    meta = meta_of(book.num_parts, _num_nodes(source), source.edge_types)
    (folder / META).write_text(json.dumps(meta), encoding="utf-8")


@dataclass(frozen=True)
class Times:
    """Which attributes of a graph hold times, by name.

    Attributes:
        of_nodes: {node type: name} for types whose nodes have times.
        of_edges: {edge type: name} for types whose in-edges are ordered by times of the edges.
        by_source: whether in-edges are ordered by the times of their sources.
    """

    of_nodes: Mapping[NodeType | None, str]
    of_edges: Mapping[EdgeType | None, str]
    by_source: bool


def check_pyg(source: Source, node_time_attr: str | None) -> Times:
    """Refuse a graph that PyG's layout cannot hold; return the names of the attributes that hold times.

    Reads no edge, and no values except times of dtype uint64.

    Raises:
        PygMisfit, ValueError: As `write_pyg`, but edges are not checked. Also, another attribute has the name that PyG
            gives to times, or a time is 2^63 or more.
    """
    check_file_names(source.node_types)
    check_file_names(source.edge_types)
    check_times("PyG's layout", source.graph, node_time_attr)
    wanted = node_time_attr or TIME
    nodes: dict[NodeType | None, str] = {}
    for node_type in source.node_types:
        attributes = source.graph.node_attributes_of(node_type)
        if wanted in attributes and are_times(attributes[wanted]):
            _refuse_times("node", node_type, wanted, TIME, attributes)
            nodes[node_type] = wanted
    if node_time_attr is not None:
        return Times(nodes, {}, by_source=True)
    edges: dict[EdgeType | None, str] = {}
    for name in (EDGE_TIME, TIME):
        for edge_type in source.edge_types:
            attributes = source.graph.relation(edge_type).edge_attributes
            if edge_type not in edges and name in attributes and are_times(attributes[name]):
                _refuse_times("edge", edge_type, name, EDGE_TIME, attributes)
                edges[edge_type] = name
    return Times(nodes, edges, by_source=not edges)


def pyg_bytes(source: Source, num_parts: int, attribute_bytes: int, node_time_attr: str | None = None) -> int:
    """Return about how many bytes PyG's layout takes on the disk while it is written, scratch files included.

    Args:
        attribute_bytes: size of all attributes of the graph.
        node_time_attr: as in `write_pyg`. Each part holds the times of all nodes, 8 bytes for each time.
    """
    graph = source.graph
    counts = _num_nodes(source)
    times = 8 * sum(n for kind, n in counts.items() if (node_time_attr or TIME) in graph.node_attributes_of(kind))
    edges, nodes = sum(map(graph.num_edges_of, source.edge_types)), sum(counts.values())
    part_bytes = (24 * edges + 16 * nodes + attribute_bytes) // num_parts  # again, in scratch files
    files = num_parts * 2**13  # names, and what the archives of a part's three files take
    return 32 * edges + 24 * nodes + attribute_bytes + num_parts * times + files + part_bytes


def _write_maps(folder: Path, source: Source, book: PartitionBook) -> None:
    maps: dict[tuple[str, Any], IdMap] = {("node_map", kind): book.nodes(kind) for kind in source.node_types}
    maps |= {("edge_map", kind): book.edges(kind) for kind in source.edge_types}
    for (name, kind), owners in maps.items():
        file = map_file(folder, name, kind)
        file.parent.mkdir(exist_ok=True)
        save(filled(folder, (owners.num_ids,), torch.int64, [owners.dense()]), file)


def _num_nodes(source: Source) -> dict[NodeType | None, int]:
    return {node_type: source.graph.num_nodes_of(node_type) for node_type in source.node_types}


class _Writer:
    """Writes the folders of all parts, one after the other, each by a call of `write`."""

    def __init__(self, folder: Path, source: Source, book: PartitionBook, times: Times, progress: Progress) -> None:
        self._folder, self._source, self._book, self._times = folder, source, book, times
        self._graph, self._progress = source.graph, progress
        counts = {edge_type: self._graph.num_edges_of(edge_type) for edge_type in source.edge_types}
        self._node_offsets, self._edge_offsets = offsets_of(_num_nodes(source)), offsets_of(counts)
        self._all_edges, self._done = sum(counts.values()), 0

    def write(self, part: int) -> None:
        """Write the folder of a part: graph.pt, edge_feats.pt and node_feats.pt."""
        folder = self._folder / f"part_{part}"
        folder.mkdir(exist_ok=True)  # the other layout may have made it
        edges: dict[EdgeType | None, dict[str, Any]] = {}
        features: dict[EdgeType | None, dict[str, Any]] = {}
        for edge_type in self._source.edge_types:
            self._progress(f"write part {part} for PyG", self._done, self._all_edges)
            edges[edge_type], features[edge_type] = self._edges(edge_type, part)
            self._done += int(edges[edge_type]["row"].shape[0])
        save(_plain(edges), folder / GRAPH)
        save(_plain({kind: entry for kind, entry in features.items() if entry or kind is None}), folder / EDGE_FEATS)
        del edges, features  # and their scratch files, before the nodes get theirs
        nodes = {node_type: self._nodes(node_type, part) for node_type in self._source.node_types}
        save(_plain({kind: entry for kind, entry in nodes.items() if entry}), folder / NODE_FEATS)
        self._progress(f"write part {part} for PyG", self._done, self._all_edges)

    def _edges(self, edge_type: EdgeType | None, part: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the part's edges of a type as two dicts for the files: (entry of graph.pt, entry of edge_feats.pt).

        The second is {} if the part has no such edges, or they have no attributes.
        """
        graph, (src, dst) = self._graph, ends_of(edge_type)
        relation = graph.relation(edge_type)
        rows = PartRows(graph, edge_type, self._book.nodes(dst).ids_of(part))
        order = self._order(edge_type, rows)
        count = (rows.num_edges,)
        if order is None:
            sources, ids, places = rows.indices(), rows.edge_ids(), rows.positions
        else:
            places = partial(pieces, order, MOST_EDGES)
            sources = rows_at(relation.indices, places())
            ids = places() if relation.edge_ids is None else rows_at(relation.edge_ids, places())
        row = filled(self._folder, count, torch.int64, sources)
        edge_id = filled(self._folder, count, torch.int64, ids)
        offset = self._edge_offsets[edge_type]
        numbers = (ids + offset for ids in pieces(edge_id, MOST_EDGES))
        edges = {
            "edge_id": filled(self._folder, count, torch.int64, numbers) if offset else edge_id,
            "row": row,
            "col": filled(self._folder, count, torch.int64, rows.destinations()),
            "size": (graph.num_nodes_of(src), graph.num_nodes_of(dst)),
        }
        time = self._times.of_edges.get(edge_type)
        if rows.num_edges == 0 or not relation.edge_attributes:
            return edges, {}  # PyG cannot open features of no edges
        features: dict[str, Any] = {
            "global_id": edge_id,
            "feats": {
                name: filled(self._folder, (rows.num_edges, *values.shape[1:]), values.dtype, rows_at(values, places()))
                for name, values in relation.edge_attributes.items()
                if name != time or time != EDGE_TIME
            },
        }
        if time is not None:
            values = relation.edge_attributes[time]
            moved = map(stored_times, rows_at(values, places()))
            features[EDGE_TIME] = filled(self._folder, count, stored_times(values[:0]).dtype, moved)
        return edges, features

    def _order(self, edge_type: EdgeType | None, rows: PartRows) -> Tensor | None:
        """Return the positions of the part's edges in the whole graph, int64, sorted by (destination, time).

        None: edges of this type are not ordered by time.
        """
        of_source = self._times.of_nodes.get(ends_of(edge_type)[0]) if self._times.by_source else None
        of_edges = self._times.of_edges.get(edge_type)
        if of_source is not None:
            values = self._graph.node_attributes_of(ends_of(edge_type)[0])[of_source]
            pieces = rows.of_sources(values)
        elif of_edges is not None:
            deque(rows.indices(), maxlen=0)  # reads all, which checks them
            values = self._graph.relation(edge_type).edge_attributes[of_edges]
            pieces = rows.of_edges(values)
        else:
            return None
        count = (rows.num_edges,)
        times = filled(self._folder, count, values.dtype, pieces)
        order = filled(self._folder, count, torch.int64, rows.positions())
        ends = torch.cat([*rows.indptr()])
        for first, last in _blocks(ends):
            begin, end = int(ends[first]), int(ends[last])
            row_of = torch.repeat_interleave(torch.arange(last - first), ends[first : last + 1].diff())
            order[begin:end] = order[begin:end][by_time(row_of, times[begin:end])]
        return order

    def _nodes(self, node_type: NodeType | None, part: int) -> dict[str, Any]:
        """Return the part's nodes of a type as a dict, the entry of node_feats.pt.

        {}: the part has no nodes of the type, and the graph has types.
        """
        ids = self._book.nodes(node_type).ids_of(part)
        if node_type is not None and ids.shape[0] == 0:
            return {}  # PyG cannot open a type without nodes
        attributes = self._graph.node_attributes_of(node_type)
        time = self._times.of_nodes.get(node_type)
        entry: dict[str, Any] = {
            "global_id": ids + self._node_offsets[node_type],
            "feats": {
                name: filled(self._folder, (ids.shape[0], *values.shape[1:]), values.dtype, rows_of_nodes(values, ids))
                for name, values in attributes.items()
                if name != time or time != TIME
            },
        }
        if node_type is not None:
            entry["id"] = ids
        if time is not None:
            entry[TIME] = storing(stored_times(attributes[time]))  # of all nodes: PyG asks for other parts' too
        return entry


def _blocks(ends: Tensor) -> Iterator[tuple[int, int]]:
    """Yield ranges (first, last) of rows to sort at a time: one row, or rows with up to MOST_EDGES edges together.

    `ends` are the offsets of all rows, as in indptr.
    """
    first, count = 0, int(ends.shape[0]) - 1
    while first < count:
        last = int(torch.searchsorted(ends, int(ends[first]) + MOST_EDGES, right=True)) - 1
        last = min(max(last, first + 1), count)
        yield first, last
        first = last


def _plain(by_type: Mapping[Any, Any]) -> Any:
    """Return what is written to a file: `by_type` as a dict; in a graph without types, its one entry."""
    return by_type[None] if None in by_type else dict(by_type)


def _refuse_times(domain: str, kind: Any, name: str, stored: str, attributes: Mapping[str, Tensor]) -> None:
    """Raise PygMisfit if PyG's layout cannot hold the times in the attribute `name`.

    The times do not fit int64, or `stored`, their name in PyG's files, is the name of another attribute.
    """
    of_kind = of_type(kind)
    if name != stored and stored in attributes:
        raise PygMisfit(
            f"the {domain}s{of_kind} have the attribute {stored!r} beside {shown(name)}, and PyG finds times under the "
            f"name {stored!r} only",
            "Rename it",
        )
    for piece in pieces(attributes[name], MOST_EDGES) if attributes[name].dtype == torch.uint64 else ():
        if bool((piece.view(torch.int64) < 0).any()):
            raise PygMisfit(
                f"the {domain} attribute {shown(name)}{of_kind} is uint64 and has a time of 2^63 or more; times are "
                "stored as int64",
                "Make them smaller",
            )


def by_time(rows: Tensor, times: Tensor) -> Tensor:
    """Return the permutation, int64, that sorts edges stably by their row, then by their time."""
    order = torch.argsort(times, stable=True)
    return order[torch.argsort(rows[order], stable=True)]


def stored_times(times: Tensor) -> Tensor:
    """Convert times to a dtype that PyG's samplers take, and return them: integers become int64, floats stay."""
    return times if times.dtype.is_floating_point else times.long()


# --- tensors in files of their own


def scratch(folder: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor of zeros whose memory is a file in `folder`, so that it may be larger than memory.

    The file's name is removed at once, so the file vanishes with the tensor.

    Raises:
        OSError: The disk is full. The space is reserved here, since without space a write to the tensor would kill the
            process (SIGBUS).
    """
    num_bytes = math.prod(shape) * torch.empty(0, dtype=dtype).element_size()
    if num_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:
        os.posix_fallocate(file.fileno(), 0, num_bytes)
        # Python and NumPy keep a descriptor for each file that they map; torch maps by name, and keeps none.
        return torch.from_file(file.name, shared=True, size=num_bytes, dtype=torch.uint8).view(dtype).view(shape)


def filled(folder: Path, shape: tuple[int, ...], dtype: torch.dtype, pieces: Iterable[Tensor]) -> Tensor:
    """Return a tensor of `shape` in a scratch file (see `scratch`), filled with the rows of `pieces` in order.

    The pieces together must have exactly `shape[0]` rows.
    """
    made, begin = scratch(folder, shape, dtype), 0
    for piece in pieces:
        end = begin + piece.shape[0]
        made[begin:end] = piece
        begin = end
    assert begin == shape[0], f"{begin} rows for {shape[0]}"
    return made


def storing(tensor: Tensor) -> Tensor:
    """Return `tensor` with a storage that has only its own values, since torch.save writes whole storages.

    The result shares the memory of `tensor` if its values are adjacent there; else it is a copy.
    """
    return torch.from_numpy(bits_of(tensor.contiguous()).numpy()).view(tensor.dtype)


def save(value: Any, path: Path) -> None:
    """Write `value`, dicts of tensors, to the file `path` with torch.save.

    Raises:
        OSError: The disk is full, or the file cannot be written (torch raises a RuntimeError that says neither).
        PygMisfit: Before torch 2.5, a tensor has an unsigned dtype of more than a byte.
    """
    try:
        torch.save(value, str(path))
    except KeyError as error:
        path.unlink(missing_ok=True)
        raise PygMisfit(
            f"PyG's layout: torch {torch.__version__} cannot save a tensor: {text_of(error)}",
            "Convert the attribute, or use torch 2.5 or newer.",
        ) from error
    except RuntimeError as error:
        path.unlink(missing_ok=True)
        scratch(path.parent, (_num_bytes(value) + _MOST_OVERHEAD,), torch.uint8)  # raises the error if there is no room
        raise OSError(errno.EIO, f"torch.save failed: {error}", str(path)) from error


def _num_bytes(value: Any) -> int:
    if isinstance(value, dict):
        return sum(map(_num_bytes, value.values()))
    return value.nbytes if isinstance(value, Tensor) else 0
