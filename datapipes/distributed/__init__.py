"""What runs on partitioned graphs: partitions and their stores; `datapipes.distributed.pyg` has PyG's classes."""

from datapipes.partition.book import PartitionBook
from datapipes.partition.report import PartitionReport

__all__ = [
    "PartitionBook",
    "PartitionReport",
]


def __dir__() -> list[str]:
    return [*__all__]
