"""Partitions: who owns which node, the folders of a partition, and stores over one part."""

from datapipes.partition.book import PartitionBook

__all__ = [
    "PartitionBook",
]


def __dir__() -> list[str]:
    return [*__all__]
