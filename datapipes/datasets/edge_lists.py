"""Read temporal edge lists as SNAP publishes them: "src dst time" (CollegeMsg) and "from,to,rating,time" (Bitcoin OTC).

Edges are put into the order of time, those of one time in the order of the file, and numbered so. The split follows the
time: the first `TRAIN_SHARE` of the edges train, the next `VALIDATION_SHARE` validate, the rest test. A cut that falls
among edges of one time moves behind them, so that no part holds an edge that is as old as one of an earlier part.

Invariant: no edge is lost or joined with another; all parts together hold each edge once. Refused with
`DatasetFormatError`: broken rows, ids that are no whole numbers from 0 on, ratings and times that are not finite.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from datapipes.base.types import EdgeType
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems
from datapipes.datasets.tables import ids_of, read_table

TRAIN_SHARE, VALIDATION_SHARE = 0.7, 0.15
MAX_ID = 2**53  # beyond it a float64 cannot tell neighbors apart

_SUFFIXES = (".txt", ".txt.gz", ".csv", ".csv.gz")


def read_edge_list(path: Path) -> RawHeteroDataset:
    """Read a temporal edge list, packed with gzip or not.

    Args:
        path: The file, or a folder that holds no other. With .csv in its name: rows "source,target,rating,time", a
            header before them is left out; else rows "source target time", with spaces between.
    Returns:
        Nodes are numbered in the order of the ids in the file; the node attribute "id", int64 [num_nodes], has these
        ids. Edge features "time", int64, or float64 if one has fractions, and "rating", float32. "time" is an edge
        attribute of the graph too. Three columns make the task link prediction; each seed has a time, and there are no
        negatives. With ratings it is edge regression, the labels are the ratings, float32. The edges that train are the
        first `num_training_edges` of the graph.
        O(n log n) for n edges.
    Raises:
        FileNotFoundError: There is no such file.
        DatasetFormatError: The file is broken or hostile.
    """
    path = edge_list_in(path) or path
    rated = ".csv" in path.name
    table = read_table(path, columns=4 if rated else 3, delimiter="," if rated else " ", skip_header=rated)
    table = table[np.argsort(table[:, -1], kind="stable")]
    ends, times = ids_of(path.name, table[:, :2], MAX_ID, "node"), np.ascontiguousarray(table[:, -1])
    if (ends != np.floor(ends)).any():
        raise DatasetFormatError.of(path.name, f"the node {ends[ends != np.floor(ends)][0]}", "whole numbers")
    ids, places = np.unique(ends.astype(np.int64), return_inverse=True)
    pairs = places.reshape(-1, 2).astype(np.int64)
    if (times == np.floor(times)).all() and (np.abs(times) < MAX_ID).all():
        times = times.astype(np.int64)
    features: dict[tuple[EdgeType | None, str], np.ndarray] = {(None, "time"): times}
    labels = None
    if rated:
        with np.errstate(over="ignore"):
            labels = table[:, 2].astype(np.float32)
        if not np.isfinite(labels).all():
            raise DatasetFormatError.of(path.name, "a rating beyond float32", "numbers that it can hold")
        features[None, "rating"] = labels
    cuts = _cuts(times)
    parts = [
        {None: RawItems(pairs[part], None if labels is None else labels[part], times[part])}
        for part in (slice(0, cuts[0]), slice(cuts[0], cuts[1]), slice(cuts[1], None))
    ]
    name = path.name
    for suffix in sorted(_SUFFIXES, key=len, reverse=True):
        name = name.removesuffix(suffix)
    return RawHeteroDataset(
        name=name,
        num_nodes={None: len(ids)},
        edges={None: np.ascontiguousarray(pairs.T)},
        node_features={},
        edge_features=features,
        task="edge_regression" if rated else "link_prediction",
        split=(parts[0], parts[1], parts[2]),
        node_attributes={(None, "id"): ids},
        edge_attributes={(None, "time"): times},
        num_training_edges={None: cuts[0]},
    )


def edge_list_in(path: Path) -> Path | None:
    """Return the one edge list at `path`, a file or a folder, by its name; None if there is none or more."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    found = [file for file in files if file.name.endswith(_SUFFIXES)]
    return found[0] if len(found) == 1 else None


def _cuts(times: np.ndarray) -> tuple[int, int]:
    """Return where validation and test begin, in ascending `times`."""
    cuts = []
    for share in (TRAIN_SHARE, TRAIN_SHARE + VALIDATION_SHARE):
        last = max(round(share * len(times)), 1) - 1
        cuts.append(int(np.searchsorted(times, times[last], side="right")) if len(times) else 0)
    return cuts[0], cuts[1]
