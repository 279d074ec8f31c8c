"""Read a folder of RelBench: `manifest.yaml`, the database `db/TABLE.parquet`, and the tasks `tasks/TASK/`.

The manifest states keys, links and times. Rows after `test_timestamp` are left out, except for a task that predicts a
column of a table (kind "autocomplete"), whose test rows are later. The columns that a task must not see are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from datapipes.base.checks import shown
from datapipes.base.errors import needed
from datapipes.base.records import OMITTED, Form, from_json, one_of
from datapipes.datasets.dataset import MASKS, Dataset, Task
from datapipes.datasets.ondisk_yaml import is_inside, parse_yaml, without_nulls
from datapipes.datasets.raw import MAX_CLASSES, DatasetFormatError, content_of, format_errors
from datapipes.datasets.table_plan import Plan
from datapipes.datasets.table_rows import Reading, cell_errors
from datapipes.ingest.columns import numbers_of, time_of, times_of
from datapipes.ingest.ids import WrongCell, places_in
from datapipes.ingest.table_files import TableFiles
from datapipes.ingest.tables import Tables
from datapipes.minibatch import SparseRows
from datapipes.seeds import HeteroItemSet, ItemSet

MANIFEST = "manifest.yaml"
_REMEDY = "Correct the manifest."
_FILES = dict(zip(MASKS, ("train", "val", "test"), strict=True))  # of the three parts of a task
_TYPES = ("regression", "binary_classification", "multiclass_classification", "multilabel_classification")
_ANYTHING = Annotated[Any, Form(lambda name, value: value)]
_Name = Annotated[str | None, OMITTED]


@dataclass(frozen=True)
class _Table:
    pkey: _Name = None
    time_col: _Name = None
    fkeys: Annotated[Mapping[str, str] | None, OMITTED] = None


@dataclass(frozen=True)
class _Database:
    val_timestamp: _ANYTHING
    test_timestamp: _ANYTHING
    tables: Annotated[Mapping[str, _ANYTHING], OMITTED] = field(default_factory=dict)


@dataclass(frozen=True)
class _TaskSpec:
    kind: Annotated[str, one_of("forecast", "autocomplete", "external")]
    task_type: Annotated[str, one_of(*_TYPES, "recommendation")]
    entity_table: _Name = None
    entity_col: _Name = None
    target_col: _Name = None
    time_col: _Name = None
    src_entity_table: _Name = None
    src_entity_col: _Name = None
    dst_entity_table: _Name = None
    dst_entity_col: _Name = None
    remove_columns: Annotated[tuple[tuple[str, str], ...] | None, OMITTED] = None


class RelBenchFolder:
    """The database of a folder and its tasks.

    Args:
        folder: the folder.
        task: the name of the task to read; None reads all.
    Attributes:
        name: the name of the folder.
        opened: the tables with their keys, links and times.
        hidden: {(table, column)}, what the tasks must not see.
        until: the last time of rows that are read; None: all.
        cuts: the last times of training and of validation.
    Raises:
        DatasetFormatError: A manifest is missing or wrong.
        ValueError: There is no such task.
    """

    def __init__(self, folder: Path, task: str | None) -> None:
        self._folder, self.name = folder, folder.name
        needed("pyarrow", "ondisk", folder.name)
        database = _read(folder / MANIFEST, _Database)
        with format_errors(f"{folder.name}/{MANIFEST}", _REMEDY):
            tables = {name: from_json(_Table, name, spec, others=True) for name, spec in database.tables.items()}
            for name, table in tables.items():
                if not is_inside(name) or "/" in name:
                    raise ValueError(f"found the table {shown(name)}; expected the name of a file in db")
                for column, target in (table.fkeys or {}).items():
                    if target not in tables:
                        raise ValueError(
                            f"the column {column!r} of {name!r} refers to {shown(target)}; the tables are {[*tables]}"
                        )
        self.opened = Tables(
            {name: TableFiles(folder.name, folder / "db" / f"{name}.parquet") for name in tables},
            {name: table.pkey for name, table in tables.items() if table.pkey is not None},
            {name: dict(table.fkeys) for name, table in tables.items() if table.fkeys},
            {name: table.time_col for name, table in tables.items() if table.time_col is not None},
        )
        self.cuts = str(database.val_timestamp), str(database.test_timestamp)
        for cut in self.cuts:
            try:
                time_of(cut, "s")
            except WrongCell as error:
                raise DatasetFormatError(f"{folder.name}/{MANIFEST}: a timestamp {error}") from error
        names = sorted(path.parent.name for path in folder.glob(f"tasks/*/{MANIFEST}"))
        if task is not None and task not in names:
            raise ValueError(f"{folder.name}: found no task {shown(task)}; the folder has {shown(names)}. Name one.")
        self._content: dict[str, Any] = {}
        self._tasks: dict[str, _TaskSpec] = {}
        for name in names if task is None else [task]:
            path = folder / "tasks" / name / MANIFEST
            self._content[name] = _content(path)
            self._tasks[name] = self._checked(path, _read(path, _TaskSpec))
        of_rows = [spec for spec in self._tasks.values() if spec.kind == "autocomplete"]
        self.hidden = {pair for spec in self._tasks.values() for pair in spec.remove_columns or ()}
        self.hidden |= {(str(spec.entity_table), str(spec.target_col)) for spec in of_rows}
        self.until = None if task is not None and of_rows else self.cuts[1]

    def _checked(self, path: Path, spec: _TaskSpec) -> _TaskSpec:
        """Return the task with the columns that its kind implies; raise if it lacks one, or names no table."""
        needed = ["entity_table", "entity_col", "target_col"]
        if spec.task_type == "recommendation":
            needed = ["src_entity_table", "src_entity_col", "dst_entity_table", "dst_entity_col"]
        elif spec.kind == "autocomplete":
            table = str(spec.entity_table)
            columns = {
                "entity_col": self.opened.keys.get(table, "primary_key"),
                "time_col": self.opened.times.get(table),
            }
            spec = _TaskSpec(**{**vars(spec), **columns})
        where = f"{self._folder.name}/tasks/{path.parent.name}"
        missing = [name for name in needed if getattr(spec, name) is None]
        tables = [getattr(spec, name) for name in needed if name.endswith("_table")]
        unknown = [table for table in tables if table not in self.opened.tables]
        if missing or unknown:
            found = f"no {missing[0]}" if missing else f"the table {shown(unknown[0])}"
            expected = f"one of {[*self.opened.tables]}" if unknown and not missing else f"{needed}"
            raise DatasetFormatError.of(f"{where}/{MANIFEST}", found, expected, _REMEDY)
        return spec

    def tasks(self, plan: Plan, reading: Reading) -> tuple[Task, ...]:
        """Return the tasks; seeds that are no nodes of the graph are left out."""
        return tuple(self._task(name, spec, plan, reading) for name, spec in self._tasks.items())

    def _task(self, name: str, spec: _TaskSpec, plan: Plan, reading: Reading) -> Task:
        sets: dict[str, Any] = {}
        is_list = spec.task_type == "recommendation"
        table = str(spec.src_entity_table if is_list else spec.entity_table)
        for part, file in _FILES.items():
            title = f"tasks/{name}/{file}"
            path = self._folder / f"{title}.parquet"
            items = _Items(title, path, spec, plan, reading) if path.exists() else None
            if items is None:
                fields: dict[str, Any] = {"seeds": torch.empty(0, dtype=torch.int64)}
            else:
                fields = items.lists() if is_list else items.labels()
            sets[part] = HeteroItemSet({table: ItemSet(tuple(fields.values()), names=tuple(fields))})
        content = {k: v for k, v in self._content[name].items() if k not in ("sql", "description", "num_classes")}
        with format_errors(f"{name}/{MANIFEST}", _REMEDY):
            facts = json.loads(json.dumps(content, default=str, allow_nan=False))  # YAML has dates
        if spec.task_type in ("binary_classification", "multiclass_classification"):
            labels = [items.item_sets[table].take(torch.arange(len(items))).get("labels") for items in sets.values()]
            facts["num_classes"] = max([2, *(int(rows.max()) + 1 for rows in labels if rows is not None and len(rows))])
        return Task(**sets, metadata={**facts, "name": name})


class _Items:
    """The rows of one part of a task."""

    def __init__(self, title: str, path: Path, spec: _TaskSpec, plan: Plan, reading: Reading) -> None:
        self._title, self._spec, self._plan, self._reading = title, spec, plan, reading
        self._table = TableFiles(title, path)
        self._called = f"{title}.parquet"

    def labels(self) -> dict[str, Any]:
        """Return {"seeds": ..., "labels": ..., "timestamps": ...} of a task on the rows of one table."""
        spec = self._spec
        seeds = self._nodes(str(spec.entity_table), self._column(str(spec.entity_col)))
        fields = {"seeds": seeds}
        if spec.target_col in self._table.names:
            with cell_errors(self._called, [str(spec.target_col)], np.arange(len(seeds))):
                values, missing = numbers_of(self._column(str(spec.target_col)))
            if missing.any():
                row = int(missing.argmax()) + 1
                raise DatasetFormatError.of(self._title, f"row {row} without a label", "a label in each row")
            if spec.task_type == "regression":
                fields["labels"] = values.astype(np.float32)
            else:
                fields["labels"] = values.astype(np.int64)
                wrong = (fields["labels"] != values) | (values < 0) | (values >= MAX_CLASSES)
                if wrong.any():
                    fault = f"the label {values[wrong][0]}"
                    raise DatasetFormatError.of(
                        self._called, fault, f"classes in [0, {MAX_CLASSES})", "Number them anew."
                    )
        return self._fields(fields, seeds >= 0)

    def lists(self) -> dict[str, Any]:
        """Return {"seeds": ..., "timestamps": ..., "destinations": lists} of a recommendation task.

        Destinations that are no nodes are left out, and seeds without any.
        """
        spec = self._spec
        seeds = self._nodes(str(spec.src_entity_table), self._column(str(spec.src_entity_col)))
        fields: dict[str, Any] = {"seeds": seeds}
        kept = seeds >= 0
        if spec.dst_entity_col in self._table.names:
            column = self._column(str(spec.dst_entity_col))
            if not hasattr(column, "value_lengths"):
                raise DatasetFormatError.of(self._called, f"{column.type} in {spec.dst_entity_col!r}", "lists of keys")
            counts = np.asarray(column.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), np.int64)
            nodes = self._nodes(str(spec.dst_entity_table), column.flatten())
            rows = np.repeat(np.arange(len(seeds)), counts)[nodes >= 0]
            counts, nodes = np.bincount(rows, minlength=len(seeds)), nodes[nodes >= 0]
            kept &= counts > 0
            nodes = nodes[np.repeat(kept, counts)]
            indptr = torch.from_numpy(np.append(0, counts[kept].cumsum()))
            count = self._reading.num_nodes()[str(spec.dst_entity_table)]
            fields["destinations"] = SparseRows(indptr, torch.from_numpy(nodes), count)
        return self._fields(fields, kept)

    def _fields(self, fields: dict[str, Any], kept: NDArray[Any]) -> dict[str, Any]:
        if self._spec.time_col is not None:
            with cell_errors(self._called, [self._spec.time_col], np.arange(len(kept))):
                fields["timestamps"], missing = times_of(self._column(self._spec.time_col), self._plan.time_unit)
            if missing.any():
                row = int(missing.argmax()) + 1
                raise DatasetFormatError.of(self._called, f"row {row} without a time", "a time in each row")
        self._plan.note(self._title, "seeds", "rows whose seeds are not in the graph", int((~kept).sum()))
        return {
            name: torch.from_numpy(rows[kept]) if isinstance(rows, np.ndarray) else rows
            for name, rows in fields.items()
        }

    def _nodes(self, table: str, column: Any) -> NDArray[Any]:
        """Return the nodes of a table with these keys, -1 for none. In a table without keys the row is the node."""
        if table in self._reading.ids:
            with cell_errors(self._called, [table], np.arange(len(column))):
                nodes: NDArray[Any] = self._reading.ids[table].number([column], add=False)[0]
                return nodes
        rows = self._reading.rows[table]
        with cell_errors(self._called, [table], np.arange(len(column))):
            places, missing = numbers_of(column)
        if places.dtype.kind not in "iu" or rows.places is None:
            raise DatasetFormatError.of(self._called, f"{places.dtype} for rows of {table!r}", "whole numbers")
        kept = rows.places.whole()
        nodes = places_in(kept, int(kept.max(initial=-1)) + 1)
        is_kept = ~missing & (places >= 0) & (places < len(nodes) - 1)
        return np.where(is_kept, nodes[np.where(is_kept, places, -1)], -1)

    def _column(self, name: str) -> Any:
        if name not in self._table.names:
            fault = f"the columns {shown(self._table.names)}"
            raise DatasetFormatError.of(f"{self._title}.parquet", fault, f"the column {name!r} of the manifest")
        return self._table.column(name)


def with_tasks(data: Dataset, tasks: tuple[Task, ...]) -> Dataset:
    """Return the data set with these tasks in place of its own, if there are any."""
    if not tasks:
        return data
    first = tasks[0]
    kind = first.metadata["task_type"]
    name = {"regression": "node_regression", "recommendation": kind}.get(kind, "node_classification")
    num_classes = first.metadata.get("num_classes", 0)
    sets = {part: getattr(first, part) for part in MASKS}
    classes = tuple(map(str, range(num_classes)))
    return replace(data, **sets, num_classes=num_classes, class_names=classes, task=name, tasks=tasks)


def is_relbench(path: Path) -> bool:
    """Return whether a folder has a manifest.yaml and the subfolder db."""
    return (path / MANIFEST).is_file() and (path / "db").is_dir()


def _content(path: Path) -> Any:
    where = f"{path.parent.name}/{path.name}"
    with format_errors(where):
        content = content_of(path)
    with format_errors(where, _REMEDY):
        return without_nulls(parse_yaml(content))


def _read(path: Path, record: Any) -> Any:
    content = _content(path)
    with format_errors(f"{path.parent.name}/{path.name}", _REMEDY):
        return from_json(record, "the manifest", content, others=True)
