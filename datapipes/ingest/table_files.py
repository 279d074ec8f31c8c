"""Read Parquet or CSV files, local or at URIs, as one table of numbers, with pyarrow.

Rows are in the order of the file names; rows of one file keep their order. A file at a URI that changes while it
is read is an error.

All files have the columns of the first file, in any order; either all CSV files have a header or none has. This is
checked before any row is read. A CSV file with only a header, or without any bytes, has no rows. If all CSV files are
without bytes, the table has two columns without names: the edges of an empty relation. A column of Parquet files gets a
type that fits the values of all files. Wrong content raises ValueError; a failing disk or store raises OSError.
"""

from __future__ import annotations

import csv
import errno
import gzip
import importlib
import os
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
from datapipes.base.sizes import check_memory
from datapipes.ingest.arrow_files import open_csv_files, open_parquet_files, rows_of
from datapipes.ingest.remote import AnyFile, RemoteFile

TABLES = {".parquet": "parquet", ".csv": "csv", ".csv.gz": "csv", ".tsv": "csv"}  # suffixes
_BATCH_ROWS = 2**16
_OF_CONTENT = (ValueError, TypeError, LookupError, NotImplementedError, EOFError, csv.Error, zlib.error)


def suffix_of(name: str) -> str:
    """Return the suffix of a file name. For tables it may have two parts, such as .csv.gz."""
    return next((suffix for suffix in TABLES if name.endswith(suffix)), Path(name).suffix)


def stem_of(name: str) -> str:
    """Return a file name without its suffix. It names the table."""
    return name.removesuffix(suffix_of(name))


def parts_of(path: Path) -> list[Path]:
    """Return the files in the folder `path`, without names that begin with "." or "_", sorted. For a file: [path]."""
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.is_file() and not file.name.startswith((".", "_")))


