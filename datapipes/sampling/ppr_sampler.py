"""PprSampler: the nodes with the largest personalised PageRank of each seed; docs/semantics.md, section 4.12."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_float
from datapipes.base.rng import RngKey
from datapipes.base.sizes import check_memory
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.choice import UNIFORM
from datapipes.graph.graph import Graph
from datapipes.graph.hops import HopPlan, Sampled
from datapipes.graph.ppr import PprPlan
from datapipes.minibatch import MiniBatch
from datapipes.sampling.asking import Asking
from datapipes.sampling.sampler import refuse_taken
from datapipes.sampling.scored_neighbors import Neighbors, ScoredNeighborSampler
from datapipes.sampling.seed_ids import seed_trees
from datapipes.sampling.subgraph_form import SubgraphForm

__all__ = ["PprSampler"]

BYTES_PER_ENTRY = 8 + 8 + 4  # of the result: an id, its mass and its score
LEAST = 2.0**-30  # of alpha * eps: with less, the push of a seed would take more than seconds


@register_stage("sample_ppr")
class PprSampler(ScoredNeighborSampler):
    """Take the nodes with the largest personalised PageRank of each seed as its neighbors; nothing is drawn.

    The score of a node is about the chance that a walk from the seed along in-edges ends there, if it ends before each
    step with the chance `alpha`, and at a node without in-edges; it is never too large. Sets `blocks`, one hop from
    these nodes to the seed, with `edge_features` "score", float32; and `extra["ppr"]` and `extra["ppr_scores"]` [n,
    num_neighbors], for links [n, k, num_neighbors], the largest score first, -1 and 0 where there are fewer. The seed
    itself is a candidate.

    Args:
        graph: the CSCGraph or DistGraph, without types. Seeds are nodes or links, ids [n] or [n, k].
        num_neighbors: nodes to take for each seed.
        alpha: chance to end, above 0 and at most 1.
        eps: precision, above 0 and at most 1; alpha * eps is at least 2^-30. The scores that are missing add up to less
            than `eps` times the in-degrees of the nodes, each weighed by how likely walks from the seed end there.
            Besides the in-edges of the seed, at most 1 / (alpha * eps) edges are followed.
        subgraph_type: "directional" for the edges above; "induced" for all edges of the graph among the nodes that were
            found, as NeighborSampler makes them, without edge features.
        disjoint: for "induced", give each seed, ids [n], a subgraph of its own: ShaDow by PageRank.
        return_edge_ids: for "induced", fill `edge_ids` of the block.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. See NeighborSampler.
    Raises:
        TypeError, ValueError: An argument is not allowed. While running, `disjoint` is True and seeds are no nodes [n].
        IndexError: While running, a seed is not a node of the graph.
        Over a DistGraph, also errors of requests to the servers (listed at DistGraph.connect).
    Source: Andersen, Chung and Lang, Local graph partitioning using PageRank vectors (2006).
    """

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        num_neighbors: int,
        *,
        alpha: float = 0.15,
        eps: float = 1e-4,
        subgraph_type: str = "directional",
        disjoint: bool = False,
        return_edge_ids: bool = False,
        concurrency: int | None = None,
    ) -> None:
        if isinstance(graph, Graph) and graph.is_heterogeneous:
            raise ValueError(
                f"{self.name}: PageRank is for graphs without types, found the edge types {[*graph.edge_types]}. Make "
                "a CSCGraph of the edges that count."
            )
        super().__init__(
            source,
            graph,
            [num_neighbors],
            score_name="score",
            return_edge_ids=return_edge_ids,
            concurrency=concurrency,
        )
        self.alpha = check_float(self.name, "alpha", alpha, LEAST, 1, allowed="[2^-30, 1]")
        self.eps = check_float(self.name, "eps", eps, LEAST, 1, allowed="[2^-30, 1]")
        if self.alpha * self.eps < LEAST:
            raise ValueError(
                f"{self.name}: alpha * eps must be 2^-30 or more, got {alpha} * {eps}: a seed would follow up to "
                f"{1 / (self.alpha * self.eps):.1e} edges. Raise one of them."
            )
        self.subgraph_type = check_choice(self.name, "subgraph_type", subgraph_type, ("directional", "induced"))
        self.disjoint = check_bool(self.name, "disjoint", disjoint)
        self.plan = PprPlan(self.name, graph, self.num_neighbors[0], self.alpha, self.eps)
        self._form: SubgraphForm | None = None
        if subgraph_type == "induced":
            options: dict[str, Any] = {"replace": False, "only_new": False, "edge_ids": self.return_edge_ids}
            plan = HopPlan(self.name, graph, self.edge_types, [[-1]], UNIFORM, **options)
            self._form = SubgraphForm("induced", plan, None)
        elif disjoint or return_edge_ids:
            raise ValueError(
                f"{self.name}: disjoint and return_edge_ids are for subgraph_type='induced'; the edges from neighbors "
                "to seeds are not those of the graph. Leave them out."
            )

    def _neighbors(self, nodes: Tensor, hop: int, rng: RngKey) -> Asking[Neighbors]:
        num_entries = len(nodes) * self.plan.count
        check_memory(self.name, f"{num_entries} neighbors", BYTES_PER_ENTRY * num_entries, "Use a smaller batch_size.")
        ids, scores = yield "drawn", (self.plan, nodes, [])
        return Neighbors(ids, scores)

    def _made(self, minibatch: MiniBatch) -> Asking[MiniBatch]:
        refuse_taken(self.name, minibatch, ("ppr", "ppr_scores"))
        made, (found,) = yield from self._with_scores(minibatch)
        local = made.compacted_seeds
        if self._form is not None:
            sampled, trees = Sampled(made.input_nodes, local, []), None
            if self.disjoint:
                sampled = self._trees(minibatch.seeds, found.ids[local])
                options: dict[str, Any] = {"disjoint": True, "has_times": False, "negative_end": "dst"}
                trees = seed_trees(self.name, minibatch.seeds, None, **options)
            question: Any = self._form.question(sampled, self.rng_of(minibatch), trees)
            induced = self._form.made(sampled, (yield "hops", question))
            made = self.filled(minibatch, induced).replace(batch=induced.groups)
        return made.replace(extra=made.extra | {"ppr": found.ids[local], "ppr_scores": found.scores[local]})

    def _trees(self, seeds: Any, ids: Tensor) -> Sampled:
        """Return the nodes of one tree for each seed, [n]: the seeds first, then what else each has found, [n, k]."""
        if seeds.ndim != 1:
            raise ValueError(
                f"{self.name}: disjoint=True needs nodes [n] as seeds, found {list(seeds.shape)}. Take one column."
            )
        places = torch.arange(len(seeds))
        others = (ids >= 0) & (ids != seeds[:, None])
        groups = torch.cat((places, places[:, None].expand_as(ids)[others]))
        return Sampled(torch.cat((seeds.to(ids.dtype), ids[others])), places.to(ids.dtype), [], groups)

    def _options(self) -> dict[str, Any]:
        form = {} if self._form is None else {"subgraph_type": self.subgraph_type, "disjoint": self.disjoint}
        return {"alpha": self.alpha, "eps": self.eps, **form}
