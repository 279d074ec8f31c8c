"""The native layout: written, checked and memory-mapped."""

from datapipes.partition.native.part import Part, open_book

__all__ = [
    "Part",
    "open_book",
]


def __dir__() -> list[str]:
    return [*__all__]
