"""Stores over one part, with the methods of PyG's."""


def __dir__() -> list[str]:
    return []
