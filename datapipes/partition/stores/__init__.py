"""Stores over one part, with the methods of PyG's."""

from datapipes.partition.stores.feature_lookup import FeatureClient
from datapipes.partition.stores.local_feature_store import LocalFeatureStore
from datapipes.partition.stores.local_graph_store import LocalGraphStore

__all__ = [
    "FeatureClient",
    "LocalFeatureStore",
    "LocalGraphStore",
]


def __dir__() -> list[str]:
    return [*__all__]
