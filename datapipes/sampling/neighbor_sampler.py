"""NeighborSampler: draws a number of in-edges for each node, hop by hop, and compacts the ids.

What is drawn is fixed by docs/semantics.md, sections 3 and 4, trees by 4.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.sampling.by_weight import ByWeight
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.fanouts import Fanout

__all__ = ["NeighborSampler"]


@register_stage("sample_neighbor")
class NeighborSampler(ChoiceSampler):
    """Sample the in-neighborhood of the seeds; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph to sample from. If the graph has types, so have the seeds
            (HeteroItemSet).
        fanouts: in-edges drawn per node, one entry a hop, from the input layer to the seeds: the last entry is the
            hop next to the seeds. -1 keeps all in-edges, 0 none. On a graph with types an int counts for each edge
            type; a dict {(src, rel, dst): int} gives each its own, 0 to those it does not name.
        replace: draw with replacement; -1 still keeps each in-edge once.
        prob_name: name of an edge attribute: the weights by which in-edges are drawn, or a mask (bool) of those that
            may be drawn. A weight of 0 is never drawn, also with -1, so a node may get fewer in-edges, or none. On a
            graph with types, each edge type that is sampled needs the attribute. The weights are read when the stage is
            built, and kept as sums with the graph (9 bytes an edge); they are part of the state. If they are changed or
            replaced later, the stage refuses them; a change through NumPy is not noticed. None draws each in-edge with
            the same probability.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" draws in every hop for all nodes found so far (as GraphBolt and DGL do), "new" only for the
            nodes that the hop before found (as PyG does). "new" is meant for `minibatch.to_pyg()`: in an outer block
            older nodes have no in-edges then.
        disjoint: sample a tree for each seed, which shares no node with the others. `input_nodes` then holds a node
            once for each tree that it is in, and `batch` the row of `seeds` whose tree each input node belongs to.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. Each takes the memory of what it
            finds, whatever the size of the graph. A whole graph has none.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
        Over a DistGraph also what the requests raise, see DistGraph.connect. A note names stage and minibatch, another
            one the part.
    Source: neighbor sampling as in GraphSAGE (Hamilton et al., 2017).
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
        frontier: str = "all",
        disjoint: bool = False,
        concurrency: int | None = None,
    ) -> None:
        self.prob_name = prob_name
        super().__init__(
            source,
            graph,
            fanouts,
            Choice() if prob_name is None else ByWeight(prob_name),
            return_edge_ids=return_edge_ids,
            replace=replace,
            frontier=frontier,
            disjoint=disjoint,
            concurrency=concurrency,
        )

    def describe_choice(self) -> dict[str, Any]:
        return {"prob_name": self.prob_name}
