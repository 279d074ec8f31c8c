"""LayerNeighborSampler: LABOR-0, neighbor sampling in which the nodes of a hop agree on what they pick.

Every source gets a random number, and a node takes the in-edges of the sources with the smallest numbers; what is
drawn is fixed by docs/semantics.md, section 3.2. Each node picks uniformly, but nodes with a source in common tend to
pick it together, so a minibatch has fewer input nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from datapipes import _core
from datapipes.base.checks import check_bool, check_choice, check_int
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.graph import Graph
from datapipes.sampling.core_call import CoreCall
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled, Sampler

__all__ = ["LayerNeighborSampler"]

MAX_DEPENDENCY = 2**31 - 1


@register_stage("sample_layer_neighbor")
class LayerNeighborSampler(Sampler):
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
        if isinstance(graph, Graph) and graph.in_parts:
            _refuse_parts(self.name, graph)
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self.layer_dependency = check_bool(self.name, "layer_dependency", layer_dependency)
        self.batch_dependency = check_int(self.name, "batch_dependency", batch_dependency, 1, MAX_DEPENDENCY)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))
        self._call = CoreCall(self.name, graph, self.edge_types, self.fanouts)
        ordinals = {of: number for number, of in enumerate(graph.node_types)}
        self._source_types = [ordinals[None if of is None else of[0]] for of in self.edge_types]

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        """Return the neighborhood of `seeds`: all hops and edge types in one call of the C++ core."""
        generation, place = divmod(rng.index, self.batch_dependency)
        lasting = self.batch_dependency > 1
        layers = _core.Layers(
            dependency=self.batch_dependency,
            until_next=self.batch_dependency - place,
            next_keys=self._keys(rng, generation + 1) if lasting else [],
            offset_keys=self._keys(rng, 0) if lasting else [],
        )
        return self._call(
            self.graph,
            seeds,
            self._keys(rng, generation),
            want_edge_ids=self.return_edge_ids,
            replace=False,
            only_new=self.frontier == "new",
            layers=layers,
        )

    def _keys(self, rng: RngKey, generation: int) -> list[list[int]]:
        """Return the hop keys of a generation, hop 0 first, of the source type of each edge type that is sampled."""
        of = replace(rng, index=generation)
        hops = range(self.num_hops)
        return [[of.hop_key(0 if self.layer_dependency else hop, kind) for kind in self._source_types] for hop in hops]

    def fingerprint(self) -> Fingerprint:
        dependencies = {"layer_dependency": self.layer_dependency, "batch_dependency": self.batch_dependency}
        return {**super().fingerprint(), **dependencies, "frontier": self.frontier}

    def describe(self) -> dict[str, Any]:
        layers = {"layer_dependency": True} if self.layer_dependency else {}
        batches = {"batch_dependency": self.batch_dependency} if self.batch_dependency > 1 else {}
        return {**super().describe(), **layers, **batches, "frontier": self.frontier}


def _refuse_parts(where: str, graph: Graph) -> NoReturn:
    raise TypeError(
        f"{where}: graph must be a CSCGraph or HeteroCSCGraph, which has all rows, got {type(graph).__name__}, whose "
        "rows are in parts. The stage samples whole graphs only. Sample the parts by dist_sample_neighbor."
    )
