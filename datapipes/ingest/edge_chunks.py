"""The edges of one type in chunks, in the order of their ids, from whatever holds them: arrays, .npy files, raw pairs,
folders of these, tables, an iterator. `edge_source` recognises it; build.py reads it.

No source holds more than one chunk, but for arrays that the user has in memory already. A source of files says which
files they are (`identity`), so that a build that was killed need not read again what it has stored.
"""

from __future__ import annotations

import itertools
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import as_tensor, shown
from datapipes.graph.npy import NpyRows
from datapipes.ingest.remote import AnyFile, RemoteFile, files_at, is_uri, local_path
from datapipes.ingest.table_files import TABLES, TableFiles, parts_of, suffix_of

PAIRS = {".int32": np.int32, ".int64": np.int64}  # suffixes of files of raw (source, destination) pairs
_ENDS = ("src", "dst")  # columns of a table


class Chunk(NamedTuple):
    """Successive edges: `src` and `dst`, integers [n], and {name: values [n, ...]}."""

    src: NDArray[Any]
    dst: NDArray[Any]
    attributes: dict[str, Tensor]


class Column(NamedTuple):
    """Values of edges or nodes: the dtype, and the shape of those of one."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of the values of one edge or node."""
        return math.prod(self.shape) * self.dtype.itemsize


_NO_COLUMN = Column(torch.int64, ())


class EdgeSource(ABC):
    """Edges that are read in order.

    Attributes:
        columns: {name: Column} of their attributes.
        num_edges: their number; None if it is known only once all were read.
        identity: names what is read, by the sizes and times of its files; None if nothing does.
    """

    columns: Mapping[str, Column]
    num_edges: int | None = None
    identity: str | None = None

    @abstractmethod
    def chunks(self, first: int, most: int) -> Iterator[Chunk]:
        """Yield the edges from number `first` on, up to `most` at a time."""


def edge_source(where: str, edges: Any, attributes: Mapping[str, Any] | None = None) -> EdgeSource:
    """Return the source of what a user gives as edges; see CSCGraph.build.

    Args:
        where: for messages.
        attributes: {name: values of the edges: an array, the path of a .npy file, or the name of a column}.
    """
    attributes = dict(attributes or {})
    if isinstance(edges, (str, os.PathLike)):
        return _of_path(where, edges, attributes)
    if isinstance(edges, (np.ndarray, Tensor)):
        return _Rows(where, [_matrix(where, "edges", edges)], attributes)
    if isinstance(edges, Sequence) and len(edges) == 2 and all(map(_is_one_end, edges)):
        return _Rows(where, [_two_columns(where, edges)], attributes)
    if isinstance(edges, Iterable) or callable(edges):
        return _Iterated(where, edges, attributes)
    raise TypeError(
        f"{where}: edges must be an array [2, num_edges], a pair of arrays or files, a file, a folder, or an "
        f"iterable of chunks, got {shown(edges)}. Pass one of these."
    )


def _is_one_end(value: Any) -> bool:
    return isinstance(value, (str, os.PathLike)) or getattr(value, "ndim", 0) == 1


def _of_path(where: str, place: str | os.PathLike[str], attributes: dict[str, Any]) -> EdgeSource:
    files: Sequence[AnyFile]
    if isinstance(place, str) and is_uri(place):
        path: Path | str = place
        files = files_at(where, place)
    else:
        path = _local(where, "edges", place)
        if not path.exists():
            raise FileNotFoundError(f"{where}: {path} does not exist. Check the path.")
        files = parts_of(path)
    kinds = {suffix_of(file.name) for file in files}
    allowed = [*TABLES] if isinstance(path, str) else [".npy", *PAIRS, *TABLES]
    if len(kinds) != 1 or not kinds <= {*allowed}:
        remedy = "Rename the files, or move the others away"
        remedy += "; copy files of other kinds to this machine." if isinstance(path, str) else "."
        raise ValueError(
            f"{where}: {path} must be a file with one of the suffixes {allowed}, or a folder of files with one of "
            f"them, found {shown(sorted(file.name for file in files)[:5])}. {remedy}"
        )
    kind = kinds.pop()
    if kind in TABLES:
        return _Table(where, path, files, kind, attributes)
    here = [file for file in files if isinstance(file, Path)]
    pieces = [_pairs(where, file, PAIRS[kind]) if kind in PAIRS else _matrix(where, str(file), file) for file in here]
    return _Rows(where, pieces, attributes)


