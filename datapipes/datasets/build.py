"""Build a Dataset of the arrays of a file reader: the graph, the features and the items of the split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from datapipes import _core
from datapipes.base.rng import check_seed
from datapipes.datasets.dataset import Dataset, without_empty
from datapipes.datasets.raw import RawDataset
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.seeds import HeteroItemSet, ItemSet

TRAIN_PER_CLASS = 20
VALIDATION_PER_CLASS = 30


def dataset_of(raw: RawDataset, split_seed: int = 0) -> Dataset:
    """Return the arrays of a reader as a Dataset. Without a split of its own it gets a random one of `split_seed`."""
    labels = torch.from_numpy(raw.labels)
    parts = raw.split or random_split(raw.labels, split_seed)
    train, validation, test = (
        ItemSet((ids, labels[ids]), names=("seeds", "labels")) for ids in (torch.from_numpy(part) for part in parts)
    )
    features = {("node", None, name): TensorFeature(value) for name, value in raw.node_features.items()}
    features.update({("edge", None, name): TensorFeature(value) for name, value in raw.edge_features.items()})
    return Dataset(
        name=raw.name,
        graph=CSCGraph.from_edge_index(raw.edge_index, raw.num_nodes),
        features=FeatureStore(features),
        train_set=train,
        validation_set=validation,
        test_set=test,
        num_classes=len(raw.class_names),
        class_names=raw.class_names,
    )


def hetero_dataset_of(raw: RawHeteroDataset) -> Dataset:
    """Return the arrays of a reader as a Dataset: with types, or with a task on edges."""
    features: dict[Any, TensorFeature] = {
        ("node", of_type, name): TensorFeature(rows) for (of_type, name), rows in raw.node_features.items()
    }
    for (edge_type, name), rows in raw.edge_features.items():
        features["edge", edge_type, name] = TensorFeature(rows)
    train, validation, test = (_item_set(part) for part in raw.split)
    training = {kind: raw.edges[kind][:, :count] for kind, count in raw.num_training_edges.items()}
    graph = _graph_of(raw, raw.edges)
    return Dataset(
        name=raw.name,
        graph=graph,
        features=FeatureStore(features),
        train_set=train,
        validation_set=validation,
        test_set=test,
        num_classes=len(raw.class_names),
        class_names=raw.class_names,
        task=raw.task,
        training_graph=_graph_of(raw, {**raw.edges, **training}) if training else graph,
        node_names=raw.node_names,
    )


def _graph_of(raw: RawHeteroDataset, edges: Mapping[Any, np.ndarray]) -> CSCGraph | HeteroCSCGraph:
    """Return the graph of `edges`, all or the first of each type of `raw`, with its attributes."""
    of_nodes: dict[Any, dict[str, np.ndarray]] = {}
    of_edges: dict[Any, dict[str, np.ndarray]] = {}
    for (node_type, name), rows in raw.node_attributes.items():
        of_nodes.setdefault(node_type, {})[name] = rows
    for (edge_type, name), rows in raw.edge_attributes.items():
        of_edges.setdefault(edge_type, {})[name] = rows[: edges[edge_type].shape[1]]
    if raw.is_heterogeneous:
        num_nodes: dict[Any, int] = {**raw.num_nodes}
        return HeteroCSCGraph.from_edge_index(edges, num_nodes, node_attributes=of_nodes, edge_attributes=of_edges)
    return CSCGraph.from_edge_index(
        edges[None], raw.num_nodes[None], node_attributes=of_nodes.get(None), edge_attributes=of_edges.get(None)
    )


def _item_set(part: Mapping[Any, RawItems]) -> ItemSet | HeteroItemSet:
    sets = {}
    for of_type, items in part.items():
        values = {name: value for name, value in vars(items).items() if value is not None}
        sets[of_type] = ItemSet(tuple(map(torch.from_numpy, values.values())), names=tuple(values))
    return sets[None] if None in sets else HeteroItemSet(without_empty(sets))


def random_split(labels: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return node ids of train (20 per class), validation (30 per class) and test (the rest), each ascending.

    A class of fewer than 50 nodes fills train first, then validation. Nodes labelled -1 are left out.
    """
    check_seed("random_split", seed)
    num_nodes = len(labels)
    order = _core.permutation_at(num_nodes, _core.hop_key(seed, 0, 0, 0, 0, 0), 0, num_nodes)
    by_class = order[np.argsort(labels[order], kind="stable")]  # grouped by class, shuffled within
    grouped = labels[by_class]
    place = np.arange(num_nodes) - np.searchsorted(grouped, grouped)  # position of each node within its class
    labelled = grouped >= 0
    train = labelled & (place < TRAIN_PER_CLASS)
    validation = labelled & ~train & (place < TRAIN_PER_CLASS + VALIDATION_PER_CLASS)
    test = labelled & ~train & ~validation
    first, second, third = (np.sort(by_class[part]) for part in (train, validation, test))
    return first, second, third
