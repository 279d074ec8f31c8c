"""The task of a loaded graph: the seeds to train on, and their labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name
from datapipes.base.log import logger
from datapipes.base.types import of_type, type_text
from datapipes.datasets.dataset import one_set
from datapipes.datasets.raw import MAX_CLASSES
from datapipes.seeds import ItemSet


def task_of(
    where: str,
    counts: Mapping[Any, int],
    labels: Mapping[Any, Tensor],
    positive: Mapping[Any, Tensor],
    negative: Mapping[Any, Tensor],
) -> dict[str, Any]:
    """Return the task of a graph as {field of a Dataset: value}.

    The validation and test sets are empty, with the types and names of the train set. Without types, each type below is
    None.

    Args:
        counts: {node type: number of nodes}.
        labels: {node type: labels [n, k]}, rows in the order of the ids.
        positive, negative: {edge type: pairs [2, n]}.
    Raises:
        ValueError: Some types have labels that are floats and others whole numbers; a label is too large for a class;
            or there are negative labels without positive ones.
    """
    if labels:
        return _of_labels(where, labels)
    if negative and not positive:
        raise ValueError(
            f"{where}: found negative labels and no positive ones; there is no task with these alone. Load "
            "positive_label too, or set negative_label to None."
        )
    if positive:
        return _of_pairs(positive, negative)
    return _fields("all_nodes", {node_type: ItemSet(count) for node_type, count in counts.items()})


def _of_labels(where: str, labels: Mapping[Any, Tensor]) -> dict[str, Any]:
    if len({rows.is_floating_point() for rows in labels.values()}) > 1:
        dtypes = {type_text(node_type): dtype_name(rows.dtype) for node_type, rows in labels.items()}
        raise ValueError(
            f"{where}: the labels of node types are {dtypes}; all must be whole numbers, which are classes, or all "
            "floats. Set node_labels to those of one task."
        )
    is_regression = any(rows.is_floating_point() for rows in labels.values())
    sets, most = {}, -1
    for node_type, rows in labels.items():
        labelled = (~rows.isnan() if is_regression else rows >= 0).all(1).nonzero().flatten()
        if len(labelled) < len(rows):
            logger.info("%s: %d of %d nodes%s have labels", where, len(labelled), len(rows), of_type(node_type))
        values = rows[labelled]
        if not is_regression and values.numel() > 0:
            most = max(most, int(values.max()))
        sets[node_type] = ItemSet((labelled, values[:, 0] if values.shape[1] == 1 else values), ("seeds", "labels"))
    if most >= MAX_CLASSES:
        raise ValueError(
            f"{where}: found the label {most}; classes are numbered from 0, up to {MAX_CLASSES - 1}. Write values that "
            "are no classes as float32, or set node_labels to None."
        )
    return _fields("node_regression" if is_regression else "node_classification", sets, most + 1)


def _of_pairs(positive: Mapping[Any, Tensor], negative: Mapping[Any, Tensor]) -> dict[str, Any]:
    names = ("seeds", "labels") if negative else ("seeds",)  # without labels all pairs are edges that exist
    none = torch.empty(2, 0, dtype=torch.int64)
    sets = {}
    for edge_type in {**positive, **negative}:
        exist, others = positive.get(edge_type, none), negative.get(edge_type, none)
        seeds = torch.cat([exist, others], 1).T.contiguous()
        labels = (torch.arange(len(seeds)) < exist.shape[1]).long()
        sets[edge_type] = ItemSet((seeds, labels)[: len(names)], names=names)
    return _fields("link_prediction", sets)


def _fields(task: str, sets: dict[Any, ItemSet], num_classes: int = 0) -> dict[str, Any]:
    """Return {field of a Dataset: value} for a task. `sets` are the train items; validation and test are empty."""
    nothing = {kind: items.take(torch.empty(0, dtype=torch.int64)) for kind, items in sets.items()}
    no_items = {kind: ItemSet(tuple(rows.values()), names=tuple(rows)) for kind, rows in nothing.items()}
    train, empty = one_set(sets), one_set(no_items)
    class_names = tuple(map(str, range(num_classes)))
    parts = {"train_set": train, "validation_set": empty, "test_set": empty}
    return {**parts, "task": task, "num_classes": num_classes, "class_names": class_names}
