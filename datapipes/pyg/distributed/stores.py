"""The stores of a part as PyG's GraphStore and FeatureStore, which PyG's own code takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from datapipes.partition.partitioner import Partitioner
from datapipes.partition.stores.feature_lookup import FeatureClient
from datapipes.partition.stores.local_feature_store import LocalFeatureStore as _LocalFeatureStore
from datapipes.partition.stores.local_graph_store import LocalGraphStore as _LocalGraphStore
from datapipes.pyg.upstream import EdgeAttr, EdgeLayout, FeatureStore, GraphStore, TensorAttr

__all__ = ["LocalFeatureStore", "LocalGraphStore", "LocalTensorAttr", "Partitioner"]


@dataclass
class LocalTensorAttr(TensorAttr):  # type: ignore[misc]  # torch_geometric is not typed for mypy
    """PyG's TensorAttr whose index is None, all rows, if it is not given."""

    index: object = None


class LocalFeatureStore(_LocalFeatureStore, FeatureStore):  # type: ignore[misc]
    """`datapipes.distributed.LocalFeatureStore`, and a PyG FeatureStore too: views such as `store["paper"].x` work.

    `from_partition` prefers PyG's layout where both are there: it has the times of all nodes, and the order of edges
    that PyG's temporal samplers need.
    """

    _layouts = ("pyg", "native")

    def __init__(self, client: FeatureClient | None = None) -> None:
        super().__init__(client)
        self.__dict__["_tensor_attr_cls"] = LocalTensorAttr


class LocalGraphStore(_LocalGraphStore, GraphStore):  # type: ignore[misc]
    """`datapipes.distributed.LocalGraphStore`, and a PyG GraphStore too: `coo()`, `csr()` and `csc()` work.

    `from_partition` prefers PyG's layout, as that of LocalFeatureStore does.
    """

    _layouts = ("pyg", "native")

    def __init__(self) -> None:
        super().__init__()
        self.__dict__["_edge_attr_cls"] = EdgeAttr

    def _edge_to_layout(self, attr: Any, layout: Any, store: bool = False) -> tuple[Any, Any, Any]:
        """Return edges in a layout, as PyG's method does.

        PyG's own ends the offsets by destination at the last node with an edge, if there are types, and so fails
        without edges. Here they have an entry for each node.
        """
        if attr.layout is not EdgeLayout.COO or layout is not EdgeLayout.CSC or not attr.is_sorted or attr.size is None:
            return super()._edge_to_layout(attr, layout, store)  # type: ignore[no-any-return]
        row, col = self.get_edge_index(attr)
        offsets = torch.searchsorted(col, torch.arange(attr.size[1] + 1))
        if store:
            self.put_edge_index((row, offsets), EdgeAttr(attr.edge_type, EdgeLayout.CSC, True, attr.size))
        return row, offsets, None
