"""Even the parts that METIS and Fennel made: each measure by itself, with as few more cut edges as possible."""

from __future__ import annotations

from typing import Any, NamedTuple

from numpy.typing import NDArray

from datapipes import _core
from datapipes.graph.graph import Graph
from datapipes.partition.methods.all_nodes import EVEN, AllNodes

EVEN_ENOUGH = 0.05  # of `Evened.worst`: 1.15 times the mean


class Evened(NamedTuple):
    """How uneven the parts were before `even_parts`, and are after it, and their cuts.

    Attributes:
        before, after: {measure: how much the largest part exceeds 1.1 times the mean, divided by the mean}; for nodes,
            of the node type where this is largest.
        cut_before, cut_after: number of edges between two parts.
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
    """Balance the parts in place: where a part has more than 1.1 times the mean of a measure, move nodes elsewhere.

    The measures are those that have a share in the combined weight (all_nodes.py): the nodes of each type by
    themselves, the in-edges, the training nodes. The cut grows by 15 % at most, or by `more_cut` edges if that is more,
    so a measure may stay uneven. csrc/partition/even_parts.h has all rules, time and memory.

    Source: Fiduccia, Mattheyses: A linear-time heuristic for improving network partitions, DAC 1982.

    Args:
        parts: the part of each node, indexed by its number in `nodes`; uint8 or int16, changed in place.
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
    """If the parts are still uneven, even them once more; this time the cut may grow by a third."""
    if evened.worst > EVEN_ENOUGH:
        even_parts(graph, nodes, parts, num_parts, more_cut=evened.cut_after // 3)
