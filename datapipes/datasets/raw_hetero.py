"""A data set with types, or with a task on edges, as it is in its files: plain numpy arrays, checked once.

`RawHeteroDataset` is the counterpart of `RawDataset` (raw.py). A graph without types has the node type None and the
edge type None here, as everywhere in the package. `RawItems` are the seeds of one part of the split, with their values.

Invariant: every id is inside its node type, every array has one row for each node, edge or seed, and every type in a
key exists. Arrays that do not fit raise ValueError or TypeError.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, NodeType, check_edge_type, check_node_type, ends_of, type_text
from datapipes.datasets.raw import REMEDY, DatasetFormatError, check_id_array, check_row_array

TASKS = ("node_classification", "link_prediction", "edge_regression", "all_nodes")
REVERSE = "rev_"  # "rev_" + relation is the name of the inverse, as in PyG's ToUndirected

_PARTS = ("train", "validation", "test")


@dataclass(frozen=True, eq=False)
class RawItems:
    """The seeds of one part of a split, and the values of each seed.

    Args:
        seeds: int64 [n] nodes, or [n, 2] edges (source, destination).
        labels: one of these: int64 [n], classes; int64 [n, k], for k tasks of two classes; int64 [n], 1 for an edge
            that exists and 0 for a negative edge; float32 [n], numbers to predict. None if each seed is an edge that
            exists.
        timestamps: int64 or float64 [n], the time of each seed; None without times.
        indexes: int64 [n], the id of the query that each seed belongs to; None if all seeds are ranked together.
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
        edges: {edge type (src, rel, dst): int64 [2, num_edges]}: row 0 has ids of src nodes, row 1 of dst nodes.
            {None: edges} without types. Repeated edges stay.
        node_features: {(node type, name): array [num_nodes, ...]}, for the feature store.
        edge_features: {(edge type, name): array [num_edges, ...]}, rows in the order of `edges`, for the feature store.
        task: One of `TASKS`.
        split: The items of train, validation and test, each by type: node types, or edge types if the seeds are edges.
            All three have the same types.
        class_names: A name for each class; () if there are no classes.
        node_attributes, edge_attributes: Arrays like the features. They become attributes of the graph, which samplers
            read: times, old ids.
        num_training_edges: {edge type: n}: the first n edges, in the order of time, are known in training. All edges
            of a type without an entry are known.
        node_names: {node type: one name for each node}, for types that have names in the files.
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
            raise ValueError(f"{self.name}: task is {shown(self.task)}, must be one of {TASKS}. {REMEDY}")
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
            for (key_type, name), rows in arrays.items():
                count = self._count_of(kind, key_type, counts)
                check_row_array(self.name, f"{kind} {name!r} of {type_text(key_type)}", rows, count)
        for edge_type, count in self.num_training_edges.items():
            if not 0 <= count <= self._count_of("num_training_edges", edge_type, num_edges):
                raise ValueError(
                    f"{self.name}: num_training_edges of {type_text(edge_type)} is {count}, must be in "
                    f"[0, {num_edges[edge_type]}]. {REMEDY}"
                )
        for node_type, names in self.node_names.items():
            if len(names) != self._count_of("node_names", node_type, self.num_nodes):
                raise ValueError(
                    f"{self.name}: {len(names)} names for {self.num_nodes[node_type]} nodes of {type_text(node_type)}; "
                    f"one for each is needed. {REMEDY}"
                )
        self._check_split()

    def _check_types(self) -> None:
        if None in [*self.num_nodes, *self.edges] and (list(self.num_nodes), list(self.edges)) != ([None], [None]):
            raise ValueError(
                f"{self.name}: the node types are {list(self.num_nodes)} and the edge types {list(self.edges)}; a "
                f"graph without types has None and nothing else in both. {REMEDY}"
            )
        for node_type, count in self.num_nodes.items():
            if node_type is not None:
                check_node_type(self.name, node_type)
            if count < 0:
                raise ValueError(f"{self.name}: {type_text(node_type)} has {count} nodes, must be 0 or more. {REMEDY}")
        for edge_type in self.edges:
            if edge_type is not None:
                src, _, dst = check_edge_type(self.name, edge_type)
                self._count_of(f"the source of {type_text(edge_type)}", src, self.num_nodes)
                self._count_of(f"the destination of {type_text(edge_type)}", dst, self.num_nodes)

    def _count_of(self, noun: str, key_type: Any, counts: Mapping[Any, int]) -> int:
        if key_type not in counts:
            types = shown([*map(type_text, counts)])
            raise ValueError(f"{self.name}: {noun}: found the type {type_text(key_type)}; known are {types}. {REMEDY}")
        return counts[key_type]

    def _check_split(self) -> None:
        if len(self.split) != 3 or len({frozenset(part) for part in self.split}) != 1:
            types = [sorted(map(type_text, part)) for part in self.split]
            raise ValueError(
                f"{self.name}: the parts of the split have the types {types}, must be 3 with the same types. {REMEDY}"
            )
        on_nodes = self.task in ("node_classification", "all_nodes")
        for part, items_of in zip(_PARTS, self.split, strict=True):
            for seed_type, items in items_of.items():
                seeds = f"the {part} seeds of {type_text(seed_type)}"
                if on_nodes:
                    check_id_array(self.name, seeds, items.seeds, self._count_of(seeds, seed_type, self.num_nodes))
                else:
                    self._count_of(seeds, seed_type, dict.fromkeys(self.edges, 0))
                    self._check_edges(seeds, items.seeds, seed_type)
                if items.seeds.ndim != (1 if on_nodes else 2):
                    allowed = "[n] for nodes" if on_nodes else "[n, 2] for edges"
                    raise ValueError(
                        f"{self.name}: {seeds} have shape {items.seeds.shape}, must be {allowed}. {REMEDY}"
                    )
                self._check_values(f"the {part} %s of {type_text(seed_type)}", items)

    def _check_values(self, noun: str, items: RawItems) -> None:
        for name in ("labels", "timestamps", "indexes"):
            values = getattr(items, name)
            if values is not None:
                check_row_array(self.name, noun % name, values, len(items.seeds))
        if self.task in ("node_classification", "edge_regression") and items.labels is None:
            raise ValueError(f"{self.name}: {noun % 'labels'} are missing; the task {self.task} needs them. {REMEDY}")
        if self.task != "edge_regression" and items.labels is not None:
            limit = len(self.class_names) if self.task == "node_classification" else 2
            check_id_array(self.name, noun % "labels", items.labels, limit)

    def _check_edges(self, noun: str, pairs: np.ndarray, edge_type: EdgeType | None) -> None:
        """Raise unless `pairs` is int64 [n, 2], and has nodes of the types of `edge_type`: (source, destination)."""
        src, dst = ends_of(edge_type)
        if pairs.ndim != 2 or pairs.shape[1] != 2:
            raise ValueError(f"{self.name}: {noun} have shape {pairs.shape}, must be pairs. {REMEDY}")
        check_id_array(self.name, f"{noun}, sources", pairs[:, 0], self.num_nodes[src])
        check_id_array(self.name, f"{noun}, destinations", pairs[:, 1], self.num_nodes[dst])


