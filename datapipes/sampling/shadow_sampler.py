"""ShadowSampler: a subgraph of its own for each seed. It is the NeighborSampler with two options set."""

from __future__ import annotations

from collections.abc import Sequence

from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.graph import Graph
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.neighbor_sampler import NeighborSampler

__all__ = ["ShadowSampler"]


@register_stage("sample_shadow")
class ShadowSampler(NeighborSampler):
    """Give each seed a subgraph of its own: all edges among the nodes that `sample_neighbor` finds from it.

    A model of any depth runs on the subgraph, and reads the rows of the seeds, `minibatch.compacted_seeds`. It is
    `sample_neighbor(..., disjoint=True, subgraph_type="induced")`, which see for results, arguments and errors.
    For neighborhoods by PageRank: `sample_ppr(..., subgraph_type="induced", disjoint=True)`.

    Args:
        graph, fanouts, replace, prob_name, return_edge_ids, concurrency: see NeighborSampler.
    Source: ShaDow-GNN (Zeng et al., 2021).
    """

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        replace: bool = False,
        prob_name: str | None = None,
        return_edge_ids: bool = False,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(
            source,
            graph,
            fanouts,
            replace=replace,
            prob_name=prob_name,
            return_edge_ids=return_edge_ids,
            disjoint=True,
            subgraph_type="induced",
            concurrency=concurrency,
        )
