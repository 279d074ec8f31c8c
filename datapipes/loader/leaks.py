"""Leaks: whether a model is shown the links that it is to predict, told once for each loader.

A sampler finds the seeds of a link among the in-edges of its ends, unless a stage takes them out or the graph does not
have them. If they are found, nothing fails: training looks very good, and the model predicts nothing.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from torch import Tensor

from datapipes.base.types import values_of
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch, SampledSubgraph
from datapipes.sampling.sampler import Sampler
from datapipes.sampling.seed_edge_excluder import SeedEdgeExcluder
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler

MOST_PAIRS = 1024  # of the first minibatch that are looked up


class LookForLeaks:
    """Called with each minibatch of a loader; it looks at the first, if a sampler is in the chain and no exclusion."""

    def __init__(self, graph: StageGraph[Stage]) -> None:
        samplers = graph.find(Sampler)
        looks = bool(samplers) and not graph.find(SeedEdgeExcluder) and not _earlier_only(samplers[-1])
        self._name = samplers[-1].name if looks else None

    def __call__(self, minibatch: MiniBatch) -> None:
        name, self._name = self._name, None
        if name is None:
            return
        looked_at, found = leaks_of(minibatch)
        if found > 0:
            warnings.warn(
                f"data_loader: {found} of the first {looked_at} positive seeds are among the edges that {name} sampled "
                "for them, so a model is shown what it is to predict. Put exclude_seed_edges() behind the sampler, "
                "with include_reverse_edges=True if the graph has the reverses too; or sample the graph of "
                "dp.random_link_split, which does not have them. If it is meant so, filter this warning.",
                UserWarning,
                stacklevel=6,  # the loop over the loader
            )


def _earlier_only(sampler: Sampler) -> bool:
    """Return whether a sampler draws only edges earlier than the seed; those of later seeds may be other seeds."""
    return isinstance(sampler, TemporalNeighborSampler) and sampler.edge_time_attr is not None and not sampler.inclusive


def leaks_of(minibatch: MiniBatch) -> tuple[int, int]:
    """Return how many positive seeds of a minibatch were looked at, and how many are among its sampled edges."""
    seeds, hops = minibatch.seeds, minibatch.sampled_subgraphs or []
    looked_at = found = 0
    for of, pairs in (seeds if isinstance(seeds, dict) else {None: seeds}).items():
        if not isinstance(pairs, Tensor) or pairs.ndim != 2 or pairs.shape[1] < 2 or isinstance(of, str):
            continue
        labels: Any = values_of(minibatch.labels, of)
        if isinstance(labels, Tensor) and labels.shape == pairs.shape[:1] and pairs.shape[1] == 2:
            pairs = pairs.cpu()[labels.cpu() > 0]
        wanted = pairs[: MOST_PAIRS - looked_at, :2].cpu().numpy()
        looked_at += len(wanted)
        sampled: set[tuple[int, ...]] = set()
        for hop in hops:
            subgraph = hop.get(of) if isinstance(hop, dict) else hop
            if subgraph is not None:
                sampled |= _edges_near(subgraph, wanted)
        found += sum(tuple(pair) in sampled for pair in wanted.tolist())
    return looked_at, found


def _edges_near(subgraph: SampledSubgraph, pairs: Any) -> set[tuple[int, ...]]:
    """Return the edges from a source to a destination of some pairs, by original ids."""
    local = subgraph.block.edge_index
    sources = subgraph.original_row_node_ids[local[0]].cpu().numpy()
    destinations = subgraph.original_column_node_ids[local[1]].cpu().numpy()
    near = np.isin(sources, pairs[:, 0]) & np.isin(destinations, pairs[:, 1])
    return set(map(tuple, np.stack((sources[near], destinations[near]), 1).tolist()))
