"""Open tables of any kind, to be read in Arrow batches: frames, dicts of columns, files, and the tables of a database.

A table in files is a TableFiles (table_files.py); the classes here have its `names`, `arrow_type` and `batches`. Rows
keep their order: that of the frame or file, of the row ids of SQLite, of insertion into DuckDB.
"""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote

import numpy as np
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.errors import needed, text_of
from datapipes.base.files import open_regular
from datapipes.ingest.remote import files_at, is_uri, local_path
from datapipes.ingest.table_files import TABLES, TableFiles, stem_of, suffix_of

_SQLITE, _DUCKDB = b"SQLite format 3\0", b"DUCK"  # how the files begin, DuckDB's from byte 8
_INDEX = re.compile("__index_level_[0-9]+__")  # a nameless index of pandas
_HERE = "WHERE schema_name = current_schema() AND database_name = current_database()"
_SQL_TYPES = {"integer": "int64", "real": "float64", "text": "large_string", "blob": "large_binary"}


class Table(Protocol):
    """A table that can be read several times. `names` has the names of its columns."""

    @property
    def names(self) -> list[str]: ...

    def arrow_type(self, name: str) -> Any:
        """Return the pyarrow type of a column."""

    def batches(self, names: Sequence[str], most: int) -> Iterator[Any]:
        """Yield the columns `names` in pyarrow batches of up to `most` rows."""


class Tables(NamedTuple):
    """Tables, and what their database states: {table: the column with its keys}, {table: {column: the table it refers
    to}}, {table: the column with its times}.
    """

    tables: dict[str, Table]
    keys: dict[str, str]
    links: dict[str, dict[str, str]]
    times: dict[str, str]
    left_out: Mapping[tuple[str, str], str] = {}  # {(table, column): why a foreign key is no link}


def open_tables(where: str, tables: Any) -> Tables:
    """Open {name: table}, the tables of an SQLite or DuckDB file, or those of a folder of CSV or Parquet files.

    Raises:
        ValueError: A table cannot be read, or there is none. The text begins with `where`.
    """
    if isinstance(tables, Mapping):
        opened = Tables({_name(where, name): _opened(where, name, table) for name, table in tables.items()}, {}, {}, {})
    elif isinstance(tables, (str, os.PathLike)):
        opened = _of_path(where, Path(local_path(where, "tables", os.fspath(tables))))
    else:
        raise TypeError(
            f"{where}: tables must be a dict of tables, or the path of a database or of a folder of tables, got "
            f"an object of the type {shown(type(tables).__name__)}. Pass {{'name of the table': table}}."
        )
    if not opened.tables:
        held = f"{tables} holds no tables" if isinstance(tables, (str, os.PathLike)) else "found no tables"
        raise ValueError(
            f"{where}: {held}. Pass {{'name of the table': table}}, or the path of a database or a folder."
        )
    return opened


def _name(where: str, name: Any) -> str:
    if not isinstance(name, str) or not name:
        raise TypeError(f"{where}: the name of a table must be a text, got {shown(name)}. Name it.")
    return name


def _of_path(where: str, path: Path) -> Tables:
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if suffix_of(file.name) in TABLES]
        names = [stem_of(file.name) for file in files]
        if len({*names}) < len(names):
            raise ValueError(
                f"{where}: {path} has {shown([file.name for file in files])}; a table has the name of its file: "
                "two have the same. Move one away."
            )
        return Tables({name: TableFiles(where, file) for name, file in zip(names, files, strict=True)}, {}, {}, {})
    if not path.exists():
        raise FileNotFoundError(f"{where}: {path} does not exist. Check the path.")
    read = _reader_of(path)
    if read is not None:
        return read(where, path)
    if suffix_of(path.name) in TABLES:
        return Tables({stem_of(path.name): TableFiles(where, path)}, {}, {}, {})
    raise ValueError(
        f"{where}: {path} is no database of SQLite or DuckDB, and no table with one of the suffixes {[*TABLES]}. "
        "Convert it to one of these."
    )


def is_database(path: Path) -> bool:
    """Return whether a path is a file of SQLite or DuckDB."""
    return path.is_file() and _reader_of(path) is not None


def _reader_of(path: Path) -> Callable[[str, Path], Tables] | None:
    with open_regular(path) as file:
        head = file.read(16)
    return _sqlite if head == _SQLITE else _duckdb if head[8:12] == _DUCKDB else None


