"""TemporalNeighborSampler: draws only in-edges that are earlier than the seed they are drawn for.

What is drawn is fixed by docs/semantics.md, sections 3.3, 4.5 and 4.6; one call of the C++ core makes all hops and edge
types of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipes import _core
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.edge_times import TimeAttributes
from datapipes.graph.graph import Graph
from datapipes.graph.local_graph import LocalGraph
from datapipes.sampling.core_call import CoreCall
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled
from datapipes.sampling.seed_trees import SeedTrees
from datapipes.sampling.timed_sampler import TimedSampler

__all__ = ["TemporalNeighborSampler"]


@register_stage("temporal_sample_neighbor")
class TemporalNeighborSampler(TimedSampler):
    """Sample the in-neighborhood of the seeds as it was at their times; sets `blocks`, `input_nodes` and
    `compacted_seeds`.

    Each row of the seeds has a time, the field `timestamps` of the minibatch. What is found from it, in all hops, is
    drawn at this time. Seeds of different times share no nodes, so `input_nodes` may hold a node once for each time.

    Args:
        graph: the CSCGraph or HeteroCSCGraph to sample from. The seeds of the latter have types (HeteroItemSet).
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
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, the seeds have no times, or others than int64.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
    Cost: times of edges are used as they are. Times of nodes take 8 bytes an in-edge, both together 16, made when the
    stage is built and kept with the graph. The in-edges of a node need no order; where they are sorted by time, drawing
    is faster, and where they are not, 2 bytes an in-edge are added.
    """

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
    ) -> None:
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self._set_options(
            replace=replace,
            node_time_attr=node_time_attr,
            edge_time_attr=edge_time_attr,
            strategy=strategy,
            inclusive=inclusive,
            time_window=time_window,
            disjoint=disjoint,
            frontier=frontier,
        )
        assert isinstance(graph, LocalGraph)  # the base has refused a graph in parts
        self._times = graph.edge_times(
            self.name, self.edge_types, edge_time_attr=self.edge_time_attr, node_time_attr=self.node_time_attr
        )
        self._read = {of: self._attributes(of) for of in self.edge_types}
        self._call = CoreCall(self.name, graph, self.edge_types, self.fanouts)

    def sample(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return the neighborhood of `seeds` at their times, which `trees` has: all hops in one call of the C++ core.

        Raises:
            ValueError: The seeds have no times, or those of the graph were changed.
        """
        self._refuse_no_times(trees)
        self._refuse_change()
        return self._call(
            self.graph,
            seeds,
            self._call.hop_keys(rng),
            want_edge_ids=self.return_edge_ids,
            replace=self.replace,
            only_new=self.frontier == "new",
            trees=trees,
            edge_times=_core.EdgeTimes(
                [None if times is None else times.arrays() for times in self._times.values()],
                last=self.strategy == "last",
                inclusive=self.inclusive,
                window=self.time_window,
            ),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_change()  # a worker would build the stage over the times as they are now
        return super().__reduce__()

    def _attributes(self, edge_type: Any) -> TimeAttributes:
        return TimeAttributes.of(self.graph, edge_type, self.edge_time_attr, self.node_time_attr)

    def _refuse_change(self) -> None:
        for of, read in self._read.items():
            read.refuse_change(self.name, self._attributes(of))

    def _times_digests(self) -> dict[Any, Any]:
        self._refuse_change()
        return {of: times and times.digest(self.graph.relation(of).indptr) for of, times in self._times.items()}
