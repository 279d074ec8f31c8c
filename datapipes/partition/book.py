"""PartitionBook: says which part owns each node and, with an edge map (`with_edge_map`), which part owns each edge.

It has one map for each type. An IdMap stores one value for each id, the part that owns the id. A RangeMap is for parts
that own contiguous ranges of ids, and stores only where the ranges begin.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from itertools import repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import as_tensor, check_index_tensor, check_int, check_within, shown
from datapipes.base.types import EdgeType, NodeType, of_type, type_in
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.graph.graph import Relation
from datapipes.processes.sharing import Together

__all__ = ["PartitionBook"]

_NAME = "PartitionBook"


class PartitionBook:
    """Says which part owns each node, by global id; with an edge map, also which part owns each edge, by edge id.

    An edge belongs to the part of its destination, so a part has all in-edges of its nodes. Each type has ids of its
    own. In a graph without types the one type is None.

    Args:
        num_parts: number of parts, 1 to 32,768. A part may own nothing.
        nodes: {node type: owners}; owners are an IdMap, or integers [num_nodes]: the part of each node id. In a graph
            without types, pass the owners alone.
        edges: the edge map: {edge type: owners}, as for nodes, with the part of each edge id; without types, the owners
            alone. None: no edge map.
    Raises:
        TypeError, ValueError: A part is outside [0, num_parts), or an argument is not as described above.
    Attributes:
        partition_id: the id of the partition that the book was opened from, 16 hexadecimal digits. None: the book was
            made in memory.
    """

    partition_id: str | None = None

    def __init__(self, num_parts: int, nodes: Any, edges: Any = None) -> None:
        self.num_parts = check_int(_NAME, "num_parts", num_parts, 1, MOST_PARTS)
        self._nodes: dict[NodeType | None, IdMap] = self._maps(nodes)
        self._edges: dict[EdgeType | None, IdMap] | None = None if edges is None else self._maps(edges)

    def _maps(self, by_type: Any) -> dict[Any, IdMap]:
        by_type = by_type if isinstance(by_type, Mapping) else {None: by_type}
        maps = {}
        for key in sorted(by_type, key=lambda key: (key is not None, key)):
            owners = by_type[key]
            maps[key] = owners if isinstance(owners, IdMap) else IdMap(owners, self.num_parts)
            if maps[key].num_parts != self.num_parts:
                raise ValueError(
                    f"{_NAME}: the map of {shown(key)} has {maps[key].num_parts} parts, the book {self.num_parts}. "
                    "Give all maps the same number."
                )
        return maps

    @property
    def node_types(self) -> tuple[NodeType | None, ...]:
        """The node types, sorted; (None,) in a graph without types."""
        return tuple(self._nodes)

    @property
    def edge_types(self) -> tuple[EdgeType | None, ...]:
        """The types whose edges the book knows, sorted; () without an edge map, (None,) in a graph without types."""
        return tuple(self._edges or ())

    @property
    def has_edges(self) -> bool:
        """Whether the book has an edge map, so that it knows the part of each edge."""
        return self._edges is not None

    def nodes(self, node_type: NodeType | None = None) -> IdMap:
        """Return the map from the node ids of a type to parts. ValueError if there is no such type."""
        return self._nodes[type_in(_NAME, "node", node_type, self._nodes)]

    def edges(self, edge_type: EdgeType | str | None = None) -> IdMap:
        """Return the map from the edge ids of a type to parts.

        Raises:
            ValueError: There is no such type, or no edge map.
        """
        if self._edges is None:
            raise ValueError(f"{_NAME}: the parts of edges are not known, since {self._why_no_edges()}.")
        return self._edges[type_in(_NAME, "edge", edge_type, self._edges)]

    def get_partition_ids_from_nids(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the part of each node, int64 [n].

        Args:
            ids: int32 or int64 [n], global ids of the type; any order, repeats allowed.
        Raises:
            IndexError: An id is outside the graph; the message names one.
            ValueError: There is no such type.
        """
        return _looked_up("get_partition_ids_from_nids", "node", self.nodes(node_type), ids)

    def get_partition_ids_from_eids(self, ids: Tensor, edge_type: EdgeType | str | None = None) -> Tensor:
        """Return the part of each edge, int64 [n].

        Args:
            ids: int32 or int64 [n], edge ids of the type; any order, repeats allowed.
        Raises:
            IndexError: An id is outside the graph; the message names one.
            ValueError: There is no such type, or the book has no edge map; the message says how to make one.
        """
        return _looked_up("get_partition_ids_from_eids", "edge", self.edges(edge_type), ids)

    def _why_no_edges(self) -> str:
        if self.partition_id is None:
            return f"the book was made without edges. Make it with {_NAME}(..., edges=the part of each edge id)"
        return (
            "the partition was made without an edge map. Make it with Partitioner(..., edge_map=True), or with layouts "
            "that include 'pyg'"
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for pickling. All tensors are in one Together, so that a worker process maps one memory."""
        tensors = [owners.stored() for owners in [*self._nodes.values(), *(self._edges or {}).values()]]
        return {**self.__dict__, **self._over(repeat(None)), "tensors": Together(tensors)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({name: value for name, value in state.items() if name != "tensors"})
        self.__dict__.update(self._over(iter(state["tensors"])))

    def _over(self, tensors: Iterator[Tensor | None]) -> dict[str, Any]:
        """Return the attributes `_nodes` and `_edges` with copies of the maps.

        Each copy stores the next of `tensors`.
        """
        nodes = {key: owners.over(next(tensors)) for key, owners in self._nodes.items()}
        edges = {key: owners.over(next(tensors)) for key, owners in (self._edges or {}).items()}
        return {"_nodes": nodes, "_edges": edges if self.has_edges else None}

    def __repr__(self) -> str:
        counts = {key: owners.num_ids for key, owners in self._nodes.items()}
        shape = f"{counts[None]} nodes" if None in counts else f"nodes {counts}"
        return f"{_NAME}({self.num_parts} parts, {shape}{', edge map' if self.has_edges else ''})"


def _looked_up(where: str, noun: str, owners: IdMap, ids: Any) -> Tensor:
    ids = check_index_tensor(where, "ids", ids)
    check_within(where, f"{noun} ids", ids, owners.num_ids, "Check the ids.")
    return owners.part_of(ids)


# --- the part of each edge

ROWS = 2**16  # nodes whose edges are written at a time
IDS = 2**20  # edge ids checked at a time


def with_edge_map(book: PartitionBook, graph: CSCGraph | HeteroCSCGraph) -> PartitionBook:
    """Return a copy of `book` with an edge map: the part of each edge, which is the part that owns its destination.

    Time O(num_edges); memory: one or two bytes an edge.

    Raises:
        ValueError: The edge ids of a type are not 0 to num_edges - 1, each once.
    """
    edges = {edge_type: _parts_of_edges(book, graph.relation(edge_type), edge_type) for edge_type in graph.edge_types}
    return PartitionBook(book.num_parts, {key: book.nodes(key) for key in book.node_types}, edges)


def _parts_of_edges(book: PartitionBook, relation: Relation, edge_type: EdgeType | None) -> Tensor:
    owners = book.nodes(None if edge_type is None else edge_type[2])
    if wrong := wrong_edge_ids(relation, edge_type):
        raise ValueError(f"Partitioner: {wrong}. Leave the edge map out: layouts=('native',), edge_map=False.")
    parts = torch.empty(relation.indices.shape[0], dtype=smallest_dtype(book.num_parts))
    for first in range(0, owners.num_ids, ROWS):
        last = min(first + ROWS, owners.num_ids)
        begin, end = int(relation.indptr[first]), int(relation.indptr[last])
        of_rows = owners.part_of(torch.arange(first, last)).to(parts.dtype)
        degrees = relation.indptr[first : last + 1].diff()
        # torch.repeat_interleave would make an int64 index for each edge first
        of_edges = torch.from_numpy(np.repeat(of_rows.numpy(), degrees.numpy()))
        if relation.edge_ids is None:
            parts[begin:end] = of_edges
        else:
            parts[relation.edge_ids[begin:end]] = of_edges
    return parts


def wrong_edge_ids(relation: Relation, edge_type: EdgeType | None) -> str | None:
    """Check that the edge ids of a relation are 0 to num_edges - 1, each once, as an edge map needs.

    Return a text that says which edge id is wrong. None: no id is wrong. Memory: one byte an edge.
    """
    ids, count = relation.edge_ids, int(relation.indices.shape[0])
    if ids is None:
        return None
    seen, wrong = torch.zeros(count, dtype=torch.bool), "an id that is there twice"
    for begin in range(0, count, IDS):
        some = ids[begin : begin + IDS]
        outside = (some < 0) | (some >= count)
        if bool(outside.any()):
            wrong = f"the id {int(some[int(outside.nonzero()[0])])}"
            break
        seen[some] = True
    if bool(seen.all()):
        return None
    return f"found {wrong} among the edge ids{of_type(edge_type)}; an edge map needs each of 0 to {count - 1} once"


# --- maps

MOST_PARTS = 2**15  # so the largest id of a part, 2**15 - 1, fits int16


class IdMap:
    """Which part owns each id in [0, num_ids), stored as one value for each id.

    Args:
        parts: [num_ids] of an integer dtype, the part of each id. Shared if it is contiguous and already has the dtype
            `smallest_dtype(num_parts)`; else copied.
        num_parts: number of parts; each value of `parts` is in [0, num_parts).
    """

    num_ids: int
    num_parts: int
    _stored: Tensor

    def __init__(self, parts: Any, num_parts: int) -> None:
        values = as_tensor("PartitionBook", "parts", parts)
        if values.ndim != 1 or values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
            raise TypeError(
                f"PartitionBook: parts must be integers [num_ids], got {values.dtype} {list(values.shape)}. Pass the "
                "number of the part of each id."
            )
        self.num_ids, self.num_parts = int(values.shape[0]), num_parts
        if self.num_ids > 0:
            low, high = limits_of(values)
            if low < 0 or high >= num_parts:
                raise ValueError(
                    f"PartitionBook: found the part {low if low < 0 else high}; parts must be in [0, {num_parts}). "
                    "Correct num_parts, or the parts."
                )
        self._stored = values.to(smallest_dtype(num_parts)).contiguous()

    def part_of(self, ids: Tensor) -> Tensor:
        """Return the part of each id, int64 [n]; `ids` is int32 or int64 [n], each in [0, num_ids)."""
        return self._stored[ids.long()].long()

    def ids_of(self, part: int) -> Tensor:
        """Return the ids that a part owns, int64, ascending. Time O(num_ids); in a RangeMap O(returned ids)."""
        return (self._stored == part).nonzero().flatten()

    def count_of(self, part: int) -> int:
        """Return how many ids a part owns. Time O(num_ids); O(1) in a RangeMap."""
        return int((self._stored == part).sum())

    def dense(self) -> Tensor:
        """Return the part of every id, a tensor [num_ids] of the dtype `smallest_dtype(num_parts)`."""
        return self._stored

    def stored(self) -> Tensor:
        """Return the one tensor that the map stores: the part of each id, or in a RangeMap the offsets."""
        return self._stored

    def over(self, stored: Tensor | None) -> IdMap:
        """Return a copy of the map that stores `stored` instead of the map's own tensor.

        `stored` has the same values, such as a copy in shared memory; this is not checked. None is a stand-in while the
        book is pickled.
        """
        other = copy.copy(self)
        other.__dict__["_stored"] = stored
        return other


class RangeMap(IdMap):
    """An IdMap for parts that own contiguous ranges: part p owns the ids in [offsets[p], offsets[p + 1]).

    Args:
        offsets: int64 [num_parts + 1], not descending. The first is 0, the last is num_ids.
    """

    def __init__(self, offsets: Any) -> None:
        bounds = check_index_tensor("PartitionBook", "offsets", offsets).long()
        if bounds.numel() < 2 or int(bounds[0]) != 0 or bool((bounds[1:] < bounds[:-1]).any()):
            raise ValueError(
                f"PartitionBook: offsets {shown(bounds.tolist())} must begin with 0, not descend, and have one entry "
                "more than there are parts. Correct them."
            )
        self.num_ids, self.num_parts = int(bounds[-1]), int(bounds.numel()) - 1
        self._stored = bounds

    def part_of(self, ids: Tensor) -> Tensor:
        """Return the part of each id, int64 [n], as in IdMap. Time O(n log num_parts)."""
        return torch.searchsorted(self._stored, ids.long(), right=True) - 1

    def ids_of(self, part: int) -> Tensor:
        """Return the ids that a part owns, int64, ascending."""
        return torch.arange(int(self._stored[part]), int(self._stored[part + 1]))

    def count_of(self, part: int) -> int:
        """Return how many ids a part owns. Time O(1)."""
        return int(self._stored[part + 1] - self._stored[part])

    def dense(self) -> Tensor:
        """Return the part of every id, [num_ids], as in IdMap; here it is a new tensor."""
        parts = torch.arange(self.num_parts).to(smallest_dtype(self.num_parts))
        # torch.repeat_interleave would make an int64 index for each id first
        return torch.from_numpy(np.repeat(parts.numpy(), self._stored.diff().numpy()))


def limits_of(values: Tensor) -> tuple[int, int]:
    """Return (smallest, largest) of the tensor `values`, which has one value or more of any integer dtype."""
    if values.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch has no min and max for these
        array = values.cpu().numpy()
        return int(array.min()), int(array.max())
    return int(values.min()), int(values.max())


def smallest_dtype(num_parts: int) -> torch.dtype:
    """Return the dtype for ids of parts: uint8 for up to 256 parts, else int16.

    uint16 is never used: torch lacks most operations for it.
    """
    return torch.uint8 if num_parts <= 256 else torch.int16