def labelled_items(node_type: NodeType | None, labels: np.ndarray, parts: Iterable[np.ndarray]) -> Any:
    """Return the field `split` of a RawHeteroDataset for node classification: (train, validation, test).

    Each is {node_type: items}, with node ids and their labels.

    Args:
        labels: int64 [num_nodes] or [num_nodes, k]; only the labels of nodes in a part are used.
        parts: the int64 node ids of train, of validation and of test.
    """
    return tuple({node_type: RawItems(ids, labels[ids])} for ids in parts)


def inverse_of(edge_type: EdgeType) -> EdgeType:
    """Return the type of the edges in the other direction: (dst, "rev_" + rel, src)."""
    src, rel, dst = edge_type
    return dst, f"{REVERSE}{rel}", src


def with_inverses(edges: Mapping[Any, np.ndarray]) -> dict[EdgeType | None, np.ndarray]:
    """Return `edges`, and an inverse type for each type: the same edges in the same order with the ends swapped.

    Raises:
        DatasetFormatError: A type in `edges` already has the name of an inverse.
    """
    both: dict[EdgeType | None, np.ndarray] = {**edges}
    for edge_type, ends in edges.items():
        inverse = inverse_of(edge_type)
        if inverse in both:
            fault = f"{type_text(edge_type)} and {type_text(inverse)}, the name of its inverse"
            remedy = "Rename one, or pass inverse_relations=False."
            raise DatasetFormatError.of("the relations", fault, "other names", remedy)
        both[inverse] = np.ascontiguousarray(ends[::-1])
    return both
