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


class ByNumber(NamedTuple):
    """In-edges from the sources with the smallest numbers (LABOR-0). The key of a draw is that of its generation.

    Attributes:
        dependency: how many minibatches a source keeps its number.
        until_next: sources with offset >= until_next belong to the next generation.
        keys: of each draw the key of the next generation, and that of batch 0; empty where the dependency is 1.
    """

    dependency: int = 1
    until_next: int = 1
    keys: tuple[tuple[int, int], ...] = ()

    @property
    def reads(self) -> ByNumber:
        """What is read of a part's rows: the ids of the sources alone."""
        return ByNumber()

    def of_draw(self, place: int) -> ByNumber:
        """Return the choice of one of the draws."""
        return self._replace(keys=self.keys[place : place + 1])


Choice = ByTime | ByWeight | ByNumber
