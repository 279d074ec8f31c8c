"""Convert heterogeneous graphs of PyG and networkx: to one edge_index for each edge type; the rest is as for these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, by_edge_type, check_edge_type, check_node_type, known_edge_type
from datapipes.graph.arrays import HeteroArrays
from datapipes.graph.convert import attribute_column
from datapipes.graph.convert_hetero import from_edge_index


def from_pyg(data: Any) -> HeteroArrays:
    """See HeteroCSCGraph.from_pyg."""
    if not hasattr(data, "edge_types") or not hasattr(data, "node_types"):
        raise ValueError(
            f"from_pyg: needs a HeteroData, got {type(data).__name__}. Use CSCGraph.from_pyg for a Data without types."
        )
    counts = {kind: data[kind].num_nodes for kind in data.node_types}
    nodes = {kind: _tensors(data[kind], data[kind].node_attrs()) for kind in data.node_types}
    columns, edges = {}, {}
    for key in data.edge_types:
        store = data[key]
        if getattr(store, "edge_index", None) is None:
            raise ValueError(
                f"from_pyg: {key} has no edge_index, which each edge type needs. Set data[{key}].edge_index."
            )
        columns[key] = store.edge_index
        edges[key] = _tensors(store, [name for name in store.edge_attrs() if name != "edge_index"])
    known = {kind: int(count) for kind, count in counts.items() if count is not None}
    return from_edge_index(columns, known, nodes, edges, infer_others=True)


def _tensors(store: Any, names: list[str]) -> dict[str, Tensor]:
    return {name: store[name] for name in names if isinstance(store[name], Tensor)}


def from_networkx(
    graph: Any,
    node_type: str,
    edge_type: str,
    node_attributes: Mapping[str, tuple[str, ...]],
    edge_attributes: Mapping[Any, tuple[str, ...]],
) -> HeteroArrays:
    """See HeteroCSCGraph.from_networkx."""
    nodes: dict[str, list[dict[str, Any]]] = {}  # of each type, in the order of graph.nodes: the attributes
    place: dict[Any, tuple[str, int]] = {}
    for node, values in graph.nodes(data=True):
        kind = check_node_type("from_networkx", _type_in(values, node_type, "node", node))
        rows = nodes.setdefault(kind, [])
        place[node] = kind, len(rows)
        rows.append(values)
    edges: dict[EdgeType, list[tuple[int, int, dict[str, Any]]]] = {}
    for reverse in (False,) if graph.is_directed() else (False, True):
        for u, v, values in graph.edges(data=True):
            if reverse and u == v:
                continue  # a self-loop is not doubled
            (src, i), (dst, j) = (place[v], place[u]) if reverse else (place[u], place[v])
            relation = _type_in(values, edge_type, "edge", (u, v))
            edges.setdefault(check_edge_type("from_networkx", (src, relation, dst)), []).append((i, j, values))
    columns = {
        key: np.array([(i, j) for i, j, _ in rows], dtype=np.int64).reshape(-1, 2).T.copy()
        for key, rows in edges.items()
    }
    of_edges = by_edge_type("from_networkx", edge_attributes)
    for key in of_edges:
        known_edge_type("from_networkx, edge_attributes", key, edges)
    return from_edge_index(
        columns,
        {kind: len(rows) for kind, rows in nodes.items()},
        _columns("node", node_attributes, nodes),
        _columns("edge", of_edges, {key: [values for _, _, values in rows] for key, rows in edges.items()}),
    )


def _type_in(values: Mapping[str, Any], name: str, what: str, which: Any) -> Any:
    if name not in values:
        raise ValueError(
            f"from_networkx: the {what} {shown(which)} lacks the attribute {name!r}, which names its type; all {what}s "
            f"must have it. Set it, or pass the name of the attribute that does as {what}_type."
        )
    return values[name]


def _columns(what: str, wanted: Mapping[Any, tuple[str, ...]], rows: Mapping[Any, list[Any]]) -> dict[Any, Any]:
    return {
        key: {name: attribute_column(what, name, rows.get(key, [])) for name in names} for key, names in wanted.items()
    }
