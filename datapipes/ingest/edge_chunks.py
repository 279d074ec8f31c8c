"""Read the edges of one type in chunks, in the order of their ids, from any source that CSCGraph.build takes.

`edge_source` recognises the kind of source: arrays, .npy files, raw pairs, tables, folders of such files, an iterator.
build.py reads the chunks. No source has more than one chunk in memory, except arrays that are in memory already. A
source of files names the files by `identity`, so that the next build after a kill does not read edges again that the
killed build has written.
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

from datapipes.base.checks import as_tensor, dtype_name, shown
from datapipes.graph.npy import NpyRows
from datapipes.ingest.remote import AnyFile, RemoteFile, files_at, is_uri, local_path
from datapipes.ingest.table_files import TABLES, TableFiles, parts_of, suffix_of

PAIRS = {".int32": np.int32, ".int64": np.int64}  # suffixes of files of raw (source, destination) pairs
_ENDS = ("src", "dst")  # columns of a table


class Chunk(NamedTuple):
    """Successive edges.

    Attributes:
        src, dst: integers [n], the sources and the destinations.
        attributes: {name: values [n, ...]}.
    """

    src: NDArray[Any]
    dst: NDArray[Any]
    attributes: dict[str, Tensor]


class Column(NamedTuple):
    """Dtype and row shape of values of edges or nodes; a row is the values of one edge or node."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """The bytes of the values of one edge or node."""
        return math.prod(self.shape) * self.dtype.itemsize


class EdgeSource(ABC):
    """The base of all sources of edges for a build: `chunks` reads the edges in order.

    Attributes:
        columns: {name: Column} of the attributes of the edges.
        num_edges: number of edges; None if it is not known before all edges are read.
        identity: a text with the names, sizes and times (at URIs: versions) of the source files. It tells whether a
            source is the same as before. None if some values are in no file, or a store gives no version.
    """

    columns: Mapping[str, Column]
    num_edges: int | None = None
    identity: str | None = None

    @abstractmethod
    def chunks(self, first: int, most: int) -> Iterator[Chunk]:
        """Yield the edges from position `first` on, at most `most` edges in a chunk."""


def edge_source(where: str, edges: Any, attributes: Mapping[str, Any] | None = None) -> EdgeSource:
    """Return an EdgeSource that reads `edges`, which may be anything that CSCGraph.build takes.

    Args:
        where: how errors begin.
        attributes: {name: values of the edges}; values are an array, the path of a .npy file, or the name of a column.
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
        remedy = "Rename the files, or remove those with other suffixes." if files else "Write the files there."
        remedy += " Files of other kinds are read from this machine alone: copy them here." * isinstance(path, str)
        raise ValueError(
            f"{where}: {path} must be a file with one of the suffixes {allowed}, or a folder of files with one of "
            f"them, found {shown(sorted(file.name for file in files)[:5])}. {remedy}"
        )
    kind = kinds.pop()
    if kind in TABLES:
        return _Table(where, path, files, kind, attributes)
    here = [file for file in files if isinstance(file, Path)]
    if kind in PAIRS:
        raw = np.dtype(PAIRS[kind]), (2,)
        return _Rows(where, [_of_rows(NpyRows(where, file, raw)) for file in here], attributes)
    return _Rows(where, [_matrix(where, str(file), file) for file in here], attributes)


def _local(where: str, name: str, path: str | os.PathLike[str]) -> Path:
    return Path(local_path(where, name, os.fspath(path)))


def _identity(files: Sequence[AnyFile]) -> str | None:
    """Return a text with names, sizes and times or versions of the files. None: a remote store gives no version."""
    names: list[tuple[str, int, Any] | None] = []
    for file in files:
        if isinstance(file, RemoteFile):
            names.append(file.identity)
        else:
            status = file.stat()
            names.append((str(file.resolve()), status.st_size, status.st_mtime_ns))
    return None if None in names else repr(names)


# --- rows at known positions


@dataclass(frozen=True)
class Values:
    """Rows of values, in memory or in files, that can be read piece by piece.

    `read(begin, end)` returns these rows as a tensor; if the rows are edges, as two arrays (src, dst).
    """

    shape: tuple[int, ...]  # of all rows together
    dtype: torch.dtype
    read: Callable[[int, int], Any]
    files: tuple[Path, ...] = ()  # with all the rows; empty if some rows are in no file

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.shape[0]

    @property
    def column(self) -> Column:
        """Dtype and row shape of the values."""
        return Column(self.dtype, self.shape[1:])


class _Rows(EdgeSource):
    """Edges in several pieces (arrays or files), one after another. Each piece reads as two arrays (src, dst)."""

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
    """Return {name: Values} for attributes of `count` nodes or edges, given as arrays or as paths of .npy files.

    `kind`, "node" or "edge", is for errors.

    Raises:
        ValueError: An attribute does not have `count` rows.
    """
    checked = {}
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise TypeError(f"{where}: names of {kind} attributes must be str, got {shown(name)}. Pass a str.")
        title = f"{kind} attribute {name!r}"
        checked[name] = values = _array(where, title, value)
        if values.shape[:1] != (count,):
            raise ValueError(
                f"{where}: {title} has shape {list(values.shape)}; its first size must be {count}, one row for each "
                f"{kind}. Check that it belongs to this graph."
            )
    return checked


