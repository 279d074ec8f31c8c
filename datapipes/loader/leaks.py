"""Leaks: whether a model is shown the links that it is to predict, told once for each loader.

A sampler finds the seeds of a link among the in-edges of its ends, unless a stage takes them out or the graph does not
have them. Nothing fails then: training looks very good, and predicts nothing.
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from datapipes.base.types import values_of
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.loader.options import LoaderOptions
from datapipes.minibatch import MiniBatch
from datapipes.processes.start import context_of
from datapipes.sampling.sampler import Sampler
from datapipes.sampling.seed_edge_excluder import SeedEdgeExcluder
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler

MOST_PAIRS = 1024  # of the first minibatch that are looked up


class LookForLeaks:
    """Called with each minibatch of a loader; it looks at the first."""

    def __init__(self, graph: StageGraph[Stage], options: LoaderOptions) -> None:
        self._sampler = _sampler_to_look_at(graph, options)

    def __call__(self, minibatch: MiniBatch) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            _warn(sampler, minibatch)


def _sampler_to_look_at(graph: StageGraph[Stage], options: LoaderOptions) -> Sampler | None:
    """Return the last sampler of a chain if the edges of its graph may be seeds that nobody takes out, else None.

    A temporal sampler that draws only edges earlier than the seed does not find the seed. Where workers are forked, the
    graph in parts of the caller's process must stay without connections.
    """
    samplers = graph.find(Sampler)
    if not samplers or graph.find(SeedEdgeExcluder):
        return None
    sampler = samplers[-1]
    if isinstance(sampler, TemporalNeighborSampler) and sampler.edge_time_attr is not None and not sampler.inclusive:
        return None
    forks = options.num_workers > 0 and options.worker_method == "process"
    if sampler.graph.in_parts and forks and context_of(options.multiprocessing_context).get_start_method() == "fork":
        return None
    return sampler


def _warn(sampler: Sampler, minibatch: MiniBatch) -> None:
    """Warn if seeds of a minibatch are edges of the graph of its sampler.

    Raises:
        What `Graph.has_edges` raises.
    """
    seeds = minibatch.seeds
    looked_at = found = 0
    for of, pairs in (seeds if isinstance(seeds, dict) else {None: seeds}).items():
        if isinstance(of, str) or not isinstance(pairs, Tensor) or pairs.ndim != 2 or pairs.shape[1] < 2:
            return
        some = _positives(pairs, values_of(minibatch.labels, of))[: MOST_PAIRS - looked_at]
        looked_at += len(some)
        if len(some) > 0:
            found += int((sampler.graph.has_edges(some, of).counts > 0).sum())
    if found > 0:
        warnings.warn(
            f"data_loader: {found} of the first {looked_at} positive seeds are edges of the graph that "
            f"{sampler.name} samples, so a model is shown the edges that it is to predict. Put exclude_seed_edges() "
            "behind the sampler, with include_reverse_edges=True if the graph has the reverses too; or sample the "
            "graph of dp.random_link_split, which does not have them. If it is meant so, filter this warning.",
            UserWarning,
            stacklevel=2,
        )


def _positives(pairs: Tensor, labels: Any) -> Tensor:
    """Return source and destination of the positives, in host memory."""
    if isinstance(labels, Tensor) and labels.shape == pairs.shape[:1] and pairs.shape[1] == 2:
        pairs = pairs[labels > 0]
    return pairs[:MOST_PAIRS, :2].to(torch.device("cpu"))
