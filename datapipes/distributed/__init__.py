"""What runs on partitioned graphs: partitions and their stores; `datapipes.distributed.pyg` has PyG's classes."""

from datapipes.partition.book import PartitionBook
from datapipes.partition.feature_lookup import FeatureClient
from datapipes.partition.local_feature_store import LocalFeatureStore
from datapipes.partition.local_graph_store import LocalGraphStore
from datapipes.partition.metis_process import MetisError
from datapipes.partition.part import Part, open_book
from datapipes.partition.partitioner import Partitioner
from datapipes.partition.report import PartitionReport

__all__ = [
    "FeatureClient",
    "LocalFeatureStore",
    "LocalGraphStore",
    "MetisError",
    "Part",
    "PartitionBook",
    "PartitionReport",
    "Partitioner",
    "open_book",
]


def __dir__() -> list[str]:
    return [*__all__]
