"""TemporalNeighborSampler: draws only in-edges that are earlier than the seed they are drawn for.

What is drawn is fixed by docs/semantics.md, sections 3.3, 4.5 and 4.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipes.base.checks import check_bool, check_choice, check_int, shown
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.graph import Graph
from datapipes.sampling.by_time import ByTime
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.fanouts import Fanout

__all__ = ["TemporalNeighborSampler"]


@register_stage("temporal_sample_neighbor")
class TemporalNeighborSampler(ChoiceSampler):
    """Sample the in-neighborhood of the seeds as it was at their times; sets `blocks`, `input_nodes` and
    `compacted_seeds`.

    Each row of the seeds has a time, the field `timestamps` of the minibatch. What is found from it, in all hops, is
    drawn at this time. Seeds of different times share no nodes, so `input_nodes` may hold a node once for each time.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph to sample from. If the graph has types, so have the seeds
            (HeteroItemSet).
        fanouts: in-edges drawn per node, as for sample_neighbor; -1 keeps all that are eligible.
        replace: draw with replacement; -1 still keeps each in-edge once.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        node_time_attr, edge_time_attr: the node attribute, and the edge attribute, that holds the times; int64. One of
            the two is needed. With both, an in-edge must be eligible by the time of the edge and by that of its source
            node. In a graph with types, an edge type whose edges and sources have no time is always eligible. They are
            read when the stage is built; if they are changed later, the stage refuses them, as sample_neighbor does
            with weights.
        strategy: "uniform" draws among the eligible in-edges, "last" takes the latest of them.
        inclusive: False draws in-edges that are earlier than the seed (as GraphBolt does), True also those of the same
            time (as PyG does).
        time_window: if given, only in-edges that are at most so much earlier than the seed.
        disjoint: sample a tree for each seed, also for seeds of one time, and set `batch`, as sample_neighbor does.
        frontier: "all" or "new", as for sample_neighbor.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. Each takes the memory of what it
            finds, whatever the size of the graph. A whole graph has none.
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, the seeds have no times, or others than int64.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
    Cost: times of edges are used as they are. Times of nodes take 8 bytes an in-edge, both together 16, made when the
    stage is built and kept with the graph. The in-edges of a node need no order; where they are sorted by time, drawing
    is faster, and where they are not, 2 bytes an in-edge are added.
    """

    fingerprinted = ("replace", "frontier", "disjoint")

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        replace: bool = False,
        return_edge_ids: bool = False,
        node_time_attr: str | None = None,
        edge_time_attr: str | None = None,
        strategy: str = "uniform",
        inclusive: bool = False,
        time_window: int | None = None,
        disjoint: bool = False,
        frontier: str = "all",
        concurrency: int | None = None,
    ) -> None:
        self.node_time_attr = _check_attribute(self.name, "node_time_attr", node_time_attr)
        self.edge_time_attr = _check_attribute(self.name, "edge_time_attr", edge_time_attr)
        if node_time_attr is None and edge_time_attr is None:
            raise ValueError(
                f"{self.name}: found neither node_time_attr nor edge_time_attr; at least one must name an attribute of "
                "the graph. Without times use sample_neighbor."
            )
        self.strategy = check_choice(self.name, "strategy", strategy, ("uniform", "last"))
        if strategy == "last" and replace:
            raise ValueError(
                f"{self.name}: strategy is 'last' and replace is True; the last in-edges are taken once each, so only "
                "'uniform' can draw with replacement. Leave out one of the two."
            )
        self.inclusive = check_bool(self.name, "inclusive", inclusive)
        self.time_window = None if time_window is None else check_int(self.name, "time_window", time_window, 0)
        super().__init__(
            source,
            graph,
            fanouts,
            ByTime(edge_time_attr, node_time_attr, strategy, self.inclusive, self.time_window),
            return_edge_ids=return_edge_ids,
            replace=replace,
            frontier=frontier,
            disjoint=disjoint,
            concurrency=concurrency,
        )

    def describe_choice(self) -> dict[str, Any]:
        return {
            "node_time_attr": self.node_time_attr,
            "edge_time_attr": self.edge_time_attr,
            "strategy": self.strategy,
            "inclusive": self.inclusive or None,
            "time_window": self.time_window,
        }


def _check_attribute(where: str, argument: str, name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{where}: {argument} must be the name of an attribute, got {shown(name)}. Pass a str.")
    return name
