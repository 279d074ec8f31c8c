"""Read a data set from one npz file, in any of three layouts; the array names tell which.

- gnn-benchmark (Shchur et al., 2018; Amazon Photo, Coauthor CS): the adjacency and the features as CSR
  arrays `adj_*` and `attr_*`, `labels`, and often `class_names`. No split.
- heterophilous-graphs (Platonov et al., 2023; Minesweeper): `node_features`, `node_labels`, `edges`, and
  ten splits in `train_masks`, `val_masks` and `test_masks`.
- the Debian package graph (debian_bookworm): of its many node and edge types only the homogeneous part is
  read: the packages, their dependencies and the words of their descriptions.

Invariant: nothing in a file is unpickled. Every array is checked before use; its shape must fit the number
of its bytes. Refused with `DatasetFormatError`: archives that are truncated, corrupt or larger than
`MAX_FILE_BYTES` when unpacked, missing or ragged arrays, arrays of another dtype, ids out of range, and
layouts not in this list.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from datapipes.base.sizes import check_memory
from datapipes.datasets.raw import (
    RIGHT_FILE,
    DatasetFormatError,
    RawDataset,
    as_float32,
    both_directions,
    checked_ids,
    checked_labels,
    content_of,
    csr_ids,
    dense_rows,
    normalised,
)
from datapipes.graph.npy import read_header
from datapipes.ingest.torch_archive import open_archive, read_member

MAX_FILE_BYTES = 4 * 2**30


def read_npz(path: Path, split: int = 0, *, normalize_features: bool = False) -> RawDataset:
    """Read the data set in an npz file of one of the layouts above.

    Args:
        path: The file, or a folder with one npz file; the stem of the file becomes the name of the data set.
        split: The index of the split in the file. It must be 0 if the file has one split; it is ignored without splits.
        normalize_features: Scale the rows of "feat" to an L1 norm of 1; for gnn-benchmark only.
    Returns:
        Edges go in both directions, without repeats and self loops, sorted by (destination, source).
        "feat" is float32[num_nodes, ...] as in the file (gnn-benchmark, heterophilous-graphs), or
        uint8[num_nodes, num_words], 1 for each word of the description (Debian). If the file names no
        classes, their names are numbers as text.
        Time O(num_nodes * num_words + num_edges log num_edges).
    Raises:
        FileNotFoundError: There is no such file.
        IndexError: The file has no such split.
        ValueError: normalize_features is set, and the layout is not gnn-benchmark.
        DatasetFormatError: The file is truncated, corrupt, hostile, or of another layout.
    """
    path = npz_in(Path(path)) or Path(path)
    arrays = NpzArrays(path.name, content_of(path))
    for layout, (needed, read) in _LAYOUTS.items():
        if set(needed.split()) <= arrays.keys:
            if normalize_features and read is not _read_benchmark:
                raise ValueError(
                    f"datasets.open: normalize_features=True is for bags of words (gnn-benchmark and Planetoid files), "
                    f"but {path.name} has the layout {layout}, whose features stay as they are. Leave it out."
                )
            num_splits = len(_read_masks(arrays)[0]) if read is _read_heterophilous else 1
            if read is not _read_benchmark and not 0 <= split < num_splits:
                raise IndexError(
                    f"read_npz: {path.name} has no split {split}; split must be in "
                    f"[0, {num_splits}). Pass one of these, or leave split out."
                )
            return read(path.stem, arrays, split, normalize_features)
    layouts = "; ".join(f"{layout} with {needed.split()}" for layout, (needed, _) in _LAYOUTS.items())
    remedy = "Write the file in one of these, or make a datapipes.datasets.raw.RawDataset of its arrays yourself."
    fault = f"the arrays {sorted(arrays.keys)}"
    raise DatasetFormatError.of(path.name, fault, f"one of the layouts: {layouts}", remedy)


def npz_in(where: Path) -> Path | None:
    """Return the npz file at `where`, which is a file or a folder. None: there is no npz file. Looks at names only.

    Raises:
        ValueError: The folder has several npz files, and none is named like the folder.
    """
    archives = sorted(where.glob("*.npz")) if where.is_dir() else [where] if where.suffix == ".npz" else []
    named = [archive for archive in archives if archive.stem == where.name]
    if len(archives) > 1 and len(named) != 1:
        raise ValueError(
            f"datasets.open: {where} holds {[archive.name for archive in archives]} and no ind.* files; Planetoid "
            "files or one .npz are needed. Name the .npz itself."
        )
    return next(iter(named or archives), None)


class NpzArrays:
    """The arrays of an npz file. An array is read and checked when it is asked for.

    Args:
        file: Its name, for messages.
        content: Its bytes.
    Raises:
        DatasetFormatError: The content is no zip archive, is larger than `MAX_FILE_BYTES` when unpacked,
            or has two members of one name.
    """

    def __init__(self, file: str, content: bytes) -> None:
        self.file = file
        with _whole(file, "the archive"):
            self._archive = open_archive(content)
            members = self._archive.infolist()
        self._members = {member.filename.removesuffix(".npy"): member for member in members}
        if len(self._members) < len(members):
            raise DatasetFormatError.of(file, "two arrays of one name", "each name once")
        total = sum(member.file_size for member in members)
        if total > MAX_FILE_BYTES:
            raise DatasetFormatError.of(file, f"{total} bytes when unpacked", f"at most {MAX_FILE_BYTES}", RIGHT_FILE)

    @property
    def keys(self) -> set[str]:
        """The names of the arrays."""
        return set(self._members)

    def get(self, key: str) -> np.ndarray:
        """Return one array as a new array in the machine's byte order.

        Raises:
            DatasetFormatError: There is no array of that name, it is corrupt, it holds neither numbers nor
                text (Python objects are never unpickled), or its size disagrees with its shape.
            MemoryError: The array needs more memory than is left.
        """
        if key not in self._members:
            raise DatasetFormatError.of(self.file, f"only the arrays {sorted(self.keys)}", f"one named {key!r}")
        size = self._members[key].file_size
        # Twice: the bytes, and the array made of them.
        check_memory("datasets.open", f"{self.file}, array {key!r},", 2 * size, "Use a machine with more memory.")
        with _whole(self.file, f"array {key!r}"):
            content = read_member(self._archive, self._members[key])
        return npy_array(self.file, f"array {key!r}", content)

    def numbers(self, key: str, kinds: str, num_dimensions: int) -> np.ndarray:
        """Return one array after a check: `dtype.kind` is in `kinds`, `ndim` is `num_dimensions`, floats are finite."""
        array = self.get(key)
        if array.dtype.kind not in kinds or array.ndim != num_dimensions:
            words = {"b": "bool", "i": "int", "u": "unsigned int", "f": "float", "U": "text"}
            names = " or ".join(", ".join(words[kind] for kind in kinds).rsplit(", ", 1))
            allowed = f"{names} with {num_dimensions} dimension(s)"
            raise DatasetFormatError.of(self.file, f"array {key!r} of {array.dtype}{list(array.shape)}", allowed)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            fault = f"array {key!r} with infinite or missing numbers"
            raise DatasetFormatError.of(self.file, fault, "finite numbers")
        return array

    def ids(self, key: str, shape: tuple[int | None, ...], limit: int) -> np.ndarray:
        """Return one array as int64; refuse another shape, and ids outside [0, limit). None in `shape`: any length."""
        return checked_ids(self.file, repr(key), self.get(key), shape, limit)

    def csr(
        self, prefix: str, *, by_columns: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
        """Return (rows, columns, values, shape) of a CSR matrix, after checks. The first three are [num_entries].

        Of a CSC matrix, `by_columns`, rows and columns change places.
        """
        shape = self.ids(f"{prefix}shape", (2,), 2**31)
        num_rows, num_columns = map(int, shape[::-1] if by_columns else shape)
        indices = self.numbers(f"{prefix}indices", "iu", 1)
        rows = csr_ids(
            self.file, prefix.rstrip("_") or "matrix", self.get(f"{prefix}indptr"), indices, (num_rows, num_columns)
        )
        values = self.numbers(f"{prefix}data", "biuf", 1)
        if len(values) != len(indices):
            fault = f"{len(values)} numbers in '{prefix}data'"
            raise DatasetFormatError.of(self.file, fault, f"one for each of {len(indices)} entries")
        return rows, indices.astype(np.int64), values, (num_rows, num_columns)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return one array of texts as a tuple of str."""
        with _whole(self.file, f"array {key!r}"):
            return tuple(map(str, self.numbers(key, "U", 1).tolist()))  # fails on code points that do not exist


