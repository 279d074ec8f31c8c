"""Convert graphs of networkx to the arrays of a graph, with types or without."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from datapipes.base.checks import check_names, shown
from datapipes.base.types import by_edge_type, check_edge_type, check_node_type, known_edge_type, of_type
from datapipes.graph.arrays import GraphArrays
from datapipes.graph.convert import from_edge_index, hetero_from_edge_index


def from_networkx(graph: Any, node_attributes: Iterable[str], edge_attributes: Iterable[str]) -> GraphArrays:
    """Return the arrays of the graph that CSCGraph.from_networkx builds; see there for the arguments."""
    columns, counts, *attributes = _from_networkx(graph, None, None, {None: node_attributes}, {None: edge_attributes})
    edges = columns.get(None, np.empty((2, 0), dtype=np.int64))
    return from_edge_index(edges, counts.get(None, 0), *(by_type[None] for by_type in attributes))


def hetero_from_networkx(
    graph: Any,
    node_type: str,
    edge_type: str,
    node_attributes: Mapping[str, Iterable[str]],
    edge_attributes: Mapping[Any, Iterable[str]],
) -> GraphArrays:
    """Return the arrays of the graph that HeteroCSCGraph.from_networkx builds; see there for the arguments."""
    of_edges = by_edge_type("from_networkx", edge_attributes)
    return hetero_from_edge_index(*_from_networkx(graph, node_type, edge_type, node_attributes, of_edges))


def _from_networkx(
    graph: Any,
    node_type: str | None,
    edge_type: str | None,
    node_attributes: Mapping[Any, Iterable[str]],
    edge_attributes: Mapping[Any, Iterable[str]],
) -> tuple[dict[Any, Any], dict[Any, int], dict[Any, Any], dict[Any, Any]]:
    """Read the nodes and edges of a networkx graph by type.

    Args:
        node_type, edge_type: names of the attributes that hold the types; None without types.
        node_attributes, edge_attributes: {type: names of the attributes to read}.
    Returns:
        (columns, counts, node attributes, edge attributes). Columns are {edge type: int64 [2, num_edges]}, counts {node
        type: number of nodes}, attributes {type: {name: values}}.
    """
    nodes: dict[Any, list[dict[str, Any]]] = {}  # {type: attributes of its nodes, in the order of graph.nodes}
    place: dict[Any, tuple[Any, int]] = {}
    for node, values in graph.nodes(data=True):
        kind = None
        if node_type is not None:
            kind = check_node_type("from_networkx", _type_in(values, node_type, "node", node))
        rows = nodes.setdefault(kind, [])
        place[node] = kind, len(rows)
        rows.append(values)
    edges: dict[Any, list[tuple[int, int, dict[str, Any]]]] = {}
    for reverse in (False,) if graph.is_directed() else (False, True):
        for u, v, values in graph.edges(data=True):
            if reverse and u == v:
                continue  # a self-loop is not doubled
            (src, i), (dst, j) = (place[v], place[u]) if reverse else (place[u], place[v])
            key = None
            if edge_type is not None:
                key = check_edge_type("from_networkx", (src, _type_in(values, edge_type, "edge", (u, v)), dst))
            edges.setdefault(key, []).append((i, j, values))
    columns = {
        key: np.array([(i, j) for i, j, _ in rows], dtype=np.int64).reshape(-1, 2).T.copy()
        for key, rows in edges.items()
    }
    if edge_type is not None:
        for key in edge_attributes:
            known_edge_type("from_networkx, edge_attributes", key, edges)
    of_edges = {key: [values for _, _, values in rows] for key, rows in edges.items()}
    counts = {kind: len(rows) for kind, rows in nodes.items()}
    return columns, counts, _columns("node", node_attributes, nodes), _columns("edge", edge_attributes, of_edges)


def _type_in(values: Mapping[str, Any], name: str, domain: str, which: Any) -> Any:
    if name not in values:
        raise ValueError(
            f"from_networkx: the {domain} {shown(which)} lacks the attribute {name!r}, which names its type; all "
            f"{domain}s must have it. Set it, or pass the name of the right attribute as {domain}_type."
        )
    return values[name]


def _columns(domain: str, wanted: Mapping[Any, Iterable[str]], rows: Mapping[Any, list[Any]]) -> dict[Any, Any]:
    return {
        key: {
            name: _attribute_column(domain, name, rows.get(key, []))
            for name in check_names("from_networkx", f"{domain}_attributes{of_type(key)}", names)
        }
        for key, names in wanted.items()
    }


def _attribute_column(kind: str, name: str, rows: list[dict[str, Any]]) -> Any:
    """Return one attribute of all nodes or edges as an array; ValueError if some of `rows`, their dicts, lack it."""
    lacking = sum(name not in row for row in rows)
    if lacking:
        raise ValueError(
            f"from_networkx: {lacking} of {len(rows)} {kind}s lack the attribute {name!r}; all must have it. Fill it "
            "in."
        )
    try:
        return np.array([row[name] for row in rows])
    except ValueError as error:  # NumPy's text speaks of sequences
        raise ValueError(
            f"from_networkx: the attribute {name!r} of {kind}s has values of different shapes; all must have one. Make "
            "them equal."
        ) from error
