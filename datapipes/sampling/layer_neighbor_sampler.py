"""LayerNeighborSampler: LABOR-0, neighbor sampling in which the nodes of a hop agree on what they pick.

Every source gets a random number, and a node takes the in-edges of the sources with the smallest numbers; what is
drawn is fixed by docs/semantics.md, section 3.2. Each node picks uniformly, but nodes with a source in common tend to
pick it together, so a minibatch has fewer input nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipes import _core
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.graph import Graph
from datapipes.sampling.core_call import CoreCall
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.layered_sampler import LayeredSampler
from datapipes.sampling.sampler import Sampled

__all__ = ["LayerNeighborSampler"]


@register_stage("sample_layer_neighbor")
class LayerNeighborSampler(LayeredSampler):
    """Sample the in-neighborhood of the seeds by LABOR-0; sets `blocks`, `input_nodes` and `compacted_seeds`.

    A node has as many picks as with `sample_neighbor`, each in-edge with the same probability. Between the nodes of a
    hop the picks are not independent, which keeps minibatches small where neighborhoods overlap. It reads all in-edges
    of a node that has more than the fanout. There is no drawing with replacement.

    Args:
        graph: the CSCGraph or HeteroCSCGraph to sample from. The seeds of the latter have types (HeteroItemSet).
        fanouts: in-edges drawn per node, as for sample_neighbor.
        layer_dependency: a source keeps its random number in all hops, so hops share more nodes.
        batch_dependency: how many minibatches a source keeps its random number for, 1 to 2**31 - 1. From one minibatch
            to the next, one source in so many gets a new number, so a cache of features is hit more often. On
            `world_size` ranks the minibatches of all count: those of one rank are `world_size` apart.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" or "new", as for sample_neighbor.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
    Source: LABOR-0 with a fixed number of picks (Balin and Catalyurek, Layer-Neighbor Sampling, NeurIPS 2023).
    """

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
    ) -> None:
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self._set_options(layer_dependency=layer_dependency, batch_dependency=batch_dependency, frontier=frontier)
        self._call = CoreCall(self.name, graph, self.edge_types, self.fanouts)

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        """Return the neighborhood of `seeds`: all hops and edge types in one call of the C++ core."""
        found = self._layer_keys(rng)
        layers = _core.Layers(
            dependency=self.batch_dependency,
            until_next=found.until_next,
            next_keys=found.next_keys,
            offset_keys=found.offset_keys,
        )
        return self._call(
            self.graph,
            seeds,
            found.keys,
            want_edge_ids=self.return_edge_ids,
            replace=False,
            only_new=self.frontier == "new",
            layers=layers,
        )
