"""The native layout: written, checked and memory-mapped."""


def __dir__() -> list[str]:
    return []
