"""Make a Dataset of tables: rows become nodes or edges, foreign keys become edges, columns become features.

The order of tables, rows and links alone decides the numbers of nodes and edges, so equal tables give equal graphs from
any source.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipes.base.checks import shown
from datapipes.base.errors import needed
from datapipes.base.progress import working
from datapipes.datasets.by_name import SPLITS
from datapipes.datasets.dataset import MASKS, Dataset, Task, graph_of_edges, one_set
from datapipes.datasets.edge_lists import times_of_cuts
from datapipes.datasets.raw import MAX_CLASSES
from datapipes.datasets.relbench import RelBenchFolder, is_relbench
from datapipes.datasets.table_plan import TIME, WHERE, Plan
from datapipes.datasets.table_rows import Reading, Rows
from datapipes.features import FeatureStore, TensorFeature
from datapipes.graph.edits import with_edges_kept
from datapipes.ingest.columns import Kind, statistics, times_of, vocabulary
from datapipes.ingest.ids import Names, places_in
from datapipes.ingest.pieces import Pieces, mapped
from datapipes.ingest.tables import open_tables
from datapipes.seeds import ItemSet

__all__ = ["from_tables"]

Cuts = tuple[int, int]  # the last time of training, and of validation


def from_tables(
    tables: Any,
    *,
    keys: Mapping[str, str] | None = None,
    links: Mapping[str, Mapping[str, str]] | None = None,
    edges: Iterable[str] = (),
    times: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    split: Mapping[str, str] | tuple[Any, Any] | None = None,
    features: Mapping[str, Iterable[str] | Mapping[str, Kind]] | None = None,
    dangling: str = "drop",
    time_unit: str = "s",
    types: bool = True,
    task: str | None = None,
    name: str = "tables",
) -> Dataset:
    """Return the Dataset of tables that refer to each other. Each row is a node, or an edge.

    | in the tables | in the graph |
    |---|---|
    | a table | a node type of its name; row i is node i |
    | a link: a column KEY with keys of another table | edges (TABLE, f2p_KEY, OTHER) and (OTHER, rev_f2p_KEY, TABLE) |
    | a link to a name that is no table | the same; each value is a node, numbered by first occurrence |
    | a table in `edges`, with two links | edges (FIRST, TABLE, SECOND) and (SECOND, rev_TABLE, FIRST), and no nodes |
    | the time of a row | the attribute and the feature "time", int64 |
    | other columns | features of their names; numbers of edges are attributes too |

    Ids may be integers with gaps, texts, bytes or UUIDs. `node_names[type]` has the id of each node, and
    `node_names[type].numbers(ids)` the node of each id. An empty text is missing, like null and NaN. `left_out` of the
    Dataset counts rows without a key or a time, and links to no row; it names the columns that are no features.

    Numbers, booleans, and lists of equal length become features; float64 becomes float32. A missing value becomes 0,
    and the bool feature COLUMN_missing tells where. Categories are numbered by first occurrence, -1 if missing. In
    `metadata[feature key]`, "categories" has their names, and numbers have "mean" and "std". Both are of rows up to the
    last time of training; a category that occurs only later is -1. Timestamps become int64 times.

    Args:
        tables: {name: table}, or the path of an SQLite or DuckDB file, of a folder of RelBench, or of a folder of .csv
            or .parquet files. A table is a frame of pandas, Polars, Arrow or DuckDB, a dict of columns, or the path of
            a CSV or Parquet file.
        keys: {table: the column with the key of each row}, for tables that links refer to. A database states its keys
            and links; those given here replace them, table by table.
        links: {table: {column: the table, or the node type, that its values refer to}}.
        edges: tables whose rows are edges, from the first of their two links to the second.
        times: {table: the column with the time of each row}: timestamps, dates, ISO texts, or integers in `time_unit`.
            A time without a zone is in UTC.
        labels: {table: column}: the task. Seeds are the rows with a label. Integers, booleans and texts are classes,
            floats are values. Without labels, the rows of `edges` are the seeds of link prediction.
        split: {table: a column with "train", "valid", "test" or nothing}; or two times, the last of training and the
            last of validation. None: by time, 70, 15 and 15 % of the rows with labels; without times all rows train.
        features: {table: columns}; or {table: {column: kind}}, where a kind is "number", "category", "time", or a
            function from a list of cells to an array with a row for each. Tables that are not named have all columns
            but keys, links, times, labels and texts.
        dangling: "drop" leaves out a link to no row; "refuse" raises ValueError.
        time_unit: the unit of all times in the graph, "s", "ms", "us" or "ns". Finer times are rounded down.
        types: False makes a CSCGraph, without reverses, of one table of edges whose links refer to one type of nodes.
        task: the name of a task in a folder of RelBench; None reads all its tasks, unless `labels` are given. Columns
            that the task must not see are left out, and rows after the folder's `test_timestamp`, except for a task
            that predicts a column of a table ("autocomplete").
    Raises:
        ValueError: A table, column or value is not as the arguments say. The text names table, column and row.
        TypeError: An argument has another form.
        ModuleNotFoundError: pyarrow is not installed; or duckdb, for a file of DuckDB.
    """
    path = Path(tables) if isinstance(tables, (str, os.PathLike)) else None
    folder = RelBenchFolder(path, task) if path is not None and is_relbench(path) else None
    if folder is None and task is not None:
        raise ValueError(f"{WHERE}: task={shown(task)} is for a folder of RelBench. Leave it out.")
    with working("read tables"):
        plan = Plan(
            open_tables(WHERE, tables) if folder is None else folder.opened,
            time_unit,
            dangling,
            types,
            hidden=() if folder is None else folder.hidden,
            until=None if folder is None else folder.until,
            keys=keys,
            links=links,
            edges=edges,
            times=times,
            labels=labels,
            split=split if isinstance(split, Mapping) else None,
            features=features,
        )
        reading = Reading(plan, Pieces)
        if folder is None or plan.labels:
            return _dataset(plan, reading, _cuts(plan, reading, split), name)
        data = _dataset(plan, reading, _given_cuts(folder.cuts, time_unit), folder.name)
        return _with_tasks(data, folder.tasks(plan, reading))


def _with_tasks(data: Dataset, tasks: tuple[Task, ...]) -> Dataset:
    if not tasks:
        return data
    first = tasks[0]
    kind = first.metadata["task_type"]
    name = {"regression": "node_regression", "recommendation": kind}.get(kind, "node_classification")
    num_classes = first.metadata.get("num_classes", 0)
    sets = {part: getattr(first, part) for part in MASKS}
    classes = tuple(map(str, range(num_classes)))
    return replace(data, **sets, num_classes=num_classes, class_names=classes, task=name, tasks=tasks)


def _dataset(plan: Plan, reading: Reading, cuts: Cuts | None, name: str) -> Dataset:
    edges: dict[Any, Any] = {}
    attributes: dict[str, dict[Any, dict[str, Any]]] = {"node": {}, "edge": {}}
    features: dict[Any, TensorFeature] = {}
    types: list[Any]
    metadata: dict[Any, dict[str, Any]] = {}
    for table, rows in reading.rows.items():
        for link, kinds in plan.edge_types(table).items():
            src, dst = (pieces.whole() for pieces in rows.links[link])
            edges.update(zip(kinds, (np.stack([src, dst]), np.stack([dst, src])), strict=False))
        domain, types = "node", [plan.node_type(table)]
        if table in plan.edges:
            domain, types = "edge", [kind for kinds in plan.edge_types(table).values() for kind in kinds]
        for column, (values, facts) in _features_of(plan, table, rows, cuts).items():
            feature = TensorFeature(torch.from_numpy(values))
            for kind in types:
                features[domain, kind, column] = feature
                if facts:
                    metadata[domain, kind, column] = facts
                if column == TIME or (domain == "edge" and values.ndim == 1):
                    attributes[domain].setdefault(kind, {})[column] = values
    num_nodes = {plan.node_type(kind): count for kind, count in reading.num_nodes().items()}
    graph = graph_of_edges(edges, num_nodes, attributes["node"], attributes["edge"])
    labels, classes = _labels(plan, reading)
    sets: dict[str, dict[Any, ItemSet]] = {part: {} for part in MASKS}
    for table in plan.labels or plan.edges:
        kind, items = _items(plan, table, reading.rows[table], labels.get(table))
        for part, mask in zip(MASKS, _parts(plan, table, reading.rows[table], cuts), strict=True):
            if "labels" in items:
                mask = mask & (items["labels"] >= 0 if classes else ~np.isnan(items["labels"]))
            sets[part][kind] = ItemSet(tuple(torch.from_numpy(rows[mask]) for rows in items.values()), names=[*items])
    if not (plan.labels or plan.edges):
        none = torch.empty(0, dtype=torch.int64)
        sets = {part: {node_type: ItemSet(none) for node_type in num_nodes} for part in MASKS}
    return Dataset(
        name=name,
        graph=graph,
        training_graph=graph if cuts is None or plan.labels else _edges_until(graph, cuts[0]),
        features=FeatureStore(features),
        train_set=one_set(sets["train_set"]),
        validation_set=one_set(sets["validation_set"]),
        test_set=one_set(sets["test_set"]),
        num_classes=len(classes),
        class_names=classes,
        task=_task(plan, has_classes=bool(classes)),
        node_names={plan.node_type(kind): Names(ids) for kind, ids in reading.ids.items()},
        metadata=metadata,
        left_out=plan.left_out,
        time_unit=plan.time_unit if plan.times else "",
    )


def _edges_until(graph: Any, last: int) -> Any:
    """Return the graph without the edges whose time is later than `last`; edges without times stay."""
    times = {kind: graph.relation(kind).edge_attributes.get(TIME) for kind in graph.edge_types}
    kept = {kind: of_edges <= last for kind, of_edges in times.items() if of_edges is not None}
    return graph._of(with_edges_kept(graph._arrays(), kept)) if kept else graph


def _features_of(
    plan: Plan, table: str, rows: Rows, cuts: Cuts | None
) -> dict[str, tuple[NDArray[Any], dict[str, Any]]]:
    """Return {name: (rows, facts for the metadata)} of the features of a table."""
    is_known = None if cuts is None or rows.times is None else rows.times.values() <= cuts[0]
    arrays: dict[str, tuple[NDArray[Any], dict[str, Any]]] = {}
    for name, column in rows.columns.items():
        values, missing, facts = column.values(), column.missing(), {}
        if column.kind == "category":
            names = column.categories()
            chosen = vocabulary(values, len(names), is_known)
            facts = {"categories": names.chosen(chosen)}
            values = mapped(places_in(chosen, len(names)).__getitem__, Pieces(), values)
        elif column.kind == "number" and values.dtype.kind != "b":
            has_value = ~missing if is_known is None else is_known & ~missing
            facts = statistics(values, has_value)
        arrays[name] = values, facts
        if missing.any():
            if f"{name}_missing" in rows.columns:
                raise ValueError(
                    f"{plan.title(table, name)} lacks values, which the feature '{name}_missing' would tell; a column "
                    "has this name. Rename it."
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


def _items(plan: Plan, table: str, rows: Rows, labels: NDArray[Any] | None) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Return (node or edge type of the seeds, {name: values}) of all rows of a table."""
    kind: Any = plan.node_type(table)
    items = {"seeds": np.arange(rows.count)}
    if table in plan.edges:
        ((link, (kind, *_)),) = plan.edge_types(table).items()
        items = {"seeds": np.stack([pieces.whole() for pieces in rows.links[link]], axis=1)}
    if labels is not None:
        items["labels"] = labels
    if rows.times is not None:
        items["timestamps"] = rows.times.values()
    return kind, items


