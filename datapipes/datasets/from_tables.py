"""Make a Dataset of tables: rows become nodes or edges, foreign keys become edges, columns become features.

The order of tables, rows and links alone decides the numbers of nodes and edges, so equal tables give equal graphs from
any source.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.folder import new_folder
from datapipes.base.progress import working
from datapipes.datasets.dataset import Dataset
from datapipes.datasets.relbench import RelBenchFolder, is_relbench, with_tasks
from datapipes.datasets.table_content import content_of
from datapipes.datasets.table_folder import Files, read_table_folder, write_content
from datapipes.datasets.table_plan import WHERE, Plan
from datapipes.datasets.table_rows import Reading
from datapipes.ingest.columns import Kind
from datapipes.ingest.pieces import Pieces
from datapipes.ingest.tables import open_tables

__all__ = ["from_tables"]


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
    folder: str | Path | None = None,
    name: str | None = None,
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
        tables: {name: table}, or the path of an SQLite or DuckDB file, of a .csv or .parquet file, or of a folder of
            these, or of RelBench. A table is a frame of pandas, Polars, Arrow or DuckDB, a dict of columns, or the path
            of a CSV or Parquet file.
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
        folder: a new or empty folder to write the data set to, so that tables may be larger than memory: rows go
            through memory in batches, and only ids stay there. The graph is mapped, features are read on demand.
            `datasets.open(folder)` opens it again. None: all is in memory.
        name: the name of the data set in messages; None: "tables", or the name of the folder of RelBench.
    Raises:
        ValueError: A table, column or value is not as the arguments say. The text names table, column and row.
        TypeError: An argument has another form.
        ModuleNotFoundError: pyarrow is not installed; or duckdb, for a file of DuckDB.
    """
    path = Path(tables) if isinstance(tables, (str, os.PathLike)) else None
    relbench = RelBenchFolder(path, task) if path is not None and is_relbench(path) else None
    if relbench is None and task is not None:
        raise ValueError(f"{WHERE}: task={shown(task)} is for a folder of RelBench. Leave it out.")
    has_own_task = relbench is None or labels is not None
    if not has_own_task and split is not None:
        raise ValueError(
            f"{WHERE}: the tasks of {path} have a split. Leave split out, or pass labels for a task of yours."
        )
    name = name or ("tables" if relbench is None else relbench.name)
    with working("read tables"):
        plan = Plan(
            open_tables(WHERE, tables) if relbench is None else relbench.opened,
            time_unit,
            dangling,
            types,
            hidden=() if relbench is None else relbench.hidden,
            until=None if relbench is None else relbench.until,
            keys=keys,
            links=links,
            edges=edges,
            times=times,
            labels=labels,
            split=split if isinstance(split, Mapping) else None,
            features=features,
        )
        if folder is not None and not plan.links:
            raise ValueError(f"{WHERE}: folder is for tables with links, found none. Pass links, or leave folder out.")
        with contextlib.nullcontext() if folder is None else new_folder(WHERE, folder) as place:
            new_pieces = Pieces if place is None else Files(place)
            reading = Reading(plan, new_pieces)
            given = split if relbench is None or has_own_task else relbench.cuts
            content = content_of(plan, reading, given, new_pieces)
            tasks = () if relbench is None or has_own_task else relbench.tasks(plan, reading)
            if isinstance(new_pieces, Files):
                write_content(new_pieces, name, content, tasks)
                read_table_folder(new_pieces.folder)  # what cannot be read leaves no folder; this builds the graph
    return with_tasks(content.dataset(name), tasks) if folder is None else read_table_folder(Path(folder))
