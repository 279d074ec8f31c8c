"""Samplers of whole subgraphs, for PyG's loaders: all edges among the seeds, or among nodes that are found from them.

The nodes of a subgraph ascend, and its edges are in the order of the data, as in PyG's `Data.subgraph`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.rng import RngKey
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.choice import rows_digest
from datapipes.pyg.sampled import edge_index_of
from datapipes.pyg.sampler import NeighborSampler
from datapipes.pyg.walks import drawn_walks, walk_stage

__all__: list[str] = []


class SubgraphSampler(NeighborSampler):
    """Sample all edges among the seeds; a subclass may put other nodes in their place (`nodes_of`)."""

    def __init__(self, data: Any) -> None:
        super().__init__(data, [], "induced")

    def nodes_of(self, seeds: Tensor, key: RngKey) -> Tensor:
        """Return the nodes of the subgraph, ascending, each once; `seeds` are those of a type."""
        nodes: Tensor = torch.unique(seeds)
        return nodes

    def _sample(self, seeds: Any, times: Any, key: RngKey) -> Any:
        if not self.is_hetero:
            out = super()._sample(self.nodes_of(seeds, key), None, key)
            out.row, out.col, out.edge = _in_order(out.row, out.col, out.edge, out.edge.argsort())
            return out
        out = super()._sample({type_: self.nodes_of(ids, key) for type_, ids in seeds.items()}, None, key)
        for edge_type, ids in out.edge.items():
            edges = _in_order(out.row[edge_type], out.col[edge_type], ids, ids.argsort())
            out.row[edge_type], out.col[edge_type], out.edge[edge_type] = edges
        return out


class ClusterSampler(SubgraphSampler):
    """Sample all edges among the nodes of clusters. Seeds are numbers of clusters.

    Args:
        data: a Data whose nodes are sorted by cluster.
        offsets: int64 [num_clusters + 1], where the nodes of each cluster begin.
    """

    def __init__(self, data: Any, offsets: Tensor) -> None:
        super().__init__(data)
        self.offsets = offsets.cpu()

    def nodes_of(self, seeds: Tensor, key: RngKey) -> Tensor:
        clusters = torch.unique(seeds)
        spans = zip(self.offsets[clusters].tolist(), self.offsets[clusters + 1].tolist(), strict=True)
        return torch.cat([torch.arange(begin, end) for begin, end in spans])

    def fingerprint(self) -> Fingerprint:
        return {**super().fingerprint(), "clusters": rows_digest(self.offsets)}


class WalkSampler(SubgraphSampler):
    """Sample all edges among the nodes of random walks along out-edges, one from each seed."""

    def __init__(self, data: Any, walk_length: int) -> None:
        super().__init__(data)
        self.walks = walk_stage(self.graph.reversed(), walk_length)

    def nodes_of(self, seeds: Tensor, key: RngKey) -> Tensor:
        nodes: Tensor = torch.unique(drawn_walks(self.walks, seeds, key)[0]).long()
        return nodes[nodes >= 0]

    def fingerprint(self) -> Fingerprint:
        return {**super().fingerprint(), "walk_length": self.walks.walk_length}


class ShadowSampler(NeighborSampler):
    """Sample a subgraph for each seed. The third entry of `metadata` has the position of each seed in the nodes."""

    def __init__(self, data: Any, num_neighbors: list[int], replace: bool) -> None:
        super().__init__(data, num_neighbors, "induced", replace, disjoint=True)

    def sample_from_nodes(self, inputs: Any, *, rng: RngKey | None = None) -> Any:
        out = super().sample_from_nodes(inputs, rng=rng)
        order = (out.batch * self.graph.num_nodes + out.node).argsort()
        place = torch.empty_like(order)
        place[order] = torch.arange(len(order))
        edge_key = out.batch[out.row] * self.graph.num_edges + out.edge
        out.row, out.col, out.edge = _in_order(place[out.row], place[out.col], out.edge, edge_key.argsort())
        out.node, out.batch = out.node[order], out.batch[order]
        out.metadata = (*out.metadata, place[: len(inputs.node)])
        return out


def _in_order(row: Tensor, col: Tensor, ids: Tensor, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the edges in the order `order`; the ends are the rows of one tensor."""
    row, col = edge_index_of(row, col)[:, order].unbind()
    return row, col, ids[order]