def _local(where: str, name: str, path: str | os.PathLike[str]) -> Path:
    return Path(local_path(where, name, os.fspath(path)))


def _identity(files: Sequence[AnyFile]) -> str | None:
    """Return what names the files as they are; None if the store of one does not tell its version."""
    names: list[tuple[str, int, Any] | None] = []
    for file in files:
        if isinstance(file, RemoteFile):
            names.append(file.identity)
        else:
            status = file.stat()
            names.append((str(file.resolve()), status.st_size, status.st_mtime_ns))
    return None if None in names else repr(names)


# --- rows at known places


@dataclass(frozen=True)
class Values:
    """Rows that are read by their numbers; attributes have a column."""

    count: int
    read: Callable[[int, int], Any]
    files: tuple[Path, ...] = ()  # that hold them; none if some do not lie in files
    column: Column = _NO_COLUMN


class _Rows(EdgeSource):
    """Pieces one after the other, each with `read(begin, end) -> (src, dst)`."""

    def __init__(self, where: str, pieces: Sequence[Values], attributes: Mapping[str, Any]) -> None:
        self.num_edges = sum(piece.count for piece in pieces)
        self._pieces = pieces
        self._attributes = attributes_of(where, attributes, self.num_edges, "edge")
        self.columns = {name: rows.column for name, rows in self._attributes.items()}
        files = [rows.files for rows in [*pieces, *self._attributes.values()]]
        if all(files):
            self.identity = _identity([*itertools.chain(*files)])

    def chunks(self, first: int, most: int) -> Iterator[Chunk]:
        before = 0
        for piece in self._pieces:
            for begin in range(max(first - before, 0), piece.count, most):
                end = min(begin + most, piece.count)
                src, dst = piece.read(begin, end)
                edges = before + begin, before + end
                yield Chunk(src, dst, {name: rows.read(*edges) for name, rows in self._attributes.items()})
            before += piece.count


def attributes_of(where: str, attributes: Mapping[str, Any], count: int, kind: str) -> dict[str, Values]:
    """Return the attributes of `count` nodes or edges, as `kind` says; values are tensors.

    Raises:
        ValueError: There is not one row for each.
    """
    checked = {}
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise TypeError(f"{where}: names of {kind} attributes must be str, got {shown(name)}. Pass a str.")
        title = f"{kind} attribute {name!r}"
        if isinstance(value, (str, os.PathLike)):
            rows = NpyRows(where, _local(where, title, value))
            if rows.is_transposed:
                raise ValueError(f"{where}: {rows.path} has Fortran's order. Write it with numpy.ascontiguousarray.")
            shape = rows.shape
            dtype = torch.from_numpy(np.empty(0, rows.dtype)).dtype
            values = Values(shape[0] if shape else 0, _tensors(rows.read), (rows.path,), Column(dtype, shape[1:]))
        else:
            tensor = as_tensor(where, title, value).cpu()
            shape = tuple(tensor.shape)
            values = Values(shape[0] if shape else 0, _copies(tensor), (), Column(tensor.dtype, shape[1:]))
        if not shape or shape[0] != count:
            raise ValueError(
                f"{where}: {title} has shape {list(shape)}; its first size must be {count}, one row for each {kind}. "
                "Check that it belongs to this graph."
            )
        checked[name] = values
    return checked


def _tensors(read: Callable[[int, int], NDArray[Any]]) -> Callable[[int, int], Tensor]:
    return lambda begin, end: torch.from_numpy(read(begin, end))


