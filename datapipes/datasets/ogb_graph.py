"""Read the graph and the features of a data set in OGB's layout (the folder raw/), and its OGB settings.

Invariant: every end of an edge is a node of its type; every node and edge has one row of each feature. A name in the
files never leads outside the folder. Refused with `DatasetFormatError`: files that break this, and several graphs.

OGB keeps the settings in its package, not in the files. Here they are taken from the first of these that exists:

1. a file master.csv in the folder of the data set, in OGB's layout: a column for each data set, a row for each setting;
2. `PUBLISHED`, the settings of OGB's own data sets, by the name of the folder or the name in its release note;
3. the folder alone: the graph has types if the files name some, there must be one split, and no inverses are added.

A master.csv is refused if it is broken, contradicts the files, or asks for binary files or for a task other than node
classification and link prediction.
"""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, ends_of
from datapipes.datasets.raw import MAX_CLASSES, DatasetFormatError, as_float32, content_of, ids_of
from datapipes.datasets.text import read_table, text_lines

MASTER = "master.csv"
PARTS = ("train", "valid", "test")  # names of the files of a split
MAX_SETTINGS_BYTES = 2**20  # of master.csv and of a release note
MAX_NODES = 2**28  # of a type
MAX_TYPES = 2**12
MAX_NAMES_BYTES = 2**24  # of the text of a file with type names, or with one number

Rows = dict[tuple[Any, str], np.ndarray]


def read_graph(
    raw: Path, settings: OgbSettings, *, has_types: bool
) -> tuple[dict[Any, int], dict[Any, np.ndarray], Rows, Rows]:
    """Return (num_nodes, edges, node_features, edge_features). Without types the only type is None.

    num_nodes is {node type: count}, edges {edge type: int64 [2, n]}; features are {(type, name): rows}.

    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken, hostile, or does not fit the others.
    """
    if has_types:
        num_nodes: dict[Any, int] = _read_counts(raw / "num-node-dict.csv.gz")
        edge_folders: dict[Any, Path] = {
            edge_type: raw / "relations" / "___".join(edge_type)
            for edge_type in _read_triplets(raw / "triplet-type-list.csv.gz", num_nodes)
        }
        node_folders: dict[Any, Path] = {node_type: raw / "node-feat" / node_type for node_type in num_nodes}
        node_files = edge_files = None  # a type may lack some files that the settings name
    else:
        num_nodes = {None: _one(raw / "num-node-list.csv.gz", MAX_NODES)}
        edge_folders = node_folders = {None: raw}
        node_files, edge_files = settings.node_files, settings.edge_files
    edges: dict[Any, np.ndarray] = {}
    node_features: Rows = {}
    edge_features: Rows = {}
    for edge_type, folder in edge_folders.items():
        source, destination = ends_of(edge_type)
        edges[edge_type] = _read_edges(folder, num_nodes[source], num_nodes[destination])
        rows = _read_features(folder, "edge", edges[edge_type].shape[1], edge_files)
        edge_features.update({(edge_type, name): values for name, values in rows.items()})
    for node_type, folder in node_folders.items():
        rows = _read_features(folder, "node", num_nodes[node_type], node_files)
        node_features.update({(node_type, name): values for name, values in rows.items()})
    for files, features in ((settings.node_files, node_features), (settings.edge_files, edge_features)):
        missing = {file.partition("_")[2] for file in files or ()} - {name for _, name in features}
        if missing:
            raise FileNotFoundError(
                f"datasets.open: {raw} has no file for {sorted(missing)}, which {MASTER} names. Fetch it."
            )
    return num_nodes, edges, node_features, edge_features


def _read_counts(path: Path) -> dict[Any, int]:
    num_nodes = {}
    for node_type, text in read_row(path).items():
        if not (text.isascii() and text.isdigit() and len(text) < 12 and int(text) <= MAX_NODES):
            fault = f"{shown(text[:80])} nodes of {shown(node_type)}"
            raise DatasetFormatError.of(path.name, fault, f"a number from 0 to {MAX_NODES}")
        num_nodes[node_type] = int(text)
    return num_nodes


def _read_triplets(path: Path, num_nodes: dict[Any, int]) -> list[EdgeType]:
    triplets: list[EdgeType] = []
    for number, line in text_lines(path, MAX_NAMES_BYTES):
        parts = _fields(path.name, number, line)
        if len(parts) != 3 or parts[0] not in num_nodes or parts[2] not in num_nodes:
            fault, allowed = f"line {number}, {shown(line[:200])}", f"types of nodes among {shown(sorted(num_nodes))}"
            raise DatasetFormatError.of(path.name, fault, f"a source, a relation and a destination; {allowed}")
        check_name(path.name, parts[1])
        triplets.append((parts[0], parts[1], parts[2]))
        if len(triplets) > MAX_TYPES:
            raise DatasetFormatError.of(path.name, f"more than {MAX_TYPES} relations", "at most that many")
    if len(set(triplets)) != len(triplets):
        fault = f"{len(triplets)} relations, {len(set(triplets))} of them distinct"
        raise DatasetFormatError.of(path.name, fault, "each once")
    return triplets