class TableFiles:
    """One or more Parquet or CSV files with equal columns, read as one table.

    Args:
        where: how errors begin.
        path: a file, or a folder of files. If `files` are given, `path` is only their name in errors.
        kind: the suffix of `files`, one of TABLES.
    Attributes:
        path: the file or folder.
        names: the names of the columns.
        is_csv: whether the files are CSV.
        has_names: whether the files name the columns; otherwise the names are "f0", "f1" ...
    Raises:
        ValueError: A file is no table, is truncated or corrupt, or has other columns than the first file.
        OSError: A file cannot be read.
    """

    def __init__(self, where: str, path: Path | str, files: Sequence[AnyFile] | None = None, kind: str = "") -> None:
        self._where, self.path = where, path
        if files is None:
            files = parts_of(Path(path))
            kind = suffix_of(files[0].name)
        self._remote = [file for file in files if isinstance(file, RemoteFile)]
        needed("pyarrow.dataset", "distributed", f"{where}: a table")
        with self._told():
            if kind not in TABLES:
                raise ValueError(f"{path} must have one of the suffixes {[*TABLES]}. Rename it.")
            self._data, self.has_names = (open_csv_files if TABLES[kind] == "csv" else open_parquet_files)(files, kind)
        self.names: list[str] = self._data.schema.names
        self.is_csv = TABLES.get(kind) == "csv"
        self._order: Tensor | None = None
        self._texts: set[str] = set()

    def two_columns(self, ends: tuple[str, str]) -> tuple[str, str]:
        """Return the names of two columns for the ends of edges: `ends` if the table has them, else its first two.

        Raises:
            ValueError: There are fewer than two columns; or the files name more than two columns, but not `ends`.
        """
        if {*ends} <= {*self.names}:
            return ends
        if len(self.names) < 2 or (len(self.names) > 2 and self.has_names):
            remedy = "Rename two of them, or leave the others out." if len(self.names) > 1 else "Add the other column."
            raise ValueError(
                f"{self._where}: {self.path} has the columns {shown(self.names)}; {ends[0]} and {ends[1]} are needed, "
                f"or two columns. {remedy}"
            )
        return self.names[0], self.names[1]

    def arrow_type(self, name: str) -> Any:
        """Return the pyarrow type of a column, as `batches` yields it."""
        if name in self._texts:
            return importlib.import_module("pyarrow").large_string()
        return self._data.schema.field(name).type

    def read_as_text(self, name: str, is_text: bool = True) -> None:
        """From now on, read a column of CSV files as texts, as its cells are written; without `is_text`, no more.

        Call it before `content` is read.
        """
        (self._texts.add if is_text else self._texts.discard)(name)

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the NumPy dtype of a column; dtype `object` if NumPy has no dtype for the values."""
        try:
            dtype: np.dtype[Any] = np.dtype(self.arrow_type(name).to_pandas_dtype())
            return dtype
        except (NotImplementedError, TypeError):
            return np.dtype(object)

    @cached_property
    def num_rows(self) -> int:
        """Number of rows. For CSV files, the first use reads them to their end."""
        with self._told():
            return int(self._data.count_rows())

    def sort_by(self, name: str) -> None:
        """From now on, let `numbers` and `texts` return the rows by ascending id; the column `name` has the ids.

        Raises:
            ValueError: The column does not hold each id of 0 ... num_rows - 1 once.
        """
        ids, every = self.numbers(name).numpy(), np.arange(self.num_rows)
        order = np.argsort(ids, kind="stable")
        wrong = np.flatnonzero(ids[order] != every)
        if len(wrong) > 0:
            raise ValueError(
                f"the column {name!r} of {self.path} must have each id from 0 to {len(ids) - 1} once, in any "
                f"order; sorted, it has {ids[order][wrong[0]]} where {wrong[0]} must be. Number the rows anew, or "
                "rename the column if it holds something else."
            )
        self._order = None if np.array_equal(order, every) else torch.from_numpy(order)

    def column(self, name: str) -> Any:
        """Return a column as one pyarrow array, in the order of the files."""
        return self.content.column(name).combine_chunks()

    def texts(self, name: str) -> list[str]:
        """Return the cells of a column as text, "" for an empty cell."""
        cells = ["" if cell is None else str(cell) for cell in self.content.column(name).to_pylist()]
        return cells if self._order is None else [cells[place] for place in self._order.tolist()]

    def numbers(self, name: str, *, missing: Any = None) -> Tensor:
        """Return a column of numbers as a tensor [num_rows].

        Args:
            missing: the value for empty cells; None refuses empty cells.
        Raises:
            ValueError: The column does not exist, or holds something else than numbers.
            MemoryError: The table does not fit into memory.
        """
        if name not in self.names:
            raise ValueError(f"found no column {name!r}, the table has {shown(self.names)}. Name one of these.")
        if self.dtype(name).kind not in "biuf":
            raise ValueError(
                f"found {self.arrow_type(name)} in the column {name!r}; expected numbers. Replace its values with "
                "numbers, or leave the column out."
            )
        values = self.content.column(name)
        if values.null_count and missing is None:
            raise ValueError(f"found {values.null_count} empty or NaN cells in the column {name!r}. Fill them in.")
        filled = values.fill_null(missing) if values.null_count else values
        rows = np.array(filled.to_numpy())
        return torch.from_numpy(rows if self._order is None else rows[self._order.numpy()])

    @cached_property
    def content(self) -> Any:
        """All columns as a pyarrow table in memory. To read one column of a CSV file is to read all of them."""
        num_bytes = 2 * self.num_rows * 8 * len(self.names)  # of the table, and of the tensors made of its columns
        check_memory(self._where, str(self.path), num_bytes, "Store the columns as .npy.")
        if self._texts:
            pyarrow = importlib.import_module("pyarrow")
            schema = pyarrow.schema([(name, self.arrow_type(name)) for name in self.names])
            return pyarrow.Table.from_batches(self.batches(self.names, _BATCH_ROWS), schema)
        with self._told():
            return self._data.to_table()

    def batches(self, names: Sequence[str], most: int) -> Iterator[Any]:
        """Yield the columns `names` in pyarrow batches of up to `most` rows, with few further rows in memory.

        Raises:
            The errors of TableFiles. Also ValueError: A file at a URI has changed.
        """
        for fragment in self._data.get_fragments():
            batches = rows_of(fragment, {name: self.arrow_type(name) for name in names}, most)
            while True:
                with self._told():
                    batch = next(batches, None)
                if batch is None:
                    break
                for begin in range(0, batch.num_rows, most):
                    yield batch.slice(begin, most)
        with self._told():
            self._refuse_changed()

    def _refuse_changed(self) -> None:
        for file in self._remote:
            file.look()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Context manager: add `where` to an error raised inside. If a file has changed, raise an error that says so.

        pyarrow raises OSError both for wrong content and for a failing disk; only a failing disk gives an errno.
        """
        try:
            yield
        except MemoryError as error:
            text = f"{self._where}: {self.path} needs more memory than is left ({text_of(error)})"
            raise MemoryError(f"{text}. Check that it is whole; a damaged file may name any size.") from error
        except (*_OF_CONTENT, OSError) as error:
            if isinstance(error, OSError) and (error.errno or type(error) not in (OSError, gzip.BadGzipFile)):
                if isinstance(error, FileNotFoundError) and not error.errno:  # pyarrow's text is the path alone
                    error = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), text_of(error))
                raise OSError(
                    error.errno or errno.EIO,
                    f"{self._where}: the table cannot be read ({error.strerror or text_of(error)}). Check it",
                    error.filename or str(self.path),
                ) from error
            raise ValueError(f"{self._where}: {self._why(error)}") from error

    def _why(self, error: Exception) -> str:
        try:
            self._refuse_changed()
        except ValueError as changed:  # a changed file may look damaged or too short
            return text_of(changed)
        except OSError as gone:
            return f"{gone.filename} can no longer be read ({gone.strerror}). Check it."
        if type(error) is ValueError:  # from RemoteFile or an irregular file; pyarrow raises other types
            return text_of(error)
        text = one_line(text_of(error)).rstrip(".")
        if "conversion error" in text or isinstance(error, TypeError):  # types come from the first rows
            return f"{self.path} has columns whose values differ in type: {text}. Write all values of a column alike."
        return f"{self.path} is no whole table: {text}. Write or copy it again."
