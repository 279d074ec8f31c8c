"""PyG's layout of a partition: how it is written, and how it is read without trust in its files."""


def __dir__() -> list[str]:
    return []
