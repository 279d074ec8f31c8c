"""Partitions: which part owns each node, the folders on disk that hold a partition, and stores over one part."""

from datapipes.partition.book import PartitionBook
from datapipes.partition.methods.metis_parts import MetisError
from datapipes.partition.native.native_book import open_book
from datapipes.partition.native.part import Part
from datapipes.partition.partition_report import PartitionReport
from datapipes.partition.partitioner import Partitioner, find_parts
from datapipes.partition.stores.feature_lookup import FeatureClient
from datapipes.partition.stores.local_feature_store import LocalFeatureStore
from datapipes.partition.stores.local_graph_store import LocalGraphStore

__all__ = [
    "FeatureClient",
    "LocalFeatureStore",
    "LocalGraphStore",
    "MetisError",
    "Part",
    "PartitionBook",
    "PartitionReport",
    "Partitioner",
    "find_parts",
    "open_book",
]


def __dir__() -> list[str]:
    return [*__all__]
