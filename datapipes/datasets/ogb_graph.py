"""Read the graph and the features of a data set in OGB's layout: the folder raw/, with types or without.

Invariant: every end of an edge is a node of its type; every node and edge has its row of each feature. Names in the
files name nothing outside the folder. Refused with `DatasetFormatError`: files that break this, and several graphs.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType
from datapipes.datasets.ogb_settings import MASTER, OgbSettings
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.tables import ids_of, read_table
from datapipes.datasets.text import text_lines

MAX_NODES = 2**28  # of a type
MAX_TYPES = 2**12
MAX_NAMES_BYTES = 2**24  # of the text of a file that names types, or has one number

Rows = dict[tuple[Any, str], np.ndarray]


def read_plain(raw: Path, settings: OgbSettings) -> tuple[dict[Any, int], dict[Any, np.ndarray], Rows, Rows]:
    """Read a graph without types: number of nodes, edges, features of nodes and of edges, all of the type None.

    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken, hostile, or does not fit the others.
    """
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


def read_types(raw: Path, settings: OgbSettings) -> tuple[dict[Any, int], dict[Any, np.ndarray], Rows, Rows]:
    """Read a graph with types: numbers of nodes, edges, features of nodes and of edges, each by type.

    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken, hostile, or does not fit the others.
    """
    counts = read_row(raw / "num-node-dict.csv.gz")
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
    triplets: list[EdgeType] = []
    for number, line in text_lines(path, MAX_NAMES_BYTES):
        parts = _fields(path.name, number, line)
        if len(parts) != 3 or parts[0] not in num_nodes or parts[2] not in num_nodes:
            found, allowed = f"line {number}, {shown(line[:200])}", f"types of nodes among {shown(sorted(num_nodes))}"
            raise DatasetFormatError.of(path.name, found, f"a source, a relation and a destination; {allowed}")
        check_name(path.name, parts[1])
        triplets.append((parts[0], parts[1], parts[2]))
        if len(triplets) > MAX_TYPES:
            raise DatasetFormatError.of(path.name, f"more than {MAX_TYPES} relations", "at most that many")
    if len(set(triplets)) != len(triplets):
        found = f"{len(triplets)} relations, {len(set(triplets))} of them distinct"
        raise DatasetFormatError.of(path.name, found, "each once")
    return triplets


def check_name(file: str, name: str) -> None:
    """Refuse a name that is no part of a path, since names in the files name folders."""
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name) > 100:
        found = f"the type {shown(name[:200])}"
        raise DatasetFormatError.of(file, found, "a name that may be part of a path", "Do not trust these files.")


def read_row(path: Path) -> dict[str, str]:
    """Return {name: text} of a file with a header and one row."""
    lines = []
    for number, line in text_lines(path, MAX_NAMES_BYTES):
        lines.append(_fields(path.name, number, line))
        if len(lines) > 2:
            break
    if len(lines) != 2 or len(lines[0]) != len(lines[1]) or not len(set(lines[0])) == len(lines[0]) <= MAX_TYPES:
        raise DatasetFormatError.of(path.name, "another table", "names, and one row for one graph")
    for name in lines[0]:
        check_name(path.name, name)
    return dict(zip(*lines, strict=True))


def _fields(file: str, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        found = f"line {number}, {shown(line[:200])}, that is no row ({error})"
        raise DatasetFormatError.of(file, found, "fields with commas between") from error


def _one(path: Path, limit: int) -> int:
    table = read_table(path, columns=1, whole=True, most_bytes=MAX_NAMES_BYTES)
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
