"""PprSampler: the nodes with the largest personalised PageRank of each seed; docs/semantics.md, section 4.12."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_float
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
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

LEAST_ALPHA, LEAST_EPS = 2.0**-10, 2.0**-40  # with less, a push would take minutes


@register_stage("sample_ppr")
class PprSampler(ScoredNeighborSampler):
    """Take the nodes with the largest personalised PageRank of each seed as its neighbors; nothing is drawn.

    The score of a node is about the chance that a walk from the seed along in-edges ends there, if it ends before each
    step with the chance `alpha`, and at a node without in-edges; it is never too large. Sets `blocks`, one hop from
    these nodes to the seed, with `edge_features` "ppr_scores", float32; and `extra["ppr"]` and `extra["ppr_scores"]`
    [n, num_neighbors], the largest score first, -1 and 0 where there are fewer. The seed itself is one of them.

    Args:
        graph: the CSCGraph or DistGraph, without types. Seeds are nodes or links, ids [n] or [n, k].
        num_neighbors: nodes to take for each seed.
        alpha: chance to end, in [2^-10, 1].
        eps: precision, in [2^-40, 1]. The scores that are missing add up to less than `eps` times the in-degrees of
            the nodes, each weighed by how likely walks from the seed end there; at most 1 / (alpha * eps) edges are
            followed for a seed.
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
            score_name="ppr_scores",
            return_edge_ids=return_edge_ids,
            concurrency=concurrency,
        )
        self.alpha = check_float(self.name, "alpha", alpha, LEAST_ALPHA, 1, allowed="[2^-10, 1]")
        self.eps = check_float(self.name, "eps", eps, LEAST_EPS, 1, allowed="[2^-40, 1]")
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
        ids, scores = yield "drawn", (self.plan, nodes, [])
        return Neighbors(ids, scores)

    def _made(self, minibatch: MiniBatch) -> Asking[MiniBatch]:
        refuse_taken(self.name, minibatch, ("ppr", "ppr_scores"))
        made, (found,) = yield from self._with_scores(minibatch)
        local = made.compacted_seeds
        if self._form is not None:
            trees = self._trees(minibatch.seeds, found.ids[local]) if self.disjoint else None
            sampled = trees or Sampled(made.input_nodes, local, [])
            groups = (
                None
                if trees is None
                else seed_trees(self.name, minibatch.seeds, None, disjoint=True, has_times=False, negative_end="dst")
            )
            question: Any = self._form.question(sampled, self.rng_of(minibatch), groups)
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

    def fingerprint(self) -> Fingerprint:
        form = {} if self._form is None else {"subgraph_type": self.subgraph_type, "disjoint": self.disjoint}
        return {**super().fingerprint(), "alpha": self.alpha, "eps": self.eps, **form}

    def describe(self) -> dict[str, Any]:
        form = {} if self._form is None else {"subgraph_type": self.subgraph_type, "disjoint": self.disjoint}
        return {**super().describe(), "alpha": self.alpha, "eps": self.eps, **form}
