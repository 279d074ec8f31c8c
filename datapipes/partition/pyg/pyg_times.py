"""Which attributes hold times in PyG's layout, and the order of in-edges by them.

PyG takes an edge attribute "edge_time" or "time" as times of edges, and a node attribute "time" as times of nodes, in
this order. A name that the user gives comes before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, NodeType
from datapipes.partition.pyg.pyg_names import EDGE_TIME, TIME
from datapipes.partition.source import Source


@dataclass(frozen=True)
class Times:
    """The attributes that hold times.

    Attributes:
        of_nodes: {node type: name}; types whose nodes have times.
        of_edges: {edge type: name}; types whose in-edges are ordered by times of their own.
        by_source: whether in-edges are ordered by the times of their sources.
    """

    of_nodes: Mapping[NodeType | None, str]
    of_edges: Mapping[EdgeType | None, str]
    by_source: bool


def times_of(source: Source, node_time_attr: str | None) -> Times:
    """Return which attributes hold times.

    Raises:
        ValueError: No node has `node_time_attr`, its values are no times, or another attribute has the name that PyG
            gives to times.
    """
    graph, wanted = source.graph, node_time_attr or TIME
    nodes: dict[NodeType | None, str] = {}
    for node_type in source.node_types:
        attributes = graph.node_attributes_of(node_type)
        if wanted in attributes and (is_time(attributes[wanted]) or node_time_attr):
            _check_times(node_type, wanted, attributes)
            nodes[node_type] = wanted
    if node_time_attr is not None:
        if not nodes:
            known = sorted({name for of in source.node_types for name in graph.node_attributes_of(of)})
            raise ValueError(
                f"PyG's layout: no node attribute {shown(node_time_attr)}, which node_time_attr names; the graph has "
                f"{shown(known)}. Correct the name."
            )
        return Times(nodes, {}, by_source=True)
    edges: dict[EdgeType | None, str] = {}
    for name in (EDGE_TIME, TIME):
        for edge_type in source.edge_types:
            values = graph.relation(edge_type).edge_attributes.get(name)
            if values is not None and is_time(values):
                edges.setdefault(edge_type, name)
    return Times(nodes, edges, by_source=not edges)


def _check_times(node_type: NodeType | None, name: str, attributes: Mapping[str, Tensor]) -> None:
    of = "" if node_type is None else f" of {node_type!r}"
    values = attributes[name]
    if not is_time(values):
        raise ValueError(
            f"PyG's layout: the node attribute {shown(name)}{of} has dtype {values.dtype} and shape "
            f"{list(values.shape)}; times are integers or floats [num_nodes]. Correct node_time_attr."
        )
    if name != TIME and TIME in attributes:
        raise ValueError(
            f"PyG's layout: the nodes{of} have the attribute {TIME!r} beside {shown(name)}, and PyG finds times under "
            f"the name {TIME!r} only. Rename it, or leave out PyG's layout with layouts=('native',)."
        )


def is_time(values: Tensor) -> bool:
    """Return whether the values can be times: integers or floats [n]."""
    return values.ndim == 1 and values.dtype != torch.bool and not values.dtype.is_complex


def by_time(rows: Tensor, times: Tensor) -> Tensor:
    """Return the order of edges by (row, time); equal ones stay in their order. `rows` ascend."""
    order = torch.argsort(times, stable=True)
    return order[torch.argsort(rows[order], stable=True)]


def stored_times(times: Tensor) -> Tensor:
    """Return times with the dtype that PyG's samplers take: integers as int64."""
    return times if times.dtype.is_floating_point else times.long()
