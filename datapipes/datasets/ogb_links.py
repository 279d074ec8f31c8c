"""Read the split of links of an OGB data set: the edges that exist and those that do not, of each part.

OGB publishes train.pt, valid.pt and test.pt, each a dict that torch saved. Its keys are edge and edge_neg, [n, 2], or
source_node [n], target_node [n] and target_node_neg [n, k]: k destinations for each source. Here the same arrays may
also be in one npz file, as PART_KEY; without train_edge in it the edges of the graph train.

Invariant: every id is a node. Refused with `DatasetFormatError`: files that are broken or hostile, other keys, arrays
of another shape.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.ogb_settings import PARTS
from datapipes.datasets.pickled_arrays import read_saved
from datapipes.datasets.raw import MAX_FEATURE_BYTES, DatasetFormatError, content_of
from datapipes.datasets.raw_hetero import RawItems
from datapipes.datasets.tables import ids_of

_OF_QUERIES = ("source_node", "target_node", "target_node_neg")


def read_link_split(folder: Path, edges: np.ndarray, num_nodes: int) -> list[RawItems]:
    """Return the items of train, validation and test.

    Args:
        folder: Holds {train,valid,test}.pt or one npz file.
        edges: int64 [n, 2], the edges of the graph as in the files.
        num_nodes: All ends are below.
    Returns:
        Train has the edges that exist, without labels. Validation and test have the edges that exist, label 1, then
        those that do not, label 0. With k destinations for each source they have `indexes`, the number of the source
        in the file: one edge that exists and its k others, source by source. A key "year" gives `timestamps` to train,
        and to the other parts if they have no edges that do not exist.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken, hostile, or has other keys.
    """
    archives = sorted(folder.glob("*.npz"))
    if not (folder / "valid.pt").exists() and len(archives) == 1:
        arrays = NpzArrays(archives[0].name, content_of(archives[0]))
        tables = [
            {key.removeprefix(f"{part}_"): arrays.get(key) for key in sorted(arrays.keys) if key.startswith(f"{part}_")}
            for part in PARTS
        ]
        files = [archives[0].name] * 3
        if not tables[0]:
            tables[0] = {"edge": edges}
    else:
        paths = [folder / f"{part}.pt" for part in PARTS]
        files, tables = [path.name for path in paths], [read_saved(path) for path in paths]
    train, *others = (_items(*each, num_nodes) for each in zip(files, tables, strict=True))
    existing = train.seeds if train.labels is None else train.seeds[train.labels == 1]
    first = RawItems(existing, None, train.timestamps if train.labels is None else None)
    return [first, *others]


def _items(file: str, table: dict[str, Any], num_nodes: int) -> RawItems:
    if set(_OF_QUERIES[:2]) <= table.keys():
        return _of_queries(file, table, num_nodes)
    if "edge" not in table or not all(isinstance(rows, np.ndarray) for rows in table.values()):
        allowed = "edge and edge_neg, or source_node, target_node and target_node_neg"
        raise DatasetFormatError.of(file, f"the keys {shown(sorted(table))}", allowed)
    positive = checked_ids(file, "edge", table["edge"], (None, 2), num_nodes)
    if "edge_neg" not in table:
        year = table.get("year")
        times = None if year is None else checked_ids(file, "year", year.ravel(), (len(positive),), 2**62)
        return RawItems(positive, None, times)
    negative = checked_ids(file, "edge_neg", table["edge_neg"], (None, 2), num_nodes)
    labels = np.repeat([1, 0], [len(positive), len(negative)])
    return RawItems(np.concatenate([positive, negative]), labels)


def _of_queries(file: str, table: dict[str, Any], num_nodes: int) -> RawItems:
    sources = checked_ids(file, "source_node", table["source_node"], (None,), num_nodes)
    targets = checked_ids(file, "target_node", table["target_node"], sources.shape, num_nodes)
    if "target_node_neg" not in table:
        return RawItems(np.stack([sources, targets], axis=1))
    others = checked_ids(file, "target_node_neg", table["target_node_neg"], (len(sources), None), num_nodes)
    pairs, labels, queries = ranked(file, sources, np.concatenate([targets[:, None], others], axis=1))
    return RawItems(pairs, labels, indexes=queries)


def ranked(file: str, sources: np.ndarray, destinations: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return pairs, labels and the number of the query of each, for [n] sources and [n, k] destinations.

    The first destination of each row has the label 1. Pairs are in the order of the rows, int64 [n * k, 2].
    """
    count, width = destinations.shape
    if 32 * width * count > MAX_FEATURE_BYTES:
        found = f"{width} destinations for each of {count} sources"
        raise DatasetFormatError.of(file, found, f"at most {MAX_FEATURE_BYTES} bytes of pairs")
    labels = np.tile(np.arange(width) == 0, count).astype(np.int64)
    queries = np.repeat(np.arange(count), width)
    return np.stack([sources[queries], destinations.ravel()], axis=1), labels, queries


def checked_ids(file: str, key: str, array: Any, shape: tuple[int | None, ...], limit: int) -> np.ndarray:
    """Return whole numbers in [0, limit) as int64; None in `shape` allows any length.

    Raises:
        DatasetFormatError: `array` is none, has another shape, or a number is outside.
    """
    if not isinstance(array, np.ndarray):
        raise DatasetFormatError.of(file, f"{key!r} of {type(array).__name__}", "whole numbers")
    fits = array.ndim == len(shape) and all(want in (None, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits or array.dtype.kind not in "iu":
        wanted = ", ".join("any" if length is None else str(length) for length in shape)
        found = f"{key!r} of {array.dtype}{list(array.shape)}"
        raise DatasetFormatError.of(file, found, f"whole numbers of shape [{wanted}]")
    return np.ascontiguousarray(ids_of(file, array, limit, f"number in {key!r},").astype(np.int64))
