"""Partitions: who owns which node, the folders of a partition, and stores over one part."""

from datapipes.partition.book import PartitionBook
from datapipes.partition.part import Part, open_book
from datapipes.partition.report import PartitionReport

__all__ = [
    "Part",
    "PartitionBook",
    "PartitionReport",
    "open_book",
]


def __dir__() -> list[str]:
    return [*__all__]
