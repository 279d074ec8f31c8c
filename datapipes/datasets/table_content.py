"""What the rows of tables become: the arrays of a Dataset, in memory or in files, and the task with its split."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipes.base.checks import shown
from datapipes.base.types import type_text
from datapipes.datasets.by_name import SPLITS
from datapipes.datasets.dataset import MASKS, Dataset, graph_of_edges, one_set
from datapipes.datasets.edge_lists import times_of_cuts
from datapipes.datasets.raw import MAX_CLASSES
from datapipes.datasets.table_plan import TIME, WHERE, Plan
from datapipes.datasets.table_rows import Reading, Rows
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph.edits import with_edges_kept
from datapipes.ingest.columns import statistics, time_of, vocabulary
from datapipes.ingest.ids import Names, places_in
from datapipes.ingest.pieces import Pieces, mapped
from datapipes.seeds import ItemSet

Cuts = tuple[int, int]  # the last time of training, and of validation
Key = tuple[str, Any, str]  # ("node" or "edge", type, name)


@dataclass
class Content:
    """The arrays of a Dataset; they may be mapped files.

    Attributes:
        num_nodes: {node type: number}.
        edges: {edge type: (sources, destinations)}.
        features: {key: rows}.
        attributes: the keys of features that are attributes of the graph too, in order; the values say nothing.
        facts: {key: metadata of the feature}.
        sets: {name of a set: {type of the seeds: {field: rows}}}.
        cuts: the last times of training and validation; None if the split is not by time.
        others: further fields of the Dataset.
    """

    num_nodes: dict[Any, int]
    edges: dict[Any, tuple[NDArray[Any], NDArray[Any]]] = field(default_factory=dict)
    features: dict[Key, NDArray[Any]] = field(default_factory=dict)
    attributes: dict[Key, None] = field(default_factory=dict)
    facts: dict[Key, dict[str, Any]] = field(default_factory=dict)
    sets: dict[str, dict[Any, dict[str, NDArray[Any]]]] = field(default_factory=lambda: {part: {} for part in MASKS})
    cuts: Cuts | None = None
    others: dict[str, Any] = field(default_factory=dict)

    def dataset(self, name: str) -> Dataset:
        """Return the Dataset, in memory."""
        attributes: dict[str, dict[Any, dict[str, Any]]] = {"node": {}, "edge": {}}
        for domain, kind, column in self.attributes:
            attributes[domain].setdefault(kind, {})[column] = self.features[domain, kind, column]
        edges = {kind: np.stack(ends) for kind, ends in self.edges.items()}
        features = {id(rows): TensorFeature(torch.from_numpy(rows)) for rows in self.features.values()}
        sets = {
            part: {
                kind: ItemSet(tuple(map(torch.from_numpy, rows.values())), names=[*rows])
                for kind, rows in by_type.items()
            }
            for part, by_type in self.sets.items()
        }
        data = Dataset(
            name=name,
            graph=graph_of_edges(edges, self.num_nodes, attributes["node"], attributes["edge"]),
            features=FeatureStore({key: features[id(rows)] for key, rows in self.features.items()}),
            train_set=one_set(sets["train_set"]),
            validation_set=one_set(sets["validation_set"]),
            test_set=one_set(sets["test_set"]),
            num_classes=0,
            class_names=(),
        )
        return self.completed(data)

    def completed(self, data: Dataset) -> Dataset:
        """Return the Dataset with what its arrays do not say: the names, the task, and the graph of training."""
        graph = None
        if self.others["task"] == "link_prediction" and self.cuts is not None:
            graph = functools.partial(_until, data.graph, self.cuts[0])  # made if it is used: it is not mapped
        fields = {**self.others, "training_graph": graph, "metadata": self.facts}
        return replace(data, **fields, tasks=None)  # type: ignore[arg-type]  # None: one task, of these fields


def _until(graph: Any, last: int) -> Any:
    """Return the graph with the edges up to a time, and those that have none."""
    times = {kind: graph.relation(kind).edge_attributes.get(TIME) for kind in graph.edge_types}
    kept = {kind: of_edges <= last for kind, of_edges in times.items() if of_edges is not None}
    return graph._of(with_edges_kept(graph._arrays(), kept))


def content_of(plan: Plan, reading: Reading, split: Any, new_pieces: Callable[[], Pieces]) -> Content:
    """Return the content of the rows that were read; `new_pieces` makes what keeps further arrays."""
    labels, classes = _labels(plan, reading)
    has_label = {table: ~np.isnan(of_table) if classes is None else of_table >= 0 for table, of_table in labels.items()}
    cuts = _cuts(plan, reading, split, has_label)
    known = _known_rows(plan, reading, cuts)
    content = Content({plan.node_type(kind): count for kind, count in reading.num_nodes().items()}, cuts=cuts)
    types: list[Any]
    for table, rows in reading.rows.items():
        for link, kinds in plan.edge_types(table).items():
            src, dst = (pieces.whole() for pieces in rows.links[link])
            for one, ends in zip(kinds, ((src, dst), (dst, src)), strict=False):
                if one in content.edges:
                    raise ValueError(
                        f"{WHERE}: two tables make edges of the type {type_text(one)}. Rename the table {table!r}."
                    )
                content.edges[one] = ends
        domain, types = "node", [plan.node_type(table)]
        if table in plan.edges:
            domain, types = "edge", [kind for kinds in plan.edge_types(table).values() for kind in kinds]
        for column, (values, facts) in _features_of(plan, table, rows, known[table], new_pieces).items():
            for key in ((domain, kind, column) for kind in types):
                content.features[key] = values
                if facts:
                    content.facts[key] = facts
                if (column == TIME and rows.times is not None) or (domain == "edge" and values.ndim == 1):
                    content.attributes[key] = None
    for table in plan.labels or plan.edges:
        rows = reading.rows[table]
        kind, items = _items(plan, table, rows, labels.get(table), new_pieces)
        for part, mask in zip(MASKS, _parts(plan, table, rows, cuts), strict=True):
            mask = mask & has_label[table] if table in has_label else mask
            content.sets[part][kind] = {
                name: mapped(operator.getitem, new_pieces(), v, mask) for name, v in items.items()
            }
    if not (plan.labels or plan.edges):
        none = {"seeds": np.zeros(0, np.int64)}
        content.sets = {part: dict.fromkeys(content.num_nodes, none) for part in MASKS}
    content.others = {
        "task": _task(plan, has_classes=classes is not None),
        "num_classes": len(classes or ()),
        "class_names": classes or (),
        "node_names": {plan.node_type(kind): Names(ids) for kind, ids in reading.ids.items()},
        "left_out": plan.left_out,
        "time_unit": plan.time_unit if plan.times else "",
    }
    return content


# --- features


def _known_rows(plan: Plan, reading: Reading, cuts: Cuts | None) -> dict[str, NDArray[Any] | None]:
    """Return {table: which rows are known in training}, bool [count]; None: all.

    These are the rows up to the last time of training. If a column has the split, they are the rows that it marks, and
    in other tables those up to the last time of a marked row.
    """
    last, marked = None if cuts is None else cuts[0], {}
    for table in plan.split:
        rows = reading.rows[table]
        marked[table] = _parts(plan, table, rows, None)[0]
        if rows.times is not None and marked[table].any():
            latest = int(rows.times.values()[marked[table]].max())
            last = latest if last is None else max(last, latest)
    return {
        table: marked.get(table, None if last is None or rows.times is None else rows.times.values() <= last)
        for table, rows in reading.rows.items()
    }


def _features_of(
    plan: Plan, table: str, rows: Rows, is_known: NDArray[Any] | None, new_pieces: Callable[[], Pieces]
) -> dict[str, tuple[NDArray[Any], dict[str, Any]]]:
    """Return {name: (rows, facts for the metadata)} of the features of a table."""
    arrays: dict[str, tuple[NDArray[Any], dict[str, Any]]] = {}
    for name, column in rows.columns.items():
        values, missing, facts = column.values(), column.missing(), {}
        if column.kind == "category":
            names = column.categories()
            chosen = vocabulary(values, len(names), is_known)
            facts = {"categories": names.chosen(chosen)}
            values = mapped(places_in(chosen, len(names)).__getitem__, new_pieces(), values)
        elif column.kind == "number" and values.dtype.kind != "b":
            has_value = ~missing if is_known is None else is_known & ~missing
            facts = statistics(values, has_value)
        arrays[name] = values, facts
        if missing.any():
            if f"{name}_missing" in rows.columns:
                raise ValueError(
                    f"{plan.title(table, name)} lacks values, which the feature '{name}_missing' would tell; a column "
                    "has this name. Rename that column."
                )
            arrays[f"{name}_missing"] = missing, {}
    if rows.times is not None:
        arrays[TIME] = rows.times.values(), {}
    return arrays


# --- the task


def _task(plan: Plan, *, has_classes: bool) -> str:
    if not plan.labels:
        return "link_prediction" if plan.edges else "all_nodes"
    domain = "edge" if {*plan.labels} & {*plan.edges} else "node"
    return f"{domain}_{'classification' if has_classes else 'regression'}"


def _items(
    plan: Plan, table: str, rows: Rows, labels: NDArray[Any] | None, new_pieces: Callable[[], Pieces]
) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return (node or edge type of the seeds, {name: values}) of all rows of a table."""
    kind: Any = plan.node_type(table)
    items = {"seeds": np.arange(rows.count)}
    if table in plan.edges:
        ((link, (kind, *_)),) = plan.edge_types(table).items()
        src, dst = (pieces.whole() for pieces in rows.links[link])
        items = {"seeds": mapped(lambda one, other: np.stack([one, other], axis=1), new_pieces(), src, dst)}
    if labels is not None:
        items["labels"] = labels
    if rows.times is not None:
        items["timestamps"] = rows.times.values()
    return kind, items


