"""NeighborSampler: draws a number of in-edges for each node, hop by hop, and compacts the ids.

What is drawn is fixed by docs/semantics.md, sections 3 and 4, trees by 4.5; one call of the C++ core makes all hops and
edge types of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datapipes.base.checks import check_bool, check_choice
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.graph import Graph
from datapipes.graph.local_graph import LocalGraph
from datapipes.graph.row_weights import RowWeights, weights_fingerprint
from datapipes.sampling.core_call import CoreCall
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled
from datapipes.sampling.seed_trees import SeedTrees
from datapipes.sampling.tree_sampler import TreeSampler

__all__ = ["NeighborSampler"]


@register_stage("sample_neighbor")
class NeighborSampler(TreeSampler):
    """Sample the in-neighborhood of the seeds; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the CSCGraph or HeteroCSCGraph to sample from. The seeds of the latter have types (HeteroItemSet).
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
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
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
    ) -> None:
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self.replace = check_bool(self.name, "replace", replace)
        self.prob_name = prob_name
        self._weights: dict[Any, RowWeights] = {}  # of each edge type, if there are any
        if prob_name is not None:
            assert isinstance(graph, LocalGraph)  # the base has refused a graph in parts
            self._weights = {of: graph.row_weights(self.name, prob_name, of) for of in self.edge_types}
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))
        self.disjoint = check_bool(self.name, "disjoint", disjoint)
        self._call = CoreCall(self.name, graph, self.edge_types, self.fanouts)

    def sample(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return the neighborhood of `seeds`: all hops and edge types in one call of the C++ core."""
        self._refuse_change()
        return self._call(
            self.graph,
            seeds,
            self._call.hop_keys(rng),
            want_edge_ids=self.return_edge_ids,
            replace=self.replace,
            only_new=self.frontier == "new",
            trees=trees,
            weights=[each.sums() for each in self._weights.values()] or None,
        )

    def _refuse_change(self) -> None:
        if self.prob_name is not None:
            for of, each in self._weights.items():
                each.refuse_change(self.name, self.graph.relation(of).edge_attributes.get(self.prob_name))

    def __reduce__(self) -> tuple[Any, ...]:
        self._refuse_change()  # a worker would build the stage over the weights as they are now
        return super().__reduce__()

    def fingerprint(self) -> Fingerprint:
        self._refuse_change()
        trees = {"disjoint": True} if self.disjoint else {}
        weights = weights_fingerprint({of: each.digest for of, each in self._weights.items()})
        return {**super().fingerprint(), "replace": self.replace, "frontier": self.frontier, **trees, **weights}

    def describe(self) -> dict[str, Any]:
        replace = {"replace": True} if self.replace else {}
        weighted = {} if self.prob_name is None else {"prob_name": self.prob_name}
        trees = {"disjoint": True} if self.disjoint else {}
        return {**super().describe(), **replace, **weighted, "frontier": self.frontier, **trees}
