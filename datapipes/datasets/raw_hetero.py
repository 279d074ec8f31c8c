"""A data set with types, or with a task on edges, as it is in its files: plain numpy arrays, checked once.

`RawHeteroDataset` stands beside `RawDataset` (raw.py). A graph without types has the node type None and the edge type
None here, as everywhere in the package. `RawItems` are the seeds of one part of the split with what belongs to them.

Invariant: every id is inside its node type, every array has the rows that it needs, and every type that a key names
exists. Arrays that do not fit raise ValueError or TypeError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, NodeType, check_edge_type, check_node_type, type_text
from datapipes.datasets.raw import DatasetFormatError

TASKS = ("node_classification", "link_prediction", "edge_regression", "all_nodes")
REVERSE = "rev_"  # before the name of a relation: the name of its inverse, as PyG's ToUndirected has it

_REMEDY = "Correct the arrays, or the reader that made them."
_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class RawItems:
    """The seeds of one part of a split, and the values that belong to each.

    Args:
        seeds: int64 [n] nodes, or [n, 2] edges (source, destination).
        labels: int64 [n] classes, int64 [n, k] for k tasks of two classes, 1 or 0 for an edge that exists or not, or
            float32 [n] numbers to predict; None if each seed is an edge that exists.
        timestamps: int64 or float64 [n], the time of each seed; None without times.
        indexes: int64 [n], the number of the query that a seed belongs to; None if all seeds are ranked together.
    """

    seeds: np.ndarray
    labels: np.ndarray | None = None
    timestamps: np.ndarray | None = None
    indexes: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class RawHeteroDataset:
    """The arrays of one data set.

    Args:
        name: Used in messages.
        num_nodes: The number of nodes of each type, also of types without edges. {None: n} without types.
        edges: int64 [2, num_edges] by edge type (src, rel, dst): row 0 has ids of src nodes, row 1 of dst nodes.
            {None: edges} without types. Repeated edges stay.
        node_features: Arrays [num_nodes, ...] by (node type, name); they go to the feature store.
        edge_features: Arrays [num_edges, ...] by (edge type, name), in the order of `edges`; to the feature store.
        task: One of `TASKS`.
        split: The items of train, validation and test, each by type: node types, or edge types if the seeds are edges.
            All three have the same types.
        class_names: One for each class; () if there are no classes.
        node_attributes, edge_attributes: As the features, but they go to the graph, for samplers: times, old ids.
        num_training_edges: For edge types whose edges are in the order of time: so many of the first are known in
            training. A type that is left out: all.
        node_names: For node types that have names in the files: one for each node.
    Raises:
        TypeError: A value is not an array, or has another dtype than the one above.
        ValueError: Shapes do not fit each other, an id is out of range, or a type is unknown.
    """

    name: str
    num_nodes: dict[NodeType | None, int]
    edges: dict[EdgeType | None, np.ndarray]
    node_features: dict[tuple[NodeType | None, str], np.ndarray]
    edge_features: dict[tuple[EdgeType | None, str], np.ndarray]
    task: str
    split: tuple[Mapping[Any, RawItems], Mapping[Any, RawItems], Mapping[Any, RawItems]]
    class_names: tuple[str, ...] = ()
    node_attributes: dict[tuple[NodeType | None, str], np.ndarray] = field(default_factory=dict)
    edge_attributes: dict[tuple[EdgeType | None, str], np.ndarray] = field(default_factory=dict)
    num_training_edges: dict[EdgeType | None, int] = field(default_factory=dict)
    node_names: dict[NodeType | None, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ValueError(f"{self.name}: task is {shown(self.task)}, must be one of {TASKS}. {_REMEDY}")
        self._check_types()
        for edge_type, ends in self.edges.items():
            self._check_edges(f"the edges of {type_text(edge_type)}", ends.T, edge_type)
        num_edges = {edge_type: ends.shape[1] for edge_type, ends in self.edges.items()}
        for kind, counts, arrays in (
            ("node feature", self.num_nodes, self.node_features),
            ("node attribute", self.num_nodes, self.node_attributes),
            ("edge feature", num_edges, self.edge_features),
            ("edge attribute", num_edges, self.edge_attributes),
        ):
            for (of_type, name), array in arrays.items():
                count = self._known(kind, of_type, counts)
                self._check_rows(f"{kind} {name!r} of {type_text(of_type)}", array, count)
        for edge_type, count in self.num_training_edges.items():
            if not 0 <= count <= self._known("num_training_edges", edge_type, num_edges):
                raise ValueError(
                    f"{self.name}: num_training_edges of {type_text(edge_type)} is {count}, must be in "
                    f"[0, {num_edges[edge_type]}]. {_REMEDY}"
                )
        for node_type, names in self.node_names.items():
            if len(names) != self._known("node_names", node_type, self.num_nodes):
                raise ValueError(
                    f"{self.name}: {len(names)} names for {self.num_nodes[node_type]} nodes of {type_text(node_type)}; "
                    f"one for each is needed. {_REMEDY}"
                )
        self._check_split()

    @property
    def is_heterogeneous(self) -> bool:
        """Whether the graph has types."""
        return None not in self.num_nodes

    def _check_types(self) -> None:
        if None in [*self.num_nodes, *self.edges] and (list(self.num_nodes), list(self.edges)) != ([None], [None]):
            raise ValueError(
                f"{self.name}: the node types are {list(self.num_nodes)} and the edge types {list(self.edges)}; a "
                f"graph without types has None and nothing else in both. {_REMEDY}"
            )
        for node_type, count in self.num_nodes.items():
            if node_type is not None:
                check_node_type(self.name, node_type)
            if count < 0:
                raise ValueError(f"{self.name}: {type_text(node_type)} has {count} nodes, must be 0 or more. {_REMEDY}")
        for edge_type in self.edges:
            if edge_type is not None:
                src, _, dst = check_edge_type(self.name, edge_type)
                self._known(f"the source of {type_text(edge_type)}", src, self.num_nodes)
                self._known(f"the destination of {type_text(edge_type)}", dst, self.num_nodes)

    def _known(self, what: str, of_type: Any, counts: Mapping[Any, int]) -> int:
        if of_type not in counts:
            known = shown([type_text(each) for each in counts])
            raise ValueError(f"{self.name}: {what} is of the type {type_text(of_type)}; known are {known}. {_REMEDY}")
        return counts[of_type]

    def _check_split(self) -> None:
        if len(self.split) != 3 or len({frozenset(part) for part in self.split}) != 1:
            found = [sorted(map(type_text, part)) for part in self.split]
            raise ValueError(f"{self.name}: the split has the types {found}, must be 3 parts of one set. {_REMEDY}")
        on_nodes = self.task in ("node_classification", "all_nodes")
        for part, items_of in zip(_PARTS, self.split, strict=True):
            for of_type, items in items_of.items():
                what = f"the {part} seeds of {type_text(of_type)}"
                if on_nodes:
                    self._check_ids(what, items.seeds, self._known(what, of_type, self.num_nodes))
                else:
                    self._known(what, of_type, dict.fromkeys(self.edges, 0))
                    self._check_edges(what, items.seeds, of_type)
                if items.seeds.ndim != (1 if on_nodes else 2):
                    allowed = "[n] for nodes" if on_nodes else "[n, 2] for edges"
                    raise ValueError(
                        f"{self.name}: {what} have shape {items.seeds.shape}, must be {allowed}. {_REMEDY}"
                    )
                self._check_values(f"the {part} %s of {type_text(of_type)}", items)

    def _check_values(self, what: str, items: RawItems) -> None:
        for name in ("labels", "timestamps", "indexes"):
            values = getattr(items, name)
            if values is not None:
                self._check_rows(what % name, values, len(items.seeds))
        if self.task in ("node_classification", "edge_regression") and items.labels is None:
            raise ValueError(f"{self.name}: {what % 'labels'} are missing; the task {self.task} needs them. {_REMEDY}")
        if self.task != "edge_regression" and items.labels is not None:
            limit = len(self.class_names) if self.task == "node_classification" else 2
            self._check_ids(what % "labels", items.labels, limit)

    def _check_edges(self, what: str, pairs: np.ndarray, edge_type: EdgeType | None) -> None:
        """Check pairs (source, destination), [n, 2]."""
        src, dst = (None, None) if edge_type is None else (edge_type[0], edge_type[2])
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ValueError(f"{self.name}: {what} have shape {pairs.shape}, must be pairs. {_REMEDY}")
        self._check_ids(f"{what}, sources,", pairs[:, 0], self.num_nodes[src])
        self._check_ids(f"{what}, destinations,", pairs[:, 1], self.num_nodes[dst])

    def _check_rows(self, what: str, array: Any, count: int) -> None:
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{self.name}: {what} is a {type(array).__name__}, must be an array. {_REMEDY}")
        if array.shape[:1] != (count,):
            raise ValueError(f"{self.name}: {what} has shape {array.shape}, must be [{count}, ...]. {_REMEDY}")

    def _check_ids(self, what: str, ids: Any, limit: int) -> None:
        if not isinstance(ids, np.ndarray) or ids.dtype != np.int64:
            found = ids.dtype if isinstance(ids, np.ndarray) else type(ids).__name__
            raise TypeError(f"{self.name}: {what} are of {found}, must be an int64 array. {_REMEDY}")
        if ids.size and (ids.min() < 0 or ids.max() >= limit):
            outside = ids.min() if ids.min() < 0 else ids.max()
            raise ValueError(f"{self.name}: {what} have {outside}, must be in [0, {limit}). {_REMEDY}")


def labelled_items(node_type: NodeType | None, labels: np.ndarray, parts: Iterable[np.ndarray]) -> Any:
    """Return the `split` of node classification: ids and labels of each part, for one node type.

    Args:
        labels: int64 [num_nodes] or [num_nodes, k]; read at the ids of the parts only.
        parts: int64 node ids of train, validation and test.
    """
    return tuple({node_type: RawItems(ids, labels[ids])} for ids in parts)


def inverse_of(edge_type: EdgeType) -> EdgeType:
    """Return the type of the edges in the other direction: (dst, "rev_" + rel, src)."""
    src, rel, dst = edge_type
    return dst, f"{REVERSE}{rel}", src


def with_inverses(edges: Mapping[Any, np.ndarray]) -> dict[EdgeType | None, np.ndarray]:
    """Return `edges` by type and, for each type, its inverse: the same edges in the same order with the ends swapped.

    Raises:
        DatasetFormatError: An inverse has the name of a type that is there.
    """
    both: dict[EdgeType | None, np.ndarray] = {**edges}
    for edge_type, ends in edges.items():
        inverse = inverse_of(edge_type)
        if inverse in both:
            raise DatasetFormatError.of(
                "the relations",
                f"{type_text(edge_type)} and {type_text(inverse)}, the name of its inverse",
                "other names",
                "Rename one, or leave the inverses out.",
            )
        both[inverse] = np.ascontiguousarray(ends[::-1])
    return both