def _labels(plan: Plan, reading: Reading) -> tuple[dict[str, NDArray[Any]], tuple[str, ...]]:
    """Return ({table: labels}, names of the classes). Labels without classes are float32.

    A row without a label has the class -1, or the value NaN.
    """
    columns = {table: rows.labels for table, rows in reading.rows.items() if rows.labels is not None}
    arrays = {table: column.values() for table, column in columns.items()}
    for table, values in arrays.items():
        if values.ndim > 1:
            raise ValueError(f"{plan.title(table, plan.labels[table])} has lists; a label is one value. Name another.")
    forms = {"text" if column.kind == "category" else arrays[t].dtype.kind for t, column in columns.items()}
    if len({form if form in ("text", "f") else "i" for form in forms}) > 1:
        raise ValueError(f"{WHERE}: labels are texts, integers and floats by turns; a task has one kind. Convert them.")
    if "f" in forms:
        return {
            t: np.where(columns[t].missing(), np.nan, values).astype(np.float32) for t, values in arrays.items()
        }, ()
    if "text" in forms:
        names = sorted({str(name) for column in columns.values() for name in column.categories()})
        for table, column in columns.items():
            places = np.searchsorted(np.array(names, object), [str(name) for name in column.categories()])
            arrays[table] = np.append(places, -1)[arrays[table]]
        return arrays, tuple(names)
    for table, column in columns.items():
        arrays[table] = np.where(column.missing(), -1, arrays[table].astype(np.int64))
    highest = max((int(values.max(initial=-1)) for values in arrays.values()), default=-1)
    if highest >= MAX_CLASSES:
        raise ValueError(
            f"{WHERE}: labels have the class {highest}; classes are in [0, {MAX_CLASSES}). Number them from 0, or "
            "convert values to floats."
        )
    return arrays, tuple(map(str, range(highest + 1)))


