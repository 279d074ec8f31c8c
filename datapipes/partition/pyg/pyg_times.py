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
from datapipes.partition.row_chunks import MOST_EDGES, pieces
from datapipes.partition.source import Source
from datapipes.partition.time_values import TIMES, are_times

_OTHERWISE = "or leave out PyG's layout with layouts=('native',)."


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
        ValueError: No node has `node_time_attr`, its values are no times, a time is 2^63 or more, or another attribute
            has the name that PyG gives to times.
    """
    graph, wanted = source.graph, node_time_attr or TIME
    nodes: dict[NodeType | None, str] = {}
    for node_type in source.node_types:
        attributes = graph.node_attributes_of(node_type)
        if wanted in attributes and (are_times(attributes[wanted]) or node_time_attr):
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
            attributes = graph.relation(edge_type).edge_attributes
            if edge_type not in edges and name in attributes and are_times(attributes[name]):
                _check_edge_times(edge_type, name, attributes)
                edges[edge_type] = name
    return Times(nodes, edges, by_source=not edges)


def _check_times(node_type: NodeType | None, name: str, attributes: Mapping[str, Tensor]) -> None:
    of = "" if node_type is None else f" of {node_type!r}"
    values = attributes[name]
    if not are_times(values):
        raise ValueError(
            f"PyG's layout: the node attribute {shown(name)}{of} has dtype {values.dtype} and shape "
            f"{list(values.shape)}; times are {TIMES} [num_nodes], floats of 16 bits or more. Correct node_time_attr."
        )
    _check_name(f"the nodes{of}", name, TIME, attributes)
    _refuse_late(f"the node attribute {shown(name)}{of}", values)


def _check_edge_times(edge_type: EdgeType | None, name: str, attributes: Mapping[str, Tensor]) -> None:
    of = "" if edge_type is None else f" of {edge_type}"
    _check_name(f"the edges{of}", name, EDGE_TIME, attributes)
    _refuse_late(f"the edge attribute {shown(name)}{of}", attributes[name])


def _check_name(of: str, name: str, stored: str, attributes: Mapping[str, Tensor]) -> None:
    """Refuse times that would be stored under the name of another attribute."""
    if name != stored and stored in attributes:
        raise ValueError(
            f"PyG's layout: {of} have the attribute {stored!r} beside {shown(name)}, and PyG finds times under the "
            f"name {stored!r} only. Rename it, {_OTHERWISE}"
        )


def _refuse_late(what: str, times: Tensor) -> None:
    """Refuse times that int64 cannot hold."""
    if times.dtype != torch.uint64:
        return
    for piece in pieces(times, MOST_EDGES):
        if bool((piece.view(torch.int64) < 0).any()):
            raise ValueError(
                f"PyG's layout: {what} is uint64 and has a time of 2^63 or more; times are stored as int64. Make them "
                f"smaller, {_OTHERWISE}"
            )


def by_time(rows: Tensor, times: Tensor) -> Tensor:
    """Return the order of edges by (row, time); equal ones stay in their order. `rows` ascend."""
    order = torch.argsort(times, stable=True)
    return order[torch.argsort(rows[order], stable=True)]


def stored_times(times: Tensor) -> Tensor:
    """Return times with the dtype that PyG's samplers take: integers as int64."""
    return times if times.dtype.is_floating_point else times.long()
