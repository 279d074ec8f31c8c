"""NeighborSampler: draws a number of in-edges for each node, hop by hop, and compacts the ids.

What is drawn is fixed by docs/semantics.md, sections 3 and 4; one call of the C++ core makes all hops and edge types of
a minibatch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_bool, check_choice
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.graph import Graph
from datapipes.minibatch import Block
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled, Sampler

__all__ = ["NeighborSampler"]


@register_stage("sample_neighbor")
class NeighborSampler(Sampler):
    """Sample the in-neighborhood of the seeds; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the CSCGraph or HeteroCSCGraph to sample from. The seeds of the latter have types (HeteroItemSet).
        fanouts: in-edges drawn per node, one entry a hop, from the input layer to the seeds: the last entry is the
            hop next to the seeds. -1 keeps all in-edges, 0 none. On a graph with types an int counts for each edge
            type; a dict {(src, rel, dst): int} gives each its own, 0 to those it does not name.
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
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        replace: bool = False,
        return_edge_ids: bool = False,
        frontier: str = "all",
    ) -> None:
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self.replace = check_bool(self.name, "replace", replace)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))
        # As the core takes them: types and relations by number, hop 0 first.
        self._number = {of: number for number, of in enumerate(graph.node_types)}
        ordinals = {of: number for number, of in enumerate(graph.edge_types)}
        self._sampled = [ordinals[of] for of in self.edge_types]
        self._fanouts = [
            [fanout[of] if isinstance(fanout, dict) else fanout for of in self.edge_types]
            for fanout in reversed(self.fanouts)
        ]

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        """Return the neighborhood of `seeds`: all hops and edge types in one call of the C++ core."""
        if self._has_types:
            given = [(self._number[of], _int64(ids)) for of, ids in seeds.items()]
        else:
            given = [(0, _int64(seeds))]
        nodes, local_seeds, hops, _ = _core.sample_neighbors(
            self.graph.topology(),
            given,
            sampled=self._sampled,
            fanouts=self._fanouts,
            keys=[[rng.hop_key(hop, etype) for etype in self._sampled] for hop in range(len(self._fanouts))],
            replace=self.replace,
            only_new=self.frontier == "new",
            want_edge_ids=self.return_edge_ids,
            num_threads=num_threads(),
            op=self.name,
        )
        if not self._has_types:
            blocks: list[Any] = [_block(*hop[0]) for hop in hops]
            return Sampled(torch.from_numpy(nodes[0]), torch.from_numpy(local_seeds[0]), blocks)
        blocks = [{of: _block(*parts) for of, parts in zip(self.edge_types, hop, strict=True)} for hop in hops]
        found = {of: torch.from_numpy(ids) for of, ids in zip(self.node_types, nodes, strict=True)}
        local = {of: torch.from_numpy(ids) for of, ids in zip(seeds, local_seeds, strict=True)}
        return Sampled(found, local, blocks)

    def fingerprint(self) -> Fingerprint:
        return {**super().fingerprint(), "replace": self.replace, "frontier": self.frontier}

    def describe(self) -> dict[str, Any]:
        replace = {"replace": True} if self.replace else {}
        return {**super().describe(), **replace, "frontier": self.frontier}


def _int64(ids: Tensor) -> NDArray[np.int64]:
    return ids.numpy().astype(np.int64, copy=False)


def _block(indptr: Any, indices: Any, edge_ids: Any, num_src: int) -> Block:
    ids = None if edge_ids is None else torch.from_numpy(edge_ids)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src, ids)
