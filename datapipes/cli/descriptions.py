"""Descriptions of a graph and a data set for `inspect` and `convert`: as JSON values, and as lines."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from datapipes.base.checks import dtype_name, one_line
from datapipes.base.types import EdgeType, ends_of, of_type
from datapipes.datasets import Dataset
from datapipes.datasets.ondisk_graph import AnyGraph

_SETS = ("train_set", "validation_set", "test_set")


def facts_of_graph(graph: AnyGraph) -> dict[str, Any]:
    """Return a description of a graph, as JSON values.

    If the graph was opened from a folder, this reads only the offsets; else the digest reads the edges too.
    """
    return {
        "class": type(graph).__name__,
        "index_dtype": dtype_name(graph.index_dtype),
        "digest": graph.digest(),
        "node_types": [
            {"type": kind, "nodes": graph.num_nodes_of(kind), "attributes": _attributes(graph.node_attributes_of(kind))}
            for kind in graph.node_types
        ],
        "edge_types": [_facts_of_edges(graph, kind) for kind in graph.edge_types],
    }


def _facts_of_edges(graph: AnyGraph, kind: EdgeType | None) -> dict[str, Any]:
    relation, destinations = graph.relation(kind), graph.num_nodes_of(ends_of(kind)[1])
    degrees = relation.indptr.diff()
    return {
        "type": None if kind is None else list(kind),
        "edges": graph.num_edges_of(kind),
        "mean_in_degree": graph.num_edges_of(kind) / max(destinations, 1),
        "max_in_degree": int(degrees.max()) if destinations > 0 else 0,
        "nodes_without_in_edges": int((degrees == 0).sum()),
        "has_edge_ids": relation.edge_ids is not None,
        "attributes": _attributes(relation.edge_attributes),
    }


def graph_lines(facts: dict[str, Any]) -> list[str]:
    """Return the result of `facts_of_graph` as lines of text."""
    lines = [f"{facts['class']}: neighbors {facts['index_dtype']}, digest {facts['digest']}"]
    for nodes in facts["node_types"]:
        lines.append(f"nodes{_of_type(nodes)}: {nodes['nodes']}{_listed(nodes['attributes'])}")
    for edges in facts["edge_types"]:
        ids = ", own edge ids" if edges["has_edge_ids"] else ""
        lines.append(
            f"edges{_of_type(edges)}: {edges['edges']}, {edges['mean_in_degree']:.2f} a node, "
            f"at most {edges['max_in_degree']}, {edges['nodes_without_in_edges']} nodes without{ids}"
            f"{_listed(edges['attributes'])}"
        )
    return [*map(one_line, lines)]


def facts_of_dataset(data: Dataset) -> dict[str, Any]:
    """Return a description of a data set, as JSON values."""
    features = [
        {
            "domain": domain,
            "type": list(kind) if isinstance(kind, tuple) else kind,
            "name": name,
            "dtype": dtype_name(feature.dtype),
            "shape": [feature.count, *feature.shape],
        }
        for (domain, kind, name), feature in data.features.items()
    ]
    return {
        "name": data.name,
        "task": data.task,
        "num_classes": data.num_classes,
        "items": {name: len(getattr(data, name)) for name in _SETS},
        "features": features,
        "graph": facts_of_graph(data.graph),
    }


def _attributes(values: dict[str, Tensor]) -> list[dict[str, Any]]:
    return [{"name": name, "dtype": dtype_name(rows.dtype), "shape": list(rows.shape)} for name, rows in values.items()]


def _listed(attributes: list[dict[str, Any]]) -> str:
    return "; " + ", ".join(map(_described, attributes)) if attributes else ""


def _described(rows: dict[str, Any]) -> str:
    return f"{rows['name']} {rows['dtype']} {rows['shape']}"


def _of_type(facts: dict[str, Any]) -> str:
    """Return " of TYPE" for the value "type" of `facts`, "" for None. An edge type is a list there, as in JSON."""
    kind = facts["type"]
    return of_type(tuple(kind) if isinstance(kind, list) else kind)
