"""Random walks under the names of torch-cluster and PyG: `random_walk`, Node2Vec, MetaPath2Vec.

They go along out-edges: the stage `sample_random_walk` runs over the graph with its edges reversed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_int
from datapipes.base.rng import RngKey, check_seed
from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.graph import Graph
from datapipes.pyg import torch_geometric_names
from datapipes.pyg.torch_geometric_names import MetaPath2Vec, maybe_num_nodes
from datapipes.sampling.random_walk_sampler import RandomWalkSampler
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = ["MetaPath2Vec", "Node2Vec", "random_walk"]


def walk_stage(graph: Graph, walk_length: int, **options: Any) -> RandomWalkSampler:
    """Return the stage that draws walks along the in-edges of `graph`, for `drawn_walks`. Its source is never read."""
    return RandomWalkSampler(ItemSampler(ItemSet(1), 1), graph, walk_length, **options)


def drawn_walks(stage: RandomWalkSampler, start: Tensor, rng: RngKey | None = None) -> list[Tensor]:
    """Return [nodes [n, walk_length + 1], edge ids [n, walk_length] if the stage returns them]; -1 after the end.

    Args:
        start: int32 or int64 [n], the first nodes; repeats have walks of their own.
        rng: the random key; None: torch's generator gives a number that decides the draws.
    """
    key = RngKey(int(torch.randint(2**63 - 1, ())), 0, 0, 0) if rng is None else rng
    drawn = stage.graph.drawn(stage.plan, stage._seeds(start), stage.plan.keys(key))
    return [values[:, 0] for values in drawn if values is not None]


def _staying(walks: Tensor) -> Tensor:
    """Return walks that stay at their last node instead of ending, int64; there is always a first node."""
    steps = torch.arange(walks.shape[1]).where(walks >= 0, 0)
    return walks.gather(1, steps.cummax(1).values).long()


def random_walk(
    row: Tensor,
    col: Tensor,
    start: Tensor,
    walk_length: int,
    p: float = 1.0,
    q: float = 1.0,
    coalesced: bool = True,
    num_nodes: int | None = None,
    return_edge_indices: bool = False,
    *,
    seed: int | None = None,
) -> Any:
    """torch_cluster.random_walk: walk from each node of `start` along the edges row -> col.

    A walk that comes to a node without out-edges stays there.

    Args:
        row, col: [num_edges], the ends of the edges.
        start: [n], nodes; repeats have walks of their own.
        p, q: node2vec's parameters. A step back to the node before weighs 1/p; to a node to which the node before has
            an edge 1, as in the paper; to any other 1/q. torch-cluster asks for the opposite edge; the two differ
            only where edges have one direction.
        coalesced: False says that `row` ascends already, which is checked.
        num_nodes: by default the largest id, plus 1.
        return_edge_indices: also return the positions of the edges in `row`, which torch-cluster counts after sorting.
        seed: (keyword only) decides the draws. None: a number from torch's generator does, so `torch.manual_seed`.
    Returns:
        int64 [n, walk_length + 1], nodes; with `return_edge_indices` a pair of these and int64 [n, walk_length], -1
        where a walk stays.
    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed, or a node is outside of the graph.
    """
    where = "random_walk"
    if not check_bool(where, "coalesced", coalesced) and bool((row.diff() < 0).any()):
        raise ValueError(f"{where}: coalesced is False, but row does not ascend. Sort the edges, or leave it out.")
    if num_nodes is None:
        num_nodes = max((int(ids.max()) + 1 for ids in (row, col, start) if len(ids) > 0), default=0)
    graph = CSCGraph.from_edge_index((col.cpu(), row.cpu()), num_nodes)
    rng = None if seed is None else RngKey(check_seed(where, seed), 0, 0, 0)
    drawn = drawn_walks(walk_stage(graph, walk_length, p=p, q=q, return_edge_ids=True), start.cpu(), rng)
    nodes, edge_ids = _staying(drawn[0]).to(start.device), drawn[1]
    return (nodes, edge_ids.to(start.device)) if return_edge_indices else nodes


class Node2Vec(torch_geometric_names.Node2Vec):  # type: ignore[misc]  # PyG comes without types
    """torch_geometric.nn.Node2Vec, with walks drawn by this package: neither pyg-lib nor torch-cluster is needed.

    The arguments and methods are PyG's; `p`, `q` and dead ends are as in `random_walk`. Torch's generator decides the
    draws.

    Raises:
        TypeError, ValueError, IndexError: An argument is not allowed.
    """

    def __init__(
        self,
        edge_index: Tensor,
        embedding_dim: int,
        walk_length: int,
        context_size: int,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        num_negative_samples: int = 1,
        num_nodes: int | None = None,
        sparse: bool = False,
    ) -> None:
        torch.nn.Module.__init__(self)  # PyG's constructor asks for pyg-lib
        if check_int("Node2Vec", "walk_length", walk_length, 1) < check_int(
            "Node2Vec", "context_size", context_size, 1
        ):
            raise ValueError(f"Node2Vec: context_size is {context_size}, but walks have {walk_length} nodes. Lower it.")
        self.num_nodes = maybe_num_nodes(edge_index, num_nodes)
        graph = CSCGraph.from_edge_index(edge_index.cpu().flip(0), self.num_nodes)
        self.rowptr, self.col = graph.indptr, graph.indices
        self._walks = walk_stage(graph, walk_length - 1, p=p, q=q)
        self.EPS = 1e-15
        self.embedding_dim, self.walk_length, self.context_size = embedding_dim, walk_length - 1, context_size
        self.walks_per_node, self.p, self.q = walks_per_node, p, q
        self.num_negative_samples = num_negative_samples
        self.embedding = torch.nn.Embedding(self.num_nodes, embedding_dim, sparse=sparse)
        self.reset_parameters()

    def random_walk_fn(
        self, rowptr: Tensor, col: Tensor, start: Tensor, walk_length: int, p: float, q: float
    ) -> Tensor:
        """Return walks from `start` along the edges that the constructor got; PyG's methods call it."""
        if (walk_length, p, q) != (self._walks.walk_length, self._walks.p, self._walks.q):  # they were set anew
            self._walks = walk_stage(self._walks.graph, walk_length, p=p, q=q)
        return _staying(drawn_walks(self._walks, start.cpu())[0]).to(start.device)