def _opened(where: str, name: str, table: Any) -> Table:
    where = f"{where}: table {name!r}"
    if isinstance(table, str) and is_uri(table):
        files = files_at(where, table)
        return TableFiles(where, table, files, suffix_of(files[0].name))
    if isinstance(table, (str, os.PathLike)):
        path = Path(local_path(where, "path", os.fspath(table)))
        if not path.exists():
            raise FileNotFoundError(f"{where}: {path} does not exist. Check the path.")
        return TableFiles(where, path)
    pyarrow = needed("pyarrow", "ondisk", where)
    try:
        if isinstance(table, Mapping):
            table = {column: _arrow_column(pyarrow, values) for column, values in table.items()}
        elif not hasattr(table, "__arrow_c_stream__"):
            raise TypeError(f"found an object of the type {shown(type(table).__name__)}")
        content = pyarrow.table(table)
        if len({*content.column_names}) < len(content.column_names):
            raise ValueError(f"two columns of one name in {shown(content.column_names)}")
    except (ValueError, TypeError, NotImplementedError, OverflowError) as error:  # those of pyarrow are among these
        raise ValueError(
            f"{where} must be a path, a dict of equally long columns, or a frame of pandas, Polars, Arrow or DuckDB "
            f"with values of one type in a column: {' '.join(text_of(error).split()).rstrip('.')}. Correct it."
        ) from error
    return _InMemory(content.select([column for column in content.column_names if not _INDEX.fullmatch(column)]))


