"""CSCGraph, HeteroCSCGraph and their common base: build, save, edit and split graphs."""

from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.graph.link_split import LinkSplit, random_link_split, time_link_split

__all__ = [
    "CSCGraph",
    "HeteroCSCGraph",
    "LinkSplit",
    "random_link_split",
    "time_link_split",
]


def __dir__() -> list[str]:
    return [*__all__]
