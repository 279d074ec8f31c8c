"""Read a data set of the Open Graph Benchmark from its extracted folder of CSV files: raw/ and split/.

Without types, raw/ has edge.csv.gz (rows "source,destination"), num-node-list.csv.gz and num-edge-list.csv.gz, and
perhaps node-feat, edge-feat, node_NAME, edge_NAME and node-label, all .csv.gz. With types it has triplet-type-list and
num-node-dict, and folders relations/SRC___REL___DST, node-feat/TYPE and node-label/TYPE with such files. A folder
split/NAME has train, valid and test: .csv.gz with ids of nodes, with types in a folder for each type; ogb_links.py
reads those of links. What OGB keeps in its package, and not in the files, comes from ogb_settings.py.

Invariant: every id is inside its node type; every node and edge has its row of each feature. Names in the files name
nothing outside the folder. Refused with `DatasetFormatError`: files that are truncated, corrupt or hostile, that do not
fit each other or the settings, and folders with several graphs.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType
from datapipes.datasets.ogb_links import read_link_split
from datapipes.datasets.ogb_settings import MASTER, OgbSettings, settings_of
from datapipes.datasets.raw import DatasetFormatError, checked_labels
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems, with_inverses
from datapipes.datasets.text import ids_of, read_table, text_lines

MAX_NODES = 2**30  # of a type
MAX_TYPES = 2**12

_Rows = dict[tuple[Any, str], np.ndarray]
_PARTS = ("train", "valid", "test")


def is_ogb(folder: Path) -> bool:
    """Return whether the folder is one of OGB."""
    return (folder / "raw").is_dir() and (folder / "split").is_dir()


def read_ogb(folder: Path, *, inverse_relations: bool | None = None) -> RawHeteroDataset:
    """Read a data set in OGB's layout.

    Args:
        folder: Holds raw/ and split/, and perhaps OGB's master.csv.
        inverse_relations: Add the inverse of each edge, or, with types, of each relation; None for what the settings
            say.
    Returns:
        The feature "feat" of node-feat and edge-feat, and NAME of node_NAME and edge_NAME: int64 if all numbers of the
        file are whole, else float32, [n, width] as in the file. Without types, edge i of the file is edge i, or with
        inverse edges edge 2i, and 2i + 1 is its inverse, as OGB numbers them. Items are in the order of the files;
        labels of one column are int64 [n], of more columns int64 [n, k]. Links have labels 1 and 0 in validation and
        test, and none in train.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken or hostile, or the files do not fit each other.
    """
    settings = settings_of(folder)
    raw = folder / "raw"
    is_hetero = (raw / "triplet-type-list.csv.gz").exists()
    if settings.is_hetero is not None and settings.is_hetero != is_hetero:
        found = f"'is hetero' {settings.is_hetero}"
        raise DatasetFormatError.of(MASTER, found, f"{is_hetero}, as the files in {raw} are")
    inverse = settings.add_inverse_edge if inverse_relations is None else inverse_relations
    num_nodes, edges, node_features, edge_features = (_read_types if is_hetero else _read_plain)(raw, settings)
    split_folder = _split_folder(folder / "split", settings.split)
    has_labels = (raw / ("nodetype-has-label.csv.gz" if is_hetero else "node-label.csv.gz")).exists()
    if has_labels:
        split, num_classes = _read_node_split(raw, split_folder, num_nodes, settings.num_classes)
    elif is_hetero:
        found = f"no labels in {raw}"
        raise DatasetFormatError.of(str(folder), found, "labels of nodes, or a graph without types and its links")
    else:
        parts = read_link_split(split_folder, np.ascontiguousarray(edges[None].T), num_nodes[None])
        split, num_classes = tuple({None: part} for part in parts), 0
    if inverse:
        edges, edge_features = _inverted(edges, edge_features)
    return RawHeteroDataset(
        name=settings.name,
        num_nodes=num_nodes,
        edges=edges,
        node_features=node_features,
        edge_features=edge_features,
        task="node_classification" if has_labels else "link_prediction",
        split=(split[0], split[1], split[2]),
        class_names=tuple(map(str, range(num_classes))),
    )


def _read_plain(raw: Path, settings: OgbSettings) -> tuple[dict[Any, int], dict[Any, np.ndarray], _Rows, _Rows]:
    num_nodes = _one(raw / "num-node-list.csv.gz", MAX_NODES)
    edges = _read_edges(raw, num_nodes, num_nodes)
    node_features = _read_features(raw, "node", num_nodes, settings.node_files)
    edge_features = _read_features(raw, "edge", edges.shape[1], settings.edge_files)
    return (
        {None: num_nodes},
        {None: edges},
        {(None, name): rows for name, rows in node_features.items()},
        {(None, name): rows for name, rows in edge_features.items()},
    )


def _read_types(raw: Path, settings: OgbSettings) -> tuple[dict[Any, int], dict[Any, np.ndarray], _Rows, _Rows]:
    counts = _read_row(raw / "num-node-dict.csv.gz")
    num_nodes: dict[Any, int] = {}
    for node_type, text in counts.items():
        if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= MAX_NODES):
            found = f"{shown(text[:80])} nodes of {shown(node_type)}"
            raise DatasetFormatError.of("num-node-dict.csv.gz", found, f"a number up to {MAX_NODES}")
        num_nodes[node_type] = int(text)
    edges: dict[Any, np.ndarray] = {}
    node_features, edge_features = {}, {}
    for edge_type in _read_triplets(raw / "triplet-type-list.csv.gz", num_nodes):
        folder = raw / "relations" / "___".join(edge_type)
        edges[edge_type] = _read_edges(folder, num_nodes[edge_type[0]], num_nodes[edge_type[2]])
        rows = _read_features(folder, "edge", edges[edge_type].shape[1], None)
        edge_features.update({(edge_type, name): values for name, values in rows.items()})
    for node_type, count in num_nodes.items():
        rows = _read_features(raw / "node-feat" / node_type, "node", count, None)
        node_features.update({(node_type, name): values for name, values in rows.items()})
    for files, features in ((settings.node_files, node_features), (settings.edge_files, edge_features)):
        missing = {file.partition("_")[2] for file in files or ()} - {name for _, name in features}
        if missing:
            raise FileNotFoundError(f"datasets.open: {raw} has no file for {sorted(missing)}, which {MASTER} names.")
    return num_nodes, edges, node_features, edge_features


def _read_triplets(path: Path, num_nodes: dict[Any, int]) -> list[EdgeType]:
    triplets = []
    for number, line in text_lines(path):
        parts = next(csv.reader([line]))
        if len(parts) != 3 or parts[0] not in num_nodes or parts[2] not in num_nodes:
            found, allowed = f"line {number}, {shown(line[:200])}", f"types of nodes among {shown(sorted(num_nodes))}"
            raise DatasetFormatError.of(path.name, found, f"a source, a relation and a destination; {allowed}")
        _check_name(path.name, parts[1])
        triplets.append((parts[0], parts[1], parts[2]))
    if len(set(triplets)) != len(triplets) or len(triplets) > MAX_TYPES:
        found = f"{len(triplets)} relations, {len(set(triplets))} of them distinct"
        raise DatasetFormatError.of(path.name, found, f"each once, at most {MAX_TYPES}")
    return triplets


def _check_name(file: str, name: str) -> None:
    """Refuse a name that is no part of a path, since names in the files name folders."""
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name) > 100:
        found = f"the type {shown(name[:200])}"
        raise DatasetFormatError.of(file, found, "a name that may be part of a path", "Do not trust these files.")


def _read_row(path: Path) -> dict[str, str]:
    """Return {name: text} of a file with a header and one row."""
    lines = []
    for _, line in text_lines(path):
        lines.append(next(csv.reader([line])))
        if len(lines) > 2:
            break
    if len(lines) != 2 or len(lines[0]) != len(lines[1]) or not len(set(lines[0])) == len(lines[0]) <= MAX_TYPES:
        raise DatasetFormatError.of(path.name, "another table", "names, and one row for one graph")
    for name in lines[0]:
        _check_name(path.name, name)
    return dict(zip(*lines, strict=True))


def _one(path: Path, limit: int) -> int:
    table = read_table(path, columns=1, whole=True)
    if table.shape != (1, 1) or not 0 <= table[0, 0] <= limit:
        found = f"{len(table)} rows" if len(table) != 1 else f"the number {table[0, 0]}"
        raise DatasetFormatError.of(path.name, found, f"one number, of one graph, in [0, {limit}]")
    return int(table[0, 0])


def _read_edges(folder: Path, num_src: int, num_dst: int) -> np.ndarray:
    path = folder / "edge.csv.gz"
    table = read_table(path, columns=2, rows=_one(folder / "num-edge-list.csv.gz", 2**40), whole=True)
    sources = ids_of(path.name, table[:, 0], num_src, "source")
    destinations = ids_of(path.name, table[:, 1], num_dst, "destination")
    return np.stack([sources, destinations])


def _read_features(folder: Path, kind: str, count: int, files: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """Return the rows of KIND-feat and KIND_NAME by name; `files` has the KIND_NAME that must be there."""
    if files is None:
        files = tuple(path.name.removesuffix(".csv.gz") for path in sorted(folder.glob(f"{kind}_*.csv.gz")))
    paths = {file.removeprefix(f"{kind}_"): folder / f"{file}.csv.gz" for file in files}
    if kind == "node" and (folder / "species.csv.gz").exists():
        paths["species"] = folder / "species.csv.gz"  # so named in the files of ogbn-proteins
    if (folder / f"{kind}-feat.csv.gz").exists():
        paths["feat"] = folder / f"{kind}-feat.csv.gz"
    return {name: _features(path, count) for name, path in paths.items()}


def _features(path: Path, count: int) -> np.ndarray:
    table = read_table(path, rows=count)
    if table.dtype.kind == "i":
        return table
    with np.errstate(over="ignore"):
        narrow = table.astype(np.float32)
    if not np.isfinite(narrow).all():
        raise DatasetFormatError.of(path.name, "numbers beyond float32", "numbers that it can hold")
    return narrow


def _split_folder(folder: Path, name: str | None) -> Path:
    """Return the folder with the files of the split: the one of that name, the only one, or `folder` itself."""
    if name is not None:
        _check_name(MASTER, name)
        if (folder / name).is_dir():
            return folder / name
    inside = sorted(path for path in folder.iterdir() if path.is_dir())
    files = [path for path in folder.iterdir() if path.is_file()]
    if files and not inside:
        return folder
    if len(inside) != 1 or name is not None:
        wanted = "one folder" if name is None else f"the folder {name!r}"
        raise DatasetFormatError.of(str(folder), f"the folders {[path.name for path in inside]}", wanted)
    return inside[0]


def _read_node_split(
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
        for part, items in zip(_PARTS, split, strict=True):
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
    row = _read_row(path)
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


def _inverted(edges: dict[Any, np.ndarray], features: _Rows) -> tuple[dict[Any, np.ndarray], _Rows]:
    """Add the inverse of each edge; without types it follows its edge."""
    if None not in edges:
        both = with_inverses(edges)
        inverse = dict(zip(edges, [key for key in both if key not in edges], strict=True))
        return both, {**features, **{(inverse[of_type], name): rows for (of_type, name), rows in features.items()}}
    ends = edges[None]
    doubled = np.stack([ends, ends[::-1]], axis=2).reshape(2, -1)
    return {None: doubled}, {key: np.repeat(rows, 2, axis=0) for key, rows in features.items()}
