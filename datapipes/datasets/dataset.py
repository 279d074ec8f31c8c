"""Dataset: a graph, its features and its task, ready for a chain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from datapipes import _core
from datapipes.base.rng import check_seed
from datapipes.base.shown_names import ShownNames
from datapipes.base.types import NodeType
from datapipes.features import FeatureStore
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.seeds import HeteroItemSet, ItemSet

__all__ = ["Dataset"]


@dataclass(frozen=True, eq=False)
class Dataset(metaclass=ShownNames):
    """A graph, its features, and one task on its nodes or edges.

    Attributes:
        name: the name used in messages.
        graph: the graph to sample from, with or without types.
        features: features by key ("node" or "edge", type or None, name).
        train_set, validation_set, test_set: the seeds of the task with what belongs to each, as `task` says; each a
            HeteroItemSet by type if the graph has types. Types without items in a part are not in it; a part without
            any items has them all.
        num_classes: labels are in [0, num_classes); 0 if the task has no classes.
        class_names: one for each class; numbers as text if the files name none.
        normalize_features, largest_component: what `open` did to the files; the repr shows both.
        task: "node_classification": seeds are nodes, labels int64 [n] are classes, or [n, k] for k tasks of two
            classes. "node_regression": seeds are nodes, labels float32 [n] or [n, k]. "all_nodes": seeds are nodes,
            without labels. "link_prediction": seeds are pairs [n, 2]; labels, where there are some, are 1 for an edge
            that exists and 0 for one that does not; without labels all exist; seeds of one value of "indexes" are to be
            ranked together. "edge_regression": seeds are edges [n, 2], labels float32 [n]. "timestamps", where there
            are some, are the times of the seeds.
        training_graph: the graph with the edges that are known in training. Of a temporal edge list these are the edges
            of `train_set`; of any other data set it is `graph`.
        node_names: {type: one name for each node}, for types that have names in the files.
    """

    name: str
    graph: CSCGraph | HeteroCSCGraph
    features: FeatureStore
    train_set: ItemSet | HeteroItemSet
    validation_set: ItemSet | HeteroItemSet
    test_set: ItemSet | HeteroItemSet
    num_classes: int
    class_names: tuple[str, ...]
    normalize_features: bool = False
    largest_component: bool = False
    task: str = "node_classification"
    training_graph: CSCGraph | HeteroCSCGraph = None  # type: ignore[assignment]  # __post_init__ puts in `graph`
    node_names: Mapping[NodeType | None, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.training_graph is None:
            object.__setattr__(self, "training_graph", self.graph)

    def with_validation(self, share: float = 0.2, seed: int = 0) -> Dataset:
        """Return the data set with a part of `train_set` as `validation_set`, drawn at random by `seed`.

        For files that name no validation part, such as those of AIFB, to choose settings on. The test set stays.

        Args:
            share: of the items of each type, rounded, in (0, 1). A type of which none are left or drawn is not in
                that part.
            seed: the same seed gives the same part.
        Raises:
            ValueError: The data set has a validation set, or the share is out of range.
        """
        if len(self.validation_set) > 0:
            raise ValueError(
                f"with_validation: {self.name} has {len(self.validation_set)} validation items already. Use these."
            )
        if not isinstance(share, (int, float)) or not 0 < share < 1:
            raise ValueError(f"with_validation: share must be between 0 and 1, got {share!r}. Pass 0.2 for a fifth.")
        check_seed("with_validation", seed)
        if isinstance(self.train_set, HeteroItemSet):
            halves = {kind: _cut(items, share, seed) for kind, items in self.train_set.item_sets.items()}
            train: Any = HeteroItemSet(without_empty({kind: kept for kind, (kept, _) in halves.items()}))
            validation: Any = HeteroItemSet(without_empty({kind: taken for kind, (_, taken) in halves.items()}))
        else:
            train, validation = _cut(self.train_set, share, seed)
        return replace(self, train_set=train, validation_set=validation)


def without_empty(sets: dict[Any, ItemSet]) -> dict[Any, ItemSet]:
    """Return the item sets that have items; all of them if none has. A sampler refuses a type without items."""
    return {kind: items for kind, items in sets.items() if len(items) > 0} or sets


def _cut(items: ItemSet, share: float, seed: int) -> tuple[ItemSet, ItemSet]:
    """Return the items that stay and those that are drawn, each in their order."""
    order = _core.permutation_at(len(items), _core.hop_key(seed, 0, 0, 0, 0, 0), 0, len(items))
    count = round(share * len(items))
    first, second = (torch.from_numpy(np.sort(places)) for places in (order[count:], order[:count]))
    kept, drawn = items.take(first), items.take(second)
    names = items.names
    return tuple(ItemSet(tuple(rows[name] for name in names), names) for rows in (kept, drawn))  # type: ignore[return-value]
