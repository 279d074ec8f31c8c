"""Read a data set from one npz file, in any of three layouts; the names in the file tell which.

- gnn-benchmark (Shchur et al., 2018; Amazon Photo, Coauthor CS): the adjacency and the features as CSR
  arrays `adj_*` and `attr_*`, `labels`, and often `class_names`. No split.
- heterophilous-graphs (Platonov et al., 2023; Minesweeper): `node_features`, `node_labels`, `edges`, and
  ten splits in `train_masks`, `val_masks` and `test_masks`.
- the Debian package graph (debian_bookworm): of its many node and edge types only the homogeneous part is
  read: the packages, their dependencies and the words of their descriptions.

Invariant: nothing in a file is unpickled. No array is made whose shape disagrees with the number of its
bytes. Every array is checked before it is used. Refused with `DatasetFormatError`: archives
that are truncated, corrupt or larger than `MAX_FILE_BYTES` when unpacked, missing or ragged arrays,
arrays of another dtype, ids out of range, and layouts not in this list.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from datapipes.base.sizes import check_memory
from datapipes.datasets.raw import (
    DatasetFormatError,
    RawDataset,
    both_directions,
    checked_labels,
    content_of,
    csr_ids,
    dense_rows,
    normalised,
)
from datapipes.graph.npy import read_header
from datapipes.ingest.archives import open_archive, read_member

MAX_FILE_BYTES = 4 * 2**30


def read_npz(path: Path, split: int = 0, *, normalize_features: bool = False) -> RawDataset:
    """Read the data set in an npz file of one of the layouts above.

    Args:
        path: The file; its stem becomes the name of the data set.
        split: The number of the split in the file; 0 if the layout has one split or none.
        normalize_features: Scale the rows of "feat" to an L1 norm of 1; for gnn-benchmark only.
    Returns:
        Edges go in both directions, without repeats and self loops, sorted by (destination, source).
        "feat" is float32[num_nodes, ...] as in the file (gnn-benchmark, heterophilous-graphs), or
        uint8[num_nodes, num_words], 1 for each word of the description (Debian). If the file names no
        classes, their names are numbers as text.
        O(num_nodes * num_words + num_edges log num_edges).
    Raises:
        FileNotFoundError: There is no such file.
        IndexError: The file has no such split.
        ValueError: normalize_features is set, and the layout is another.
        DatasetFormatError: The file is truncated, corrupt, hostile, or of another layout.
    """
    path = Path(path)
    arrays = NpzArrays(path.name, content_of(path))
    for layout, (needed, read, num_splits) in _LAYOUTS.items():
        if set(needed.split()) <= arrays.keys:
            if normalize_features and read is not _read_benchmark:
                raise ValueError(
                    f"datasets.open: normalize_features=True is for bags of words (gnn-benchmark and Planetoid files), "
                    f"but {path.name} has the layout {layout}, whose features stay as they are. Leave it out."
                )
            found = num_splits(arrays)
            if not 0 <= split < found:
                raise IndexError(
                    f"read_npz: {path.name} has no split {split}; split must be in "
                    f"[0, {found}). Pass one of these, or leave split out."
                )
            return read(path.stem, arrays, split, normalize_features)
    known = "; ".join(f"{layout} with {needed.split()}" for layout, (needed, _, _) in _LAYOUTS.items())
    raise DatasetFormatError.of(
        path.name,
        f"the arrays {sorted(arrays.keys)}",
        f"one of the layouts: {known}",
        "Write the file in one of these, or make a datapipes.datasets.raw.RawDataset of its arrays yourself.",
    )


def read_split_of_npz(path: Path, split: int, *, normalize_features: bool) -> RawDataset:
    """Read as `read_npz` the file `path`, or the one in that folder; layouts without a split take any number for it."""
    path = npz_in(path) or path
    raw = read_npz(path, normalize_features=normalize_features)
    if raw.split is not None and split != 0:
        raw = read_npz(path, split, normalize_features=normalize_features)
    return raw


def npz_in(where: Path) -> Path | None:
    """Return the npz file at `where`, a file or a folder, by its name; None if there is none.

    Raises:
        ValueError: There are more, and none has the name of the folder.
    """
    archives = sorted(where.glob("*.npz")) if where.is_dir() else [where] if where.suffix == ".npz" else []
    own = [archive for archive in archives if archive.stem == where.name]
    if len(archives) > 1 and len(own) != 1:
        raise ValueError(
            f"datasets.open: {where} holds {[archive.name for archive in archives]} and no ind.* files; Planetoid "
            "files or one .npz are needed. Name the .npz itself."
        )
    found = own or archives
    return found[0] if found else None


class NpzArrays:
    """The arrays of an npz file; each is read and checked at its first use.

    Args:
        file: Its name, for messages.
        content: Its bytes.
    Raises:
        DatasetFormatError: The content is no zip archive, is larger than `MAX_FILE_BYTES` when unpacked,
            or has two members of one name.
    """

    def __init__(self, file: str, content: bytes) -> None:
        self.file = file
        try:
            self._archive = open_archive(content)
            members = self._archive.infolist()
        except Exception as error:  # zipfile raises nearly anything on corrupt archives
            raise _broken(file, "the archive", error) from error
        self._members = {member.filename.removesuffix(".npy"): member for member in members}
        if len(self._members) < len(members):
            raise DatasetFormatError.of(file, "two arrays of one name", "each name once")
        total = sum(member.file_size for member in members)
        if total > MAX_FILE_BYTES:
            raise DatasetFormatError.of(file, f"{total} bytes when unpacked", f"at most {MAX_FILE_BYTES}")

    @property
    def keys(self) -> set[str]:
        """The names of the arrays."""
        return set(self._members)

    def get(self, key: str) -> np.ndarray:
        """Return one array, newly made and in the machine's byte order.

        Raises:
            DatasetFormatError: There is no array of that name, it is corrupt, it holds neither numbers nor
                text (Python objects are never unpickled), or its size disagrees with its shape.
            MemoryError: It needs more memory than is left.
        """
        if key not in self._members:
            raise DatasetFormatError.of(self.file, f"only the arrays {sorted(self.keys)}", f"one named {key!r}")
        size = self._members[key].file_size
        # The bytes, and the array made of them.
        check_memory("datasets.open", f"{self.file}, array {key!r},", 2 * size, "Use a machine with more memory.")
        try:
            content = read_member(self._archive, self._members[key])
        except Exception as error:  # decompressors raise nearly anything too
            raise _broken(self.file, f"array {key!r}", error) from error
        return npy_array(self.file, f"array {key!r}", content)

    def numbers(self, key: str, kinds: str, num_dimensions: int) -> np.ndarray:
        """Return one array; check the kind of its dtype (`np.dtype.kind`) and the number of dimensions."""
        array = self.get(key)
        if array.dtype.kind not in kinds or array.ndim != num_dimensions:
            words = {"b": "bool", "i": "int", "u": "unsigned int", "f": "float", "U": "text"}
            raise DatasetFormatError.of(
                self.file,
                f"array {key!r} of {array.dtype}{list(array.shape)}",
                f"{num_dimensions} dimensions of {' or '.join(words[kind] for kind in kinds)}",
            )
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            found = f"array {key!r} with infinite or missing numbers"
            raise DatasetFormatError.of(self.file, found, "finite numbers")
        return array

    def ids(self, key: str, shape: tuple[int | None, ...], limit: int) -> np.ndarray:
        """Return one array of ids in [0, limit) as int64; None in `shape` allows any length."""
        array = self.numbers(key, "iu", len(shape))
        if any(want not in (None, have) for want, have in zip(shape, array.shape, strict=True)):
            raise DatasetFormatError.of(
                self.file,
                f"array {key!r} of shape {list(array.shape)}",
                f"[{', '.join('any' if length is None else str(length) for length in shape)}]",
            )
        if array.size and (array.min() < 0 or array.max() >= limit):
            outside = array.min() if array.min() < 0 else array.max()
            raise DatasetFormatError.of(self.file, f"the id {outside} in {key!r}", f"ids in [0, {limit})")
        return array.astype(np.int64)

    def texts(self, key: str) -> tuple[str, ...]:
        """Return one array of text as a tuple."""
        try:
            return tuple(map(str, self.numbers(key, "U", 1).tolist()))
        except DatasetFormatError:
            raise
        except ValueError as error:  # code points that do not exist
            raise _broken(self.file, f"array {key!r}", error) from error


def npy_array(file: str, what: str, content: bytes) -> np.ndarray:
    """Return the array that the bytes of an npy file hold, newly made and in the machine's byte order.

    Args:
        file, what: The file and the array, for messages.
        content: The bytes.
    Raises:
        DatasetFormatError: The bytes are corrupt, the array holds neither numbers nor text (Python objects are never
            unpickled), or its size disagrees with its shape.
    """
    try:
        stream = io.BytesIO(content)
        shape, fortran, dtype = read_header(stream)
    except Exception as error:  # numpy on corrupt headers raises nearly anything
        raise _broken(file, what, error) from error
    if dtype.kind not in "biufU" or dtype.itemsize == 0:
        raise DatasetFormatError.of(file, f"{what} of {dtype}{list(shape)}", "numbers or text")
    size = len(content) - stream.tell()
    if math.prod(shape) * dtype.itemsize != size or max(shape, default=0) > MAX_FILE_BYTES:
        found = f"{what} of {dtype}{list(shape)} with {size} bytes"
        raise DatasetFormatError.of(file, found, f"{dtype.itemsize} bytes for each element")
    if size == 0:
        return np.zeros(shape, dtype=dtype.newbyteorder("="))
    flat = np.frombuffer(content, dtype=dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if fortran else "C").astype(dtype.newbyteorder("="))


def _broken(file: str, what: str, error: Exception) -> DatasetFormatError:
    found = f"{what} broken ({type(error).__name__}: {str(error)[:200]})"
    return DatasetFormatError.of(file, found, "a whole npz file")


def _read_benchmark(name: str, arrays: NpzArrays, split: int, normalize_features: bool) -> RawDataset:
    """Read the gnn-benchmark layout; edge weights are ignored."""
    rows, columns, _, shape = _read_csr(arrays, "adj")
    if shape[0] != shape[1]:
        found = f"an adjacency of shape {list(shape)}"
        raise DatasetFormatError.of(arrays.file, found, "as many rows as columns")
    num_nodes = shape[0]
    words_of, words, counts, words_shape = _read_csr(arrays, "attr")
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


def _read_csr(arrays: NpzArrays, prefix: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, tuple[int, int]]:
    """Return the checked row, column and value of each entry of a CSR matrix, and its shape."""
    shape = arrays.ids(f"{prefix}_shape", (2,), 2**31)
    num_rows, num_columns = int(shape[0]), int(shape[1])
    indices = arrays.numbers(f"{prefix}_indices", "iu", 1)
    rows = csr_ids(arrays.file, prefix, arrays.get(f"{prefix}_indptr"), indices, (num_rows, num_columns))
    values = arrays.numbers(f"{prefix}_data", "biuf", 1)
    if len(values) != len(indices):
        found = f"{len(values)} numbers in '{prefix}_data'"
        raise DatasetFormatError.of(arrays.file, found, f"one for each of {len(indices)} entries")
    return rows, indices.astype(np.int64), values, (num_rows, num_columns)


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
        raise DatasetFormatError.of(
            arrays.file, f"a node in two parts of split {split}", "train, validation and test disjoint"
        )
    with np.errstate(over="ignore"):
        features = features.astype(np.float32)
    if not np.isfinite(features).all():
        raise DatasetFormatError.of(arrays.file, "features beyond float32", "numbers that a float32 can hold")
    return RawDataset(
        name=name,
        num_nodes=num_nodes,
        edge_index=both_directions(edges[:, 0], edges[:, 1], num_nodes),
        node_features={"feat": features},
        labels=labels,
        class_names=tuple(map(str, range(num_classes))),
        split=(parts[0], parts[1], parts[2]),
    )


def _read_masks(arrays: NpzArrays) -> list[np.ndarray]:
    """Return the masks of train, validation and test, each bool[num_splits, num_nodes]."""
    masks = [arrays.numbers(key, "b", 2) for key in ("train_masks", "val_masks", "test_masks")]
    if len({mask.shape for mask in masks}) > 1:
        raise DatasetFormatError.of(
            arrays.file, f"masks of shapes {[list(mask.shape) for mask in masks]}", "three of one shape"
        )
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


def _check_nodes(arrays: NpzArrays, key: str, found: int, num_nodes: int) -> None:
    if found != num_nodes:
        expected = f"{num_nodes}, as in the other arrays"
        raise DatasetFormatError.of(arrays.file, f"{found} nodes in {key!r}", expected)


def _one_split(arrays: NpzArrays) -> int:
    return 1


def _count_masks(arrays: NpzArrays) -> int:
    return len(_read_masks(arrays)[0])


_Layout = tuple[str, Callable[[str, NpzArrays, int, bool], RawDataset], Callable[[NpzArrays], int]]
_LAYOUTS: dict[str, _Layout] = {
    "gnn-benchmark": (
        "adj_data adj_indices adj_indptr adj_shape attr_data attr_indices attr_indptr attr_shape labels",
        _read_benchmark,
        _one_split,
    ),
    "heterophilous-graphs": (
        "node_features node_labels edges train_masks val_masks test_masks",
        _read_heterophilous,
        _count_masks,
    ),
    "Debian packages": (
        "edge_package__depends__package package_feat_indptr package_feat_indices package_feat_vocab "
        "package_label package_split label_names num_nodes_package",
        _read_debian,
        _one_split,
    ),
}