def _labels(plan: Plan, reading: Reading) -> tuple[dict[str, NDArray[Any]], tuple[str, ...] | None]:
    """Return ({table: labels}, names of the classes). None: the labels are values, float32.

    A row without a label has the class -1, or the value NaN.
    """
    columns = {table: rows.labels for table, rows in reading.rows.items() if rows.labels is not None}
    arrays = {table: column.values() for table, column in columns.items()}
    for table, values in arrays.items():
        if values.ndim > 1:
            raise ValueError(f"{plan.title(table, plan.labels[table])} has lists; a label is one value. Name another.")
        is_missing = values < 0 if columns[table].kind == "category" else columns[table].missing()
        if len(values) and is_missing.all():
            raise ValueError(f"{plan.title(table, plan.labels[table])} has no label in any row. Name another column.")
    forms = {"text" if column.kind == "category" else arrays[t].dtype.kind for t, column in columns.items()}
    if len({form if form in ("text", "f") else "i" for form in forms}) > 1:
        raise ValueError(f"{WHERE}: labels mix kinds (texts, integers, floats); a task has one kind. Convert them.")
    if "f" in forms:
        return {
            t: np.where(columns[t].missing(), np.nan, values).astype(np.float32) for t, values in arrays.items()
        }, None
    if "text" in forms:
        every = {name for column in columns.values() for name in column.categories()}
        ordered = sorted(every, key=None if all(isinstance(name, int) for name in every) else str)
        names = [*dict.fromkeys(map(str, ordered))]
        _refuse_many(len(names))
        place = {name: number for number, name in enumerate(names)}
        for table, column in columns.items():
            arrays[table] = np.array([*(place[str(name)] for name in column.categories()), -1])[arrays[table]]
        return arrays, tuple(names)
    for table, column in columns.items():
        if (lowest := int(arrays[table].min(initial=0))) < 0:
            raise ValueError(
                f"{plan.title(table, plan.labels[table])} has the label {lowest}; classes are numbered from 0. Number "
                "them anew, write texts, or convert values to floats; leave the cells of rows without a label empty."
            )
        arrays[table] = np.where(column.missing(), -1, arrays[table].astype(np.int64))
    highest = max((int(values.max(initial=-1)) for values in arrays.values()), default=-1)
    _refuse_many(highest + 1)
    return arrays, tuple(map(str, range(highest + 1)))


