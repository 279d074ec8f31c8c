"""Read the labels and the split of nodes of a data set in OGB's layout.

Invariant: each node is in one part at most, and has a label if it is in one. Refused with `DatasetFormatError`: what
does not hold to this, and files of labels and of the split that name other types.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.datasets.ogb_graph import read_row
from datapipes.datasets.ogb_settings import PARTS
from datapipes.datasets.raw import DatasetFormatError, checked_labels
from datapipes.datasets.raw_hetero import RawItems
from datapipes.datasets.tables import ids_of, read_table


def read_node_split(
    raw: Path, folder: Path, num_nodes: dict[Any, int], num_classes: int | None
) -> tuple[tuple[dict[Any, RawItems], ...], int]:
    """Return the items of the three parts by node type, and the number of classes."""
    types = [None] if None in num_nodes else _named_types(raw / "nodetype-has-label.csv.gz", num_nodes)
    if None not in num_nodes and types != _named_types(folder / "nodetype-has-split.csv.gz", num_nodes):
        raise DatasetFormatError.of("nodetype-has-split.csv.gz", "other types", f"those with labels, {types}")
    split: tuple[dict[Any, RawItems], ...] = ({}, {}, {})
    most = 0
    for of_type in types:
        path = (raw if of_type is None else raw / "node-label" / of_type) / "node-label.csv.gz"
        labels, classes = _read_labels(path, num_nodes[of_type], num_classes)
        most = max(most, classes)
        seen = np.zeros(num_nodes[of_type], dtype=bool)
        for part, items in zip(PARTS, split, strict=True):
            file = (folder if of_type is None else folder / of_type) / f"{part}.csv.gz"
            ids = ids_of(file.name, read_table(file, columns=1, whole=True)[:, 0], num_nodes[of_type], "node")
            if seen[ids].any() or len(np.unique(ids)) < len(ids):
                raise DatasetFormatError.of(file.name, "a node twice", "each node in one part, once")
            if (labels[ids] < 0).any():
                raise DatasetFormatError.of(file.name, "a node without a label", "nodes with labels")
            seen[ids] = True
            items[of_type] = RawItems(ids, labels[ids])
    return split, most


def _named_types(path: Path, num_nodes: dict[Any, int]) -> list[str]:
    row = read_row(path)
    types = sorted(node_type for node_type, text in row.items() if text == "True")
    if not types or not set(row.values()) <= {"True", "False"} or not row.keys() <= num_nodes.keys():
        found, allowed = shown(row), f"True or False for types among {shown(sorted(num_nodes))}, True for one"
        raise DatasetFormatError.of(path.name, found, allowed)
    return types


def _read_labels(path: Path, count: int, num_classes: int | None) -> tuple[np.ndarray, int]:
    """Return labels, int64 [count] or [count, k], -1 for none, and the number of classes."""
    table = read_table(path, rows=count, missing=True)
    whole = np.where(np.isnan(table), -1, table)
    if (whole != np.floor(whole)).any():
        raise DatasetFormatError.of(path.name, "a label that is no whole number", "classes from 0 on")
    inside = np.clip(whole, -2, 2**40).astype(np.int64)
    flat, classes = checked_labels(path.name, inside.ravel(), num_classes)
    return flat.reshape(inside.shape) if inside.shape[1] > 1 else flat, classes
