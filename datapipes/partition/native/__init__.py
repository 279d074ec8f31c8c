"""The native layout of a partition on disk: how it is written, checked and memory-mapped."""


def __dir__() -> list[str]:
    return []
