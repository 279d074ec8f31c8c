"""Methods that choose the part of each node."""


def __dir__() -> list[str]:
    return []
