"""The samplers under their `dist_` names, which require a graph in parts. Written by `make stubs`; do not edit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from datapipes.base.types import EdgeType
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.sampler_over_parts import OneHopSampler, SamplerOverParts
from datapipes.sampling.choice_sampler import CONCURRENCY
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.in_subgraph_sampler import InSubgraphSampler
from datapipes.sampling.layer_neighbor_sampler import LayerNeighborSampler
from datapipes.sampling.neighbor_sampler import NeighborSampler
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler

__all__ = [
    "DistInSubgraphSampler",
    "DistLayerNeighborSampler",
    "DistNeighborSampler",
    "DistTemporalNeighborSampler",
]


@register_stage("dist_sample_in_subgraph")
class DistInSubgraphSampler(SamplerOverParts, InSubgraphSampler):
    """InSubgraphSampler over a graph in parts: `sample_in_subgraph` with a DistGraph.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        edge_types, return_edge_ids, concurrency: as for sample_in_subgraph.
    Raises:
        As sample_in_subgraph does; while running, what the requests raise, see DistGraph.connect. A note names stage
        and minibatch, another one the part.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        *,
        concurrency: int = CONCURRENCY,
        edge_types: Iterable[EdgeType | str] | None = None,
        return_edge_ids: bool = False,
    ) -> None:
        super().__init__(
            source,
            self._in_parts(dist_graph),
            concurrency=concurrency,
            edge_types=edge_types,
            return_edge_ids=return_edge_ids,
        )


@register_stage("dist_sample_layer_neighbor")
class DistLayerNeighborSampler(SamplerOverParts, LayerNeighborSampler):
    """LayerNeighborSampler over a graph in parts: `sample_layer_neighbor` with a DistGraph.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        fanouts, layer_dependency, batch_dependency, return_edge_ids, frontier, subgraph_type, reverse_etypes_mapping,
            concurrency: as for sample_layer_neighbor.
    Raises:
        As sample_layer_neighbor does; while running, what the requests raise, see DistGraph.connect. A note names stage
        and minibatch, another one the part.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int = CONCURRENCY,
        layer_dependency: bool = False,
        batch_dependency: int = 1,
        return_edge_ids: bool = False,
        frontier: str = "all",
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
    ) -> None:
        super().__init__(
            source,
            self._in_parts(dist_graph),
            fanouts,
            concurrency=concurrency,
            layer_dependency=layer_dependency,
            batch_dependency=batch_dependency,
            return_edge_ids=return_edge_ids,
            frontier=frontier,
            subgraph_type=subgraph_type,
            reverse_etypes_mapping=reverse_etypes_mapping,
        )


@register_stage("dist_sample_neighbor")
class DistNeighborSampler(OneHopSampler, NeighborSampler):
    """NeighborSampler over a graph in parts: `sample_neighbor` with a DistGraph.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        fanouts, replace, prob_name, return_edge_ids, frontier, disjoint, subgraph_type, reverse_etypes_mapping,
            concurrency: as for sample_neighbor.
    Raises:
        As sample_neighbor does; while running, what the requests raise, see DistGraph.connect. A note names stage and
        minibatch, another one the part.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int = CONCURRENCY,
        replace: bool = False,
        prob_name: str | None = None,
        return_edge_ids: bool = False,
        frontier: str = "all",
        disjoint: bool = False,
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
    ) -> None:
        super().__init__(
            source,
            self._in_parts(dist_graph),
            fanouts,
            concurrency=concurrency,
            replace=replace,
            prob_name=prob_name,
            return_edge_ids=return_edge_ids,
            frontier=frontier,
            disjoint=disjoint,
            subgraph_type=subgraph_type,
            reverse_etypes_mapping=reverse_etypes_mapping,
        )


@register_stage("dist_temporal_sample_neighbor")
class DistTemporalNeighborSampler(SamplerOverParts, TemporalNeighborSampler):
    """TemporalNeighborSampler over a graph in parts: `temporal_sample_neighbor` with a DistGraph.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        fanouts, replace, return_edge_ids, node_time_attr, edge_time_attr, strategy, inclusive, time_window, disjoint,
            frontier, subgraph_type, reverse_etypes_mapping, concurrency: as for temporal_sample_neighbor.
    Raises:
        As temporal_sample_neighbor does; while running, what the requests raise, see DistGraph.connect. A note names
        stage and minibatch, another one the part.
    """

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int = CONCURRENCY,
        replace: bool = False,
        return_edge_ids: bool = False,
        node_time_attr: str | None = None,
        edge_time_attr: str | None = None,
        strategy: str = "uniform",
        inclusive: bool = False,
        time_window: int | None = None,
        disjoint: bool = False,
        frontier: str = "all",
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
    ) -> None:
        super().__init__(
            source,
            self._in_parts(dist_graph),
            fanouts,
            concurrency=concurrency,
            replace=replace,
            return_edge_ids=return_edge_ids,
            node_time_attr=node_time_attr,
            edge_time_attr=edge_time_attr,
            strategy=strategy,
            inclusive=inclusive,
            time_window=time_window,
            disjoint=disjoint,
            frontier=frontier,
            subgraph_type=subgraph_type,
            reverse_etypes_mapping=reverse_etypes_mapping,
        )