def check_name(file: str, name: str) -> None:
    """Refuse a name that cannot be a single part of a path, since names become names of folders."""
    if not name or name in (".", "..") or "/" in name or "\0" in name or len(name) > 100:
        fault = f"the type {shown(name[:200])}"
        raise DatasetFormatError.of(
            file, fault, "a name that a folder can have, up to 100 characters without /", "Do not trust these files."
        )


def read_row(path: Path) -> dict[str, str]:
    """Return {column name: text} of a file with a header and one row."""
    lines = []
    for number, line in text_lines(path, MAX_NAMES_BYTES):
        lines.append(_fields(path.name, number, line))
        if len(lines) > 2:
            break
    if len(lines) != 2 or len(lines[0]) != len(lines[1]) or not len(set(lines[0])) == len(lines[0]) <= MAX_TYPES:
        raise DatasetFormatError.of(
            path.name, "another table", "a line with different names, and one line with as many values"
        )
    for name in lines[0]:
        check_name(path.name, name)
    return dict(zip(*lines, strict=True))


def _fields(file: str, number: int, line: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        fault = f"line {number}, {shown(line[:200])}, that is no row ({error})"
        raise DatasetFormatError.of(file, fault, "fields with commas between") from error


def _one(path: Path, limit: int) -> int:
    table = read_table(path, columns=1, whole=True, most_bytes=MAX_NAMES_BYTES)
    if table.shape != (1, 1) or not 0 <= table[0, 0] <= limit:
        fault = f"{len(table)} rows" if len(table) != 1 else f"{table[0, 0]}"
        expected = f"a single number in [0, {limit}], since the data set is one graph"
        raise DatasetFormatError.of(path.name, fault, expected)
    return int(table[0, 0])


def _read_edges(folder: Path, num_src: int, num_dst: int) -> np.ndarray:
    path = folder / "edge.csv.gz"
    table = read_table(path, columns=2, rows=_one(folder / "num-edge-list.csv.gz", 2**40), whole=True)
    sources = ids_of(path.name, table[:, 0], num_src, "source")
    destinations = ids_of(path.name, table[:, 1], num_dst, "destination")
    return np.stack([sources, destinations])


def _read_features(folder: Path, kind: str, count: int, files: tuple[str, ...] | None) -> dict[str, np.ndarray]:
    """Read the features of one node or edge type from `folder`; return {feature name: rows}.

    "feat" is in the file KIND-feat, and NAME in each file KIND_NAME; `kind` is "node" or "edge". `files` names the
    files KIND_NAME to read, which must exist. None: read all of them that exist.
    """
    if files is None:
        files = tuple(path.name.removesuffix(".csv.gz") for path in sorted(folder.glob(f"{kind}_*.csv.gz")))
    paths = {file.removeprefix(f"{kind}_"): folder / f"{file}.csv.gz" for file in files}
    if kind == "node" and (folder / "species.csv.gz").exists():
        paths["species"] = folder / "species.csv.gz"  # so named in the files of ogbn-proteins
    if (folder / f"{kind}-feat.csv.gz").exists():
        paths["feat"] = folder / f"{kind}-feat.csv.gz"
    tables = {name: read_table(path, rows=count) for name, path in paths.items()}
    for name, table in tables.items():
        if table.dtype.kind != "i":
            tables[name] = as_float32(paths[name].name, "numbers", table)
    return tables


# --- settings


@dataclass(frozen=True)
class OgbSettings:
    """The settings of one data set, which OGB keeps in its package.

    Args:
        name: The name of the data set.
        add_inverse_edge: Whether the files hold each undirected edge once, so that inverses are to be added.
        split: The name of the split, which is a folder in split/; None if unknown.
        num_classes: The number of classes; None if unknown.
        is_hetero: Whether the graph has types; None if unknown.
        node_files, edge_files: Files of further features that must exist, such as node_year; None: any that exist.
    """

    name: str
    add_inverse_edge: bool = False
    split: str | None = None
    num_classes: int | None = None
    is_hetero: bool | None = None
    node_files: tuple[str, ...] | None = None
    edge_files: tuple[str, ...] | None = None


# As published in OGB's two files master.csv; only data sets with CSV files.
PUBLISHED = {
    settings.name: settings
    for settings in (
        OgbSettings("ogbn-proteins", True, "species", 2, False),
        OgbSettings("ogbn-products", True, "sales_ranking", 47, False),
        OgbSettings("ogbn-arxiv", False, "time", 40, False),
        OgbSettings("ogbn-mag", False, "time", 349, True),
        OgbSettings("ogbl-ppa", True, "throughput", None, False),
        OgbSettings("ogbl-collab", True, "time", None, False),
        OgbSettings("ogbl-ddi", True, "target", None, False),
        OgbSettings("ogbl-citation2", False, "time", None, False),
        OgbSettings("ogbl-biokg", False, "random", None, True),
    )
}
_FOLDERS = {"ppassoc": "ogbl-ppa", "citation-v2": "ogbl-citation2"}  # what OGB's archives call these folders
_TASKS = ("multiclass classification", "binary classification", "link prediction", "KG completion")


def settings_of(folder: Path) -> OgbSettings:
    """Return the settings of the data set in `folder`.

    Raises:
        DatasetFormatError: master.csv is broken, or has no column for this data set.
    """
    names = [folder.resolve().name.lower().replace("_", "-"), *_names_in_release_note(folder)]
    if (folder / MASTER).exists():
        return _from_master(folder / MASTER, names)
    for name in names:
        for title in (name, f"ogbn-{name}", f"ogbl-{name}", _FOLDERS.get(name, "")):
            if title in PUBLISHED:
                return PUBLISHED[title]
    return OgbSettings(names[0])


def _names_in_release_note(folder: Path) -> list[str]:
    names = []
    for note in sorted(folder.glob("RELEASE_v*.txt")):
        text = content_of(note, MAX_SETTINGS_BYTES).decode("utf-8", "replace")
        names += re.findall(r"\bogb[nl]-[a-z0-9]+\b", text)
    return names


def _from_master(path: Path, names: list[str]) -> OgbSettings:
    try:
        rows = list(csv.reader(content_of(path, MAX_SETTINGS_BYTES).decode("utf-8").splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetFormatError.of(path.name, f"broken CSV ({str(error)[:200]})", "OGB's master.csv") from error
    if not rows or any(len(row) != len(rows[0]) for row in rows) or len({row[0] for row in rows}) != len(rows):
        raise DatasetFormatError.of(
            path.name, "rows of different lengths, or a setting twice", "a table, each setting once"
        )
    columns = rows[0][1:]
    column_names = set(columns)
    chosen = [name for name in names if name in column_names] or (columns if len(columns) == 1 else [])
    if not chosen:
        remedy = "Rename the folder to the name of its data set."
        raise DatasetFormatError.of(path.name, f"the data sets {shown(columns)}", f"one of {shown(names)}", remedy)
    values = {row[0]: row[1 + columns.index(chosen[0])] for row in rows[1:]}
    task = values.get("task type", _TASKS[0])
    if task not in _TASKS:
        raise DatasetFormatError.of(path.name, f"the task type {task[:80]!r}", f"one of {_TASKS}")
    if _flag(path, values, "binary"):
        raise DatasetFormatError.of(path.name, "binary files", "CSV files", "Write them as CSV.")
    classes = values.get("num classes", "")
    if classes and not (classes.isascii() and classes.isdigit() and len(classes) < 8 and int(classes) <= MAX_CLASSES):
        raise DatasetFormatError.of(path.name, f"{classes[:20]!r} classes", f"a number from 0 to {MAX_CLASSES}")
    return OgbSettings(
        name=chosen[0],
        add_inverse_edge=_flag(path, values, "add_inverse_edge") or False,
        split=values.get("split") or None,
        num_classes=int(classes) if classes else None,
        is_hetero=_flag(path, values, "is hetero"),
        node_files=_files(path, values, "additional node files", "node_"),
        edge_files=_files(path, values, "additional edge files", "edge_"),
    )


def _flag(path: Path, values: dict[str, str], key: str) -> bool | None:
    text = values.get(key, "")
    if text not in ("True", "False", ""):
        raise DatasetFormatError.of(path.name, f"{text[:20]!r} for {key!r}", "True or False")
    return {"True": True, "False": False, "": None}[text]


def _files(path: Path, values: dict[str, str], key: str, prefix: str) -> tuple[str, ...] | None:
    text = values.get(key, "")
    if not text:
        return None
    files = () if text == "None" else tuple(text.split(","))
    wrong = [file for file in files if not re.fullmatch(rf"{prefix}\w+", file)]
    if wrong:
        raise DatasetFormatError.of(
            path.name, f"the file {wrong[0][:80]!r}", f"a name of {prefix} and letters, digits or _"
        )
    return files
