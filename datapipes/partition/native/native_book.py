"""The PartitionBook of a partition on disk, and the ids that tell one partition from another.

The folder book/ holds the maps as they are in memory: dense maps with one or two bytes for each id, or the offsets of
ranges. Maps are memory-mapped, so processes share them.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.array_digest import array_digest
from datapipes.base.checks import dtype_name
from datapipes.base.types import EdgeType, NodeType, of_type
from datapipes.graph.arena import Array, Place
from datapipes.graph.graph import Graph
from datapipes.partition.book import IdMap, PartitionBook, RangeMap, smallest_dtype
from datapipes.partition.native.arrays_folder import BOOK, BookFields, read_folder, write_folder
from datapipes.partition.native.manifest import File, Identity, Manifest, opened_manifest, valid_header
from datapipes.partition.row_chunks import pieces

__all__ = ["open_book"]

NAME = "book"
_IDS = 2**20  # ids whose parts are hashed at a time


def open_book(root: str | Path, *, verify: bool = True) -> PartitionBook:
    """Return the book of the partition in the folder `root`, memory-mapped.

    Args:
        verify: compare the hashes of the files; if False, only their sizes.
    Raises:
        FileNotFoundError: `root` holds no native partition, or a file is missing; the message names it.
        ValueError: A file is truncated, changed, no regular file, of another partition or not valid.
    """
    with opened_manifest("open_book", root) as manifest:
        return book_of("open_book", manifest, verify=verify)


def digest_of(where: str, fingerprint: Any) -> str | None:
    """Return the digest of a graph. `fingerprint` is the graph, or its digest, which is returned as it is.

    None gives None. TypeError if `fingerprint` is something else.
    """
    if fingerprint is None or isinstance(fingerprint, str):
        return fingerprint
    if isinstance(fingerprint, Graph):
        return fingerprint.digest()
    raise TypeError(
        f"{where}: fingerprint must be a CSCGraph, a HeteroCSCGraph or the digest of one, got "
        f"{type(fingerprint).__name__}. Pass the graph (of a data set: data.graph) or graph.digest()."
    )


def identity_of(graph: Graph, book: PartitionBook, node_time_attr: str | None) -> Identity:
    """Return the Identity of the partition of `graph` by `book`: its counts and digests, which each header states."""
    fingerprint = copy.copy(graph).digest()  # a copy hashes anew; NumPy may have changed the arrays
    num_nodes = {node_type: graph.num_nodes_of(node_type) for node_type in graph.node_types}
    num_edges = {edge_type: graph.num_edges_of(edge_type) for edge_type in graph.edge_types}
    of_nodes = {node_type: _digests(graph.node_attributes_of(node_type)) for node_type in graph.node_types}
    of_edges = {edge_type: _digests(graph.relation(edge_type).edge_attributes) for edge_type in graph.edge_types}
    ids = partition_id_of(fingerprint, book), content_digest(fingerprint, node_time_attr, of_nodes, of_edges)
    return Identity(book.num_parts, fingerprint, *ids, num_nodes, num_edges)


def partition_id_of(fingerprint: str, book: PartitionBook) -> str:
    """Return the partition id, 16 hexadecimal digits: a digest of fingerprint, number of parts, and part of each node.

    An IdMap and a RangeMap with the same parts give the same digest. The edge map has no effect, since it follows from
    the map of nodes. Time O(number of nodes); O(1) if the book was opened from a folder.
    """
    if book.partition_id is not None:
        return book.partition_id
    digest = hashlib.blake2b(json.dumps([fingerprint, book.num_parts]).encode(), digest_size=8)
    for node_type in book.node_types:
        owners = book.nodes(node_type)
        digest.update(json.dumps([node_type, owners.num_ids]).encode())
        for parts in pieces(owners.dense(), _IDS):
            digest.update(parts.to(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def _digests(attributes: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: array_digest(values) for name, values in attributes.items()}


def content_digest(
    fingerprint: str,
    node_time_attr: str | None,
    of_nodes: Mapping[NodeType | None, Mapping[str, str]],
    of_edges: Mapping[EdgeType | None, Mapping[str, str]],
) -> str:
    """Return the content id, 16 hexadecimal digits: a digest of fingerprint, `node_time_attr`, and all attributes.

    The digest depends on every byte of the values, but not on the order in which attributes were given.

    Args:
        of_nodes, of_edges: {type: {name of an attribute: its `array_digest`}}, sorted by type.
    """
    digest = hashlib.blake2b(json.dumps([fingerprint, node_time_attr]).encode(), digest_size=8)
    digests: dict[str, Mapping[Any, Mapping[str, str]]] = {"nodes": of_nodes, "edges": of_edges}
    for kind, of_types in digests.items():
        for key, attributes in of_types.items():
            digest.update(json.dumps([kind, key, [[name, attributes[name]] for name in sorted(attributes)]]).encode())
    return digest.hexdigest()


def write_book(
    root: Path,
    book: PartitionBook,
    identity: Identity,
    progress: Callable[[int, int], None] = lambda done, total: None,
    edges: Mapping[Any, Iterable[Tensor]] | None = None,
) -> dict[str, File]:
    """Write the folder book/ of a partition; return {path within `root`: File}.

    Args:
        identity: what every header of the partition states.
        progress: called with (bytes written so far, all bytes).
        edges: an edge map that is not in memory: {edge type: the part of each edge by ascending edge id, in pieces},
            sorted by type. Only given if `book` has no edge map.
    """
    arrays = [_array("nodes", number, book.nodes(node_type)) for number, node_type in enumerate(book.node_types)]
    arrays += [_array("edges", number, book.edges(edge_type)) for number, edge_type in enumerate(book.edge_types)]
    for number, (edge_type, parts) in enumerate((edges or {}).items()):
        dtype = smallest_dtype(book.num_parts)
        arrays.append(Array(("parts of edges", number, ""), dtype, (identity.num_edges[edge_type],), parts))
    return write_folder(root, NAME, BOOK, identity, BookFields(book.has_edges or bool(edges)), arrays, progress)


def _array(noun: str, number: int, owners: IdMap) -> Array:
    stored = owners.stored()
    kind = f"{'ranges' if isinstance(owners, RangeMap) else 'parts'} of {noun}"
    return Array((kind, number, ""), stored.dtype, stored.shape, [stored])


def book_of(where: str, manifest: Manifest, *, verify: bool) -> PartitionBook:
    """Return the PartitionBook of the partition that `manifest` describes, memory-mapped.

    `where` is the name of the caller, for errors. Further arguments and errors are those of `open_book`.
    """
    identity = manifest.identity
    counts = {"nodes": len(identity.num_nodes), "edges": len(identity.num_edges)}
    kinds = {f"{form} of {noun}": count for form in ("parts", "ranges") for noun, count in counts.items()}
    fields, arrays = read_folder(where, manifest, NAME, BOOK, kinds, verify=verify)
    with valid_header(where, manifest.root / NAME / BOOK.header):
        nodes = _maps(arrays, "nodes", identity.num_nodes, identity.num_parts)
        edges = _maps(arrays, "edges", identity.num_edges if fields.has_edges else {}, identity.num_parts)
        if len(arrays) != len(nodes) + len(edges):
            raise ValueError(
                f"it has {len(arrays)} maps, but needs one for each of {len(nodes)} node and {len(edges)} edge types"
            )
        book = PartitionBook(identity.num_parts, nodes, edges if fields.has_edges else None)
    book.partition_id = identity.partition_id
    return book


def _maps(arrays: dict[Place, Tensor], noun: str, counts: Mapping[Any, int], num_parts: int) -> dict[Any, IdMap]:
    maps = {}
    for number, (key, count) in enumerate(counts.items()):
        maps[key] = owners = _map(arrays, noun, number, num_parts)
        if owners.num_ids != count:
            raise ValueError(f"it has the parts of {owners.num_ids} {noun}{of_type(key)}; the graph has {count}")
    return maps


def _map(arrays: dict[Place, Tensor], noun: str, number: int, num_parts: int) -> IdMap:
    ranges, parts = (arrays.get((f"{form} of {noun}", number, "")) for form in ("ranges", "parts"))
    if ranges is not None:
        return RangeMap(ranges)
    if parts is None:
        raise ValueError(f"it has no map of the {noun} of the type {number}")
    if parts.dtype != smallest_dtype(num_parts):
        needed = dtype_name(smallest_dtype(num_parts))
        raise ValueError(f"its map of {noun} has the dtype {dtype_name(parts.dtype)}; {needed} is needed")
    return IdMap(parts, num_parts)
