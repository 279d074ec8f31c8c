"""Loaded tensors as a Dataset: rows in the order of the ids, the graph by destination, features, and a task.

Invariant: node ids are 0 .. n - 1, each once, and both ends of each edge are among them. Anything else is refused with
what was found, since a gap would become a node that nobody has written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from datapipes.base.types import ends_of, type_text
from datapipes.datasets.dataset import Dataset
from datapipes.datasets.tfrecord.graph_tensors import GraphTensors
from datapipes.datasets.tfrecord.ids import check_pairs, row_order, rows_in_order
from datapipes.datasets.tfrecord.tasks import task_of
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph

WHERE = "to_dataset"
FEATURE, WEIGHT = "feat", "weight"  # the names of features and of weights


def to_dataset(graph: GraphTensors, name: str) -> Dataset:
    """See LoadedGraphTensors.to_dataset."""
    if graph._num_ranks > 1:
        raise ValueError(
            f"{WHERE}: this is the share of rank {graph._rank} of {graph._num_ranks}, not a whole graph. Call "
            "to_partition(root) on all ranks, and open the parts with DistGraph; or load with "
            "TFRecordDataLoader(0, 1)."
        )
    nodes, edges = graph.by_type("node_ids"), graph.by_type("edge_index")
    for field, given in (("node_ids", graph.node_ids), ("edge_index", graph.edge_index)):
        if given is None:
            raise ValueError(f"{WHERE}: {field} is None, it was let go of. Make the data set first, or load again.")
    if (None in nodes) != (None in edges):
        raise ValueError(
            f"{WHERE}: one of node_ids and edge_index is a dict by type and the other is not. Give both by type, or "
            "both without."
        )
    orders = {kind: row_order(f"{WHERE}: {_text('node_ids', kind)}", ids) for kind, ids in nodes.items()}
    counts = {kind: len(ids) for kind, ids in nodes.items()}
    for field in ("edge_index", "positive_label", "negative_label"):
        for kind, pairs in graph.by_type(field).items():
            check_pairs(f"{WHERE}: {_text(field, kind)}", pairs, ends_of(kind), counts)
    rows = {
        field: {
            kind: rows_in_order(f"{WHERE}: {_text(field, kind)}", tensor, counts.get(kind), orders.get(kind))
            for kind, tensor in graph.by_type(field).items()
        }
        for field in ("node_features", "node_labels")
    }
    features: dict[Any, TensorFeature] = {
        ("node", kind, FEATURE): TensorFeature(tensor) for kind, tensor in rows["node_features"].items()
    }
    features.update(
        {("edge", kind, FEATURE): TensorFeature(tensor) for kind, tensor in graph.by_type("edge_features").items()}
    )
    task = task_of(WHERE, counts, rows["node_labels"], graph.by_type("positive_label"), graph.by_type("negative_label"))
    return Dataset(
        name=name,
        graph=_graph_of(edges, counts, graph.by_type("edge_weights")),
        features=FeatureStore(features),
        train_set=task.items,
        validation_set=task.no_items,
        test_set=task.no_items,
        num_classes=task.num_classes,
        class_names=tuple(map(str, range(task.num_classes))),
        task=task.name,
    )


def _graph_of(
    edges: Mapping[Any, Tensor], counts: dict[Any, int], weights: Mapping[Any, Tensor]
) -> CSCGraph | HeteroCSCGraph:
    attributes = {kind: {WEIGHT: each} for kind, each in weights.items()}
    if None in edges:
        return CSCGraph.from_edge_index(edges[None], counts[None], edge_attributes=attributes.get(None))
    return HeteroCSCGraph.from_edge_index(edges, counts, edge_attributes=attributes)


def _text(field: str, kind: Any) -> str:
    return field if kind is None else f"{field} of {type_text(kind)}"
