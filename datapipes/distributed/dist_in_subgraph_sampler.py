"""DistInSubgraphSampler: InSubgraphSampler over a graph in parts, with the same bits.

docs/semantics.md, sections 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from datapipes.base.types import EdgeType
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.parts_sampler import PartsSampler
from datapipes.sampling.in_subgraph_sampler import describe_subgraph, subgraph_fanouts

__all__ = ["DistInSubgraphSampler"]


@register_stage("dist_sample_in_subgraph")
class DistInSubgraphSampler(PartsSampler):
    """Keep all in-edges of the seeds over a graph in parts, one hop; sets `blocks`, `input_nodes` and
    `compacted_seeds`.

    The minibatches are those of `sample_in_subgraph` over the whole graph, bit for bit, and so is a saved state.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        edge_types: of a graph with types, the edge types whose in-edges are kept, as (src, rel, dst) or "src:rel:dst";
            None keeps those of all.
        concurrency: minibatches in flight at once, 1 or more.
        return_edge_ids: fill `edge_ids` of the block, which edge features need.
    Raises:
        As dist_sample_neighbor does.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        *,
        edge_types: Iterable[EdgeType | str] | None = None,
        concurrency: int = 8,
        return_edge_ids: bool = False,
    ) -> None:
        fanouts = subgraph_fanouts(self.name, edge_types, dist_graph)
        super().__init__(source, dist_graph, fanouts, concurrency=concurrency, return_edge_ids=return_edge_ids)

    def describe(self) -> dict[str, Any]:
        return describe_subgraph(self, super().describe())
