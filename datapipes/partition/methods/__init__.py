"""How the part of each node is chosen."""


def __dir__() -> list[str]:
    return []