def _arrow_column(pyarrow: Any, values: Any) -> Any:
    """Return a column for pyarrow: rows of an array [n, width] become lists."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.ravel()), values.shape[1])
    return values


class _InMemory:
    """A table of pyarrow."""

    def __init__(self, content: Any) -> None:
        self._content, self.names = content, content.column_names

    def arrow_type(self, name: str) -> Any:
        return self._content.schema.field(name).type

    def batches(self, names: Sequence[str], most: int) -> Iterator[Any]:
        yield from self._content.select(names).to_batches(max_chunksize=most)


# --- databases


_References = dict[str, dict[str, tuple[str, str | None]]]  # {table: {column: (other table, its column)}}


class _OfDatabase:
    """A table of a database.

    Args:
        types: {column: pyarrow type}.
        rows: function (columns, most) -> an iterator over pyarrow batches, or over lists of rows.
    """

    def __init__(self, where: str, types: Mapping[str, Any], rows: Any) -> None:
        self._where, self._types, self._rows = where, types, rows
        self.names = [*types]

    def arrow_type(self, name: str) -> Any:
        return self._types[name]

    def batches(self, names: Sequence[str], most: int) -> Iterator[Any]:
        pyarrow = needed("pyarrow", "ondisk", self._where)
        fields = pyarrow.schema([(name, self._types[name]) for name in names])
        for rows in self._rows(names, most):
            if isinstance(rows, list):
                columns = zip(*rows, strict=True)
                try:
                    arrays = [pyarrow.array(values, field.type) for values, field in zip(columns, fields, strict=True)]
                except (ValueError, OverflowError) as error:  # an integer beyond 2^53 among floats
                    raise ValueError(f"{self._where}: {' '.join(text_of(error).split())} Correct the value.") from error
                rows = pyarrow.RecordBatch.from_arrays(arrays, schema=fields)
            yield rows


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _selection(names: Sequence[str], table: str) -> str:
    return f"SELECT {', '.join(map(_quoted, names))} FROM {_quoted(table)}"


@contextlib.contextmanager
def _reading(where: str, path: Path, kind: str, errors: Any) -> Iterator[None]:
    try:
        yield
    except errors as error:
        text = " ".join(text_of(error).split()).rstrip(".")
        raise ValueError(f"{where}: {path} cannot be read as a database of {kind}: {text}. Check it.") from error


def _sqlite(where: str, path: Path) -> Tables:
    pyarrow = needed("pyarrow", "ondisk", f"{where}: a database")
    tables, keys, links = dict[str, Table](), dict[str, str](), _References()
    address = f"file:{quote(str(path.absolute()))}?mode=ro"

    @contextlib.contextmanager
    def connected() -> Iterator[sqlite3.Connection]:
        with (
            _reading(where, path, "SQLite", sqlite3.Error),
            contextlib.closing(sqlite3.connect(address, uri=True)) as base,
        ):
            base.execute("PRAGMA trusted_schema = OFF")
            yield base

    def rows_of(table: str, order: str) -> Any:
        def rows(names: Sequence[str], most: int) -> Iterator[Any]:
            with connected() as base:
                cursor = base.execute(f"{_selection(names, table)} ORDER BY {order}")
                while some := cursor.fetchmany(most):
                    yield some

        return rows

    with connected() as base:
        ask = base.execute
        names = [name for (name,) in ask("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY rowid")]
        for table in [name for name in names if not name.startswith("sqlite_")]:
            info = [*ask(f"PRAGMA table_info({_quoted(table)})")]
            key = [column for _, column, _, _, _, place in sorted(info, key=lambda row: row[5]) if place > 0]
            types = {
                column: _sql_type(pyarrow, where, table, column, {kind for (kind,) in ask(_kinds(table, column))})
                for _, column, *_ in info
            }
            order = "_rowid_" if _has_row_ids(base, table) else ", ".join(map(_quoted, key))
            tables[table] = _OfDatabase(f"{where}: table {table!r}", types, rows_of(table, order))
            if len(key) == 1:
                keys[table] = key[0]
            foreign = [*ask(f"PRAGMA foreign_key_list({_quoted(table)})")]
            of_several = {number for number, place, *_ in foreign if place > 0}
            for number, _, target, column, at, *_ in reversed(foreign):  # SQLite lists the last first
                if number not in of_several:
                    links.setdefault(table, {})[column] = (target, at)
    return _with_links(tables, keys, links)


def _has_row_ids(base: sqlite3.Connection, table: str) -> bool:
    try:
        base.execute(f"SELECT _rowid_ FROM {_quoted(table)} LIMIT 0")
    except sqlite3.OperationalError:  # WITHOUT ROWID
        return False
    return True


def _kinds(table: str, column: str) -> str:
    return f"SELECT DISTINCT typeof({_quoted(column)}) FROM {_quoted(table)}"


def _sql_type(pyarrow: Any, where: str, table: str, column: str, kinds: set[str]) -> Any:
    """Return the pyarrow type for values of these kinds of SQLite, whose columns may hold any."""
    kinds = kinds - {"null"}
    if kinds == {"integer", "real"}:
        kinds = {"real"}
    if len(kinds) > 1:
        raise ValueError(
            f"{where}: the column {column!r} of the table {table!r} holds {sorted(kinds)}; one kind is needed. Correct "
            "it, for example by UPDATE with CAST."
        )
    return getattr(pyarrow, _SQL_TYPES[kinds.pop()] if kinds else "null")()


def _duckdb(where: str, path: Path) -> Tables:
    pyarrow = needed("pyarrow", "duckdb", f"{where}: {path}")
    duckdb = needed("duckdb", "duckdb", f"{where}: {path}")
    tables, keys, links = dict[str, Table](), dict[str, str](), _References()

    def rows_of(table: str) -> Any:
        def rows(names: Sequence[str], most: int) -> Iterator[Any]:
            with _reading(where, path, "DuckDB", duckdb.Error), duckdb.connect(str(path), read_only=True) as base:
                for batch in pyarrow.RecordBatchReader.from_stream(base.sql(_selection(names, table))):
                    yield from (batch.slice(begin, most) for begin in range(0, batch.num_rows, most))

        return rows

    with _reading(where, path, "DuckDB", duckdb.Error), duckdb.connect(str(path), read_only=True) as base:
        for (table,) in base.execute(f"SELECT table_name FROM duckdb_tables() {_HERE} ORDER BY table_oid").fetchall():
            schema = pyarrow.RecordBatchReader.from_stream(base.sql(f"SELECT * FROM {_quoted(table)} LIMIT 0")).schema
            types = {field.name: field.type for field in schema}
            tables[table] = _OfDatabase(f"{where}: table {table!r}", types, rows_of(table))
        facts = "table_name, constraint_type, constraint_column_names, referenced_table, referenced_column_names"
        for table, kind, columns, target, ats in base.execute(
            f"SELECT {facts} FROM duckdb_constraints() {_HERE}"
        ).fetchall():
            if kind == "PRIMARY KEY" and len(columns) == 1:
                keys[table] = columns[0]
            if kind == "FOREIGN KEY" and len(columns) == 1:
                links.setdefault(table, {})[columns[0]] = (target, ats[0])
    return _with_links(tables, keys, links)


def _with_links(tables: dict[str, Table], keys: dict[str, str], references: _References) -> Tables:
    """Return Tables with the references to the key of a table as links; the others are left out."""
    links: dict[str, dict[str, str]] = {}
    left_out: dict[tuple[str, str], str] = {}
    named = {table.casefold(): table for table in tables}  # SQL compares names so
    for table, columns in references.items():
        for column, (target, at) in columns.items():
            to = named.get(target.casefold(), target)
            if to in keys and (at is None or at.casefold() == keys[to].casefold()):
                links.setdefault(table, {})[column] = to
            else:
                left_out[table, column] = (
                    f"its foreign key refers to {target}.{at}, which is no primary key of one column"
                )
    return Tables(tables, keys, links, {}, left_out)
