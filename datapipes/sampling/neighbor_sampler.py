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
from datapipes.base.checks import INDEX_DTYPES, check_bool, check_choice, check_int, dtype_name
from datapipes.base.threads import num_threads
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph import CSCGraph
from datapipes.minibatch import Block, MiniBatch

MAX_HOPS = 256


@register_stage("sample_neighbor")
class NeighborSampler(MiniBatchTransformer):
    """Sample the in-neighborhood of the seeds; sets `blocks`, `input_nodes` and `compacted_seeds`.

    Args:
        graph: the graph to sample from.
        fanouts: in-edges drawn per node, one entry a hop, from the input layer to the seeds: the last entry is the
            hop next to the seeds.
            -1 keeps all in-edges, 0 none.
        replace: draw with replacement; -1 still keeps each in-edge once.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" draws in every hop for all nodes found so far (as GraphBolt and DGL do), "new" only for the
            nodes that the hop before found (as PyG does).
    Raises:
        TypeError, ValueError: An argument is not allowed.
        IndexError: While running, a seed is not a node of the graph.
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
        super().__init__(source)
        if not isinstance(graph, CSCGraph):
            raise TypeError(
                f"sample_neighbor: graph must be a CSCGraph, got {type(graph).__name__}. Convert it, see "
                "CSCGraph.from_*."
            )
        self.graph = graph
        self.fanouts = check_fanouts("sample_neighbor", fanouts)
        self.replace = check_bool("sample_neighbor", "replace", replace)
        self.return_edge_ids = check_bool("sample_neighbor", "return_edge_ids", return_edge_ids)
        self.frontier = check_choice("sample_neighbor", "frontier", frontier, ("all", "new"))

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        seeds = check_seeds("sample_neighbor", minibatch.seeds)
        rng = self.rng_of(minibatch)
        indptr, indices, edge_ids = self.graph.arrays()
        num_hops = len(self.fanouts)
        nodes, local_seeds, hops = _core.sample_neighbors(
            indptr,
            indices,
            edge_ids,
            seeds.numpy().reshape(-1).astype(np.int64, copy=False),
            fanouts=list(reversed(self.fanouts)),
            keys=[rng.hop_key(hop) for hop in range(num_hops)],
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
            for hop_indptr, hop_indices, hop_edge_ids, num_src in reversed(hops)
        ]
        return minibatch.replace(
            input_nodes=torch.from_numpy(nodes),
            compacted_seeds=torch.from_numpy(local_seeds.reshape(seeds.shape)),
            blocks=blocks,
        )

    def fingerprint(self) -> Fingerprint:
        return {
            "fanouts": self.fanouts,
            "replace": self.replace,
            "return_edge_ids": self.return_edge_ids,
            "frontier": self.frontier,
            "num_nodes": self.graph.num_nodes,
            "num_edges": self.graph.num_edges,
            "graph_digest": self.graph.digest(),
        }

    def describe(self) -> dict[str, Any]:
        shown: dict[str, Any] = {"fanouts": self.fanouts, "graph": self.graph}
        if self.replace:
            shown["replace"] = True
        if self.return_edge_ids:
            shown["return_edge_ids"] = True
        return {**shown, "frontier": self.frontier}


def check_fanouts(where: str, fanouts: Any) -> list[int]:
    """Return `fanouts` as a list of at least one int, each -1 or more."""
    if isinstance(fanouts, Tensor):
        fanouts = fanouts.tolist()
    if isinstance(fanouts, (str, bytes)) or not isinstance(fanouts, Sequence):
        raise TypeError(
            f"{where}: fanouts must be a sequence of ints, one for each hop, got {fanouts!r}. Pass a list such as "
            "[10, 5]."
        )
    if not 1 <= len(fanouts) <= MAX_HOPS:
        raise ValueError(
            f"{where}: fanouts has {len(fanouts)} entries, allowed are 1 to {MAX_HOPS}, one for each hop. Add or drop "
            "some."
        )
    return [check_int(where, f"fanouts[{i}]", fanout, -1) for i, fanout in enumerate(fanouts)]


def check_seeds(where: str, seeds: Any) -> Tensor:
    """Return the seeds of a minibatch: int32 or int64, [n] or [n, k], contiguous, in host memory, not empty."""
    if not isinstance(seeds, Tensor):
        raise TypeError(
            f"{where}: seeds must be a tensor, got {type(seeds).__name__}. Name one item 'seeds' in the ItemSet."
        )
    if seeds.dtype not in INDEX_DTYPES:
        raise TypeError(
            f"{where}: seeds must be int32 or int64, got {dtype_name(seeds.dtype)}. Convert them with .long()."
        )
    if seeds.ndim not in (1, 2):
        raise ValueError(f"{where}: seeds must have shape [n] or [n, k], got {list(seeds.shape)}. Reshape them.")
    if seeds.device.type != "cpu":
        raise ValueError(
            f"{where}: seeds must be in host memory, found them on {seeds.device}. Put copy_to after this stage."
        )
    if not seeds.is_contiguous():
        raise ValueError(f"{where}: seeds are not contiguous (stride {seeds.stride()}). Call .contiguous() on them.")
    if seeds.numel() == 0:
        raise ValueError(
            f"{where}: found no seeds (shape {list(seeds.shape)}); at least 1 is needed. Return None from a transform "
            "to drop a minibatch."
        )
    return seeds