def _copies(tensor: Tensor) -> Callable[[int, int], Tensor]:
    """Rows that are contiguous, and whose values lie in memory as they are."""
    return lambda begin, end: tensor[begin:end].resolve_conj().resolve_neg().contiguous()


def _slices(values: Any) -> Callable[[int, int], Any]:
    return lambda begin, end: values[begin:end]


def _rows_of(where: str, name: str, value: Any) -> Values:
    """Return one row of ends: an array or a .npy file."""
    if isinstance(value, (str, os.PathLike)):
        rows = NpyRows(where, _local(where, name, value))
        read: Callable[[int, int], Any] = rows.read
        files: tuple[Path, ...]
        shape, dtype, files = rows.shape, rows.dtype, (rows.path,)
    else:
        array = as_tensor(where, name, value).cpu().numpy()
        shape, dtype, read, files = array.shape, array.dtype, _slices(array), ()
    if len(shape) != 1:
        raise ValueError(f"{where}: {name} must have one dimension, got the shape {list(shape)}. Flatten it.")
    refuse_no_ids(where, name, dtype, shape[0])
    return Values(shape[0], read, files)


def refuse_no_ids(where: str, name: str, dtype: Any, count: int = 1) -> None:
    """Raise TypeError for `count` values of a dtype that is none of integers; those of nothing may have any."""
    if count > 0 and np.dtype(dtype).kind not in "iu":
        raise TypeError(f"{where}: {name} must hold integers, got {dtype}. Convert it, and drop edges without ends.")


def _two_columns(where: str, ends: Sequence[Any]) -> Values:
    """Return both ends of edges, each an array or a .npy file."""
    src, dst = (_rows_of(where, name, value) for name, value in zip(_ENDS, ends, strict=True))
    if src.count != dst.count:
        raise ValueError(f"{where}: {src.count} sources but {dst.count} destinations. Give one of each for every edge.")
    files = (*src.files, *dst.files) if src.files and dst.files else ()
    return Values(src.count, lambda begin, end: (src.read(begin, end), dst.read(begin, end)), files)


def _matrix(where: str, name: str, value: Any) -> Values:
    """Return both ends of edges [2, n], or [n, 2] where that is not [2, 2]: an array or a .npy file."""
    files: tuple[Path, ...]
    if isinstance(value, Path):
        rows = NpyRows(where, value)
        refuse_no_ids(where, name, rows.dtype, math.prod(rows.shape))
        shape, files = rows.shape[::-1] if rows.is_transposed else rows.shape, (rows.path,)
        by_columns = rows.shape[0] == 2 and not (rows.is_transposed and shape == (2, 2))
        read = _of_columns(rows.columns()) if by_columns else _of_rows(rows)
    else:
        array = as_tensor(where, name, value).cpu().numpy()
        refuse_no_ids(where, name, array.dtype, array.size)
        shape, files = array.shape, ()
        columns = array if shape[:1] == (2,) else array.T
        read = lambda begin, end: (columns[0, begin:end], columns[1, begin:end])  # noqa: E731
    if len(shape) != 2 or 2 not in shape:
        raise ValueError(f"{where}: {name} must have the shape [2, num_edges], got {list(shape)}. Reshape it.")
    return Values(shape[1] if shape[0] == 2 else shape[0], read, files)


def _of_columns(columns: Sequence[NpyRows]) -> Callable[[int, int], Any]:
    return lambda begin, end: tuple(column.read(begin, end) for column in columns)


def _of_rows(rows: NpyRows) -> Callable[[int, int], Any]:
    return lambda begin, end: tuple(rows.read(begin, end).T)


def _pairs(where: str, path: Path, dtype: Any) -> Values:
    rows = NpyRows(where, path, (np.dtype(dtype), (2,)))
    return Values(rows.shape[0], _of_rows(rows), (path,))


# --- tables


