"""Choices: how in-edges are drawn other than uniformly, as a request says it: names of attributes and numbers, no rows.

All are row-local (docs/semantics.md, sections 3.1 to 3.3), so a part answers them from its own rows.
"""

from __future__ import annotations

from typing import NamedTuple


class ByTime(NamedTuple):
    """In-edges that are eligible at the time of the row, see TemporalNeighborSampler.

    Attributes:
        edge_time_attr: the edge attribute that holds times, or None.
        node_time_attr: the node attribute of the sources, or None; that with which the graph was partitioned.
        strategy: "uniform" or "last".
    """

    edge_time_attr: str | None
    node_time_attr: str | None
    strategy: str = "uniform"
    inclusive: bool = False
    time_window: int | None = None

    @property
    def reads(self) -> ByTime:
        """What is read of a part's rows: the attributes alone."""
        return ByTime(self.edge_time_attr, self.node_time_attr)


class ByWeight(NamedTuple):
    """In-edges in proportion to their weights.

    Attributes:
        prob_name: the edge attribute that holds them, or a mask.
    """

    prob_name: str

    @property
    def reads(self) -> ByWeight:
        """What is read of a part's rows: the attribute."""
        return self


Choice = ByTime | ByWeight
