"""Partitions: who owns which node, the folders of a partition, and stores over one part."""

from datapipes.partition.book import PartitionBook
from datapipes.partition.report import PartitionReport

__all__ = [
    "PartitionBook",
    "PartitionReport",
]


def __dir__() -> list[str]:
    return [*__all__]