def _cuts(plan: Plan, reading: Reading, split: Any) -> Cuts | None:
    """Return the last time of training and of validation; None if the split is not by time."""
    if split is not None and not isinstance(split, Mapping):
        return _given_cuts(split, plan.time_unit)
    columns = [reading.rows[table].times for table in plan.labels or plan.edges]
    if plan.split or not columns or None in columns:
        return None
    return times_of_cuts(np.sort(np.concatenate([column.values() for column in columns if column is not None])))


def _given_cuts(split: Any, unit: str) -> Cuts:
    pyarrow = needed("pyarrow", "ondisk", WHERE)
    try:
        train, validation = (int(times_of(pyarrow.array([time]), unit)[0][0]) for time in split)
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
        words = np.array([*map(str, rows.split.categories()), ""])[rows.split.values()]
        allowed = [word for group in SPLITS.values() for word in group]
        wrong = words[~np.isin(words, [*allowed, ""])]
        if len(wrong):
            title = plan.title(table, plan.split[table])
            raise ValueError(f"{title} has {shown(str(wrong[0]))}; expected {allowed} or nothing. Correct it.")
        return [np.isin(words, group) for group in SPLITS.values()]
    if cuts is None:
        return [np.full(rows.count, part == 0) for part in range(3)]
    if rows.times is None:
        raise ValueError(
            f"{WHERE}: split has times, but the table {table!r} has none. Pass times={{{table!r}: column}}."
        )
    times = rows.times.values()
    return [times <= cuts[0], (times > cuts[0]) & (times <= cuts[1]), times > cuts[1]]
