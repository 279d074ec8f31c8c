"""Shard: what a rank has loaded, as the columns of its nodes and edges that go into a partition.

They are the attributes that a Partitioner makes of `LoadedGraphTensors.to_dataset()`: features are "feat", weights
"weight"; the nodes of the train set are in "train_mask", their labels in "y". So parts that ranks write together equal
those of one process that has all of the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.types import ends_of, type_text
from datapipes.datasets.tfrecord.graph_tensors import GraphTensors

TRAIN_MASK = "train_mask"
_NO_ITEMS = ("val_mask", "test_mask")


@dataclass(eq=False)
class Shard:
    """The nodes and edges of one rank, in the order of its files.

    Attributes:
        ids: {node type or None: int64 [n]}, sorted by type.
        of_nodes: {node type: {name: [n, ...]}}, in the order in which a part has them.
        edges: {edge type or None: int64 [2, E]}, sorted by type.
        of_edges: {edge type: {name: [E, ...]}}.
        labels: {"positive" or "negative": how many labels of edges there are}, which have no place in a part.
    """

    ids: dict[Any, Tensor]
    of_nodes: dict[Any, dict[str, Tensor]]
    edges: dict[Any, Tensor]
    of_edges: dict[Any, dict[str, Tensor]]
    num_links: int | None = field(default=None)

    def form(self) -> dict[str, Any]:
        """Return, as plain values, what must be equal on all ranks: types, names, dtypes and widths of columns."""
        return {
            "node types": [*self.ids],
            "edge types": [kind and list(kind) for kind in self.edges],
            "node": [[kind, _form(columns)] for kind, columns in self.of_nodes.items()],
            "edge": [[kind and list(kind), _form(columns)] for kind, columns in self.of_edges.items()],
            "labels of edges": self.num_links is not None,
        }


def shard_of(where: str, graph: GraphTensors) -> Shard:
    """Return the columns of what a rank has loaded; no tensor is copied, but for labels.

    Raises:
        ValueError: Tensors of one type have different lengths, or an edge type is of an unknown node type.
    """
    ids, edges = _sorted(graph.by_type("node_ids")), _sorted(graph.by_type("edge_index"))
    if None in ids and edges and [*edges] != [None]:
        raise ValueError(f"{where}: the edges have types {shown([*edges])}, the nodes none. Give both types, or none.")
    for edge_type in edges:
        for end in ends_of(edge_type):
            if end not in ids:
                raise ValueError(
                    f"{where}: the edge type {type_text(edge_type)} has the node type {shown(end)}, of which no nodes "
                    f"were loaded; there are {shown([*ids])}. Load its nodes."
                )
    features, labels = graph.by_type("node_features"), graph.by_type("node_labels")
    of_edges: dict[Any, dict[str, Tensor]] = {kind: {} for kind in edges}
    for name, values in (("weight", graph.by_type("edge_weights")), ("feat", graph.by_type("edge_features"))):
        for kind, rows in values.items():
            _known(where, f"edge column {name!r}", kind, edges)
            _check_rows(where, f"edge column {name!r}", kind, rows, int(edges[kind].shape[1]))
            of_edges[kind][name] = rows
    of_nodes: dict[Any, dict[str, Tensor]] = {kind: {} for kind in ids}
    for name, values in (("features", features), ("labels", labels)):
        for kind, rows in values.items():
            _known(where, f"node {name}", kind, ids)
            _check_rows(where, f"node {name}", kind, rows, int(ids[kind].shape[0]))
    for kind, rows in features.items():
        of_nodes[kind]["feat"] = rows
    links = graph.by_type("positive_label")
    num_links = None
    if labels:
        if len({rows.dtype.is_floating_point for rows in labels.values()}) > 1:
            raise ValueError(
                f"{where}: the labels of node types are {shown({kind: rows.dtype for kind, rows in labels.items()})}; "
                "all must be whole numbers, which are classes, or all floats. Set node_labels to those of one task."
            )
        for kind, rows in labels.items():
            of_nodes[kind].update(_of_labels(rows))
    elif links:
        num_links = sum(int(pairs.shape[1]) for pairs in [*links.values(), *graph.by_type("negative_label").values()])
    else:
        for kind, each in ids.items():
            of_nodes[kind].update(_masks(torch.ones(each.shape[0], dtype=torch.bool)))
    return Shard(ids, of_nodes, edges, of_edges, num_links)


def _of_labels(labels: Tensor) -> dict[str, Tensor]:
    """Return the masks and the labels "y" of nodes: to be trained on are those without NaN, or with labels >= 0."""
    rows = labels if labels.ndim == 2 else labels[:, None]
    is_float = rows.dtype.is_floating_point
    trained = (~rows.isnan() if is_float else rows >= 0).all(dim=1)
    dtype, missing = (rows.dtype, float("nan")) if is_float else (torch.int64, -1)
    known = rows.to(dtype).where(trained[:, None], torch.tensor(missing, dtype=dtype))
    return {**_masks(trained), "y": known[:, 0] if known.shape[1] == 1 else known}


def _masks(trained: Tensor) -> dict[str, Tensor]:
    return {TRAIN_MASK: trained, **{name: torch.zeros_like(trained) for name in _NO_ITEMS}}


def refuse_other_forms(where: str, forms: Iterable[Mapping[str, Any]]) -> None:
    """Raise ValueError if a rank has other types or columns than rank 0; the message names the first difference."""
    first, *others = forms
    for rank, form in enumerate(others, 1):
        for what, ours in first.items():
            if form[what] != ours:
                raise ValueError(
                    f"{where}: rank {rank} has {what} {_difference(form[what], ours)}, rank 0 has "
                    f"{_difference(ours, form[what])}; all ranks must have the same. Load all of them with the same "
                    "metadata."
                )


def _difference(mine: Any, theirs: Any) -> str:
    if not isinstance(mine, list):
        return shown(mine)
    return shown([each for each in mine if each not in theirs])


def _form(columns: Mapping[str, Tensor]) -> list[list[Any]]:
    return [[name, dtype_name(rows.dtype), [*rows.shape[1:]]] for name, rows in columns.items()]


def _sorted(given: dict[Any, Tensor]) -> dict[Any, Tensor]:
    return {kind: given[kind] for kind in sorted(given, key=lambda kind: kind or "")}


def _known(where: str, what: str, kind: Any, known: Mapping[Any, Tensor]) -> None:
    if kind not in known:
        raise ValueError(f"{where}: {what} of the type {shown(kind)}, which has no ids; there are {shown([*known])}.")


def _check_rows(where: str, what: str, kind: Any, rows: Tensor, count: int) -> None:
    if rows.ndim == 0 or rows.shape[0] != count:
        of = "" if kind is None else f" of {type_text(kind)}"
        raise ValueError(f"{where}: {what}{of} has the shape {list(rows.shape)} for {count} rows. Load it again.")
