"""CoreCall: all hops of a minibatch in one call of the C++ core, for the samplers that draw there.

It turns what a sampler has (types, fanouts) into the numbers that the core counts with, once, when the stage is built;
and what the core returns into tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.graph.graph import Graph
from datapipes.minibatch import Block
from datapipes.sampling.sampler import Sampled
from datapipes.sampling.seed_trees import SeedTrees

__all__: list[str] = []


class CoreCall:
    """Samples the hops of a minibatch: relations, types and fanouts are fixed, the rest comes with the call."""

    def __init__(self, name: str, graph: Graph, edge_types: Sequence[Any], fanouts: Sequence[Any]) -> None:
        self._name = name  # of the stage, for errors
        self._has_types = graph.is_heterogeneous
        self._node_types = graph.node_types
        self._edge_types = edge_types
        self._number = {of: number for number, of in enumerate(graph.node_types)}
        ordinals = {of: number for number, of in enumerate(graph.edge_types)}
        self._ordinals = [ordinals[of] for of in edge_types]
        self._fanouts = [  # hop 0 first, as the core takes them
            [fanout[of] if isinstance(fanout, dict) else fanout for of in edge_types] for fanout in reversed(fanouts)
        ]

    def hop_keys(self, rng: RngKey) -> list[list[int]]:
        """Return the keys of the draws by destination: of each hop, hop 0 first, and each edge type that is sampled."""
        return [[rng.hop_key(hop, ordinal) for ordinal in self._ordinals] for hop in range(len(self._fanouts))]

    def __call__(
        self,
        graph: Graph,
        seeds: Any,
        keys: list[list[int]],
        *,
        want_edge_ids: bool,
        trees: SeedTrees | None = None,
        **options: Any,
    ) -> Sampled:
        """Return the neighborhood of `seeds`, ids [num_seeds] or {node type: ids}.

        Args:
            keys: of each hop, hop 0 first: the key of each edge type that is sampled.
            trees: the groups of the seeds, where these have nodes of their own.
            options: what else the core takes.
        """
        typed = seeds if self._has_types else {None: seeds}
        nodes, local_seeds, hops, groups = _core.sample_neighbors(
            graph.topology(),
            [(self._number[of], _int64(ids)) for of, ids in typed.items()],
            sampled=self._ordinals,
            fanouts=self._fanouts,
            keys=keys,
            want_edge_ids=want_edge_ids,
            num_threads=num_threads(),
            op=self._name,
            groups=None if trees is None else self._groups(typed, trees),
            **options,
        )
        blocks = [{of: _block(*parts) for of, parts in zip(self._edge_types, hop, strict=True)} for hop in hops]
        found = {of: torch.from_numpy(ids) for of, ids in zip(self._node_types, nodes, strict=True)}
        local = {of: torch.from_numpy(ids) for of, ids in zip(typed, local_seeds, strict=True)}
        kept = None if trees is None else {of: torch.from_numpy(each) for of, each in zip(found, groups, strict=True)}
        if self._has_types:
            return Sampled(found, local, blocks, kept)
        return Sampled(found[None], local[None], [of_hop[None] for of_hop in blocks], kept and kept[None])

    def _groups(self, seeds: dict[Any, Tensor], trees: SeedTrees) -> _core.Groups:
        of_seeds = [trees.groups[of] for of in seeds] if self._has_types else [trees.groups]
        return _core.Groups(of_seeds, count=len(trees.streams), streams=trees.streams, times=trees.times)


def _int64(ids: Tensor) -> NDArray[np.int64]:
    return ids.numpy().astype(np.int64, copy=False)


def _block(indptr: Any, indices: Any, edge_ids: Any, num_src: int) -> Block:
    ids = None if edge_ids is None else torch.from_numpy(edge_ids)
    return Block(torch.from_numpy(indptr), torch.from_numpy(indices), num_src, ids)
