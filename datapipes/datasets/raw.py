"""A data set as it is in its files: plain numpy arrays, checked once.

Readers return one of two classes; only ondisk.py returns a Dataset. `RawDataset` is a graph without types whose nodes
have classes. `RawHeteroDataset` (raw_hetero.py) is a graph with types, or a task on edges. Graphs, feature stores and
item sets are built from these two classes. This module also holds the rules that the readers share: the order of
undirected edges, the largest component, the conversion of sparse rows to dense features, and the limits on sizes in a
file.

Invariant: the arrays of a `RawDataset` fit each other (one label and one feature row per node, every id inside the
graph, the three parts of the split disjoint). Arrays that do not fit raise ValueError. Ragged, truncated, corrupt or
hostile files raise `DatasetFormatError`. The content of a file makes a reader raise no other error, except MemoryError.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import one_line, reason
from datapipes.base.errors import text_of
from datapipes.base.files import read_regular
from datapipes.base.sizes import check_memory
from datapipes.ingest.plain_pickle import FileRefused

__all__ = ["DatasetFormatError"]

MAX_FEATURE_BYTES = 8 * 2**30
MAX_CLASSES = 2**16
MAX_CONTENT_BYTES = 4 * 2**30  # of one file

REMEDY = "Correct the arrays, or the reader that made them."
RIGHT_FILE = "Check that it is the right file."


class DatasetFormatError(ValueError):
    """A file of a data set is ragged, truncated, corrupt or hostile.

    The message has the file, what was found, what was expected, and what to do. Trying again helps only with another
    file. Unprintable characters in names and values are escaped.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))

    @classmethod
    def of(cls, file: str, found: str, expected: str, remedy: str = "") -> DatasetFormatError:
        """Return the error for `file`. Without `remedy` the message says to fetch the file again."""
        remedy = remedy or "Fetch the file again from where it was published."
        return cls(f"{file}: found {found}; expected {expected}. {remedy}")


@contextmanager
def format_errors(where: str, remedy: str = "") -> Iterator[None]:
    """In a with statement, turn the errors of readers and of pyarrow, which have many types, into DatasetFormatErrors.

    `where`, the name of the file or of its content, begins the message. `remedy` ends it, for errors that have none.
    """
    try:
        yield
    except DatasetFormatError:
        raise
    except FileRefused as error:
        raise DatasetFormatError.of(where, error.found, error.expected, error.remedy) from error
    except (ValueError, TypeError, LookupError, NotImplementedError) as error:
        text = f"{reason(error)} {remedy}" if remedy else text_of(error)
        raise DatasetFormatError(f"{where}: {text}") from error


