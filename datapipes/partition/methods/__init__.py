"""How the part of each node is chosen."""

from datapipes.partition.methods.metis_parts import MetisError

__all__ = [
    "MetisError",
]


def __dir__() -> list[str]:
    return [*__all__]
