"""The arrays of one part of a partition: read from arrays.npy, and checked against part.json and the book."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.rows import new_rows
from datapipes.base.sizes import check_memory
from datapipes.base.types import NodeType, ends_of, of_type
from datapipes.graph.arena import Place, attributes_of
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.arrays_folder import HOT, PART, read_folder
from datapipes.partition.native.manifest import Manifest, valid_header

_OF_NODES = ("node_ids", *HOT, "node_attributes")
_OF_EDGES = ("indptr", "indices", "edge_ids", "edge_attributes", "source_times")
_CHECKED = 2**18  # node ids checked at a time


@dataclass(frozen=True)
class PartRelation:
    """The in-edges of a part's own nodes along one edge type. It has the methods by which a Choice reads edges to draw.

    Attributes:
        node_ids: int64 [own nodes of the destination type], ascending.
        indptr: int64 [own nodes of the destination type + 1].
        indices: int32 or int64 [num_edges], the global id of each in-edge's source.
        edge_ids: int64 [num_edges], the edge ids of the whole graph.
        edge_attributes: {name: [num_edges, ...]}, aligned with `indices`.
        source_times: [num_edges], the time of the source of each edge; None if the partition was made without
            `node_time_attr`, or the source type has no times.
    """

    node_ids: Tensor
    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor
    edge_attributes: dict[str, Tensor] = field(default_factory=dict)
    source_times: Tensor | None = None

    @property
    def num_edges(self) -> int:
        """The number of edges of the part."""
        return int(self.indices.shape[0])

    @property
    def num_source_values(self) -> int:
        return self.num_edges

    def source_attribute(self, name: str) -> Tensor | None:
        return self.source_times

    def times_of_sources(self, name: str, out: Tensor | None = None) -> Tensor:
        assert self.source_times is not None
        return self.source_times if out is None else out.copy_(self.source_times)


def read_part(where: str, manifest: Manifest, part: int, book: PartitionBook, *, verify: bool) -> dict[Place, Tensor]:
    """Read the arrays of a part, check them against each other, and return {place: memory-mapped array}.

    A place is (kind of array, index of its type, name of the attribute or "").

    Args:
        verify: also check that the file has the hash in `manifest`, and that `book` assigns its nodes to this part.
    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is truncated, changed, no regular file, of another partition or not valid; the message names
            it.
    """
    identity = manifest.identity
    name = f"part_{part}"
    counts = dict.fromkeys(_OF_NODES, len(identity.num_nodes)) | dict.fromkeys(_OF_EDGES, len(identity.num_edges))
    fields, arrays = read_folder(where, manifest, name, PART, counts, verify=verify)
    with valid_header(where, manifest.root / name / PART.header):
        if fields.part != part:
            raise ValueError(f"it is the header of part {fields.part}; needed is that of part {part}")
        nodes, edges = fields.own.nodes, fields.own.edges
        if (len(nodes), len(edges)) != (len(identity.num_nodes), len(identity.num_edges)):
            raise ValueError(
                f"own counts {len(nodes)} node types and {len(edges)} edge types; the partition has "
                f"{len(identity.num_nodes)} and {len(identity.num_edges)}"
            )
        _check_attributes(arrays, "node_attributes", nodes)
        _check_attributes(arrays, "edge_attributes", edges)
        for number, (node_type, num_nodes) in enumerate(identity.num_nodes.items()):
            _check_nodes(arrays, number, node_type, nodes[number], num_nodes)
            if verify:
                _check_owned(arrays["node_ids", number, ""], node_type, book, part)
                _check_hot(arrays.get((HOT[0], number, "")), node_type, num_nodes)
        rows = dict(zip(identity.num_nodes, nodes, strict=True))
        for number, (edge_type, count) in enumerate(zip(identity.num_edges, edges, strict=True)):
            _check_edges(arrays, number, rows[ends_of(edge_type)[1]], count, manifest.index_dtype)
    return arrays


def in_memory(where: str, arrays: Mapping[Place, Tensor]) -> dict[Place, Tensor]:
    """Copy memory-mapped arrays into memory, and return the copies; large ones are in huge pages.

    Raises:
        MemoryError: The arrays exceed the memory that is left.
    """
    num_bytes = sum(values.nbytes for values in arrays.values())
    check_memory(where, "the arrays of the part with mmap=False", num_bytes, "Open it with mmap=True.")
    return {
        place: new_rows(values.shape[0], tuple(values.shape[1:]), values.dtype).copy_(values)
        for place, values in arrays.items()
    }


def relations_of(
    arrays: Mapping[Place, Tensor], node_numbers: Mapping[NodeType | None, int], edge_types: Collection[Any]
) -> dict[Any, PartRelation]:
    """Make the PartRelation of each edge type from the arrays of a part; return {edge type: PartRelation}.

    `node_numbers` is {node type: its index in the keys of `arrays`}.
    """
    relations = {}
    of_edges = attributes_of(arrays, "edge_attributes", len(edge_types))
    for number, (edge_type, attributes) in enumerate(zip(edge_types, of_edges, strict=True)):
        node_ids = arrays["node_ids", node_numbers[ends_of(edge_type)[1]], ""]
        indptr, indices, edge_ids = (arrays[kind, number, ""] for kind in ("indptr", "indices", "edge_ids"))
        times = arrays.get(("source_times", number, ""))
        relations[edge_type] = PartRelation(node_ids, indptr, indices, edge_ids, attributes, times)
    return relations


def refuse_other_times(where: str, wanted: str, stored: str | None) -> None:
    """Raise ValueError unless the times stored with the edges are those of the node attribute `wanted`.

    `stored` is the node_time_attr of the partition. None: no times are stored.
    """
    if wanted != stored:
        raise ValueError(
            f"{where}: node_time_attr is {shown(wanted)}, but the node_time_attr of the partition is "
            f"{'none' if stored is None else shown(stored)}; a part draws by the times of source nodes only if they "
            "are stored with its edges. Partition the graph again: "
            f"Partitioner(data, num_parts, root, node_time_attr={wanted!r})."
        )


def _array(
    arrays: Mapping[Place, Tensor], kind: str, number: int, dtype: torch.dtype | None, count: int | None
) -> Tensor:
    """Return the array of a `kind` and of the type with the index `number`, after a check.

    Raises:
        ValueError: It does not exist, or has another shape than [count], or another dtype; None allows any.
    """
    values = arrays.get((kind, number, ""))
    if values is None:
        raise ValueError(f"it names no array {kind!r} for the type {number}")
    if values.ndim != 1 or count not in (None, values.shape[0]) or dtype not in (None, values.dtype):
        wanted = f"{'' if dtype is None else dtype_name(dtype)} [{'n' if count is None else count}]"
        raise ValueError(
            f"{kind!r} for the type {number} is {dtype_name(values.dtype)} {list(values.shape)}, but must be {wanted}"
        )
    return values


def _check_attributes(arrays: Mapping[Place, Tensor], kind: str, counts: Sequence[int]) -> None:
    """Raise ValueError unless each attribute has one row for each node or edge. `counts` has how many each type has."""
    for count, attributes in zip(counts, attributes_of(arrays, kind, len(counts)), strict=True):
        for name, values in attributes.items():
            if values.ndim == 0 or values.shape[0] != count:
                raise ValueError(f"{kind} {shown(name)} has the shape {list(values.shape)}, but must have {count} rows")


def _check_nodes(
    arrays: Mapping[Place, Tensor], number: int, node_type: NodeType | None, count: int, num_nodes: int
) -> None:
    ids = _array(arrays, "node_ids", number, torch.int64, count)
    if any((kind, number, "") in arrays for kind in HOT):
        hot = _array(arrays, HOT[0], number, torch.int64, None)
        _array(arrays, HOT[1], number, torch.int64, hot.shape[0])
    if count > 0 and not 0 <= int(ids[0]) <= int(ids[-1]) < num_nodes:
        raise ValueError(
            f"the node ids{of_type(node_type)} go from {int(ids[0])} to {int(ids[-1])}, but must ascend and be in "
            f"[0, {num_nodes})"
        )


def _check_edges(arrays: Mapping[Place, Tensor], number: int, rows: int, count: int, index_dtype: torch.dtype) -> None:
    indptr = _array(arrays, "indptr", number, torch.int64, rows + 1)
    _array(arrays, "indices", number, index_dtype, count)
    _array(arrays, "edge_ids", number, torch.int64, count)
    if ("source_times", number, "") in arrays:
        _array(arrays, "source_times", number, None, count)
    if int(indptr[0]) != 0 or int(indptr[-1]) != count:
        raise ValueError(
            f"'indptr' for the type {number} goes from {int(indptr[0])} to {int(indptr[-1])}, but must go from 0 to "
            f"{count}"
        )


def _check_owned(ids: Tensor, node_type: NodeType | None, book: PartitionBook, part: int) -> None:
    """Raise ValueError unless the ids ascend, and are exactly the ids that the book gives to the part."""
    owners = book.nodes(node_type)
    if ids.shape[0] != owners.count_of(part):
        raise ValueError(
            f"part {part} has {ids.shape[0]} nodes{of_type(node_type)}, and the partition book gives it "
            f"{owners.count_of(part)}"
        )
    for begin in range(0, ids.shape[0], _CHECKED):
        some = ids[begin : begin + _CHECKED + 1]
        if bool((some[1:] <= some[:-1]).any()):
            raise ValueError(f"the node ids{of_type(node_type)} do not ascend")
        if bool((owners.part_of(some) != part).any()):
            raise ValueError(f"the partition book gives some of its nodes{of_type(node_type)} to another part")


def _check_hot(ids: Tensor | None, node_type: NodeType | None, num_nodes: int) -> None:
    if ids is not None and ids.numel() > 0 and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        raise ValueError(
            f"some ids in 'hot_ids'{of_type(node_type)} are outside the graph; ids must be in [0, {num_nodes})"
        )
