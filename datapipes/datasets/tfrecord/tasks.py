"""The task of a loaded graph: which seeds there are to train on, and what belongs to each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name
from datapipes.base.log import logger
from datapipes.base.types import type_text
from datapipes.datasets.dataset import without_empty
from datapipes.datasets.raw import MAX_CLASSES
from datapipes.seeds import HeteroItemSet, ItemSet

Items = ItemSet | HeteroItemSet


@dataclass(frozen=True)
class Task:
    """A task as `Dataset` names it; `no_items` is an empty set of the same types and names as `items`."""

    name: str
    items: Items
    no_items: Items
    num_classes: int = 0


def task_of(
    where: str,
    counts: Mapping[Any, int],
    labels: Mapping[Any, Tensor],
    positive: Mapping[Any, Tensor],
    negative: Mapping[Any, Tensor],
) -> Task:
    """Return the task of a graph, by node type and edge type, None in a graph without types.

    Args:
        counts: number of nodes.
        labels: [n, k] in the order of the ids.
        positive, negative: pairs [2, number].
    Raises:
        ValueError: Labels of two types are of two kinds, or too large for classes; negative labels stand alone.
    """
    if labels:
        return _of_labels(where, labels)
    refuse_negative_alone(where, positive, negative)
    if positive:
        return _of_pairs(positive, negative)
    items = {kind: ItemSet(count) for kind, count in counts.items()}
    return Task("all_nodes", _set_of(items), _set_of(dict.fromkeys(items, ItemSet(0))))


def refuse_negative_alone(where: str, positive: Mapping[Any, Tensor], negative: Mapping[Any, Tensor]) -> None:
    """Refuse negative labels where there are no positive ones, from which they are to be told."""
    if negative and not positive:
        raise ValueError(
            f"{where}: found negative labels and no positive ones; there is no task with these alone. Load "
            "positive_label too, or set negative_label to None."
        )


def _of_labels(where: str, labels: Mapping[Any, Tensor]) -> Task:
    dtypes = {tensor.is_floating_point() for tensor in labels.values()}
    if len(dtypes) > 1:
        found = {type_text(kind): dtype_name(tensor.dtype) for kind, tensor in labels.items()}
        raise ValueError(
            f"{where}: the labels of node types are {found}; all must be whole numbers, which are classes, or all "
            "floats. Set node_labels to those of one task."
        )
    is_regression = dtypes == {True}
    sets, most = {}, -1
    for kind, tensor in labels.items():
        labelled = has_labels(tensor).nonzero().flatten()
        if len(labelled) < len(tensor):
            logger.info("%s: %d of %d nodes%s have labels", where, len(labelled), len(tensor), _of(kind))
        values = tensor[labelled]
        if not is_regression and values.numel() > 0:
            most = max(most, int(values.max()))
        sets[kind] = ItemSet((labelled, values[:, 0] if values.shape[1] == 1 else values), names=("seeds", "labels"))
    if most >= MAX_CLASSES:
        raise ValueError(
            f"{where}: found the label {most}; classes are numbered from 0, up to {MAX_CLASSES - 1}. Write values that "
            "are no classes as float32, or set node_labels to None."
        )
    name = "node_regression" if is_regression else "node_classification"
    return Task(name, _set_of(sets), _set_of({kind: _none_of(items) for kind, items in sets.items()}), most + 1)


def has_labels(rows: Tensor) -> Tensor:
    """Return which of the rows [n, k] are labels: whole numbers >= 0, or floats, none of them NaN."""
    return (~rows.isnan() if rows.is_floating_point() else rows >= 0).all(1)


def _of_pairs(positive: Mapping[Any, Tensor], negative: Mapping[Any, Tensor]) -> Task:
    names = ("seeds", "labels") if negative else ("seeds",)  # without labels all pairs exist
    none = torch.empty(2, 0, dtype=torch.int64)
    sets = {}
    for kind in {**positive, **negative}:
        exist, others = positive.get(kind, none), negative.get(kind, none)
        seeds = torch.cat([exist, others], 1).T.contiguous()
        labels = (torch.arange(len(seeds)) < exist.shape[1]).long()
        sets[kind] = ItemSet((seeds, labels)[: len(names)], names=names)
    return Task("link_prediction", _set_of(sets), _set_of({kind: _none_of(items) for kind, items in sets.items()}))


def _none_of(items: ItemSet) -> ItemSet:
    rows = items.take(torch.empty(0, dtype=torch.int64))
    return ItemSet(tuple(rows[name] for name in items.names), names=items.names)


def _set_of(sets: dict[Any, ItemSet]) -> Items:
    return sets[None] if None in sets else HeteroItemSet(without_empty(sets))


def _of(kind: Any) -> str:
    return "" if kind is None else f" of {kind!r}"
