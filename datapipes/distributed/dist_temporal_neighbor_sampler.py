"""DistTemporalNeighborSampler: TemporalNeighborSampler over a graph in parts, with the same bits.

A part draws by the times that are stored with its own edges. docs/semantics.md, sections 4.3 and 4.6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from datapipes.base.checks import dtype_name, shown
from datapipes.base.rng import RngKey
from datapipes.base.types import ends_of, type_text
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.distributed.digests_over_parts import digests_over_parts
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.facts import PartitionFacts, RowForm
from datapipes.distributed.hops_over_parts import HopsOverParts
from datapipes.distributed.parts_sampler import PartsSampler
from datapipes.partition.native.choices import ByTime
from datapipes.partition.native.chosen_rows import refuse_other_times
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.seed_trees import SeedTrees
from datapipes.sampling.timed_sampler import TimedSampler

__all__ = ["DistTemporalNeighborSampler"]


@register_stage("dist_temporal_sample_neighbor")
class DistTemporalNeighborSampler(TimedSampler, PartsSampler):
    """Sample the in-neighborhood of the seeds as it was at their times over a graph in parts; sets `blocks`,
    `input_nodes` and `compacted_seeds`.

    The minibatches are those of `temporal_sample_neighbor` over the whole graph, bit for bit. A saved state names it
    temporal_sample_neighbor too, so it goes on over any number of parts, and on one machine.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        fanouts: in-edges drawn per node, as for sample_neighbor; -1 keeps all that are eligible.
        concurrency: minibatches in flight at once, 1 or more. Each takes the memory of what it finds.
        node_time_attr: as for temporal_sample_neighbor; the node attribute that the Partitioner was given under the
            same name, so that the times of sources are stored with the edges of each part.
        replace, return_edge_ids, edge_time_attr, strategy, inclusive, time_window, disjoint, frontier: as for
            temporal_sample_neighbor.
    Raises:
        TypeError, ValueError: An argument is not allowed; the partition does not have the times; while running, the
            seeds have no times, or a part answered what was not asked for.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left.
        What the requests raise, see DistGraph.connect. A note names stage and minibatch, another one the part.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int = 8,
        replace: bool = False,
        return_edge_ids: bool = False,
        node_time_attr: str | None = None,
        edge_time_attr: str | None = None,
        strategy: str = "uniform",
        inclusive: bool = False,
        time_window: int | None = None,
        disjoint: bool = False,
        frontier: str = "all",
    ) -> None:
        super().__init__(source, dist_graph, fanouts, concurrency=concurrency, return_edge_ids=return_edge_ids)
        self._set_options(
            replace=replace,
            node_time_attr=node_time_attr,
            edge_time_attr=edge_time_attr,
            strategy=strategy,
            inclusive=inclusive,
            time_window=time_window,
            disjoint=disjoint,
            frontier=frontier,
        )
        self.choice = ByTime(edge_time_attr, node_time_attr, strategy, inclusive, self.time_window)
        _check_facts(self.name, dist_graph.facts, self.edge_types, self.choice)

    def _hops(self, rng: RngKey, trees: SeedTrees | None) -> HopsOverParts:
        self._refuse_no_times(trees)
        return super()._hops(rng, trees)

    def _times_digests(self) -> dict[Any, Any]:
        assert self.choice is not None
        return digests_over_parts(self.name, self.dist_graph, self.edge_types, self.choice)


def _check_facts(where: str, facts: PartitionFacts, edge_types: Sequence[Any], choice: ByTime) -> None:
    """Raise TypeError or ValueError unless the partition has the times, for some of the edge types, as int64."""
    if choice.edge_time_attr is not None:
        _check_forms(where, facts, "edge", choice.edge_time_attr, edge_types)
    if choice.node_time_attr is not None:
        sources = sorted({ends_of(of)[0] for of in edge_types}, key=lambda of: of or "")
        _check_forms(where, facts, "node", choice.node_time_attr, sources)
        refuse_other_times(where, choice.node_time_attr, facts.node_time_attr)


def _check_forms(where: str, facts: PartitionFacts, domain: str, name: str, types: Sequence[Any]) -> None:
    forms = {of: facts.features.get((domain, of, name)) for of in types}
    given: dict[Any, RowForm] = {of: form for of, form in forms.items() if form is not None}
    if not given:
        known = sorted({each for of_domain, _, each in facts.features if of_domain == domain})
        raise ValueError(
            f"{where}: {domain}_time_attr is {shown(name)}, but no {domain} type that is sampled has it; the {domain} "
            f"attributes of the partition are {shown(known)}. Name one of these, or partition the graph with it."
        )
    for of, form in given.items():
        what = f"{domain} attribute {shown(name)}{'' if of is None else f' of {type_text(of)}'}"
        if form.dtype != torch.int64:
            raise TypeError(
                f"{where}: {what} must hold times of int64, got {dtype_name(form.dtype)}. Convert it, in a unit that "
                "fits, and partition the graph again."
            )
        if form.shape != ():
            raise ValueError(
                f"{where}: {what} must have a time for each, got rows of the shape {list(form.shape)}. "
                "Give one time for each, and partition the graph again."
            )
