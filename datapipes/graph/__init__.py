"""Graphs in memory and on disk."""

from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph

__all__ = [
    "CSCGraph",
    "HeteroCSCGraph",
]


def __dir__() -> list[str]:
    return [*__all__]
