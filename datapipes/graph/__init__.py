"""Graphs in memory and on disk."""

from datapipes.graph.csc_graph import CSCGraph

__all__ = [
    "CSCGraph",
]


def __dir__() -> list[str]:
    return [*__all__]
