"""Stores over one part, with the methods of PyG's stores."""


def __dir__() -> list[str]:
    return []