@dataclass(frozen=True, eq=False)
class RawDataset:
    """The arrays of one data set.

    Args:
        name: Used in messages.
        num_nodes: Nodes are 0..num_nodes - 1.
        edge_index: int64[2, num_edges], directed edges: row 0 has the sources, row 1 the destinations.
        node_features: {name: array [num_nodes, ...]}.
        labels: int64[num_nodes], the class of each node, -1 for none.
        class_names: A name for each class; numbers as text if the files name none.
        split: (train, validation, test), disjoint int64 node ids; None if the files have no split.
        edge_features: {name: array [num_edges, ...]}, rows in the order of edge_index.
    Raises:
        TypeError: A value is not an array, or has another dtype than the one above.
        ValueError: Shapes do not fit each other, or an id is out of range.
    """

    name: str
    num_nodes: int
    edge_index: np.ndarray
    node_features: dict[str, np.ndarray]
    labels: np.ndarray
    class_names: tuple[str, ...]
    split: tuple[np.ndarray, np.ndarray, np.ndarray] | None
    edge_features: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.num_nodes < 0:
            raise ValueError(f"{self.name}: num_nodes is {self.num_nodes}, must be 0 or more. {REMEDY}")
        check_id_array(self.name, "edge_index", self.edge_index, self.num_nodes)
        if self.edge_index.ndim != 2 or self.edge_index.shape[0] != 2:
            raise ValueError(
                f"{self.name}: edge_index has shape {self.edge_index.shape}, must be [2, num_edges]. {REMEDY}"
            )
        for name, rows in self.node_features.items():
            check_row_array(self.name, f"node feature {name!r}", rows, self.num_nodes)
        for name, rows in self.edge_features.items():
            check_row_array(self.name, f"edge feature {name!r}", rows, self.edge_index.shape[1])
        check_id_array(self.name, "labels", self.labels, len(self.class_names), lowest=-1)
        check_row_array(self.name, "array of labels", self.labels, self.num_nodes)
        if self.split is not None:
            self._check_split(self.split)

    def _check_split(self, split: tuple[np.ndarray, ...]) -> None:
        if len(split) != 3:
            raise ValueError(f"{self.name}: the split has {len(split)} parts, must have 3. {REMEDY}")
        for part, ids in zip(("train", "validation", "test"), split, strict=True):
            check_id_array(self.name, f"the {part} split", ids, self.num_nodes)
            if ids.ndim != 1:
                raise ValueError(f"{self.name}: the {part} split has shape {ids.shape}, must be [n]. {REMEDY}")
        together = np.concatenate(split)
        distinct, times = np.unique(together, return_counts=True)
        if len(distinct) < len(together):
            raise ValueError(
                f"{self.name}: node {distinct[times > 1][0]} is more than once in the split; train, "
                f"validation and test must be disjoint and without repeats. {REMEDY}"
            )


def check_id_array(name: str, noun: str, ids: Any, limit: int, lowest: int = 0) -> None:
    """Raise unless `ids` is an int64 array of numbers in [lowest, limit); `name` is the name of the data set."""
    if not isinstance(ids, np.ndarray) or ids.dtype != np.int64:
        kind = ids.dtype if isinstance(ids, np.ndarray) else type(ids).__name__
        raise TypeError(f"{name}: {noun}: found {kind}, must be an int64 array. {REMEDY}")
    if (outside := first_outside(ids, limit, lowest)) is not None:
        raise ValueError(f"{name}: {noun}: found {outside}, must be in [{lowest}, {limit}). {REMEDY}")


def check_row_array(name: str, noun: str, rows: Any, count: int) -> None:
    """Raise unless `rows` is an array of `count` rows; `name` is the name of the data set."""
    if not isinstance(rows, np.ndarray):
        raise TypeError(f"{name}: {noun} is a {type(rows).__name__}, must be an array. {REMEDY}")
    if rows.shape[:1] != (count,):
        raise ValueError(f"{name}: {noun} has shape {rows.shape}, must be [{count}, ...]. {REMEDY}")


def first_outside(numbers: np.ndarray, limit: int, lowest: int = 0) -> Any:
    """Return the smallest or largest of `numbers` if it is outside [lowest, limit); None if all are inside."""
    if numbers.size == 0:
        return None
    low, high = numbers.min(), numbers.max()
    return low if low < lowest else high if high >= limit else None


def content_of(path: Path, most_bytes: int = MAX_CONTENT_BYTES) -> bytes:
    """Return the bytes of a file.

    Raises:
        DatasetFormatError: The file is not regular (a FIFO, for example), or has more than `most_bytes` bytes.
    """
    with format_errors(path.name):
        return read_regular(path, most_bytes)


