"""from_pandas and from_networkx: a Dataset without types, made of one table of edges, and perhaps one of nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from datapipes.datasets.dataset import Dataset
from datapipes.datasets.from_tables import from_tables
from datapipes.ingest.columns import Kind

__all__ = ["from_networkx", "from_pandas"]


def from_pandas(
    edges: Any,
    nodes: Any = None,
    *,
    source: str = "source",
    target: str = "target",
    key: str = "id",
    time: str | None = None,
    label: str | None = None,
    split: str | tuple[Any, Any] | None = None,
    features: Mapping[str, Iterable[str] | Mapping[str, Kind]] | None = None,
    time_unit: str = "s",
    name: str = "frame",
) -> Dataset:
    """Return the Dataset of a frame of edges, and perhaps of one of nodes; its graph is a CSCGraph.

    This is `from_tables` with the tables "edges" and "nodes", for one type of nodes: ids may be of any kind, and are
    numbered by first occurrence, or with `nodes` in the order of its rows.

    Args:
        edges, nodes: frames, or any tables that `from_tables` takes.
        source, target: the columns of `edges` with the ids of the ends.
        key: the column of `nodes` with the id of each row.
        time: the column of `edges` with the time of each row.
        label: the column with labels, of `nodes`, or of `edges` without `nodes`. None: edges are the seeds.
        split: the column of the table of the seeds with "train", "valid", "test"; or as for `from_tables`.
        features: {"edges": columns, "nodes": columns}, as for `from_tables`.
    Raises:
        As `from_tables`.
    """
    labelled = "nodes" if label is not None and nodes is not None else "edges"
    return from_tables(
        {"edges": edges} if nodes is None else {"nodes": nodes, "edges": edges},
        keys=None if nodes is None else {"nodes": key},
        links={"edges": {source: "nodes", target: "nodes"}},
        edges=["edges"],
        times=None if time is None else {"edges": time},
        labels=None if label is None else {labelled: label},
        split={labelled: split} if isinstance(split, str) else split,
        features=features,
        time_unit=time_unit,
        types=False,
        name=name,
    )


def from_networkx(graph: Any, *, label: str | None = None, split: str | None = None, **options: Any) -> Dataset:
    """Return the Dataset of a networkx graph; attributes of nodes and edges become features.

    Nodes are numbered in the order of `graph.nodes`. An undirected edge becomes one in each direction. An attribute
    that a node or an edge lacks is missing there. Texts become features if `features` names them.

    Args:
        label, split: attributes of nodes, with the label, and with "train", "valid" or "test".
        options: `features`, `time`, `time_unit` and `name`, as for `from_pandas`.
    Raises:
        ValueError: The values of an attribute are of several types. Else as `from_tables`.
    """
    places = {node: place for place, node in enumerate(graph.nodes)}
    listed = [(places[u], places[v], values) for u, v, values in graph.edges(data=True)]
    if not graph.is_directed():
        listed += [(v, u, values) for u, v, values in listed if u != v]
    ends = {"(source)": [u for u, _, _ in listed], "(target)": [v for _, v, _ in listed]}
    of_edges, of_nodes = _by_name([row for *_, row in listed]), _by_name([row for _, row in graph.nodes(data=True)])
    taken = [*(of_edges.keys() & ends.keys()), *(of_nodes.keys() & {"(node)"})]
    if taken:
        raise ValueError(f"from_networkx: found attributes named {taken}, names that it uses itself. Rename them.")
    data = from_pandas(
        {**ends, **of_edges},
        {"(node)": [*range(len(places))], **of_nodes},
        source="(source)",
        target="(target)",
        key="(node)",
        label=label,
        split=split,
        **options,
    )
    return replace(data, node_names={None: tuple(graph.nodes)})


def _by_name(rows: list[dict[Any, Any]]) -> dict[str, list[Any]]:
    """Return {attribute: its value of each row}, None where a row lacks it."""
    return {str(name): [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)}
