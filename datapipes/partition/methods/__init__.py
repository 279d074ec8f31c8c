"""The methods by which the Partitioner chooses the part of each node: METIS, Fennel, random and ranges."""


def __dir__() -> list[str]:
    return []