def npy_array(file: str, name: str, content: bytes) -> np.ndarray:
    """Return the array in the bytes of an npy file as a new array in the machine's byte order.

    Args:
        file, name: The file and the array, for messages.
        content: The bytes.
    Raises:
        DatasetFormatError: The bytes are corrupt, the array holds neither numbers nor text (Python objects are never
            unpickled), or its size disagrees with its shape.
    """
    stream = io.BytesIO(content)
    with _whole(file, name):
        shape, fortran, dtype = read_header(stream)
    if dtype.kind not in "biufSU" or dtype.itemsize == 0:
        raise DatasetFormatError.of(file, f"{name} of {dtype}{list(shape)}", "numbers or text")
    size = len(content) - stream.tell()
    if math.prod(shape) * dtype.itemsize != size or max(shape, default=0) > MAX_FILE_BYTES:
        fault = f"{name} of {dtype}{list(shape)} with {size} bytes"
        raise DatasetFormatError.of(file, fault, f"{dtype.itemsize} bytes for each element")
    if size == 0:
        return np.zeros(shape, dtype=dtype.newbyteorder("="))
    flat = np.frombuffer(content, dtype=dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="))


@contextmanager
def _whole(file: str, name: str) -> Iterator[None]:
    """Turn any error raised in the with statement into a DatasetFormatError.

    zipfile, decompressors and numpy raise nearly anything for a broken file. `file` and `name` (what is read) are for
    the message.
    """
    try:
        yield
    except DatasetFormatError:
        raise
    except Exception as error:
        fault = f"{name} broken ({type(error).__name__}: {str(error)[:200]})"
        raise DatasetFormatError.of(file, fault, "a whole npz file") from error


def _read_benchmark(name: str, arrays: NpzArrays, split: int, normalize_features: bool) -> RawDataset:
    """Read the gnn-benchmark layout; edge weights are ignored."""
    rows, columns, _, shape = arrays.csr("adj_")
    if shape[0] != shape[1]:
        fault = f"an adjacency of shape {list(shape)}"
        raise DatasetFormatError.of(arrays.file, fault, "as many rows as columns")
    num_nodes = shape[0]
    words_of, words, counts, words_shape = arrays.csr("attr_")
    _check_nodes(arrays, "attr_shape", words_shape[0], num_nodes)
    class_names = arrays.texts("class_names") if "class_names" in arrays.keys else None
    labels, num_classes = checked_labels(
        arrays.file, arrays.get("labels"), None if class_names is None else len(class_names)
    )
    _check_nodes(arrays, "labels", len(labels), num_nodes)
    values = normalised(words_of, counts, num_nodes) if normalize_features else counts
    return RawDataset(
        name=name,
        num_nodes=num_nodes,
        edge_index=both_directions(columns, rows, num_nodes),
        node_features={"feat": dense_rows(arrays.file, words_of, words, values, words_shape, np.float32)},
        labels=labels,
        class_names=class_names or tuple(map(str, range(num_classes))),
        split=None,
    )


def _read_heterophilous(name: str, arrays: NpzArrays, split: int, normalize_features: bool) -> RawDataset:
    """Read the heterophilous-graphs layout, which holds each undirected edge once."""
    features = arrays.numbers("node_features", "biuf", 2)
    num_nodes = len(features)
    edges = arrays.ids("edges", (None, 2), num_nodes)
    labels, num_classes = checked_labels(arrays.file, arrays.get("node_labels"), None)
    _check_nodes(arrays, "node_labels", len(labels), num_nodes)
    parts = [np.flatnonzero(masks[split]) for masks in _read_masks(arrays)]
    _check_nodes(arrays, "train_masks", arrays.get("train_masks").shape[1], num_nodes)
    if len(np.unique(np.concatenate(parts))) < sum(map(len, parts)):
        fault = f"a node in two parts of split {split}"
        raise DatasetFormatError.of(arrays.file, fault, "train, validation and test disjoint")
    return RawDataset(
        name=name,
        num_nodes=num_nodes,
        edge_index=both_directions(edges[:, 0], edges[:, 1], num_nodes),
        node_features={"feat": as_float32(arrays.file, "features", features)},
        labels=labels,
        class_names=tuple(map(str, range(num_classes))),
        split=(parts[0], parts[1], parts[2]),
    )


def _read_masks(arrays: NpzArrays) -> list[np.ndarray]:
    """Return [train, validation, test], the masks of all splits, each bool[num_splits, num_nodes]."""
    masks = [arrays.numbers(key, "b", 2) for key in ("train_masks", "val_masks", "test_masks")]
    if len({mask.shape for mask in masks}) > 1:
        fault = f"masks of shapes {[list(mask.shape) for mask in masks]}"
        raise DatasetFormatError.of(arrays.file, fault, "three of one shape")
    return masks


def _read_debian(name: str, arrays: NpzArrays, split: int, normalize_features: bool) -> RawDataset:
    """Read the packages of the Debian graph, their words and their dependencies."""
    count = arrays.numbers("num_nodes_package", "iu", 0)
    if not 0 <= count < 2**31:
        raise DatasetFormatError.of(arrays.file, f"{count} packages", "a number in [0, 2**31)")
    num_nodes = int(count)
    edges = arrays.ids("edge_package__depends__package", (2, None), num_nodes)
    num_words = len(arrays.texts("package_feat_vocab"))
    words = arrays.numbers("package_feat_indices", "iu", 1)
    shape = (num_nodes, num_words)
    words_of = csr_ids(arrays.file, "package_feat", arrays.get("package_feat_indptr"), words, shape)
    feat = dense_rows(arrays.file, words_of, words.astype(np.int64), np.ones(len(words)), shape, np.uint8)
    class_names = arrays.texts("label_names")
    labels, _ = checked_labels(arrays.file, arrays.get("package_label"), len(class_names))
    _check_nodes(arrays, "package_label", len(labels), num_nodes)
    part = arrays.ids("package_split", (num_nodes,), 3)
    return RawDataset(
        name=name,
        num_nodes=num_nodes,
        edge_index=both_directions(edges[0], edges[1], num_nodes),
        node_features={"feat": np.minimum(feat, 1, out=feat)},
        labels=labels,
        class_names=class_names,
        split=(np.flatnonzero(part == 0), np.flatnonzero(part == 1), np.flatnonzero(part == 2)),
    )


def _check_nodes(arrays: NpzArrays, key: str, count: int, num_nodes: int) -> None:
    if count != num_nodes:
        expected = f"{num_nodes}, as in the other arrays"
        raise DatasetFormatError.of(arrays.file, f"{count} nodes in {key!r}", expected)


_LAYOUTS: dict[str, tuple[str, Callable[[str, NpzArrays, int, bool], RawDataset]]] = {
    "gnn-benchmark": (
        "adj_data adj_indices adj_indptr adj_shape attr_data attr_indices attr_indptr attr_shape labels",
        _read_benchmark,
    ),
    "heterophilous-graphs": (
        "node_features node_labels edges train_masks val_masks test_masks",
        _read_heterophilous,
    ),
    "Debian packages": (
        "edge_package__depends__package package_feat_indptr package_feat_indices package_feat_vocab "
        "package_label package_split label_names num_nodes_package",
        _read_debian,
    ),
}
