"""Dataset: a graph, its features and its task, ready for a chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import aligned, dtype_name, one_line, shown
from datapipes.base.html import table_html
from datapipes.base.rng import check_seed
from datapipes.base.types import NodeType, of_type, type_text
from datapipes.compat.other_names import with_other_names
from datapipes.datasets.raw import MAX_CLASSES
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.seeds import HeteroItemSet, ItemSet

if TYPE_CHECKING:
    import torch_geometric.data

__all__ = ["Dataset", "Task"]

MASKS = {"train_set": "train_mask", "validation_set": "val_mask", "test_set": "test_mask"}  # PyG's names
_MOST_TYPES = 32  # `describe` shows no more types


@dataclass(frozen=True, eq=False)
class Task:
    """A task of a data set; its fields mean the same as in Dataset.

    Attributes:
        metadata: {name: value} of further fields of the task in the files, such as "name" and "num_classes".
    """

    train_set: ItemSet | HeteroItemSet
    validation_set: ItemSet | HeteroItemSet
    test_set: ItemSet | HeteroItemSet
    metadata: Mapping[str, Any] = field(default_factory=dict)


@with_other_names
@dataclass(frozen=True, eq=False)
class Dataset:
    """A graph, its features, and one task on its nodes or edges.

    Attributes:
        name: the name used in messages.
        graph: the graph to sample from, with or without types.
        features: the feature store; its keys are ("node" or "edge", type or None, name).
        train_set, validation_set, test_set: the seeds of the task, with the labels and other values that `task` says.
            If the graph has types, each set is a HeteroItemSet by type. It leaves out types without items; but if no
            type has items, it has every type.
        num_classes: labels are in [0, num_classes); 0 if the task has no classes.
        class_names: a name for each class; "0", "1" and so on if the files name none.
        normalize_features, largest_component: the arguments of `datasets.open`; the repr shows both.
        task: one of these. In each, "timestamps", if present, are the times of the seeds.
            "node_classification": seeds are nodes; labels int64 [n] are classes, or [n, k] for k tasks of two classes.
            "node_regression": seeds are nodes; labels are float32 [n] or [n, k].
            "all_nodes": seeds are nodes, without labels.
            "link_prediction": seeds are pairs [n, 2]. Labels are 1 for an edge that exists, 0 for a negative edge;
            without labels all seeds are edges that exist. Seeds with equal "indexes" are ranked together.
            "recommendation": seeds are nodes; the field "destinations" has the nodes to recommend, padded with -1.
            "edge_regression": seeds are edges [n, 2]; labels are float32 [n].
            "edge_classification": seeds are edges [n, 2]; labels int64 [n] are classes.
        training_graph: the graph with the edges that are known in training. For a temporal edge list these are the
            edges of `train_set`; otherwise it is `graph` itself.
        node_names: {type: one name for each node}, for types that have names in the files.
        left_out: {(table, column): what is not in the graph or the features, and why}; see `datasets.from_tables`.
        time_unit: the unit of the times, "s", "ms", "us" or "ns"; "" if it is not known.
        tasks: all tasks of the folder (see OnDiskDataset); the fields above are those of the first task.
        metadata: {feature key: {name: value}}, the further fields of a feature in the folder's YAML.
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
    # None becomes `graph`; a function makes the graph at its first use. No default, so that __getattr__ is asked.
    training_graph: CSCGraph | HeteroCSCGraph = field(default_factory=lambda: None, repr=False)  # type: ignore[assignment]
    node_names: Mapping[NodeType | None, Sequence[Any]] = field(default_factory=dict, repr=False)
    tasks: tuple[Task, ...] = field(default=None, repr=False)  # type: ignore[arg-type]  # None: one Task
    metadata: Mapping[Any, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    left_out: Mapping[tuple[str, str], str] = field(default_factory=dict, repr=False)
    time_unit: str = ""

    def __post_init__(self) -> None:
        if self.training_graph is None:
            object.__setattr__(self, "training_graph", self.graph)
        elif callable(self.training_graph):
            object.__setattr__(self, "_make_training_graph", self.training_graph)
            object.__delattr__(self, "training_graph")
        if self.tasks is None:
            metadata = {"name": self.task, "num_classes": self.num_classes}
            only = Task(self.train_set, self.validation_set, self.test_set, metadata)
            object.__setattr__(self, "tasks", (only,))

    def __getattr__(self, name: str) -> Any:
        if name != "training_graph" or "_make_training_graph" not in self.__dict__:
            return object.__getattribute__(self, name)  # which raises the error
        object.__setattr__(self, name, self._make_training_graph())
        return self.__dict__[name]

    @property
    def feature(self) -> FeatureStore:
        """The FeatureStore `features`, under GraphBolt's name."""
        return self.features

    @property
    def all_nodes_set(self) -> ItemSet | HeteroItemSet:
        """An item set of all nodes as seeds, without labels; by type if the graph has types."""
        return one_set({kind: ItemSet(self.graph.num_nodes_of(kind)) for kind in self.graph.node_types})

    @classmethod
    def from_pyg(
        cls, data: torch_geometric.data.Data | torch_geometric.data.HeteroData, *, name: str = "data"
    ) -> Dataset:
        """Return the Dataset of a PyG `Data` or `HeteroData` with a task on its nodes. Tensors of nodes are not copied.

        | in `data` | here |
        |---|---|
        | `edge_index` | `graph`, with types for a HeteroData; the id of an edge is its column |
        | `x`, `edge_attr`, if they exist | the features "x" of nodes and "edge_attr" of edges |
        | `train_mask`, `val_mask`, `test_mask`: bool [num_nodes] | the item sets; the last two may be missing |
        | `y`: integers [num_nodes] or [num_nodes, k] | labels, int64; the task is "node_classification" |
        | `y`: floats | labels, float32; the task is "node_regression" |
        | other tensors of nodes or edges | attributes of the graph |

        Types of nodes without `train_mask` have no seeds; their `y` and masks stay attributes.

        Raises:
            ValueError: `edge_index`, `train_mask` or `y` is missing, or has another shape or dtype.
        """
        return cls(name=name, **_fields_of_pyg(data))

    def describe(self) -> str:
        """Return the data set as a short table: the task, then a line for each type of nodes and of edges.

        A line has the number of nodes or edges; how many of them are in each of the three item sets; and name, dtype
        and shape of each feature. Then come what was left out, and the number of training items of each class.
        """
        rows = self._rows()
        table = zip_longest(aligned([row[:-1] for row in rows], _MOST_TYPES), rows[: _MOST_TYPES + 1])
        lines = [self._title(), *(f"{line}  {row[-1] if row else ''}".rstrip() for line, row in table)]
        return "\n".join(map(one_line, lines + self._notes()))

    def _notes(self) -> list[str]:
        """Return the lines below the table of `describe`."""
        lines = [f"left out: {'.'.join(key)}: {text}" for key, text in self.left_out.items()]
        if counts := self._class_counts():
            named = [f"{name} {count}" for name, count in zip(self.class_names, counts, strict=True)]
            more = f", and {len(named) - _MOST_TYPES} more" if len(named) > _MOST_TYPES else ""
            lines.append(f"training items of each class: {', '.join(named[:_MOST_TYPES])}{more}")
        return lines

    def _class_counts(self) -> list[int]:
        """Return the number of training items of each class; [] without classes, or with several labels an item."""
        if not self.num_classes:
            return []
        sets = self.train_set.item_sets.values() if isinstance(self.train_set, HeteroItemSet) else [self.train_set]
        labels = [items.take(torch.arange(len(items)))["labels"] for items in sets if "labels" in items.names]
        if not labels or any(rows.ndim > 1 for rows in labels):
            return []
        every = torch.cat(labels).long()
        return torch.bincount(every[every >= 0], minlength=self.num_classes).tolist()

    def _title(self) -> str:
        classes = f", {self.num_classes} classes" if self.num_classes else ""
        return f"{self.name}: {self.task.replace('_', ' ')}{classes}"

    def _rows(self) -> list[tuple[Any, ...]]:
        """Return the rows of the table of `describe`. The first is the header; the last column has the features."""
        table: list[tuple[Any, ...]] = [("", "count", *(name.removesuffix("_set") for name in MASKS), "features")]
        counts: dict[str, Any] = {"node": self.graph.num_nodes_of, "edge": self.graph.num_edges_of}
        for domain, types in (("node", self.graph.node_types), ("edge", self.graph.edge_types)):
            for kind in types:
                title = f"{domain}s" if kind is None else f"{domain}s {type_text(kind)}"
                items = (_num_items(getattr(self, name), domain, kind) for name in MASKS)
                named = ((name, self.features[domain, kind, name]) for name in self.features.names(domain, kind))
                texts = (f"{name} {dtype_name(rows.dtype)} {[rows.count, *rows.shape]}" for name, rows in named)
                table.append((title, counts[domain](kind), *items, ", ".join(texts)))
        return table

    def _repr_html_(self) -> str:
        """Return what `describe` says as HTML, for notebooks."""
        return table_html(self._title(), self._rows(), self._notes())

    def with_validation(self, share: float = 0.2, seed: int = 0) -> Dataset:
        """Return the data set with a random part of `train_set` as `validation_set`.

        Use it for files without a validation part, such as AIFB's. The test set does not change.

        Args:
            share: the share of the items of each type that become validation items, in (0, 1); their number is rounded.
                A set leaves out types without items.
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
            by_type: dict[Any, ItemSet] = {**self.train_set.item_sets}
        else:
            by_type = {None: self.train_set}
        halves = {kind: _cut(items, share, seed) for kind, items in by_type.items()}
        train, validation = (one_set({kind: half[place] for kind, half in halves.items()}) for place in (0, 1))
        tasks = tuple(replace(task, train_set=train, validation_set=validation) for task in self.tasks[:1])
        return replace(self, train_set=train, validation_set=validation, tasks=tasks + self.tasks[1:])


def graph_of_edges(
    edges: Mapping[Any, Any],
    num_nodes: Mapping[Any, int],
    node_attributes: Mapping[Any, Any],
    edge_attributes: Mapping[Any, Any],
    folder: Path | None = None,
    **options: Any,
) -> CSCGraph | HeteroCSCGraph:
    """Return a graph with these edges: a CSCGraph if the node type is None, else a HeteroCSCGraph.

    Args:
        edges: {edge type: edges}. Edges are [2, n], or with `folder` anything that CSCGraph.build takes.
        num_nodes: {node type: number of nodes}.
        node_attributes, edge_attributes: {type: {name: values}}.
        folder: build the graph out of core, in this folder. None: build it in memory.
        options: further arguments of CSCGraph.build, or of CSCGraph.from_edge_index if `folder` is None.
    """
    kind: Any = HeteroCSCGraph
    arguments: list[Any] = [edges, num_nodes, node_attributes, edge_attributes]
    if None in num_nodes:
        kind, arguments = CSCGraph, [by_type.get(None) for by_type in arguments]
    ends, count, of_nodes, of_edges = arguments
    options |= {"node_attributes": of_nodes, "edge_attributes": of_edges}
    graph: CSCGraph | HeteroCSCGraph
    if folder is None:
        graph = kind.from_edge_index(ends, count, **options)
    else:
        graph = kind.build(ends, folder, count, **options)
    return graph


def one_set(sets: dict[Any, ItemSet]) -> ItemSet | HeteroItemSet:
    """Join {type: item set} into one HeteroItemSet. Without types, the only key is None, and its ItemSet is returned.

    Types without items are left out, since a sampler would refuse them. If no type has items, all types stay.
    """
    return sets[None] if None in sets else HeteroItemSet({k: items for k, items in sets.items() if len(items)} or sets)


def _cut(items: ItemSet, share: float, seed: int) -> tuple[ItemSet, ItemSet]:
    """Draw a random `share` of the items, rounded to whole items; return (items that stay, items that were drawn).

    Both keep the order of `items`.
    """
    order = _core.permutation_at(len(items), _core.hop_key(seed, 0, 0, 0, 0, 0), 0, len(items))
    count = round(share * len(items))
    first, second = (torch.from_numpy(np.sort(places)) for places in (order[count:], order[:count]))
    kept, drawn = items.take(first), items.take(second)
    names = items.names
    return tuple(ItemSet(tuple(rows[name] for name in names), names) for rows in (kept, drawn))  # type: ignore[return-value]


def _num_items(items: ItemSet | HeteroItemSet, domain: str, kind: Any) -> int | None:
    """Return how many items are seeds of the node or edge type `kind`; None if `items` does not have this type.

    `domain` is "node" or "edge".
    """
    if isinstance(items, HeteroItemSet):
        return len(items.item_sets[kind]) if kind in items.item_sets else None
    return len(items) if kind is None and (domain == "node") == (items.seeds_shape == ()) else None


# --- from PyG

_FROM_PYG = "Dataset.from_pyg"


def _fields_of_pyg(data: Any) -> dict[str, Any]:
    """Return {field: value} for the Dataset of a Data or HeteroData; see Dataset.from_pyg."""
    graph = HeteroCSCGraph.from_pyg(data) if hasattr(data, "node_types") else CSCGraph.from_pyg(data)
    features: dict[Any, TensorFeature] = {}
    for edge_type in graph.edge_types:
        # The attribute is in the graph's order. The feature is read by edge id, so it takes the rows of the Data.
        if graph.relation(edge_type).edge_attributes.pop("edge_attr", None) is not None:
            rows = (data if edge_type is None else data[edge_type])["edge_attr"]
            features["edge", edge_type, "edge_attr"] = TensorFeature(rows)
    sets: dict[str, dict[Any, ItemSet]] = {name: {} for name in MASKS}
    names: dict[Any, list[str]] = {}
    labels: dict[Any, Tensor] = {}
    for kind in graph.node_types:
        attributes = graph.node_attributes_of(kind)
        names[kind] = sorted(attributes)
        if "x" in attributes:
            features["node", kind, "x"] = TensorFeature(attributes.pop("x"))
        if "train_mask" not in attributes:
            continue
        labels[kind] = _labels_of_pyg(kind, attributes)
        for name, mask in MASKS.items():
            seeds = attributes.pop(mask, torch.zeros(labels[kind].shape[0], dtype=torch.bool))
            if seeds.dtype != torch.bool or seeds.ndim != 1:
                one_mask = f"{mask}[:, 0]" if seeds.ndim > 1 else mask
                raise ValueError(
                    f"{_FROM_PYG}: {mask}{of_type(kind)} is {dtype_name(seeds.dtype)} {list(seeds.shape)}, must be "
                    f"bool [num_nodes]. Set it to one mask of this dtype, such as {one_mask}.bool()."
                )
            sets[name][kind] = ItemSet((seeds, labels[kind]))
    if not labels:
        raise ValueError(
            f"{_FROM_PYG}: found no train_mask, bool [num_nodes], which says what the seeds are; the nodes have "
            f"{shown(names.get(None, names))}. Set it, and val_mask and test_mask, for example by "
            "torch_geometric.transforms.RandomNodeSplit; for a task on edges make a dp.ItemSet of pairs."
        )
    are_values = {rows.is_floating_point() for rows in labels.values()}
    if len(are_values) > 1:
        raise ValueError(
            f"{_FROM_PYG}: y of {sorted(labels)} has integers for one node type and floats for another; a data set has "
            "one task, with classes or with values. Convert y of one, or leave out its train_mask."
        )
    num_classes = 0 if True in are_values else max(int(rows.max()) + 1 if len(rows) else 0 for rows in labels.values())
    parts = {name: one_set(by_type) for name, by_type in sets.items()}
    return {
        "graph": graph,
        "features": FeatureStore(features),
        **parts,
        "num_classes": num_classes,
        "class_names": tuple(map(str, range(num_classes))),
        "task": "node_regression" if True in are_values else "node_classification",
    }


def _labels_of_pyg(kind: NodeType | None, attributes: dict[str, Tensor]) -> Tensor:
    """Remove `y` from `attributes`, the tensors of the nodes of type `kind`; return it as labels, int64 or float32.

    Labels [n, 1] are returned as [n].
    """
    if "y" not in attributes:
        raise ValueError(
            f"{_FROM_PYG}: found train_mask{of_type(kind)} without y, the labels, one row for each node; the "
            f"nodes{of_type(kind)} have {sorted(attributes)}. Set y, or remove train_mask."
        )
    labels = attributes.pop("y")
    labels = labels.flatten() if labels.shape[1:] == (1,) else labels
    if labels.is_floating_point():
        return labels.float()
    if labels.numel() > 0 and int(labels.max()) >= MAX_CLASSES:
        raise ValueError(
            f"{_FROM_PYG}: y{of_type(kind)} has the class {int(labels.max())}; classes are in [0, {MAX_CLASSES}), "
            "or -1 for none. Number them from 0, or convert values to floats."
        )
    return labels.long()
