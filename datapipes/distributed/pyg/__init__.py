"""The classes of `datapipes.distributed` as PyG's own types: its code takes them wherever it takes a store.

Importing it needs torch_geometric.
"""

from datapipes.distributed.pyg.partitioner import Partitioner
from datapipes.distributed.pyg.stores import LocalFeatureStore, LocalGraphStore

__all__ = [
    "LocalFeatureStore",
    "LocalGraphStore",
    "Partitioner",
]


def __dir__() -> list[str]:
    return [*__all__]
