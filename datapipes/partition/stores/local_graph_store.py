"""LocalGraphStore: the edges of one part, in a class with the methods of PyG's class."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from datapipes.base.checks import as_tensor, check_edge_index, check_index_tensor, check_int, check_within
from datapipes.base.types import EdgeType, NodeType, ends_of, of_type
from datapipes.partition.book import PartitionBook
from datapipes.partition.native.part import Part
from datapipes.partition.native.part_arrays import PartRelation
from datapipes.partition.pyg.pyg_read import PygFolder
from datapipes.partition.stores.local_store import (
    EdgeAttr,
    EdgeLayout,
    StoreOfPart,
    choose_layout,
    no_such,
    owners_of,
)

__all__ = ["LocalGraphStore"]

_NAME = "LocalGraphStore"
_Self = TypeVar("_Self", bound="LocalGraphStore")
_EdgeIndex = Tensor | tuple[Tensor, Tensor]


class _Edges(dict[tuple[Any, str], Any]):
    """A dict {(edge type, layout): edges} that reads the edges of a partition when they are first asked for.

    An entry is a function at first; `[]` calls it, and keeps its result. Other methods of dict do not call it. PyG's
    scripts and tests read this dict with `[]`.
    """

    def __getitem__(self, key: tuple[Any, str]) -> Any:
        edges = super().__getitem__(key)
        if callable(edges):
            edges = self[key] = edges()
        return edges


class LocalGraphStore(StoreOfPart):
    """The edges of one part, and the part that owns each node and each edge.

    Methods and attributes have the names and meaning of PyG's class; torch_geometric is not needed. All ids are ids of
    the whole graph, from 0 in each type. `get_edge_id` returns the ids by which edge features are looked up; PyG's
    class returns ids that go on from one edge type to the next.

    Edges are named as PyG names them: `store.get_edge_index(edge_type, "coo")`, with edge_type None without types.

    Attributes:
        num_partitions: number of parts.
        partition_idx: the id of this part.
        meta: the content of PyG's META.json; only its "is_hetero" if the store was not made from a partition.
        is_sorted: whether the edges ascend by destination; None if the store was not made from a partition.
    """

    _edge_attr_cls: Any = EdgeAttr
    node_pb = owners_of("nodes")
    edge_pb = owners_of("edges")

    def __init__(self) -> None:
        super().__init__()
        self._edge_index = _Edges()
        self._edge_attr: dict[tuple[Any, str], Any] = {}
        self._edge_id: dict[tuple[Any, str], Tensor] = {}
        self.meta: dict[str, Any] = {"is_hetero": False}
        self.is_sorted: bool | None = None

    def get_partition_ids_from_nids(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the part of each node, int64 [n].

        Args:
            ids: int32 or int64 [n], in any order.
        Raises:
            IndexError: An id is outside the graph; the message names one.
            ValueError: There is no such type, or `node_pb` is not set.
        """
        return self._book(_NAME, "nodes", "node_pb").get_partition_ids_from_nids(ids, node_type)

    def get_partition_ids_from_eids(self, eids: Tensor, edge_type: EdgeType | None = None) -> Tensor:
        """Return the part of each edge, int64 [n].

        Args:
            eids: int32 or int64 [n], in any order.
        Raises:
            IndexError: An id is outside the graph; the message names one.
            ValueError: There is no such type, `edge_pb` is not set, or the partition was made without an edge map.
        """
        return self._book(_NAME, "edges", "edge_pb").get_partition_ids_from_eids(eids, edge_type)

    # --- edges

    @staticmethod
    def key(attr: Any) -> tuple[Any, str]:
        """Return the key of the store's dict of edges for an EdgeAttr: (edge type or None, name of the layout)."""
        return attr.edge_type, attr.layout.value

    def put_edge_index(self, edge_index: Any, *args: Any, **kwargs: Any) -> bool:
        """Store edges under a name (an EdgeAttr or its fields), and return True.

        `edge_index` is int32 or int64 [2, num_edges], or a pair of tensors.
        """
        return self._put_edge_index(edge_index, self._edge_attr_cls.cast(*args, **kwargs))

    def get_edge_index(self, *args: Any, **kwargs: Any) -> _EdgeIndex:
        """Return the edges under a name (an EdgeAttr or its fields), as they were put.

        Edges of a partition are int64 [2, num_edges], sources in row 0.

        Raises:
            KeyError: There are no edges under this name; the message says which names there are.
            ValueError: The part that they come from is corrupt.
        """
        attr = self._edge_attr_cls.cast(*args, **kwargs)
        edges: _EdgeIndex | None = self._get_edge_index(attr)
        if edges is None:
            raise no_such(_NAME, "edges", self.key(attr), self._edge_index)
        return edges

    def remove_edge_index(self, *args: Any, **kwargs: Any) -> bool:
        """Remove the edges under a name (an EdgeAttr or its fields); return whether there were any."""
        return self._remove_edge_index(self._edge_attr_cls.cast(*args, **kwargs))

    def get_all_edge_attrs(self) -> list[Any]:
        """Return a list of an EdgeAttr for each (edge type, layout) that the store has edges of."""
        return [*self._edge_attr.values()]

    def put_edge_id(self, edge_id: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Store the ids of edges, int32 or int64 [num_edges], under a name (an EdgeAttr or its fields); return True."""
        key = self.key(self._edge_attr_cls.cast(*args, **kwargs))
        self.part = None
        self._edge_id[key] = check_index_tensor(_NAME, "edge_id", edge_id)
        return True

    def get_edge_id(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the ids of the edges under a name (an EdgeAttr or its fields). None: there are no ids."""
        return self._edge_id.get(self.key(self._edge_attr_cls.cast(*args, **kwargs)))

    def remove_edge_id(self, *args: Any, **kwargs: Any) -> bool:
        """Remove the ids of the edges under a name (an EdgeAttr or its fields); return whether there were any."""
        self.part = None
        return self._edge_id.pop(self.key(self._edge_attr_cls.cast(*args, **kwargs)), None) is not None

    def _put_edge_index(self, edge_index: Any, edge_attr: Any) -> bool:
        if not isinstance(edge_index, (tuple, list)):
            edge_index = as_tensor(_NAME, "edge_index", edge_index)
        if len(edge_index) != 2:
            raise ValueError(
                f"{_NAME}: edge_index must be [2, num_edges], or a pair of tensors, got {len(edge_index)} rows. Pass "
                "sources and destinations."
            )
        rows = [check_index_tensor(_NAME, "edge_index", ends) for ends in edge_index]
        if edge_attr.layout.value == EdgeLayout.COO.value and rows[0].shape != rows[1].shape:
            raise ValueError(
                f"{_NAME}: edge_index has {rows[0].shape[0]} sources and {rows[1].shape[0]} destinations; pairs need "
                "as many of both. Check the edges."
            )
        self._keep(edge_attr, edge_index)
        return True

    def _keep(self, edge_attr: Any, edges: Any) -> None:
        if edge_attr.edge_type is not None:
            self.meta = {**self.meta, "is_hetero": True}
        self.part = None
        self._edge_index[self.key(edge_attr)], self._edge_attr[self.key(edge_attr)] = edges, edge_attr

    def _get_edge_index(self, edge_attr: Any) -> Any:
        key = self.key(edge_attr)
        return self._edge_index[key] if key in self._edge_index else None  # noqa: SIM401  # get() gives functions

    def _remove_edge_index(self, edge_attr: Any) -> bool:
        self.part = None
        self._edge_attr.pop(self.key(edge_attr), None)
        return self._edge_index.pop(self.key(edge_attr), None) is not None

    # --- constructors

    @classmethod
    def from_data(
        cls: type[_Self], edge_id: Tensor | None, edge_index: Tensor, num_nodes: int, is_sorted: bool = False
    ) -> _Self:
        """Make a store of the edges of a graph without types.

        Args:
            edge_id: int32 or int64 [num_edges]; None if no features of edges are looked up.
            edge_index: int32 or int64 [2, num_edges], sources in row 0 and destinations in row 1.
            num_nodes: number of nodes.
            is_sorted: whether the destinations ascend. If not, edges are sorted by destination, stably.
        Raises:
            TypeError: An argument is no tensor, or has another dtype.
            ValueError: There are more or fewer ids than edges, or `is_sorted` is True and the destinations descend.
            IndexError: A source or destination is outside the graph; the message names one.
        """
        store = cls()
        store._put_sorted(None, edge_id, edge_index, (num_nodes, num_nodes), is_sorted)
        return store

    @classmethod
    def from_hetero_data(
        cls: type[_Self],
        edge_id_dict: Mapping[EdgeType, Tensor] | None,
        edge_index_dict: Mapping[EdgeType, Tensor],
        num_nodes_dict: Mapping[NodeType, int],
        is_sorted: bool = False,
    ) -> _Self:
        """Make a store of the edges of a graph with types. Each dict is {type: argument of `from_data`}.

        Raises:
            KeyError: `edge_id_dict` lacks an edge type, or `num_nodes_dict` lacks a node type.
        """
        store = cls()
        store.meta = {"is_hetero": True}
        for edge_type, edge_index in edge_index_dict.items():
            if edge_id_dict is not None and edge_type not in edge_id_dict:
                raise no_such(_NAME, "edge_id of", edge_type, edge_id_dict)
            src, _, dst = edge_type
            for node_type in (src, dst):
                if node_type not in num_nodes_dict:
                    raise no_such(_NAME, "number of nodes of", node_type, num_nodes_dict)
            edge_id, size = (edge_id_dict or {}).get(edge_type), (num_nodes_dict[src], num_nodes_dict[dst])
            store._put_sorted(edge_type, edge_id, edge_index, size, is_sorted)
        return store

    def _put_sorted(
        self, edge_type: EdgeType | None, edge_id: Any, edge_index: Tensor, size: tuple[int, int], is_sorted: bool
    ) -> None:
        of_kind = of_type(edge_type)
        edge_index = check_edge_index(_NAME, f"edge_index{of_kind}", edge_index).contiguous()
        edge_id = None if edge_id is None else check_index_tensor(_NAME, f"edge_id{of_kind}", edge_id)
        if edge_id is not None and edge_id.shape[0] != edge_index.shape[1]:
            raise ValueError(
                f"{_NAME}: edge_id{of_kind} has {edge_id.shape[0]} ids for {edge_index.shape[1]} edges; each edge "
                "needs one. Pass the ids of these edges."
            )
        for end, row, num_nodes in zip(("source", "destination"), edge_index, size, strict=True):
            count = check_int(_NAME, f"the number of {end} nodes{of_kind}", num_nodes, 0)
            check_index_tensor(_NAME, f"edge_index{of_kind}", row)
            check_within(_NAME, f"{end}s{of_kind}", row, count, "Check the edges and the number of nodes.")
        destinations = edge_index[1]
        descends = destinations[1:] < destinations[:-1]
        if not is_sorted:
            order = torch.argsort(destinations, stable=True)
            edge_index, edge_id = edge_index[:, order], None if edge_id is None else edge_id[order]
        elif bool(descends.any()):
            place = int(descends.nonzero()[0])
            raise ValueError(
                f"{_NAME}: is_sorted is True, so destinations must ascend, but {int(destinations[place + 1])} comes "
                f"after {int(destinations[place])}. Sort the edges, or pass is_sorted=False."
            )
        attr = self._attr(edge_type, size)
        self.put_edge_index(edge_index, attr)
        if edge_id is not None:
            self.put_edge_id(edge_id, attr)

    def _attr(self, edge_type: EdgeType | None, size: tuple[int, int]) -> Any:
        return self._edge_attr_cls(edge_type, "coo", True, size)

    @classmethod
    def from_partition(cls: type[_Self], root: str | Path, pid: int) -> _Self:
        """Open part `pid` of the partition in the folder `root`, in the native layout or in PyG's, as a store.

        The native layout is preferred if both are there. Arrays stay on disk until edges are asked for.

        Raises:
            FileNotFoundError: There is no partition at `root`, or a file is missing.
            ValueError: There is no such part, or a file is truncated, changed, hostile or of another partition.
        """
        if choose_layout(_NAME, root, cls._layouts) == "native":
            return cls.from_part(Part.open(root, pid))
        folder, store = PygFolder(root), cls()
        edges = folder.edges(pid)
        store._set(folder.meta.num_parts, pid, folder.book, folder.meta.given)
        for edge_type, of_kind in edges.items():
            attr = store._attr(edge_type, of_kind.size)
            store._keep(attr, partial(torch.stack, [of_kind.row, of_kind.col]))
            store.put_edge_id(of_kind.edge_id, attr)
        return store

    @classmethod
    def from_part(cls: type[_Self], part: Part) -> _Self:
        """Make a store of an open Part. It shares the part's memory; edges are copied when they are asked for."""
        store = cls()
        store._set_part(part)
        for edge_type in part.edge_types:
            src, dst = ends_of(edge_type)
            attr = store._attr(edge_type, (part.num_nodes_of(src), part.num_nodes_of(dst)))
            store._keep(attr, partial(_of_rows, edge_type, part.relation(edge_type)))
            store.put_edge_id(part.relation(edge_type).edge_ids, attr)
        store.part = part
        return store

    def _set(self, num_parts: int, part: int, book: PartitionBook, meta: dict[str, Any]) -> None:
        super()._set(num_parts, part, book, meta)
        self.is_sorted = True

    def __repr__(self) -> str:
        part = f"part {self.partition_idx} of {self.num_partitions}"
        return f"{type(self).__name__}({part}, {len(self._edge_index)} edge types)"


def _of_rows(edge_type: EdgeType | None, relation: PartRelation) -> Tensor:
    descends = relation.indptr[1:] < relation.indptr[:-1]
    if bool(descends.any()):
        node = int(relation.node_ids[int(descends.nonzero()[0])])
        raise ValueError(
            f"{_NAME}: the part is corrupt: the edges{of_type(edge_type)} to node {node} end before they begin. Make "
            "the partition again."
        )
    return torch.stack([relation.indices.long(), torch.repeat_interleave(relation.node_ids, relation.indptr.diff())])
