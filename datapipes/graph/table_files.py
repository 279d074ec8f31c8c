"""Parquet or CSV files as one table of numbers, by pyarrow: local ones, or at URIs.

Rows stand in the order of the files' names, then of their place in a file. pyarrow reads files at URIs as `RemoteFile`
gives them, so it fetches what it asks for. A file at a URI that is changed while it is read is an error.
"""

from __future__ import annotations

import errno
import gzip
import importlib
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.cached import cached_property
from datapipes.base.checks import one_line, shown
from datapipes.base.errors import needed, text_of
from datapipes.base.remote import AnyFile, RemoteFile, opened
from datapipes.base.sizes import check_memory

TABLES = {".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv", ".tsv": "csv"}  # suffixes
_MOST_HEADER, _BLOCK_BYTES = 2**16, 2**24  # bytes of a CSV file: of its first line, and that are parsed at once


def suffix_of(name: str) -> str:
    """Return what the name of a file ends in; that of a table may have two parts."""
    return next((each for each in TABLES if name.endswith(each)), Path(name).suffix)


def parts_of(path: Path) -> list[Path]:
    """Return the files in a folder whose names do not begin with "." or "_", sorted by name; a file alone."""
    if not path.is_dir():
        return [path]
    return sorted(each for each in path.iterdir() if each.is_file() and not each.name.startswith((".", "_")))