class _Table(EdgeSource):
    """Parquet or CSV files; edges stand in the order of their rows."""

    def __init__(
        self, where: str, path: Path | str, files: Sequence[AnyFile], kind: str, attributes: Mapping[str, Any]
    ) -> None:
        self._where, self._path = where, path
        self._rows = TableFiles(where, path, files, kind)
        names = self._rows.names
        self._ends = self._rows.two_columns(_ENDS)
        for end in self._ends:
            if (dtype := self._rows.dtype(end)).kind not in "iu":  # counting the rows of a CSV file reads it
                refuse_no_ids(where, f"the column {end!r} of {path}", dtype, self._rows.num_rows)
        for name, column in attributes.items():
            if column not in names:
                raise ValueError(
                    f"{where}: edge attribute {name!r} must be the name of a column of {path}, one of {shown(names)}, "
                    f"got {shown(column)}. Pass one of them."
                )
        self._attributes = dict(attributes)
        self.columns = {name: self._column(column) for name, column in attributes.items()}
        named = _identity(files)
        self.identity = None if named is None else f"{named} {[*self._attributes.items()]}"

    def chunks(self, first: int, most: int) -> Iterator[Chunk]:
        before = 0
        for batch in self._rows.batches([*dict.fromkeys([*self._ends, *self._attributes.values()])], most):
            rows = batch.slice(min(max(first - before, 0), batch.num_rows))
            before += batch.num_rows
            if rows.num_rows > 0:
                src, dst = (self._values(rows, column) for column in self._ends)
                columns = self._attributes.items()
                yield Chunk(src, dst, {name: torch.from_numpy(self._values(rows, column)) for name, column in columns})

    def _column(self, name: str) -> Column:
        dtype = self._rows.dtype(name)
        if dtype.kind not in "biuf":
            raise TypeError(
                f"{self._where}: the column {name!r} of {self._path} holds {self._rows.arrow_type(name)}; numbers are "
                "needed. Number them."
            )
        return Column(torch.from_numpy(np.empty(0, dtype)).dtype, ())

    def _values(self, rows: Any, column: str) -> NDArray[Any]:
        values = rows.column(column)
        if values.null_count:
            raise ValueError(
                f"{self._where}: the column {column!r} of {self._path} has {values.null_count} empty or NaN cells; "
                "each edge needs a value. Fill them in, or drop these rows."
            )
        return np.array(values.to_numpy(zero_copy_only=False))


# --- an iterator


class _Iterated(EdgeSource):
    """Chunks of an iterable, or of what a callable returns: [2, n], or ([2, n], {name: values})."""

    def __init__(self, where: str, edges: Any, attributes: Mapping[str, Any]) -> None:
        if attributes:
            raise ValueError(
                f"{where}: edge_attributes={shown([*attributes])}, but the edges come in chunks, whose attributes come "
                "with them. Leave it out, and yield (edge_index, {name: values})."
            )
        self._where = where
        self._left = iter(edges() if callable(edges) else edges)
        self._first = next(self._left, None)  # tells the attributes of all
        self.columns = {} if self._first is None else self._source(self._first).columns

    def chunks(self, first: int, most: int) -> Iterator[Chunk]:
        before = 0
        for chunk in itertools.chain([] if self._first is None else [self._first], self._left):
            source = self._source(chunk)
            if source.columns != self.columns:
                raise ValueError(
                    f"{self._where}: a chunk of edges has the attributes {shown(source.columns)}, the first one has "
                    f"{shown(self.columns)}. Give all chunks the same."
                )
            yield from source.chunks(max(first - before, 0), most)
            before += source.num_edges or 0

    def _source(self, chunk: Any) -> EdgeSource:
        ends, attributes = chunk if isinstance(chunk, tuple) and isinstance(chunk[-1], Mapping) else (chunk, {})
        if isinstance(ends, Sequence) and len(ends) == 2:
            return _Rows(self._where, [_two_columns(self._where, ends)], attributes)
        return _Rows(self._where, [_matrix(self._where, "a chunk of edges", ends)], attributes)
