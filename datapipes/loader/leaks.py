"""Leaks: warn, once for each loader, if a model is shown the links that it is to predict.

A sampler finds a seed link and its reverse among the in-edges of the link's ends, unless a stage takes both out or the
graph does not have them. Nothing fails then: training looks very good, and the model predicts nothing. So the first
minibatch is checked as the consumer gets it, after all exclusion.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.log import users_frame
from datapipes.base.types import of_type, values_of
from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.graph.graph import Graph
from datapipes.minibatch import MiniBatch, SampledSubgraph
from datapipes.sampling.sampler import Sampler
from datapipes.sampling.seed_edge_excluder import SeedEdgeExcluder
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler

MOST_PAIRS = 1024  # pairs of the first minibatch that are looked up

Rows = NDArray[np.int64]  # [n, k]: source, destination, and the time if edges have times


class Leaks(NamedTuple):
    """Whether positive seeds are among the sampled edges.

    Attributes:
        looked_at: how many positive seeds were looked up.
        found: how many of these seeds are sampled edges.
        reversed: how many seeds of one edge type have their reverse among the sampled edges. 0 unless this is the
            finding; `found` is then 0.
        types: (edge type of the seeds with a reverse, edge type of the reverses); (None, None) if `reversed` is 0.
    """

    looked_at: int
    found: int
    reversed: int = 0
    types: tuple[Any, Any] = (None, None)


class LookForLeaks:
    """Warn if the first minibatch of a loader has seed links, or their reverses, among its sampled edges: the model is
    then shown what it must predict (a leak).

    It is called with the first minibatch of each epoch, and checks only the very first. It checks nothing if no sampler
    is in the chain, or if the sampler draws only edges earlier than the seed.
    """

    def __init__(self, graph: StageGraph[Stage]) -> None:
        samplers = graph.find(Sampler)
        self._sampler = samplers[-1] if samplers and not _earlier_only(samplers[-1]) else None
        excluders = graph.find(SeedEdgeExcluder)
        mappings = [excluder.reverse_etypes_mapping or {} for excluder in excluders]
        self._mapping = {edge_type: back for mapping in mappings for edge_type, back in mapping.items()}
        self._keeps_parallel = any(excluder.by == "edge_id" for excluder in excluders)

    def __call__(self, minibatch: MiniBatch) -> None:
        sampler, self._sampler = self._sampler, None
        if sampler is None:
            return
        leaks = self._leaks_of(minibatch, sampler.graph)
        edges, text = f"edges that {sampler.name} sampled for them", ""
        if leaks.found > 0:
            text = (
                f"data_loader: {leaks.found} of the first {leaks.looked_at} positive seeds are among the {edges}, so a "
                "model is shown what it is to predict. Put exclude_seed_edges() behind the sampler, with "
                "include_reverse_edges=True if the graph has the reverses too; or sample the graph of "
                "dp.random_link_split, which does not have them. If it is meant so, filter this warning."
            )
        elif leaks.reversed > 0:
            edge_type, back = leaks.types
            arguments, none = "include_reverse_edges=True", ""
            if edge_type is not None:
                arguments = f"True, {{{edge_type}: {back}}}"
                none = f"; if they tell nothing, say {{{edge_type}: None}} there"
            text = (
                f"data_loader: {leaks.reversed} of the first {leaks.looked_at} positive seeds have their reverse"
                f"{of_type(back)} among the {edges}, so a model is shown what it is to predict. Put "
                f"exclude_seed_edges({arguments}) behind the sampler{none}; or sample the graph of "
                "dp.random_link_split, which takes out both directions (name types of reverses in its "
                "reverse_etypes_mapping). If it is meant so, filter this warning."
            )
        if text:
            warnings.warn(text, UserWarning, stacklevel=users_frame()[0])  # the loop over the loader

    def _leaks_of(self, minibatch: MiniBatch, graph: Graph) -> Leaks:
        seeds, hops = minibatch.seeds, minibatch.sampled_subgraphs or []
        pairs_of: dict[Any, Rows] = {}
        for edge_type, pairs in (seeds if isinstance(seeds, dict) else {None: seeds}).items():
            if not isinstance(pairs, Tensor) or pairs.ndim != 2 or pairs.shape[1] < 2 or isinstance(edge_type, str):
                continue
            labels: Any = values_of(minibatch.labels, edge_type)
            if minibatch.bucket is not None:
                is_real = values_of(minibatch.masks.seeds, edge_type)
                pairs, labels = pairs[is_real], labels[is_real] if isinstance(labels, Tensor) else labels
            if isinstance(labels, Tensor) and labels.shape == pairs.shape[:1] and pairs.shape[1] == 2:
                pairs = pairs.cpu()[labels.cpu() > 0]
            pairs_of[edge_type] = pairs[:MOST_PAIRS, :2].cpu().long().numpy()

        def edges_of(edge_type: Any) -> Iterable[Rows]:
            for hop in hops:
                subgraph = hop.get(edge_type) if isinstance(hop, dict) else hop
                if subgraph is not None:
                    yield _ends(subgraph)

        types = {edge_type for hop in hops for edge_type in (hop if isinstance(hop, dict) else [None])}
        return look(pairs_of, edges_of, types, graph, self._mapping, keeps_parallel=self._keeps_parallel)


def look(
    pairs_of: Mapping[Any, Rows],
    edges_of: Callable[[Any], Iterable[Rows]],
    types: Collection[Any],
    graph: Graph | None,
    mapping: Mapping[Any, Any],
    *,
    keeps_parallel: bool = False,
) -> Leaks:
    """Look for the positive seeds, at most MOST_PAIRS, and for their reverses among the sampled edges; return the
    counts.

    A graph may have the reverse of some edges by chance. So reverses are reported only if most of the seeds have a
    reverse in the graph. If the graph cannot be asked, the sampled edges are counted instead.

    Args:
        pairs_of: {edge type: positive seeds}, by the ids of the graph; the type is None without types.
        edges_of: function (edge type) -> the sampled edges of that type.
        types: the sampled edge types.
        graph: the sampled graph. None and a graph in parts cannot be asked for edges.
        mapping: {edge type: type of its reverses}; the value None means that the type has no reverses. For an edge type
            that is not in `mapping`, all types that connect the same node types the other way round are tried.
        keeps_parallel: whether the seeds were taken out by edge id. Edges parallel to a seed are then meant to stay,
            and only reverses are counted.
    """
    looked_at = left = 0
    seeds: dict[Any, Rows] = {}
    for edge_type, pairs in pairs_of.items():
        seeds[edge_type] = pairs[: MOST_PAIRS - looked_at]
        looked_at += len(seeds[edge_type])
        left += 0 if keeps_parallel else _num_left(seeds[edge_type], edges_of(edge_type))
    for edge_type, pairs in seeds.items():
        turned = pairs[:, [1, 0, *range(2, pairs.shape[1])]]
        for back in [mapping[edge_type]] if edge_type in mapping else sorted(types, key=lambda name: name or ()):
            if back not in types or (edge_type is not None and (back[0], back[2]) != (edge_type[2], edge_type[0])):
                continue
            reverses = _num_left(turned, edges_of(back))
            if reverses > 2 * left and 2 * _num_reverses(turned, graph, back, reverses) > len(turned):
                return Leaks(looked_at, 0, reverses, (edge_type, back))
    return Leaks(looked_at, left)


def _num_reverses(turned: Rows, graph: Graph | None, back: Any, sampled: int) -> int:
    """Return how many of the pairs `turned`, which are seeds with their ends swapped, are edges of the graph.

    Args:
        back: the edge type of the reverses.
        sampled: the result if the graph cannot be asked.
    """
    if graph is None or graph._in_parts:
        return sampled
    return int((graph.has_edges(torch.from_numpy(turned[:, :2].copy()), back).counts > 0).sum())


def _num_left(pairs: Rows, sampled: Iterable[Rows]) -> int:
    """Return how many of `pairs` are among the edges `sampled`."""
    near: set[tuple[int, ...]] = set()
    for edges in sampled:
        wanted = np.isin(edges[:, 0], pairs[:, 0]) & np.isin(edges[:, 1], pairs[:, 1])
        near |= set(map(tuple, edges[wanted].tolist()))
    return sum(tuple(pair) in near for pair in pairs.tolist())


def _earlier_only(sampler: Sampler) -> bool:
    """Return whether a sampler draws only edges that are earlier than the seed. Such an edge may itself be an earlier
    seed, which is no leak.
    """
    return isinstance(sampler, TemporalNeighborSampler) and sampler.edge_time_attr is not None and not sampler.inclusive


def _ends(subgraph: SampledSubgraph) -> Rows:
    """Return the sampled edges, int64 [n, 2]: the original ids of source and destination."""
    local = subgraph.block.edge_index
    ends = (subgraph.original_row_node_ids[local[0]], subgraph.original_column_node_ids[local[1]])
    rows: Rows = torch.stack([ids.long() for ids in ends], 1).cpu().numpy()
    return rows
