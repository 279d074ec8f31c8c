"""LocalFeatureStore as a PyG FeatureStore."""

from __future__ import annotations

from dataclasses import dataclass

from datapipes.distributed.pyg.needed import FeatureStore, TensorAttr
from datapipes.partition.stores.feature_lookup import FeatureClient
from datapipes.partition.stores.local_feature_store import LocalFeatureStore as _LocalFeatureStore

__all__ = ["LocalFeatureStore"]


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
