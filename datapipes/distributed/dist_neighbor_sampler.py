"""DistNeighborSampler: NeighborSampler over a graph in parts, with the same bits.

Each hop asks the parts that own its nodes, all at once, and merges the answers in the order of the nodes. What a row
draws depends on the random key and its node alone, so it does not matter who draws it. docs/semantics.md, section 4.3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_index_tensor, check_int
from datapipes.base.types import EdgeType, ends_of, known_edge_type
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.distributed.digests_over_parts import digests_over_parts
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hops_over_parts import HopDraw
from datapipes.distributed.parts_sampler import PartsSampler
from datapipes.distributed.wire.requests import Drawn
from datapipes.graph.row_weights import refuse_missing, refuse_other_form, weights_fingerprint
from datapipes.partition.native.choices import ByWeight
from datapipes.sampling.fanouts import Fanout

__all__ = ["DistNeighborSampler"]


@register_stage("dist_sample_neighbor")
class DistNeighborSampler(PartsSampler):
    """Sample the in-neighborhood of the seeds over a graph in parts; sets `blocks`, `input_nodes` and
    `compacted_seeds`.

    The minibatches are those of `sample_neighbor` over the whole graph, bit for bit. A saved state names it
    sample_neighbor too, so it goes on over any number of parts, and on one machine.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        fanouts: in-edges drawn per node, as for sample_neighbor.
        concurrency: minibatches in flight at once, 1 or more. Each takes the memory of what it finds, whatever the size
            of the graph.
        replace: draw with replacement; -1 still keeps each in-edge once.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        prob_name: an edge attribute that holds weights, or a mask, as for sample_neighbor. Each part makes the sums of
            its rows, 9 bytes an edge, when it is first asked for them; that of this process when the stage is built.
        frontier: "all" or "new", as for sample_neighbor. "new" asks for each node once.
        disjoint: sample a tree for each seed, as sample_neighbor does.
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, a part answered what was not asked for.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left.
        What the requests raise, see DistGraph.connect. A note names stage and minibatch, another one the part.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int = 8,
        replace: bool = False,
        prob_name: str | None = None,
        return_edge_ids: bool = False,
        frontier: str = "all",
        disjoint: bool = False,
    ) -> None:
        super().__init__(source, dist_graph, fanouts, concurrency=concurrency, return_edge_ids=return_edge_ids)
        self.replace = check_bool(self.name, "replace", replace)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))
        self.disjoint = check_bool(self.name, "disjoint", disjoint)
        self.prob_name = prob_name
        if prob_name is not None:
            self.choice = self._checked_weights(prob_name)

    def _checked_weights(self, prob_name: str) -> ByWeight:
        """Return the choice by weights that all sampled edge types have; those of the part in this process are read."""
        features, local, choice = self.dist_graph.facts.features, self.dist_graph.local_part, ByWeight(prob_name)
        for of in self.edge_types:
            forms = {name: form for (domain, kind, name), form in features.items() if (domain, kind) == ("edge", of)}
            refuse_missing(self.name, prob_name, forms, of)
            refuse_other_form(self.name, prob_name, of, forms[prob_name].dtype, (-1, *forms[prob_name].shape))
            if local is not None:
                local.digests_of(self.name, choice, of)
        return choice

    async def sample_one_hop(
        self, ids: Tensor, *, fanout: int, key: int, edge_type: EdgeType | str | None = None
    ) -> Drawn:
        """Return in-edges of any nodes of the graph, in the order of the nodes; nothing is numbered.

        Args:
            ids: int32 or int64 [n], nodes of the destination type; repeats allowed, they draw the same.
            fanout: in-edges drawn per node, -1 for all.
            key: random key, uint64; `rng.hop_key(hop, etype)` of an RngKey, `etype` being the edge type's place in
                `dist_graph.edge_types`.
            edge_type: on a graph with types, the one to draw from.
        Returns:
            `indptr` int64 [n + 1], `neighbors` of the graph's `index_dtype`, `edge_ids` where the stage returns them.
        Raises:
            TypeError, ValueError: An argument is not allowed.
            IndexError: A node is outside the graph.
        """
        graph = self.dist_graph
        known = known_edge_type(self.name, edge_type, graph.edge_types) if self._has_types else None
        src, dst = ends_of(known)
        check_int(self.name, "fanout", fanout, -1)
        given = check_index_tensor(self.name, "ids", ids)
        hops = self._hops_of((known,), [[HopDraw(fanout, check_int(self.name, "key", key, 0, 2**64 - 1))]], self.choice)
        found = await self._all_hops(hops, {dst: given})
        nodes, local, block = found.nodes, found.local_seeds, found.hops[0]
        if self._has_types:
            nodes, local, block = nodes[src], local[dst], block[known]
        neighbors = nodes[block.indices.long()]
        if given.shape[0] == block.num_dst:  # no repeats
            return Drawn(block.indptr, neighbors, block.edge_ids)
        rows = local.long()
        counts = block.indptr.diff()[rows]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        picks = torch.arange(int(indptr[-1])) + torch.repeat_interleave(block.indptr[rows] - indptr[:-1], counts)
        return Drawn(indptr, neighbors[picks], None if block.edge_ids is None else block.edge_ids[picks])

    def fingerprint(self) -> Fingerprint:
        trees = {"disjoint": True} if self.disjoint else {}
        weights: dict[str, Any] = {}
        if self.choice is not None:
            found = digests_over_parts(self.name, self.dist_graph, self.edge_types, self.choice)
            weights = weights_fingerprint({of: each[0] for of, each in found.items() if each is not None})
        return {**super().fingerprint(), "replace": self.replace, "frontier": self.frontier, **trees, **weights}

    def describe(self) -> dict[str, Any]:
        replace = {"replace": True} if self.replace else {}
        trees = {"disjoint": True} if self.disjoint else {}
        weighted = {} if self.prob_name is None else {"prob_name": self.prob_name}
        return {**super().describe(), **replace, **weighted, "frontier": self.frontier, **trees}
