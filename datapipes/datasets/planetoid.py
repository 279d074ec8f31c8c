"""Read a Planetoid data set (Cora, CiteSeer, PubMed) from its eight files `ind.NAME.*`.

Seven of the files are Python 2 pickles; ingest/plain_pickle.py reads them without running any code of theirs.

Invariant: memory stays in proportion to the size of the files (features are made dense, at most
`raw.MAX_FEATURE_BYTES`). Refused with `DatasetFormatError`: truncated, corrupt or hostile files, and files that do not
fit each other. Missing files raise FileNotFoundError.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import numpy as np

from datapipes.datasets.pickled_arrays import MAX_FILE_BYTES, Csr, array_of, fields_of, read_pickle, shown_plain
from datapipes.datasets.raw import (
    MAX_CLASSES,
    DatasetFormatError,
    RawDataset,
    both_directions,
    content_of,
    csr_ids,
    dense_rows,
    normalised,
)
from datapipes.ingest.plain_pickle import MAX_LENGTH, Items, kind_of

NUM_VALIDATION = 500

_TOGETHER = "Take all eight files from one place."
_SUFFIXES = ("x", "tx", "allx", "y", "ty", "ally", "graph", "test.index")


def read_planetoid(folder: Path, *, normalize_features: bool = True) -> RawDataset:
    """Read the data set in a folder with the files `ind.NAME.{x,tx,allx,y,ty,ally,graph,test.index}`.

    Row i of allx and ally belongs to node i. Row i of tx and ty belongs to the node on line i of
    test.index. A node without a row (CiteSeer has 15, without edges) has features of zero and label -1.

    Args:
        folder: Holds the eight files of one NAME.
        normalize_features: Scale the rows of "feat" to a sum of 1; a row of zeros stays zero.
    Returns:
        "feat" is float32[num_nodes, num_words]. Edges go in both directions, without repeats and self
        loops, sorted by (destination, source). The split is the standard one: train has the rows of y,
        validation the next 500 rows (fewer if allx ends before), test the ids of test.index in ascending
        order. Class names are numbers as text.
        Time O(num_nodes * num_words + num_edges log num_edges).
    Raises:
        FileNotFoundError: The folder has no ind.NAME.graph, or lacks another of the eight files.
        DatasetFormatError: A file is truncated, corrupt or hostile, the files do not fit each other, or
            the folder holds several sets.
    Source: the files and the split are from Yang et al., "Revisiting Semi-Supervised Learning with
        Graph Embeddings" (2016); rows are scaled as in Kipf and Welling (2017).
    """
    folder = Path(folder)
    paths = _find_files(folder)
    name = paths["graph"].name.split(".")[1]
    y, ty, ally = (_read_labels(paths[suffix]) for suffix in ("y", "ty", "ally"))
    test_ids = _read_test_ids(paths["test.index"])
    neighbours = _read_graph(paths["graph"])
    num_nodes = len(neighbours)
    if len(ally) + len(test_ids) > num_nodes or test_ids.max(initial=-1) >= num_nodes:
        fault = f"{len(test_ids)} test nodes up to {test_ids.max(initial=-1)} after {len(ally)} nodes of ally"
        expected = f"all of these among the {num_nodes} nodes of {paths['graph'].name}"
        raise DatasetFormatError.of(paths["test.index"].name, fault, expected, _TOGETHER)
    if test_ids.min(initial=num_nodes) < len(ally):
        allowed = f"ids after the {len(ally)} nodes of ally"
        raise DatasetFormatError.of(paths["test.index"].name, f"test node {test_ids.min()}", allowed)
    num_classes = _same_columns(paths, {"y": y, "ty": ty, "ally": ally})
    if len(y) > len(ally) or not np.array_equal(y, ally[: len(y)]):
        raise DatasetFormatError.of(paths["y"].name, "labels that differ", "the first rows of ally")
    labels = np.full(num_nodes, -1, dtype=np.int64)
    labels[: len(ally)] = _classes(ally)
    _check_rows(paths["ty"], len(ty), "test.index", len(test_ids))
    labels[test_ids] = _classes(ty)
    last_validation = min(len(y) + NUM_VALIDATION, len(ally))
    return RawDataset(
        name=name,
        num_nodes=num_nodes,
        edge_index=_edges(neighbours),
        node_features={"feat": _features(paths, len(y), len(ally), test_ids, num_nodes, normalize_features)},
        labels=labels,
        class_names=tuple(map(str, range(num_classes))),
        split=(np.arange(len(y)), np.arange(len(y), last_validation), np.sort(test_ids)),
    )


def is_planetoid(folder: Path) -> bool:
    """Return whether the folder holds files of Planetoid."""
    return folder.is_dir() and any(folder.glob("ind.*"))


def _find_files(folder: Path) -> dict[str, Path]:
    names = sorted(path.name.split(".")[1] for path in folder.glob("ind.*.graph") if path.name.count(".") == 2)
    if not names:
        raise FileNotFoundError(
            f"read_planetoid: no file ind.NAME.graph in {folder}. Give the folder that holds the eight files "
            "of a Planetoid data set."
        )
    if len(names) > 1:
        remedy = "Give each a folder of its own."
        raise DatasetFormatError.of(str(folder), f"the data sets {names}", "one data set in a folder", remedy)
    paths = {suffix: folder / f"ind.{names[0]}.{suffix}" for suffix in _SUFFIXES}
    missing = [path.name for path in paths.values() if not path.exists()]
    if missing:
        raise FileNotFoundError(f"read_planetoid: {folder} lacks {missing}. Fetch all eight files of the data set.")
    return paths


def _read_labels(path: Path) -> np.ndarray:
    """Return the one-hot rows of a y, ty or ally file, after checks."""
    one_hot = array_of(path.name, read_pickle(path), "labels")
    if one_hot.ndim != 2 or not 1 <= one_hot.shape[1] <= MAX_CLASSES:
        fault = f"labels of shape {list(one_hot.shape)}"
        raise DatasetFormatError.of(path.name, fault, f"a column for each class, 1 to {MAX_CLASSES}")
    if not np.isin(one_hot, (0, 1)).all() or (one_hot.astype(bool).sum(axis=1) > 1).any():
        raise DatasetFormatError.of(path.name, "labels that are not one-hot", "rows with at most a single 1")
    return one_hot


def _same_columns(paths: dict[str, Path], tables: dict[str, np.ndarray]) -> int:
    columns: dict[str, int] = {suffix: table.shape[1] for suffix, table in tables.items()}
    if len(set(columns.values())) > 1:
        suffix = next(suffix for suffix in columns if columns[suffix] != columns["ally"])
        allowed = f"as many as in ally, {columns['ally']}"
        raise DatasetFormatError.of(paths[suffix].name, f"{columns[suffix]} classes", allowed)
    return columns["ally"]


def _classes(one_hot: np.ndarray) -> np.ndarray:
    """Return the class of each row, -1 for a row of zeros."""
    return np.where(one_hot.any(axis=1), one_hot.argmax(axis=1), -1).astype(np.int64)


def _check_rows(path: Path, count: int, other: str, expected: int) -> None:
    if count != expected:
        as_many = f"as many as in {other}, {expected}"
        raise DatasetFormatError.of(path.name, f"{count} rows", as_many, _TOGETHER)


def _read_test_ids(path: Path) -> np.ndarray:
    try:
        ids = np.array([int(line) for line in content_of(path, MAX_FILE_BYTES).decode("ascii").split()], dtype=np.int64)
    except (ValueError, OverflowError) as error:
        fault = f"text that is no node id ({str(error)[:200]})"
        raise DatasetFormatError.of(path.name, fault, "one id on each line") from error
    if ids.min(initial=0) < 0 or len(np.unique(ids)) < len(ids):
        raise DatasetFormatError.of(path.name, "negative or repeated ids", "each test node once")
    return ids


def _read_graph(path: Path) -> dict[int, list[int]]:
    """Return {node: list of its neighbours}, after a check that nodes are 0..n - 1 and neighbours are nodes."""
    graph = read_pickle(path)
    if not isinstance(graph, Items):
        raise DatasetFormatError.of(path.name, f"an object {shown_plain(graph)}", "a dict of neighbour lists")
    num_nodes = len(graph.pairs)
    lists: dict[int, list[int]] = {}  # keys are below num_nodes, so hashes do not collide
    seen: set[int] = set()
    for node, neighbours in graph.pairs:
        if type(node) is not int or not 0 <= node < num_nodes or node in lists:
            expected = f"each id in [0, {num_nodes}) once"
            raise DatasetFormatError.of(path.name, f"the node {shown_plain(node)}", expected)
        if type(neighbours) is not list or id(neighbours) in seen:
            is_shared = type(neighbours) is list
            fault = (
                f"node {node} with neighbours {'in a list of another node' if is_shared else shown_plain(neighbours)}"
            )
            raise DatasetFormatError.of(path.name, fault, "a list of its own")
        seen.add(id(neighbours))
        for neighbour in neighbours:
            if type(neighbour) is not int or not 0 <= neighbour < num_nodes:
                fault = f"node {node} with the neighbour {shown_plain(neighbour)}"
                raise DatasetFormatError.of(path.name, fault, f"ids in [0, {num_nodes})")
        lists[node] = neighbours
    return lists


def _edges(neighbours: dict[int, list[int]]) -> np.ndarray:
    degrees = np.fromiter(map(len, neighbours.values()), np.int64)
    destinations = np.repeat(np.fromiter(neighbours, np.int64), degrees)
    sources = np.fromiter(chain.from_iterable(neighbours.values()), np.int64, degrees.sum())
    return both_directions(sources, destinations, len(neighbours))


def _features(
    paths: dict[str, Path], num_train: int, num_all: int, test_ids: np.ndarray, num_nodes: int, normalize: bool
) -> np.ndarray:
    """Return the features of all nodes: the rows of allx first, the rows of tx at `test_ids`, and zeros elsewhere."""
    tables = {suffix: _read_csr(paths[suffix]) for suffix in ("x", "allx", "tx")}
    columns = tables["allx"][1][1]
    expected = {"x": ("y", num_train), "allx": ("ally", num_all), "tx": ("test.index", len(test_ids))}
    for suffix, (other, num_rows) in expected.items():
        num_found, width = tables[suffix][1]
        _check_rows(paths[suffix], num_found, other, num_rows)
        if width != columns:
            raise DatasetFormatError.of(paths[suffix].name, f"{width} words", f"as many as in allx, {columns}")
    train, every, test = (tables[suffix][0] for suffix in ("x", "allx", "tx"))
    first = every[0] < num_train
    if not all(np.array_equal(part, whole[first]) for part, whole in zip(train, every, strict=True)):
        raise DatasetFormatError.of(paths["x"].name, "features that differ", "the first rows of allx")
    rows, words, values = (
        np.r_[whole, part] for whole, part in zip(every, (test_ids[test[0]], *test[1:]), strict=True)
    )
    if normalize:
        values = normalised(rows, values, num_nodes)
    return dense_rows(paths["allx"].name, rows, words, values, (num_nodes, columns), np.float32)


_Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, columns and values of a sparse matrix, by row


def _read_csr(path: Path) -> tuple[_Entries, tuple[int, int]]:
    matrix = read_pickle(path)
    if not isinstance(matrix, Csr) or matrix.state is None:
        fault = "a matrix without arrays" if isinstance(matrix, Csr) else f"an object of {kind_of(matrix)}"
        raise DatasetFormatError.of(path.name, fault, "a scipy CSR matrix")
    state = fields_of(path.name, matrix.state, "a matrix")
    shape = state.get("_shape", state.get("shape"))
    if (
        not isinstance(shape, tuple)
        or len(shape) != 2
        or not all(type(length) is int and 0 <= length <= MAX_LENGTH for length in shape)
    ):
        raise DatasetFormatError.of(path.name, "a matrix without a shape", "the numbers of rows and columns")
    parts = (array_of(path.name, state.get(key), key) for key in ("indptr", "indices", "data"))
    indptr, indices, values = parts
    rows = csr_ids(path.name, "matrix", indptr, indices, shape)
    wrong = values[~(np.isfinite(values) & (values >= 0))]
    if values.shape != indices.shape or wrong.size:
        fault = f"the value {wrong[0]}" if wrong.size else f"{values.size} values for {indices.size} entries"
        raise DatasetFormatError.of(path.name, fault, "one finite number, 0 or more, for each entry")
    return (rows, indices.astype(np.int64), values), shape
