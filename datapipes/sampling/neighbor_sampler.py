"""NeighborSampler: draws a number of in-edges for each node, hop by hop, and compacts the ids.

What is drawn is fixed by docs/semantics.md, sections 3 and 4; one call of the C++ core makes all hops of a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_bool, check_choice
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph import CSCGraph
from datapipes.minibatch import Block
from datapipes.sampling.sampler import Sampled, Sampler

__all__ = ["NeighborSampler"]


@register_stage("sample_neighbor")
class NeighborSampler(Sampler):
    """Sample the in-neighborhood of the seeds; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the graph to sample from.
        fanouts: in-edges drawn per node, one entry a hop, from the input layer to the seeds: the last entry is the
            hop next to the seeds. -1 keeps all in-edges, 0 none.
        replace: draw with replacement; -1 still keeps each in-edge once.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" draws in every hop for all nodes found so far (as GraphBolt and DGL do), "new" only for the
            nodes that the hop before found (as PyG does). "new" is meant for `minibatch.to_pyg()`: in an outer block
            older nodes have no in-edges then.
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
    Source: neighbor sampling as in GraphSAGE (Hamilton et al., 2017).
    """

    def __init__(
        self,
        source: Stage,
        graph: CSCGraph,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        return_edge_ids: bool = False,
        frontier: str = "all",
    ) -> None:
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self.replace = check_bool(self.name, "replace", replace)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))

    def sample(self, seeds: Tensor, rng: RngKey) -> Sampled:
        """Return the neighborhood of `seeds`: all hops in one call of the C++ core."""
        indptr, indices, edge_ids = self.graph.arrays()
        nodes, local_seeds, hops = _core.sample_neighbors(
            indptr,
            indices,
            edge_ids,
            seeds.numpy().astype(np.int64, copy=False),
            fanouts=self.fanouts[::-1],
            keys=[rng.hop_key(hop) for hop in range(len(self.fanouts))],
            replace=self.replace,
            only_new=self.frontier == "new",
            want_edge_ids=self.return_edge_ids,
            num_threads=num_threads(),
        )
        blocks = [
            Block(
                torch.from_numpy(hop_indptr),
                torch.from_numpy(hop_indices),
                num_src,
                None if hop_edge_ids is None else torch.from_numpy(hop_edge_ids),
            )
            for hop_indptr, hop_indices, hop_edge_ids, num_src in hops
        ]
        return Sampled(torch.from_numpy(nodes), torch.from_numpy(local_seeds), blocks)

    def fingerprint(self) -> Fingerprint:
        return {**super().fingerprint(), "replace": self.replace, "frontier": self.frontier}

    def describe(self) -> dict[str, Any]:
        replace = {"replace": True} if self.replace else {}
        return {**super().describe(), **replace, "frontier": self.frontier}
