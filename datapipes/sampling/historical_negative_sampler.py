"""HistoricalNegativeSampler: the negatives of a link are destinations that its source had edges to before;
docs/semantics.md, section 4.16, fixes the draws.

One temporal hop gives all earlier edges of the sources. Their distinct destinations are a small graph, from which the
negatives are drawn; UniformNegativeSampler draws the rest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INT32_MAX, shown
from datapipes.base.rng import RngKey
from datapipes.base.types import ends_of
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.choice import by_text
from datapipes.graph.graph import Graph
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.sampling.asking import Asking
from datapipes.sampling.sampler import items_before
from datapipes.sampling.seed_ids import check_times
from datapipes.sampling.temporal_neighbor_sampler import ByTime
from datapipes.sampling.uniform_negative_sampler import Drawing, UniformNegativeSampler

__all__ = ["HistoricalNegativeSampler"]


@register_stage("sample_historical_negative")
class HistoricalNegativeSampler(UniformNegativeSampler):
    """Add negatives to the links of a minibatch: each keeps the source of its positive and takes a destination that the
    source had an edge to before the time of the positive (`timestamps`), other than the positive's. These are harder
    than uniform ones: the pair was linked once.

    Distinct destinations are equally likely, however many edges lead there, and none is taken twice. If a source has
    fewer than `negative_ratio`, the rest are drawn from all nodes, as `sample_uniform_negative` draws them.

    Args:
        reversed_graph: the graph with each edge turned round, `graph.reversed()`: the earlier edges of a source are its
            in-edges there. An undirected graph is its own. It is an argument, since it takes as much memory as the
            graph, and other stages may share it; a DistGraph is a partition of the reversed graph. With types, edges of
            the seeds' type (src, rel, dst) have the type (dst, rel, src) in it.
        negative_ratio: a whole number of negatives for each positive.
        edge_time_attr: the edge attribute of `reversed_graph` with the times, int64.
        form: as for NegativeSampler. The historical negatives of a positive come before the others.
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, the seeds are no pairs, have no times, or have
            labels in the form "pairs".
        IndexError: While running, a source is not a node of the graph.
        MemoryError: While running, the earlier edges need more memory than is left.
        Over a DistGraph, also errors of requests to the servers (listed at DistGraph.connect).
    Cost: all earlier edges of all sources are read, about 30 ns each.
    Source: historical negatives (Poursafaei et al., Towards Better Evaluation for Dynamic Link Prediction, NeurIPS
    2022), by distinct destinations as in TGB.
    """

    def __init__(
        self, source: Stage, reversed_graph: Graph, negative_ratio: float, *, edge_time_attr: str, form: str = "pairs"
    ) -> None:
        if not isinstance(edge_time_attr, str):
            raise TypeError(
                f"{self.name}: edge_time_attr must be the name of an edge attribute, got {shown(edge_time_attr)}. Pass "
                "a str."
            )
        self.edge_time_attr = edge_time_attr
        super().__init__(source, reversed_graph, negative_ratio, form=form)
        if not isinstance(self.negative_ratio, int):
            raise ValueError(
                f"{self.name}: negative_ratio must be a whole number, got {shown(negative_ratio)}. Pass 1 or more."
            )
        items, choice = items_before(source), ByTime(edge_time_attr, None)
        if items is not None:
            kinds = [_turned(edge_type) for edge_type in getattr(items, "item_sets", [None])]
        else:  # those that may be met
            forms, types = reversed_graph.forms(), reversed_graph.edge_types
            kinds = [kind for kind in types if ("edge", kind, edge_time_attr) in forms] or [*types]
        self.plans = {
            kind: HopPlan(self.name, reversed_graph, (kind,), [[-1]], choice, False, False, False) for kind in kinds
        }

    @property
    def _asks(self) -> bool:
        return True

    def _steps(self, pairs: Tensor, rng: RngKey, edge_type: Any, times: Tensor | None) -> Asking[Tensor]:
        edge_type = self._checked_type(edge_type)
        if times is None:
            raise self._no_times()
        ratio, num_nodes = int(self.negative_ratio), self.graph.num_nodes_of(ends_of(edge_type)[1])
        ordinal = self.graph.edge_types.index(_turned(edge_type))
        at = np.ascontiguousarray(check_times(self.name, "timestamps", times, pairs)[::ratio])
        indptr, history = yield from self._history(edge_type, pairs[::ratio], at, rng)
        indptr, drawn, _ = _core.sample_hop(
            indptr,
            history,
            np.arange(len(at)),
            fanout=ratio,
            replace=False,
            key=rng.hop_key(1, ordinal),
            num_sources=num_nodes,
            want_places=False,
        )
        negatives = (pairs.long() if num_nodes > INT32_MAX else pairs).clone()
        is_left = (torch.arange(ratio) >= torch.from_numpy(np.diff(indptr))[:, None]).flatten()
        negatives[~is_left, 1] = torch.from_numpy(drawn).to(negatives.dtype)
        drawing = Drawing(edge_type, rng.hop_key(0, ordinal), self._ends(edge_type), None)
        yield from self._round(drawing, negatives, negatives, is_left.nonzero().flatten(), 0, 1)
        return negatives

    def _history(self, edge_type: Any, positives: Tensor, at: Any, rng: RngKey) -> Asking[Any]:
        """A generator that asks the graph for the earlier edges of the sources of `positives`, and at the end returns
        (indptr, nodes) of their distinct destinations, without the positive's own.

        Args:
            positives: ids [n, 2]. `at` are their times, int64 [n].
        """
        (src, dst), back, is_typed = ends_of(edge_type), _turned(edge_type), edge_type is not None
        if back not in self.plans:
            raise ValueError(
                f"{self.name}: found seeds of the type {shown(edge_type)}, but edges of the type {shown(back)} have no "
                f"attribute {self.edge_time_attr!r}. Add it, or leave such seeds out."
            )
        plan, groups, sources = self.plans[back], np.arange(len(at)), positives[:, 0].contiguous()
        seeds, groups_of = ({src: sources}, {src: groups}) if is_typed else (sources, groups)
        trees = SeedTrees(groups_of, np.zeros(len(at), np.uint32), at, None)
        sampled: Sampled = yield "hops", (plan, seeds, *plan.keyed(rng), trees)
        nodes, trees_of_nodes = (each[dst] if is_typed else each for each in (sampled.nodes, sampled.groups))
        block = sampled.hops[0][back] if is_typed else sampled.hops[0]
        is_found = torch.zeros(len(nodes), dtype=torch.bool)
        is_found[block.indices.long()] = True  # a node has one local id in each tree
        rows, ids = trees_of_nodes[is_found], nodes[is_found]
        is_other = ids != positives[:, 1][rows]
        rows, ids = rows[is_other].numpy(), ids[is_other].numpy()
        order = np.argsort(rows, kind="stable")  # linear: only sources that are their own destinations are out of order
        return np.concatenate(([0], np.bincount(rows, minlength=len(at)).cumsum())), ids[order]

    def _checked_type(self, edge_type: Any) -> Any:
        types = self.graph.edge_types
        if self.graph.is_heterogeneous and isinstance(edge_type, tuple) and _turned(edge_type) not in types:
            raise ValueError(
                f"{self.name}: found seeds of the type {shown(edge_type)}, but the graph has no edges of the type "
                f"{shown(_turned(edge_type))}; it has {shown([*types])}. Pass graph.reversed()."
            )
        return _turned(super()._checked_type(_turned(edge_type)))

    def _has_times(self, edge_type: Any) -> bool:
        return True

    def _no_times(self) -> ValueError:
        return ValueError(
            f"{self.name}: found seeds without timestamps, before which the edges of their sources must be. Name one "
            "item 'timestamps' in the ItemSet."
        )

    def fingerprint(self) -> Fingerprint:
        digests = {kind: self.graph._choice_digests(plan)[kind] for kind, plan in self.plans.items()}
        return {**super().fingerprint(), "graph_digest": self.graph.digest(), "times_digest": by_text(digests)}

    @property
    def _hashed_inputs(self) -> Any:
        return () if self.graph._in_parts else (self.graph,)

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "edge_time_attr": self.edge_time_attr}


def _turned(edge_type: Any) -> Any:
    """Return the edge type in the reversed graph; None without types."""
    return edge_type if edge_type is None else edge_type[::-1]
