"""The native layout: written, checked and memory-mapped."""

from datapipes.partition.native.native_book import open_book
from datapipes.partition.native.part import Part

__all__ = [
    "Part",
    "open_book",
]


def __dir__() -> list[str]:
    return [*__all__]
