"""EdgeStore: edges by type and layout, and their ids; what LocalGraphStore is built on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import as_tensor, check_index_tensor, check_int, shown
from datapipes.partition.stores.store_attrs import EdgeAttr, EdgeLayout, no_such

_NAME = "LocalGraphStore"
Edges = Tensor | tuple[Tensor, Tensor]


def checked_edges(edge_type: Any, edge_index: Any, edge_id: Any, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return edges, [2, num_edges], and their ids, [num_edges], if they fit each other and the numbers of nodes.

    Args:
        edge_type: for messages.
        size: numbers of source and destination nodes.
    Raises:
        TypeError: Something is no tensor of int32 or int64, or a number of nodes is no integer.
        ValueError: The shapes do not fit.
        IndexError: A source or destination is outside the graph.
    """
    of = "" if edge_type is None else f" of {shown(edge_type)}"
    if isinstance(edge_index, (tuple, list)) and len(edge_index) == 2:
        rows = [check_index_tensor(_NAME, f"edge_index{of}", each) for each in edge_index]
        if rows[0].shape == rows[1].shape:
            edge_index = torch.stack(rows)
    edges = as_tensor(_NAME, f"edge_index{of}", edge_index).contiguous()
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise ValueError(
            f"{_NAME}: edge_index{of} has the shape {tuple(edges.shape)}; [2, num_edges] is needed, sources and "
            "destinations. Check the edges."
        )
    ids = check_index_tensor(_NAME, f"edge_id{of}", edge_id)
    if ids.shape[0] != edges.shape[1]:
        raise ValueError(
            f"{_NAME}: edge_id{of} has {ids.shape[0]} ids for {edges.shape[1]} edges; each edge needs one. Pass the "
            "ids of these edges."
        )
    for what, row, given in zip(("source", "destination"), edges, size, strict=True):
        count = check_int(_NAME, f"the number of {what} nodes{of}", given, 0)
        outside = (check_index_tensor(_NAME, f"edge_index{of}", row) < 0) | (row >= count)
        if bool(outside.any()):
            raise IndexError(
                f"{_NAME}: the {what} {int(row[int(outside.nonzero()[0])])}{of} is outside the graph; ids are in "
                f"[0, {count}). Check the edges and the number of nodes."
            )
    return edges, ids


class EdgeStore:
    """Edges by type and layout.

    Attributes:
        meta: {"is_hetero": whether there are edges of a type}, and whatever else was set.
    """

    _edge_attr_cls: Any = EdgeAttr

    def __init__(self) -> None:
        super().__init__()
        self._edge_index: dict[tuple[Any, str], Edges | Callable[[], Tensor]] = {}
        self._edge_attr: dict[tuple[Any, str], Any] = {}
        self._edge_id: dict[tuple[Any, str], Tensor] = {}
        self.meta: dict[str, Any] = {"is_hetero": False}

    @staticmethod
    def key(attr: Any) -> tuple[Any, str]:
        """Return the key of some edges: (edge type or None, layout)."""
        return attr.edge_type, attr.layout.value

    def put_edge_index(self, edge_index: Any, *args: Any, **kwargs: Any) -> bool:
        """Keep edges, int64 or int32 [2, num_edges] or a pair of tensors, under the fields of an EdgeAttr."""
        return self._put_edge_index(edge_index, self._edge_attr_cls.cast(*args, **kwargs))

    def get_edge_index(self, *args: Any, **kwargs: Any) -> Edges:
        """Return edges as they were put; those of a partition as int64 [2, num_edges], sources and destinations.

        Raises:
            KeyError: There are none under this name; the message says which there are.
            ValueError: The part that they come from is corrupt.
        """
        attr = self._edge_attr_cls.cast(*args, **kwargs)
        found: Edges | None = self._get_edge_index(attr)
        if found is None:
            raise no_such(_NAME, "edges", self.key(attr), self._edge_index)
        return found

    def remove_edge_index(self, *args: Any, **kwargs: Any) -> bool:
        """Forget edges; return whether there were any."""
        return self._remove_edge_index(self._edge_attr_cls.cast(*args, **kwargs))

    def get_all_edge_attrs(self) -> list[Any]:
        """Return an EdgeAttr for all edges that are there."""
        return [self._edge_attr[key] for key in self._edge_index]

    def put_edge_id(self, edge_id: Tensor, *args: Any, **kwargs: Any) -> bool:
        """Keep the ids of edges, int32 or int64 [num_edges]."""
        key = self.key(self._edge_attr_cls.cast(*args, **kwargs))
        self._edge_id[key] = check_index_tensor(_NAME, "edge_id", edge_id)
        return True

    def get_edge_id(self, *args: Any, **kwargs: Any) -> Tensor | None:
        """Return the ids of edges, or None if there are none under this name."""
        return self._edge_id.get(self.key(self._edge_attr_cls.cast(*args, **kwargs)))

    def remove_edge_id(self, *args: Any, **kwargs: Any) -> bool:
        """Forget the ids of edges; return whether there were any."""
        return self._edge_id.pop(self.key(self._edge_attr_cls.cast(*args, **kwargs)), None) is not None

    def _put_edge_index(self, edge_index: Any, edge_attr: Any) -> bool:
        if not isinstance(edge_index, (tuple, list)):
            edge_index = as_tensor(_NAME, "edge_index", edge_index)
        if len(edge_index) != 2:
            raise ValueError(
                f"{_NAME}: edge_index must be [2, num_edges], or a pair, got {shown(edge_index)}. Pass both."
            )
        rows = [check_index_tensor(_NAME, "edge_index", each) for each in edge_index]
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
        self._edge_index[self.key(edge_attr)], self._edge_attr[self.key(edge_attr)] = edges, edge_attr

    def _get_edge_index(self, edge_attr: Any) -> Any:
        found = self._edge_index.get(self.key(edge_attr))
        if callable(found):
            found = self._edge_index[self.key(edge_attr)] = found()
        return found

    def _remove_edge_index(self, edge_attr: Any) -> bool:
        self._edge_attr.pop(self.key(edge_attr), None)
        return self._edge_index.pop(self.key(edge_attr), None) is not None