def _refuse_many(num_classes: int) -> None:
    if num_classes > MAX_CLASSES:
        raise ValueError(
            f"{WHERE}: labels have {num_classes} classes, counted from 0; at most {MAX_CLASSES} are allowed. Number "
            "them from 0, or convert values to floats."
        )


def _cuts(plan: Plan, reading: Reading, split: Any, has_label: Mapping[str, NDArray[Any]]) -> Cuts | None:
    """Return the last time of training and of validation; None if the split is not by time."""
    if split is not None and not isinstance(split, Mapping):
        return _given_cuts(split, plan.time_unit)
    columns = {table: reading.rows[table].times for table in plan.labels or plan.edges}
    times = [
        column.values()[has_label[table]] if table in has_label else column.values()
        for table, column in columns.items()
        if column is not None
    ]
    if plan.split or len(times) < len(columns) or not sum(map(len, times)):
        return None
    return times_of_cuts(np.sort(np.concatenate(times)))


def _given_cuts(split: Any, unit: str) -> Cuts:
    """Return two given times, the last of training and of validation, in the unit of the graph."""
    try:
        train, validation = (time_of(time, unit) for time in split)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{WHERE}: split must be {{table: column}}, or the last time of training and of validation, got "
            f"{shown(split)}. Pass ('2024-05-31', '2024-06-30'), for example."
        ) from error
    if train > validation:
        raise ValueError(f"{WHERE}: split is {shown(split)}; the first time must not be the later one. Swap them.")
    return train, validation


def _parts(plan: Plan, table: str, rows: Rows, cuts: Cuts | None) -> list[NDArray[Any]]:
    """Return which rows of a table train, validate and test: three arrays bool [count]."""
    if rows.split is not None:
        part_of = {word: part for part, words in enumerate(SPLITS.values()) for word in words}
        numbers = []
        for word in map(str, rows.split.categories()):
            if word not in part_of:
                title = plan.title(table, plan.split[table])
                raise ValueError(f"{title} has {shown(word)}; expected {[*part_of]} or nothing. Correct it.")
            numbers.append(part_of[word])
        parts = np.array([*numbers, -1], np.int8)[rows.split.values()]
        return [parts == part for part in range(len(SPLITS))]
    if cuts is None:
        return [np.full(rows.count, part == 0) for part in range(3)]
    if rows.times is None:
        raise ValueError(
            f"{WHERE}: split has times, but the table {table!r} has none. Pass times={{{table!r}: column}}."
        )
    times = rows.times.values()
    return [times <= cuts[0], (times > cuts[0]) & (times <= cuts[1]), times > cuts[1]]
