"""DistLayerNeighborSampler: LayerNeighborSampler (LABOR-0) over a graph in parts, with the same bits.

The number of a source depends on the random key and its id alone, so all parts agree on it. docs/semantics.md, sections
3.2 and 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence

from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hops_over_parts import HopDraw, HopsOverParts
from datapipes.distributed.parts_sampler import PartsSampler
from datapipes.partition.native.choices import ByNumber
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.layered_sampler import LayeredSampler
from datapipes.sampling.seed_trees import SeedTrees

__all__ = ["DistLayerNeighborSampler"]


@register_stage("dist_sample_layer_neighbor")
class DistLayerNeighborSampler(LayeredSampler, PartsSampler):
    """Sample the in-neighborhood of the seeds by LABOR-0 over a graph in parts; sets `blocks`, `input_nodes` and
    `compacted_seeds`.

    The minibatches are those of `sample_layer_neighbor` over the whole graph, bit for bit. A saved state names it
    sample_layer_neighbor too, so it goes on over any number of parts, and on one machine.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        fanouts: in-edges drawn per node, as for sample_neighbor.
        concurrency: minibatches in flight at once, 1 or more. Each takes the memory of what it finds.
        layer_dependency, batch_dependency, return_edge_ids, frontier: as for sample_layer_neighbor.
    Raises:
        As dist_sample_neighbor does.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int = 8,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        return_edge_ids: bool = False,
        frontier: str = "all",
    ) -> None:
        super().__init__(source, dist_graph, fanouts, concurrency=concurrency, return_edge_ids=return_edge_ids)
        self._set_options(layer_dependency=layer_dependency, batch_dependency=batch_dependency, frontier=frontier)

    def _hops(self, rng: RngKey, trees: SeedTrees | None) -> HopsOverParts:
        found = self._layer_keys(rng)
        draws = [
            [
                HopDraw(fanout, found.keys[hop][i], (found.next_keys[hop][i], found.offset_keys[hop][i]))
                if found.next_keys
                else HopDraw(fanout, found.keys[hop][i])
                for i, fanout in enumerate(fanouts)
            ]
            for hop, fanouts in enumerate(self._fanouts)
        ]
        return self._hops_of(self.edge_types, draws, ByNumber(self.batch_dependency, found.until_next), trees)
