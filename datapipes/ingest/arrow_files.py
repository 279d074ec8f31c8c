"""pyarrow's data sets over CSV or Parquet files, local or at URIs, and their rows in batches. TableFiles is for users.

A file at a URI is a RemoteFile, so pyarrow fetches only the parts that it reads.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from datapipes.base.checks import shown
from datapipes.ingest.remote import AnyFile, RemoteFile, opened

_MOST_HEADER, _BLOCK_BYTES = 2**16, 2**24  # most bytes of the first line of a CSV file; bytes read to find the types
_MOST_AHEAD, _BLOCKS_AHEAD = 2**25, 32  # bytes and blocks of a CSV file that pyarrow reads ahead


class _Opener:
    """A file system for pyarrow that opens files by their URI. It has the few methods of fsspec that pyarrow calls."""

    protocol = "uri"

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self._files = {file.uri: file for file in files}

    def isfile(self, uri: str) -> bool:
        return uri in self._files

    def open(self, uri: str, mode: str) -> Any:
        return self._files[uri].open()


class _Head(NamedTuple):
    """The beginning of a CSV file: the cells of the first nonempty line, and whether further lines follow."""

    file: AnyFile
    cells: list[str]
    has_more: bool

    @property
    def has_names(self) -> bool:
        """Whether the first line has names and not values: some cell has a letter and is no number."""
        return any(any(map(str.isalpha, cell)) and not is_number(cell.strip()) for cell in self.cells)


def head_of(file: AnyFile, kind: str) -> _Head:
    """Read the first line of a CSV file with the suffix `kind`, and look whether there are more."""
    with opened(file, _MOST_HEADER) as (packed, _), gzip.open(packed) if kind.endswith(".gz") else packed as stream:
        content = stream.read(_MOST_HEADER)
    text = content.decode("utf-8-sig", "replace").lstrip("\r\n")  # without a byte order mark
    line, *rest = re.split("[\r\n]", text, maxsplit=1)
    cells = next(csv.reader([line], delimiter=_delimiter(kind)), [])
    return _Head(file, cells, len(content) == _MOST_HEADER or any(map(str.strip, rest)))


def open_csv_files(files: Sequence[AnyFile], kind: str) -> tuple[Any, bool]:
    """Open CSV files; return (pyarrow data set over the files, whether the files name their columns)."""
    heads = [head for head in (head_of(file, kind) for file in files) if head.cells]
    has_names = bool(heads) and heads[0].has_names
    for head in heads:
        _check_head(heads[0], head)
    with_rows = [head.file for head in heads if head.has_more or not has_names]
    if with_rows:
        form = _csv_format(kind, has_names)
        return _as_numbers(_opened_by_arrow(with_rows, form, _csv_schema(with_rows[0], kind, form))), has_names
    pyarrow, dataset = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.dataset"))
    names = heads[0].cells if has_names else ["f0", "f1"]
    return dataset.dataset(pyarrow.schema([(name, pyarrow.int64()) for name in names]).empty_table()), has_names


def _check_head(first: _Head, other: _Head) -> None:
    """Raise ValueError unless two CSV files fit together: equal columns, and both begin with names or neither does."""
    if first.has_names and not {*first.cells} & {*other.cells}:
        raise ValueError(
            f"{other.file} begins with {shown(other.cells)}, the first file with the names {shown(first.cells)}; all "
            "must begin with the names, or none. Write them into the others: `split -l` leaves them in the first alone."
        )
    if other.has_names and not first.has_names:
        raise ValueError(
            f"{other.file} begins with {shown(other.cells)}, the first file with the numbers {shown(first.cells)}; all "
            "must begin with the names, or none. Write them into the first, or remove them from the others."
        )
    names = [
        head.cells if first.has_names else [f"f{place}" for place in range(len(head.cells))] for head in (first, other)
    ]
    _check_names(other.file, *names)


def open_parquet_files(files: Sequence[AnyFile], kind: str) -> tuple[Any, bool]:
    """Open Parquet files; return (pyarrow data set over the files, True). True: they always name their columns."""
    pyarrow = importlib.import_module("pyarrow")
    schemas = [_opened_by_arrow([file], kind[1:]).schema for file in files]
    for file, schema in zip(files, schemas, strict=True):
        _check_names(file, schemas[0].names, schema.names)
    joined = pyarrow.unify_schemas(schemas, promote_options="permissive")
    return _as_numbers(_opened_by_arrow(files, kind[1:], joined)), True


def _check_names(file: AnyFile, first: Sequence[str], names: Sequence[str]) -> None:
    if sorted(names) != sorted(first):
        raise ValueError(
            f"{file} has the columns {shown(names)}, the first file {shown(first)}; all files of a table must have the "
            "same. Correct them, or move the files of another table away."
        )


def _opened_by_arrow(files: Sequence[AnyFile], form: Any, schema: Any = None) -> Any:
    """Return a pyarrow data set over the files, with the given `schema`; None: the schema of the first file."""
    fs, dataset = (importlib.import_module(f"pyarrow.{name}") for name in ("fs", "dataset"))
    remote = [file for file in files if isinstance(file, RemoteFile)]
    system = fs.PyFileSystem(fs.FSSpecHandler(_Opener(remote))) if remote else None
    return dataset.dataset([*map(str, files)], schema=schema, format=form, filesystem=system)


def _as_numbers(data: Any) -> Any:
    """Return the data set with int64 for columns that have no type, since all their cells are empty."""
    pyarrow = importlib.import_module("pyarrow")
    fields = [
        column.with_type(pyarrow.int64()) if pyarrow.types.is_null(column.type) else column for column in data.schema
    ]
    return data.replace_schema(pyarrow.schema(fields))


def rows_of(fragment: Any, types: Mapping[str, Any], most: int) -> Iterator[Any]:
    """Yield one file in batches, with the columns in `types`. pyarrow's own scanner would read up to a GiB ahead."""
    pyarrow, names, form = importlib.import_module("pyarrow"), [*types], getattr(fragment, "format", None)
    if form is None:
        return  # no file has rows
    if form.default_extname == "parquet":
        with importlib.import_module("pyarrow.parquet").ParquetFile(fragment.open()) as file:
            for group in range(file.num_row_groups):  # read at once, all groups would stay in memory
                for batch in file.iter_batches(most, row_groups=[group], columns=names):
                    columns = [batch.column(name).cast(type_) for name, type_ in types.items()]
                    yield pyarrow.RecordBatch.from_arrays(columns, names)
        return
    arrow_csv, stream = importlib.import_module("pyarrow.csv"), fragment.open()
    if fragment.path.endswith(".gz"):
        stream = pyarrow.CompressedInputStream(stream, "gzip")
    read = arrow_csv.ReadOptions(
        autogenerate_column_names=form.default_fragment_scan_options.read_options.autogenerate_column_names,
        block_size=max(min(most // 4, _MOST_AHEAD // _BLOCKS_AHEAD), _MOST_HEADER),
        use_threads=False,
    )
    convert = arrow_csv.ConvertOptions(column_types=types, include_columns=names)
    with stream, arrow_csv.open_csv(stream, read, form.parse_options, convert) as batches:
        yield from batches


def _delimiter(kind: str) -> str:
    return "\t" if kind == ".tsv" else ","


def _csv_format(kind: str, has_header: bool) -> Any:
    """Return pyarrow's description of CSV files with this suffix, with or without a first line of names."""
    arrow_csv, dataset = (importlib.import_module(f"pyarrow.{name}") for name in ("csv", "dataset"))
    return dataset.CsvFileFormat(
        parse_options=arrow_csv.ParseOptions(delimiter=_delimiter(kind)),
        read_options=arrow_csv.ReadOptions(
            autogenerate_column_names=not has_header, block_size=_BLOCK_BYTES, use_threads=False
        ),
    )


def _csv_schema(first: AnyFile, kind: str, form: Any) -> Any:
    """Return the columns and types of a CSV file, judged by its first rows; pyarrow would read far more rows."""
    pyarrow, arrow_csv = (importlib.import_module(name) for name in ("pyarrow", "pyarrow.csv"))
    with opened(first) as (packed, _), gzip.open(packed) if kind.endswith(".gz") else packed as file:
        text = file.read(_BLOCK_BYTES)
    end = text.rfind(b"\n") + 1 if len(text) == _BLOCK_BYTES else 0
    lines = pyarrow.BufferReader(memoryview(text)[: end or len(text)])
    read = form.default_fragment_scan_options.read_options
    with arrow_csv.open_csv(lines, read, form.parse_options) as rows:
        schema = rows.schema
    del rows
    pyarrow.default_memory_pool().release_unused()  # of the parsed rows
    for column in schema:
        if pyarrow.types.is_binary(column.type):
            raise ValueError(f"{first}: the column {column.name!r} holds bytes that are no UTF-8. Convert the file.")
    return schema


def is_number(cell: str) -> bool:
    """Return whether the text of a cell is a number, such as 1e-5 or nan."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
