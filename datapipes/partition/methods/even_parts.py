"""Even the parts of METIS and Fennel: each measure that counts by itself, with as few more cut edges as possible."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from datapipes import _core
from datapipes.graph.graph import Graph
from datapipes.partition.methods.all_nodes import EVEN, AllNodes

EVEN_ENOUGH = 0.05  # of `Evened.worst`: 1.15 times the mean


class Evened(NamedTuple):
    """The effect of evening.

    Attributes:
        before, after: {measure: excess of the largest part over 1.1 times the mean, divided by the mean}; for nodes,
            that of the worst node type.
        cut_before, cut_after: edges between two parts.
    """

    before: dict[str, float]
    after: dict[str, float]
    cut_before: int
    cut_after: int

    @property
    def worst(self) -> float:
        """The largest of `after`."""
        return max(self.after.values())


def even_parts(graph: Graph, nodes: AllNodes, parts: NDArray[Any], num_parts: int, *, more_cut: int = 0) -> Evened:
    """Move nodes from parts with more than 1.1 times the mean of a measure to others, in place.

    The measures are those that have a share in the combined weight (all_nodes.py): the nodes of each type by
    themselves, the in-edges, the training nodes. The cut grows by 15 % at most, or by `more_cut` edges if that is more,
    so a measure may stay uneven. csrc/partition/even_parts.h has all rules, time and memory. The idea is that of
    Fiduccia and Mattheyses: A linear-time heuristic for improving network partitions, DAC 1982.

    Args:
        parts: the part of each node by its number, uint8 or int16.
    Raises:
        ValueError: The graph is corrupt.
    """
    counted = nodes.shares.get("train", 0) > 0
    before, after, cut_before, cut_after = _core.even_parts(
        graph.topology(),
        parts,
        num_parts=num_parts,
        nodes=nodes.shares.get("nodes", 0) > 0,
        edges=nodes.shares.get("edges", 0) > 0,
        more_cut=more_cut,
        training=[mask if counted else None for mask in nodes.training_bytes()],
    )
    return Evened(dict(zip(EVEN, before, strict=True)), dict(zip(EVEN, after, strict=True)), cut_before, cut_after)


def even_at_last(graph: Graph, nodes: AllNodes, parts: NDArray[Any], num_parts: int, evened: Evened) -> None:
    """Even once more the parts that are still uneven, for up to a third more cut edges."""
    if evened.worst > EVEN_ENOUGH:
        even_parts(graph, nodes, parts, num_parts, more_cut=evened.cut_after // 3)