class TableFiles:
    """Files with the columns of the first.

    Args:
        where: for messages.
        path: names all files in messages; of files that are not given, the file, or the folder of its parts.
        kind: their suffix, one of TABLES.
    Attributes:
        names: of the columns.
        has_names: whether the files name them; else they are "f0", "f1" ...
    Raises:
        ValueError: They are no tables, or truncated.
        OSError: One cannot be read.
    """

    def __init__(self, where: str, path: Path | str, files: Sequence[AnyFile] | None = None, kind: str = "") -> None:
        self._where, self._path = where, path
        if files is None:
            files = parts_of(Path(path))
            kind = suffix_of(files[0].name)
        self._remote = [each for each in files if isinstance(each, RemoteFile)]
        dataset = needed("pyarrow.dataset", "distributed", f"{where}: a table")
        with self._told():
            form: Any = "parquet"
            self.has_names = TABLES[kind] == "parquet" or _has_header(files[0], kind)
            if TABLES[kind] == "csv":
                form = _csv_format(kind, self.has_names)
            system = _arrow_system(self._remote) if self._remote else None
            self._data = dataset.dataset([str(each) for each in files], format=form, filesystem=system)
        self.names: list[str] = self._data.schema.names

    def two_columns(self, ends: tuple[str, str]) -> tuple[str, str]:
        """Return the columns of these names, or the only two; of a table without names the first two.

        Raises:
            ValueError: There are none, or others beside them, so that a column of numbers of rows may be taken for one.
        """
        if {*ends} <= {*self.names}:
            return ends
        if len(self.names) < 2 or (len(self.names) > 2 and self.has_names):
            raise ValueError(
                f"{self._where}: {self._path} has the columns {shown(self.names)}; {ends[0]} and {ends[1]} are needed, "
                "or two columns. Rename two of them, or leave the others out."
            )
        return self.names[0], self.names[1]

    def arrow_type(self, name: str) -> Any:
        """Return what a column holds, as pyarrow calls it."""
        return self._data.schema.field(name).type

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the dtype of the values of a column; object if NumPy has none."""
        try:
            dtype: np.dtype[Any] = np.dtype(self.arrow_type(name).to_pandas_dtype())
            return dtype
        except (NotImplementedError, TypeError):
            return np.dtype(object)

    @cached_property
    def num_rows(self) -> int:
        """Number of rows; of CSV files all are read, once."""
        with self._told():
            return int(self._data.count_rows())

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as text, "" for an empty one."""
        return ["" if each is None else str(each) for each in self._content.column(name).to_pylist()]

    def numbers(self, name: str, *, missing: Any = None) -> Tensor:
        """Return a column, one number for each row.

        Args:
            missing: what stands for empty cells; None refuses them.
        Raises:
            ValueError: There is no such column, or it holds something else.
            MemoryError: It does not fit into memory.
        """
        if name not in self.names:
            raise ValueError(f"found no column {name!r}, the table has {shown(self.names)}. Name one of these.")
        if self.dtype(name).kind not in "biuf":
            raise ValueError(
                f"found {self.arrow_type(name)} in the column {name!r}; expected numbers. Number what it holds, or "
                "leave the column out."
            )
        values = self._content.column(name)
        if values.null_count and missing is None:
            raise ValueError(f"found {values.null_count} empty or NaN cells in the column {name!r}. Fill them in.")
        filled = values.fill_null(missing) if values.null_count else values
        return torch.from_numpy(np.array(filled.to_numpy()))

    @cached_property
    def _content(self) -> Any:
        """All columns, in memory: who reads a CSV file for one column reads all of it."""
        check_memory(self._where, str(self._path), self.num_rows * 8 * len(self.names), "Store the columns as .npy.")
        with self._told():
            return self._data.to_table()

    def batches(self, names: Sequence[str], most: int) -> Iterator[Any]:
        """Yield the columns of up to `most` rows at a time, as batches of pyarrow.

        Raises:
            as TableFiles does; ValueError: a file at a URI was changed.
        """
        batches = self._data.to_batches(
            columns=[*names], batch_size=most, batch_readahead=1, fragment_readahead=1, use_threads=False
        )
        while True:
            with self._told():
                batch = next(batches, None)
            if batch is None:
                break
            yield batch
        with self._told():
            self._refuse_changed()

    def _refuse_changed(self) -> None:
        for each in self._remote:
            each.look()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Let an error say where it happened, and whether a file was changed."""
        try:
            yield
        except (ValueError, EOFError, zlib.error) as error:
            raise ValueError(f"{self._where}: {self._why(error)}") from error
        except OSError as error:
            raise OSError(
                error.errno or errno.EIO,
                f"{self._where}: the table cannot be read ({error.strerror or text_of(error)}). Check it",
                error.filename or str(self._path),
            ) from error

    def _why(self, error: Exception) -> str:
        try:
            self._refuse_changed()
        except ValueError as changed:  # what was changed may seem to be damaged, or to end too early
            return text_of(changed)
        except OSError as gone:
            return f"{gone.filename} cannot be read any more ({gone.strerror}). Check it."
        if type(error) is ValueError:  # of RemoteFile, or a file that is none; pyarrow's are of other types
            return text_of(error)
        text = one_line(text_of(error)).rstrip(".")
        if "conversion error" in text:  # the first rows tell the type of a column
            return f"{self._path} has columns whose values differ in type: {text}. Write all of a column alike."
        return f"{self._path} is no whole table: {text}. Write or copy it again."


class _Opener:
    """What pyarrow needs of a file system of fsspec to read files, by their URIs."""

    protocol = "uri"

    def __init__(self, files: Sequence[RemoteFile]) -> None:
        self._files = {each.uri: each for each in files}

    def isfile(self, uri: str) -> bool:
        return uri in self._files

    def open(self, uri: str, mode: str) -> Any:
        return self._files[uri].open()


def _arrow_system(files: Sequence[RemoteFile]) -> Any:
    fs = importlib.import_module("pyarrow.fs")
    return fs.PyFileSystem(fs.FSSpecHandler(_Opener(files)))


def _has_header(first: AnyFile, kind: str) -> bool:
    """Return whether the first line of a CSV file has a cell with a letter that is no number."""
    with opened(first) as (packed, _), gzip.open(packed) if kind.endswith(".gz") else packed as file:
        line = file.readline(_MOST_HEADER)
    cells = line.decode("utf-8-sig", "replace").split(_delimiter(kind))  # without a byte order mark
    return any(any(map(str.isalpha, cell)) and not _is_number(cell.strip(' "\r\n')) for cell in cells)


def _delimiter(kind: str) -> str:
    return "\t" if kind == ".tsv" else ","


def _csv_format(kind: str, has_header: bool) -> Any:
    """Return how pyarrow reads CSV files."""
    csv, dataset = importlib.import_module("pyarrow.csv"), importlib.import_module("pyarrow.dataset")
    return dataset.CsvFileFormat(
        parse_options=csv.ParseOptions(delimiter=_delimiter(kind)),
        read_options=csv.ReadOptions(
            autogenerate_column_names=not has_header, block_size=_BLOCK_BYTES, use_threads=False
        ),
    )


def _is_number(cell: str) -> bool:
    """Return whether a cell is a number, such as 1e-5 or nan."""
    try:
        float(cell)
    except ValueError:
        return False
    return True