def _array(where: str, name: str, value: Any) -> Values:
    """Return Values that read the rows of `value`: an array, or the path of a .npy file. `name` is for errors."""
    if not isinstance(value, (str, os.PathLike)):
        return _of_tensor(as_tensor(where, name, value).cpu())
    rows = NpyRows(where, _local(where, name, value))
    if rows.is_transposed:
        raise ValueError(f"{where}: {rows.path} has Fortran's order. Write it with numpy.ascontiguousarray.")
    return _of_file(rows)


def _of_tensor(tensor: Tensor) -> Values:
    def read(begin: int, end: int) -> Tensor:
        """Return the rows [begin, end), contiguous, with torch's conjugate and negative bits resolved."""
        return tensor[begin:end].resolve_conj().resolve_neg().contiguous()

    return Values(tuple(tensor.shape), tensor.dtype, read)


def _of_file(rows: NpyRows) -> Values:
    dtype = torch.from_numpy(np.empty(0, rows.dtype)).dtype
    return Values(rows.shape, dtype, lambda begin, end: torch.from_numpy(rows.read(begin, end)), (rows.path,))


def refuse_no_ids(where: str, name: str, dtype: str, count: int = 1) -> None:
    """Raise TypeError unless `dtype`, the dtype of ids, is an integer dtype; without ids (`count` 0) allow any."""
    if count > 0 and not dtype.startswith(("int", "uint")):
        raise TypeError(f"{where}: {name} must hold integers, got {dtype}. Convert it, and drop edges without ends.")


def _two_columns(where: str, ends: Sequence[Any]) -> Values:
    """Return Values that read edges from `ends`: (sources, destinations), each an array or the path of a .npy file."""
    src, dst = (_array(where, name, value) for name, value in zip(_ENDS, ends, strict=True))
    for name, column in zip(_ENDS, (src, dst), strict=True):
        if len(column.shape) != 1:
            shape = list(column.shape)
            raise ValueError(f"{where}: {name} must have one dimension, got the shape {shape}. Flatten it.")
        refuse_no_ids(where, name, dtype_name(column.dtype), column.count)
    if src.count != dst.count:
        raise ValueError(f"{where}: {src.count} sources but {dst.count} destinations. Give one of each for every edge.")
    return _pairs(src, dst)


def _pairs(src: Values, dst: Values) -> Values:
    def read(begin: int, end: int) -> Any:
        return src.read(begin, end).numpy(), dst.read(begin, end).numpy()

    return Values((src.count, 2), src.dtype, read, (*src.files, *dst.files) if src.files and dst.files else ())


def _matrix(where: str, name: str, value: Any) -> Values:
    """Return Values that read edges from an array or .npy file of shape [2, n] or [n, 2]; [2, 2] is read as [2, n]."""
    is_file = isinstance(value, Path)
    rows: Any = NpyRows(where, value) if is_file else as_tensor(where, name, value).cpu()
    is_transposed = is_file and rows.is_transposed
    shape = tuple(rows.shape[::-1] if is_transposed else rows.shape)
    refuse_no_ids(where, name, str(rows.dtype).removeprefix("torch."), math.prod(shape))
    if len(shape) != 2 or 2 not in shape:
        raise ValueError(f"{where}: {name} must have the shape [2, num_edges], got {list(shape)}. Reshape it.")
    if not is_file:
        return _pairs(*map(_of_tensor, rows if shape[0] == 2 else rows.T))
    if rows.shape[0] == 2 and not (is_transposed and shape == (2, 2)):
        return _pairs(*map(_of_file, rows.columns()))
    return _of_rows(rows)


def _of_rows(rows: NpyRows) -> Values:
    """Return Values that read edges from a file of shape [n, 2], whose rows are pairs (source, destination)."""
    return Values(rows.shape, torch.int64, lambda begin, end: tuple(rows.read(begin, end).T), (rows.path,))


# --- tables


class _Table(EdgeSource):
    """The edges in Parquet or CSV files; a row of the table is an edge."""

    def __init__(
        self, where: str, path: Path | str, files: Sequence[AnyFile], kind: str, attributes: Mapping[str, Any]
    ) -> None:
        self._where, self._path = where, path
        self._rows = TableFiles(where, path, files, kind)
        names = self._rows.names
        self._ends = self._rows.two_columns(_ENDS)
        for end in self._ends:
            if (dtype := self._rows.dtype(end)).kind not in "iu":  # `num_rows` reads a whole CSV file
                refuse_no_ids(where, f"the column {end!r} of {path}", str(dtype), self._rows.num_rows)
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
                "needed. Replace its values with numbers, or leave the column out."
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
    """Edges from an iterable of chunks, or from a callable that returns such an iterable.

    A chunk is an array [2, n], or ([2, n], {name: values of the edges}).
    """

    def __init__(self, where: str, edges: Any, attributes: Mapping[str, Any]) -> None:
        if attributes:
            raise ValueError(
                f"{where}: edge_attributes={shown([*attributes])}, but the edges come in chunks, which bring their "
                "attributes. Leave it out, and yield (edge_index, {name: values})."
            )
        self._where = where
        self._left = iter(edges() if callable(edges) else edges)
        self._first = next(self._left, None)  # all chunks must have its attributes
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
