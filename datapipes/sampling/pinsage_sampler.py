"""PinSageSampler: the nodes that random walks from a node visit most; docs/semantics.md, section 4.13."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_float, check_int
from datapipes.base.codec import join_key
from datapipes.base.rng import RngKey
from datapipes.base.sizes import check_memory
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.graph import Graph
from datapipes.graph.walks import WalkPlan
from datapipes.sampling.asking import Asking
from datapipes.sampling.random_walk_sampler import checked_metapath
from datapipes.sampling.scored_neighbors import Neighbors, ScoredNeighborSampler

__all__ = ["PinSageSampler"]

MOST_VISITS = 2**22  # of the walks from a node
BYTES_PER_ENTRY = 8 * 6  # of the walks, and of what counts their nodes
ID_BITS = 40  # of a number that orders visited nodes: visits above, the id below


@register_stage("sample_pinsage")
class PinSageSampler(ScoredNeighborSampler):
    """Take the nodes that random walks from a node visit most as its neighbors; of equally many visits, smaller ids.

    Sets `blocks`, `input_nodes` and `compacted_seeds`, with `edge_features` "visits", float32: how often the walks from
    a node have visited the neighbor. The node itself does not count.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph. Walks go along in-edges, see RandomWalkSampler.
        num_neighbors: neighbors of each node; for several hops a list, with the hop next to the seeds last.
        num_walks: walks from each node.
        walk_length: number of traversals of a walk, at most; num_walks * walk_length is at most 2^22.
        restart_prob: chance that a walk ends after a traversal; each walk has at least one.
        metapath: on a graph with types, the edge types of a traversal, from the type of the seeds back to it, each
            followed from dst to src; see RandomWalkSampler. Nodes count at the end of traversals alone. The
            blocks have the edge type (type, "pinsage", type). Without types a traversal is one step.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. See NeighborSampler.
    Raises:
        TypeError, ValueError: An argument is not allowed. While running, seeds have another type.
        IndexError: While running, a seed is not a node of the graph.
        Over a DistGraph, also errors of requests to the servers (listed at DistGraph.connect).
    Source: PinSAGE (Ying et al., 2018), with DGL's ends of walks.
    """

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        num_neighbors: int | Sequence[int],
        num_walks: int,
        walk_length: int,
        restart_prob: float,
        *,
        metapath: Sequence[Any] | None = None,
        concurrency: int | None = None,
    ) -> None:
        check_int(self.name, "num_walks", num_walks, 1, MOST_VISITS)
        check_int(self.name, "walk_length", walk_length, 1, MOST_VISITS)
        if num_walks * walk_length > MOST_VISITS:
            raise ValueError(
                f"{self.name}: num_walks * walk_length must be at most {MOST_VISITS}, got {num_walks} * {walk_length}. "
                "Lower one of them."
            )
        path = checked_metapath(self.name, graph, metapath, 2**62) if isinstance(graph, Graph) else None
        kind = None if path is None else path[0][2]
        edge_type = None if kind is None else (kind, "pinsage", kind)
        counts = num_neighbors if isinstance(num_neighbors, Sequence) else [num_neighbors]
        super().__init__(source, graph, counts, edge_type, score_name="visits", concurrency=concurrency)
        self.num_walks, self.walk_length, self.metapath = num_walks, walk_length, path
        self.restart_prob = check_float(self.name, "restart_prob", restart_prob, 0, 1)
        traversal = path or [None]
        steps, chance = traversal * walk_length, self.restart_prob
        self.plan = WalkPlan(self.name, graph, steps, num_walks, restart_prob=chance, traversal=len(traversal))

    def _neighbors(self, nodes: Tensor, hop: int, rng: RngKey) -> Asking[Neighbors]:
        num_entries = len(nodes) * self.num_walks * (len(self.plan.steps) + 1)
        check_memory(
            self.name,
            f"walks with {num_entries} nodes",
            BYTES_PER_ENTRY * num_entries,
            "Lower num_walks or batch_size.",
        )
        walks, _ = yield "drawn", (self.plan, nodes, self.plan.keys(rng, hop))
        ends = walks[:, :, self.plan.traversal :: self.plan.traversal].reshape(len(nodes), -1)
        return most_visited(nodes, ends, self.num_neighbors[-1 - hop])

    def _options(self) -> dict[str, Any]:
        path = {} if self.metapath is None else {"metapath": [join_key(edge_type) for edge_type in self.metapath]}
        return {name: getattr(self, name) for name in ("num_walks", "walk_length", "restart_prob")} | path


def most_visited(nodes: Tensor, visited: Tensor, count: int) -> Neighbors:
    """Return the nodes that occur most often in each row of `visited`, ids [n, m] or -1, but for `nodes` [n]: at most
    `count`, and m, of them.
    """
    ordered = visited.long().masked_fill(visited == nodes[:, None], -1).sort(1).values
    is_first = torch.ones_like(ordered, dtype=torch.bool)
    is_first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    begins = is_first.view(-1).nonzero().view(-1)
    visits = torch.cat((begins, torch.tensor([ordered.numel()]))).diff()
    ids = ordered.view(-1)[begins]
    ranks = torch.zeros_like(ordered)
    ranks.view(-1)[begins] = torch.where(ids < 0, 0, (visits << ID_BITS) + (2**ID_BITS - 1 - ids))
    most = ranks.topk(min(count, ranks.shape[1]), 1).values
    found = torch.where(most > 0, 2**ID_BITS - 1 - (most & (2**ID_BITS - 1)), -1)
    return Neighbors(found.to(visited.dtype), (most >> ID_BITS).float())