def both_directions(sources: np.ndarray, destinations: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return the given edges and their inverses, as the edges of an undirected simple graph.

    Args:
        sources: int64[n], each in [0, num_nodes).
        destinations: int64[n], each in [0, num_nodes).
        num_nodes: At most 2**31, so that a pair of nodes fits an int64.
    Returns:
        int64[2, m], sorted by (destination, source), without self loops and repeats.
        Time O(n log n).
    """
    return simple_edges(np.r_[sources, destinations], np.r_[destinations, sources], num_nodes)


def simple_edges(sources: np.ndarray, destinations: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return edges as int64[2, m], sorted by (destination, source), without self loops and repeats.

    The arguments are as in `both_directions`; the edges keep their direction here. Time O(n log n).
    """
    apart = sources != destinations
    pairs = np.unique(destinations[apart] * num_nodes + sources[apart])
    return np.stack([pairs % max(num_nodes, 1), pairs // max(num_nodes, 1)])


def component_of(raw: RawDataset) -> RawDataset:
    """Return a data set without the nodes outside the largest connected component of its graph.

    Components are computed as if each edge had both directions. Of equally large components, the one with the lowest
    node id is taken. Nodes are numbered anew in their old order; a split loses the nodes outside the component.
    Time O((num_nodes + num_edges) log num_nodes).
    """
    component = _components(raw.edge_index, raw.num_nodes)
    sizes = np.bincount(component, minlength=1)
    inside = component == sizes.argmax()
    new_ids = np.cumsum(inside) - 1
    kept = inside[raw.edge_index[0]]
    split = raw.split
    if split is not None:
        train, validation, test = (new_ids[part[inside[part]]] for part in split)
        split = train, validation, test
    return replace(
        raw,
        num_nodes=int(inside.sum()),
        edge_index=new_ids[raw.edge_index[:, kept]],
        node_features={name: rows[inside] for name, rows in raw.node_features.items()},
        labels=raw.labels[inside],
        split=split,
        edge_features={name: rows[kept] for name, rows in raw.edge_features.items()},
    )


def _components(edge_index: np.ndarray, num_nodes: int) -> np.ndarray:
    """Return the lowest node in the connected component of each node, int64[num_nodes]."""
    parent = np.arange(num_nodes)
    while True:
        sources, destinations = parent[edge_index]
        lower, higher = np.minimum(sources, destinations), np.maximum(sources, destinations)
        if (lower == higher).all():
            return parent
        np.minimum.at(parent, higher, lower)  # each tree joins a neighboring tree with a lower root
        while (parent != parent[parent]).any():
            parent = parent[parent]  # until each node points to its root


def ids_of(file: str, table: np.ndarray, limit: int, noun: str = "id", remedy: str = "", lowest: int = 0) -> np.ndarray:
    """Return `table`, unchanged, after a check that its whole numbers are in [lowest, limit).

    Raises:
        DatasetFormatError: A number is outside.
    """
    if (outside := first_outside(table, limit, lowest)) is not None:
        raise DatasetFormatError.of(file, f"the {noun} {outside}", f"{noun}s in [{lowest}, {limit})", remedy)
    return table


def checked_ids(file: str, noun: str, array: Any, shape: tuple[int | None, ...], limit: int) -> np.ndarray:
    """Return `array` as int64 after a check that it has `shape` and whole numbers in [0, limit).

    None in `shape` allows any length.

    Raises:
        DatasetFormatError: `array` is not an array of whole numbers, has another shape, or a number is outside.
    """
    _check_form(file, noun, array, shape)
    if (outside := first_outside(array, limit)) is not None:
        raise DatasetFormatError.of(file, f"the number {outside} in {noun}", f"numbers in [0, {limit})")
    return np.ascontiguousarray(array.astype(np.int64))


def _check_form(file: str, noun: str, array: Any, shape: tuple[int | None, ...] = (None,)) -> None:
    """Raise DatasetFormatError unless `array` has whole numbers and this `shape`; None in it allows any length."""
    if not isinstance(array, np.ndarray):
        raise DatasetFormatError.of(file, f"{noun} of {type(array).__name__}", "whole numbers")
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in "iu":
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        fault = f"{noun} of {array.dtype}{list(array.shape)}"
        raise DatasetFormatError.of(file, fault, f"whole numbers of shape [{wanted}]")


def as_float32(file: str, noun: str, values: np.ndarray, remedy: str = "") -> np.ndarray:
    """Return finite numbers as float32; raise DatasetFormatError for a number beyond float32."""
    with np.errstate(over="ignore"):
        narrow = values.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise DatasetFormatError.of(file, f"{noun} beyond float32", "numbers that float32 can hold", remedy)
    return narrow


def csr_ids(file: str, noun: str, indptr: np.ndarray, indices: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """Check a CSR matrix and return the row of each entry, int64[num_entries].

    Args:
        file, noun: The file and the matrix, for messages.
        indptr, indices: Arrays of any integer dtype.
        shape: (number of rows, number of columns).
    Raises:
        DatasetFormatError: The length of indptr is not rows + 1; indptr does not start at 0, descends, or
            does not end at the number of entries; a column is out of range; an array has no integer dtype.
    """
    for part, array in (("indptr", indptr), ("indices", indices)):
        _check_form(file, f"{noun} {part}", array)
    rows, columns = shape
    if len(indptr) != rows + 1 or rows < 0:
        raise DatasetFormatError.of(file, f"{noun} indptr of length {len(indptr)}", f"rows + 1, {rows + 1}")
    falls = (indptr[1:] < indptr[:-1]).any()
    if indptr[0] != 0 or falls or indptr[-1] != len(indices):
        fault = f"{noun} indptr from {indptr[0]} to {indptr[-1]}{', falling in between' if falls else ''}"
        raise DatasetFormatError.of(file, fault, f"one that rises from 0 to the number of entries, {len(indices)}")
    ids_of(file, indices, columns, f"{noun} column")
    degree: np.ndarray = np.diff(indptr.astype(np.int64))
    return np.repeat(np.arange(rows), degree)


def dense_rows(
    file: str, rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int], dtype: Any
) -> np.ndarray:
    """Return a new dense matrix with `values` at (rows, columns). Values at the same row and column are added.

    Args:
        file: Its name, for messages.
        rows, columns, values: [n] each; all rows and columns are in range.
        shape, dtype: The shape and dtype of the result.
    Raises:
        DatasetFormatError: The result would exceed `MAX_FEATURE_BYTES` (raised before it is allocated), or a sum is
            beyond the dtype.
        MemoryError: The result needs more memory than is left.
    """
    num_bytes = shape[0] * shape[1] * np.dtype(dtype).itemsize
    if max(num_bytes, *shape) > MAX_FEATURE_BYTES:
        fault = f"features of shape {list(shape)}, {num_bytes} bytes when dense"
        raise DatasetFormatError.of(file, fault, f"at most {MAX_FEATURE_BYTES} bytes", RIGHT_FILE)
    check_memory("datasets.open", f"{file}, features of shape {list(shape)},", num_bytes, "Use a machine with more.")
    dense = np.zeros(shape, dtype=dtype)
    with np.errstate(over="ignore"):
        np.add.at(dense, (rows, columns), values.astype(dtype))
    if not np.isfinite(dense[rows, columns]).all():
        raise DatasetFormatError.of(file, f"features beyond {dense.dtype}", f"numbers that {dense.dtype} can hold")
    return dense


def normalised(rows: np.ndarray, values: np.ndarray, num_rows: int) -> np.ndarray:
    """Return the values of sparse rows as float32, scaled so that each row has an L1 norm of 1.

    A row of zeros stays zero. Time O(len(values) + num_rows).

    Args:
        rows: int64[n], the row of each value, in [0, num_rows).
        values: [n], finite numbers.
        num_rows: The number of rows.
    """
    plain = values.astype(np.float64)
    norms = np.bincount(rows, weights=np.abs(plain), minlength=num_rows)
    norms[norms == 0] = 1
    scaled: np.ndarray = plain / norms[rows]
    return scaled.astype(np.float32)


def checked_labels(file: str, labels: np.ndarray, num_classes: int | None) -> tuple[np.ndarray, int]:
    """Return (labels as int64, number of classes). If `num_classes` is None, the number is the highest label + 1.

    Raises:
        DatasetFormatError: Labels are not one dimension of integers, or a label is outside
            [-1, num_classes). If num_classes is None, the bound is `MAX_CLASSES`.
    """
    _check_form(file, "labels", labels)
    limit = MAX_CLASSES if num_classes is None else num_classes
    plain = ids_of(file, labels, limit, "label", lowest=-1).astype(np.int64)
    return plain, int(plain.max(initial=-1)) + 1 if num_classes is None else num_classes
