"""Read the embedded data set, the graph of Debian's packages; it needs no download.

The file `debian_packages.npz` beside this module was made by tools/make_debian_packages.py, which defines
its nodes, edges, words, classes and split. This module reads it as a `RawDataset`, in one of three
directions; debian_relations.py adds the other relations.

Invariant: equal calls return equal, new arrays. Refused: a direction outside `DIRECTIONS`, with
ValueError; a damaged or foreign file in the place of the embedded one, with `DatasetFormatError`.
"""

from __future__ import annotations

from importlib.resources import files

import numpy as np

from datapipes.base.checks import shown
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.raw import DatasetFormatError, RawDataset, checked_labels, csr_ids, dense_rows, simple_edges

DIRECTIONS = ("both", "depends", "reverse")
FILE = "debian_packages.npz"
DEPENDS, REVERSE = 1, 2  # bits of the edge feature "direction"

_FORMAT = "datapipes debian packages 1"
REMEDY = "Make it again with tools/make_debian_packages.py."


def read_debian_packages(direction: str = "both") -> RawDataset:
    """Read the embedded graph of Debian's packages; the task is to predict the archive section of each.

    Args:
        direction: Which packages send in-edges to a package: "depends", those it depends on; "reverse",
            those that depend on it; "both", the union of the two.
    Returns:
        Edges are sorted by (destination, source), without repeats and self loops. The node feature
        "feat" is uint8[num_nodes, num_words], 1 for each word of the description, about 140 MB. The node
        feature "words" is int16[num_nodes, max_words], the ids of these words in ascending order, padded
        with num_words, as for an embedding with padding_idx=num_words. The edge feature "direction" is
        uint8[num_edges]: bit 1 is set if the destination depends on the source, bit 2 if the source
        depends on the destination. Labels are sections. The split is fixed; all packages of one source
        are in the same part.
    Raises:
        ValueError: The direction is unknown.
        DatasetFormatError: The embedded file is damaged; the package should be installed again.
    """
    if direction not in DIRECTIONS:
        raise ValueError(
            f"read_debian_packages: direction is {shown(direction)}, must be one of {DIRECTIONS}. Pass one of these."
        )
    return read_packages(files(__package__).joinpath(FILE).read_bytes(), direction)


def arrays_of(file: str, content: bytes, expected_format: str) -> NpzArrays:
    """Return the arrays of an embedded file, whose array "format" must be `expected_format`."""
    arrays = NpzArrays(file, content)
    if arrays.get("format").tobytes() != np.array(expected_format).tobytes():
        raise DatasetFormatError.of(file, "a file of another format", repr(expected_format), REMEDY)
    return arrays


def read_packages(content: bytes, direction: str) -> RawDataset:
    """Return what the bytes of `FILE` say; `read_debian_packages` has the details."""
    arrays = arrays_of(FILE, content, _FORMAT)
    class_names = arrays.texts("class_names")
    labels, _ = checked_labels(FILE, arrays.get("label"), len(class_names))
    num_nodes = len(labels)
    packages, dependencies = read_rows(arrays, "depends", num_nodes, num_nodes)
    described, words = read_rows(arrays, "word", num_nodes, num_words := len(arrays.texts("vocabulary")))
    part = arrays.ids("split", (num_nodes,), 3)
    forward, backward = (dependencies, packages), (packages, dependencies)
    chosen = {"depends": [forward], "reverse": [backward], "both": [forward, backward]}[direction]
    sources, destinations = (np.concatenate(ends) for ends in zip(*chosen, strict=True))
    edge_index = simple_edges(sources, destinations, num_nodes)
    of_forward, of_backward = (_contains(edge_index, ends, num_nodes) for ends in (forward, backward))
    ones = np.ones(len(words), dtype=np.uint8)
    return RawDataset(
        name="debian-packages",
        num_nodes=num_nodes,
        edge_index=edge_index,
        node_features={
            "feat": dense_rows(FILE, described, words, ones, (num_nodes, num_words), np.uint8),
            "words": _padded(described, words, num_nodes, num_words),
        },
        labels=labels,
        class_names=class_names,
        split=(np.flatnonzero(part == 0), np.flatnonzero(part == 1), np.flatnonzero(part == 2)),
        edge_features={"direction": (DEPENDS * of_forward + REVERSE * of_backward).astype(np.uint8)},
    )


def _contains(edge_index: np.ndarray, ends: tuple[np.ndarray, np.ndarray], num_nodes: int) -> np.ndarray:
    """Return for each edge whether it is one of the (source, destination) pairs in `ends`, as bool[num_edges]."""
    return np.isin(edge_index[1] * num_nodes + edge_index[0], ends[1] * num_nodes + ends[0])


def read_rows(arrays: NpzArrays, prefix: str, num_rows: int, num_columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return row and column of each entry, int64[n] each, from the arrays PREFIX_degree and PREFIX_ids.

    Columns must rise within each row.
    """
    degree = arrays.ids(f"{prefix}_degree", (num_rows,), num_columns + 1)
    columns = arrays.ids(f"{prefix}_ids", (None,), num_columns)
    rows = csr_ids(arrays.file, prefix, np.cumsum(np.r_[0, degree]), columns, (num_rows, num_columns))
    if ((np.diff(rows) == 0) & (np.diff(columns) <= 0)).any():
        found = f"ids in '{prefix}_ids' out of order"
        raise DatasetFormatError.of(arrays.file, found, "ids that rise in each row")
    return rows, columns


def _padded(rows: np.ndarray, columns: np.ndarray, num_rows: int, padding: int) -> np.ndarray:
    """Return the columns of each row as int16[num_rows, longest], padded with `padding`."""
    if padding > np.iinfo(np.int16).max:
        raise DatasetFormatError.of(FILE, f"{padding} words", "at most 32767, to fit an int16")
    degree = np.bincount(rows, minlength=num_rows)
    starts = np.cumsum(degree) - degree
    padded = np.full((num_rows, int(degree.max(initial=0))), padding, dtype=np.int16)
    padded[rows, np.arange(len(rows)) - starts[rows]] = columns
    return padded
