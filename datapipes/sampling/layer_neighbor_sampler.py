"""LayerNeighborSampler: LABOR-0, neighbor sampling in which the nodes of a hop agree on what they pick.

Every source gets a random number, and a node takes the in-edges of the sources with the smallest numbers; what is
drawn is fixed by docs/semantics.md, section 3.2. Each node picks uniformly, but nodes with a source in common tend to
pick it together, so a minibatch has fewer input nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipes.base.checks import check_bool, check_int
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.graph import Graph
from datapipes.sampling.by_number import MAX_DEPENDENCY, ByNumber
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.fanouts import Fanout

__all__ = ["LayerNeighborSampler"]


@register_stage("sample_layer_neighbor")
class LayerNeighborSampler(ChoiceSampler):
    """Sample the in-neighborhood of the seeds by LABOR-0; sets `blocks`, `input_nodes` and `compacted_seeds`.

    A node has as many picks as with `sample_neighbor`, each in-edge with the same probability. Between the nodes of a
    hop the picks are not independent, which keeps minibatches small where neighborhoods overlap. It reads all in-edges
    of a node that has more than the fanout. There is no drawing with replacement.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph to sample from. If the graph has types, so have the seeds
            (HeteroItemSet).
        fanouts: in-edges drawn per node, as for sample_neighbor.
        layer_dependency: a source keeps its random number in all hops, so hops share more nodes.
        batch_dependency: how many minibatches a source keeps its random number for, 1 to 2**31 - 1. From one minibatch
            to the next, one source in so many gets a new number, so a cache of features is hit more often. On
            `world_size` ranks the minibatches of all count: those of one rank are `world_size` apart.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" or "new", as for sample_neighbor.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. Each takes the memory of what it
            finds, whatever the size of the graph. A whole graph has none.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
    Source: LABOR-0 with a fixed number of picks (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023).
    """

    fingerprinted = ("frontier",)

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        return_edge_ids: bool = False,
        frontier: str = "all",
        concurrency: int | None = None,
    ) -> None:
        self.layer_dependency = check_bool(self.name, "layer_dependency", layer_dependency)
        self.batch_dependency = check_int(self.name, "batch_dependency", batch_dependency, 1, MAX_DEPENDENCY)
        super().__init__(
            source,
            graph,
            fanouts,
            ByNumber(self.layer_dependency, self.batch_dependency),
            return_edge_ids=return_edge_ids,
            frontier=frontier,
            concurrency=concurrency,
        )

    def describe_choice(self) -> dict[str, Any]:
        batches = self.batch_dependency if self.batch_dependency > 1 else None
        return {"layer_dependency": self.layer_dependency or None, "batch_dependency": batches}
