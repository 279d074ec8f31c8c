"""Read files as other programs write them; each becomes the tables of `from_tables`.

| program | files | recognised by |
|---|---|---|
| Gephi | edges.csv, and perhaps nodes.csv | the columns Source and Target; Id |
| graph databases, such as Neo4j | .csv of nodes and of relations | the columns :ID, :START_ID and :END_ID |
| JODIE | one .csv | its header, which begins with user_id,item_id,timestamp |
| SciPy | .npz of save_npz, .mtx (Matrix Market) | the names of the arrays; the suffix |
"""

from __future__ import annotations

import csv
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datapipes.base.checks import shown
from datapipes.base.errors import needed
from datapipes.base.sizes import check_memory
from datapipes.datasets.dataset import Dataset
from datapipes.datasets.from_frames import from_pandas
from datapipes.datasets.from_tables import from_tables
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.raw import DatasetFormatError, checked_ids, content_of, format_errors
from datapipes.datasets.text import read_table, text_lines
from datapipes.graph.checks import MAX_NODES
from datapipes.ingest.arrow_files import head_of
from datapipes.ingest.ids import Ids
from datapipes.ingest.table_files import TABLES, TableFiles, stem_of, suffix_of

ROLES = ("src", "dst", "time", "rating", "weight")
JODIE = ["user_id", "item_id", "timestamp"]  # how its header begins
_MATRICES = (".mtx", ".mtx.gz")
_OF_MATRIX = {"data", "format", "shape"}  # arrays of every file of save_npz
_ID = re.compile(r"(.*):ID(?:\((.*)\))?")
_START, _END = (re.compile(rf":{name}_ID(?:\((.*)\))?") for name in ("START", "END"))
_KEY, _FROM, _TO = "(id)", "(start)", "(end)"  # names that no property has
_TYPED = re.compile(r"(.+):[a-z]+(?:\[\])?(?:\{.*\})?")  # "age:int", "tags:string[]"


def edges_by_columns(path: Path, columns: Mapping[str, str]) -> Dataset:
    """Return the Dataset of a table of edges in a file; `columns` is {one of ROLES: name of a column}.

    Raises:
        ValueError: A role is unknown, "src" or "dst" is missing, or the file has no such column.
    """
    if not {"src", "dst"} <= columns.keys() <= {*ROLES}:
        raise ValueError(
            f"datasets.open: columns must name 'src' and 'dst', and may name {[*ROLES[2:]]}, got {shown([*columns])}. "
            "Pass {'src': 'from', 'dst': 'to'}, for example."
        )
    table: Any = path
    if "rating" in columns:  # a rating is a value, also if all are whole
        table = TableFiles(path.name, path).content
        place = table.column_names.index(columns["rating"]) if columns["rating"] in table.column_names else -1
        if place >= 0 and not str(table.schema.types[place]).startswith("string"):
            with format_errors(f"{path.name}, the rating {columns['rating']!r}", "Name a column of numbers."):
                table = table.set_column(place, columns["rating"], table.column(place).cast("float64"))
    return from_pandas(
        table,
        source=columns["src"],
        target=columns["dst"],
        time=columns.get("time"),
        label=columns.get("rating"),
        features={"edges": [columns["weight"]] if "weight" in columns else []},
        name=stem_of(path.name),
    )


# --- Gephi


def gephi_files(path: Path) -> dict[str, Path] | None:
    """Return {"nodes": file, "edges": file} of an export of Gephi, which may lack the nodes; None: it is none."""
    files: dict[str, Path] = {}
    for file in _csv_files(path):
        names = {name.lower() for name in _header(file)}
        kind = "edges" if {"source", "target"} <= names else "nodes" if "id" in names and path.is_dir() else None
        if kind is None or kind in files:
            return None
        files[kind] = file
    if "edges" not in files or (path.is_dir() and "type" not in {name.lower() for name in _header(files["edges"])}):
        return None  # a folder without the column Type is read by the names of its files
    return dict(sorted(files.items(), reverse=True))


def read_gephi(path: Path) -> Dataset:
    """Return the Dataset of an export of Gephi. An undirected edge becomes one in each direction."""
    pyarrow, compute = (needed(name, "ondisk", "an export of Gephi") for name in ("pyarrow", "pyarrow.compute"))
    files = gephi_files(path) or {}
    tables: dict[str, Any] = {}
    for kind, file in files.items():
        table = TableFiles(file.name, file)
        for name in table.names:
            if name.lower() in ("source", "target") or (kind == "nodes" and name.lower() == "id"):
                table.read_as_text(name)
        tables[kind] = table.content
    names = {name.lower(): name for name in tables["edges"].column_names}
    source, target = names["source"], names["target"]
    if "type" in names:
        kinds = {str(kind).lower() for kind in tables["edges"][names["type"]].to_pylist()}
        if len(kinds) > 1:
            fault = f"edges of the types {sorted(kinds)}"
            raise DatasetFormatError.of(
                files["edges"].name, fault, "one type", "Export each type to a file of its own."
            )
        if kinds == {"undirected"}:
            turned = {source: target, target: source}
            others = tables["edges"].rename_columns([turned.get(name, name) for name in tables["edges"].column_names])
            is_loop = compute.equal(others[source], others[target])
            others = others.filter(compute.invert(is_loop)).select(tables["edges"].column_names)
            tables["edges"] = pyarrow.concat_tables([tables["edges"], others])
    drop = [names[name] for name in ("id", "type") if name in names]
    key = next((name for name in tables["nodes"].column_names if name.lower() == "id"), "") if "nodes" in files else ""
    edges = tables["edges"].drop_columns(drop)
    return from_pandas(edges, tables.get("nodes"), source=source, target=target, key=key, name=path.stem)


# --- graph databases


def is_graph_export(path: Path) -> bool:
    """Return whether each CSV file at `path` has the column :ID, or :START_ID and :END_ID, and one the latter."""
    headers = [_header(file) for file in _csv_files(path)]
    has_ends = [any(map(_START.fullmatch, names)) and any(map(_END.fullmatch, names)) for names in headers]
    has_ids = [any(map(_ID.fullmatch, names)) for names in headers]
    return any(has_ends) and all(one or other for one, other in zip(has_ends, has_ids, strict=True))


def read_graph_export(path: Path) -> Dataset:
    """Return the Dataset of an export of a graph database. Node types are the labels, relations are the types.

    Nodes with several labels have the type of all, such as "Actor;Movie"; nodes without a label that of their file. If
    a type of relation is between several pairs of labels, its edge types are SRC_TYPE_DST.
    """
    needed("pyarrow", "ondisk", "an export of a graph database")
    tables: dict[str, list[Any]] = {}
    ids: dict[str, Ids] = {}
    labels_of: dict[str, list[str]] = {}  # {id space: the label of each of its ids}
    relations = []
    lost: dict[tuple[str, str], int] = {}
    for file in _csv_files(path):
        table = TableFiles(file.name, file)
        for name in table.names:
            if any(pattern.fullmatch(name) for pattern in (_ID, _START, _END)):
                table.read_as_text(name)  # the same id may look like a number in one file and not in another
        content = table.content
        key = next((match for name in content.column_names if (match := _ID.fullmatch(name))), None)
        if key is None:
            relations.append((file, content))
            continue
        space, stem = key.group(2) or "", stem_of(file.name)
        texts = content[key.group(0)].combine_chunks()
        labels = [str(label or stem) for label in _cells(content, ":LABEL")]
        before = ids.setdefault(space, Ids()).count
        is_again = ids[space].number([texts], add=True)[0] != np.arange(before, before + len(texts))
        if is_again.any():
            cell = texts[int(is_again.argmax())].as_py()
            fault = "an empty cell" if cell is None else f"the id {shown(cell)} again"
            fault += f" in the column {key.group(0)!r}"
            raise DatasetFormatError.of(file.name, fault, "each id once in its ID space", "Correct the nodes.")
        labels_of.setdefault(space, []).extend(labels)
        plain = _plain(content, [key.group(0), ":LABEL"]).append_column(_KEY, texts)
        for label, rows in _grouped(labels).items():
            tables.setdefault(label, []).append(plain.take(rows))
    edges: dict[tuple[str, str, str], list[Any]] = {}
    for file, content in relations:
        starts, ends = (_ends(file, content, pattern, ids, labels_of) for pattern in (_START, _END))
        kinds = [str(kind or "to") for kind in _cells(content, ":TYPE")]
        used = [starts.name, ends.name, ":TYPE"]
        lost[file.name, ":TYPE"] = [*starts.labels, *ends.labels].count("")
        plain = _plain(content, used).append_column(_FROM, starts.texts).append_column(_TO, ends.texts)
        for triple, rows in _grouped([*zip(starts.labels, kinds, ends.labels, strict=True)]).items():
            if triple[0] and triple[2]:
                edges.setdefault(triple, []).append(plain.take(rows))
    counts: dict[str, int] = {}
    for _, relation, _ in edges:
        counts[relation] = counts.get(relation, 0) + 1
    links = {}
    joined = {label: _joined(label, parts) for label, parts in tables.items()}
    for (src, relation, dst), parts in edges.items():
        name = relation if counts[relation] == 1 and relation not in joined else f"{src}_{relation}_{dst}"
        joined[name] = _joined(name, parts)
        links[name] = {_FROM: src, _TO: dst}
    data = from_tables(joined, keys=dict.fromkeys(tables, _KEY), links=links, edges=[*links], name=path.stem)
    left_out = {key: f"ends that are no node: {count}" for key, count in lost.items() if count}
    return replace(data, left_out={**data.left_out, **left_out})


def _joined(name: str, parts: Sequence[Any]) -> Any:
    """Return the rows of several files as one table."""
    with format_errors(f"the columns of {shown(name)}", "Give a column one type in all files."):
        return needed("pyarrow", "ondisk", name).concat_tables(parts, promote_options="permissive")


class _Ends(NamedTuple):
    """The start or the end of each relation of a file."""

    name: str  # of the column
    texts: Any
    labels: list[str]  # of the nodes


def _ends(
    file: Path, content: Any, pattern: re.Pattern[str], ids: Mapping[str, Ids], labels_of: Mapping[str, list[str]]
) -> _Ends:
    match = next(match for name in content.column_names if (match := pattern.fullmatch(name)))
    space = match.group(1) or ""
    if space not in ids:
        fault, expected = f"the ID space of {match.group(0)!r}", f"one that a file of nodes has, {[*ids]}"
        raise DatasetFormatError.of(file.name, fault, expected, "Add the file of these nodes.")
    texts = content[match.group(0)].combine_chunks()
    labels = [*labels_of[space], ""]  # the last for an id of no node
    return _Ends(match.group(0), texts, [labels[number] for number in ids[space].number([texts], add=False)[0]])


def _cells(content: Any, name: str) -> list[Any]:
    return content[name].to_pylist() if name in content.column_names else [None] * content.num_rows


def _plain(content: Any, used: Sequence[str]) -> Any:
    """Return the other columns than `used`, without the types in their names."""
    plain = content.drop_columns([name for name in used if name in content.column_names])
    names = [match.group(1) if (match := _TYPED.fullmatch(name)) else name for name in plain.column_names]
    return plain.rename_columns(names)


def _grouped(values: Sequence[Any]) -> dict[Any, list[int]]:
    """Return {value: its places}, by first occurrence."""
    places: dict[Any, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(value, []).append(place)
    return places


# --- JODIE


def jodie_in(path: Path) -> Path | None:
    """Return the only CSV file at `path` if its header begins with user_id,item_id,timestamp, else None."""
    files = _csv_files(path)
    return files[0] if len(files) == 1 and _header(files[0])[:3] == JODIE else None


def read_jodie(path: Path) -> Dataset:
    """Return the Dataset of a file of JODIE: users and items, with an edge for each interaction, split by time.

    "state_label", the label of an interaction, is among its features: leave it out of those that a model reads.
    """
    path = jodie_in(path) or path
    rows = read_table(path, skip_header=True)
    if rows.shape[1] < 4:
        raise DatasetFormatError.of(path.name, f"{rows.shape[1]} columns", "user, item, time, state and features")
    columns = {"user": rows[:, 0], "item": rows[:, 1], "time": rows[:, 2], "state_label": rows[:, 3]}
    whole = {name: values.astype(np.int64) for name, values in columns.items()}
    for name, values in columns.items():
        if (whole[name] != values).any():
            row = int((whole[name] != values).argmax()) + 1
            fault = f"the {name} {values[row - 1]} in row {row}"
            raise DatasetFormatError.of(path.name, fault, "whole numbers", "Round them.")
    table = {**whole, "state_label": whole["state_label"].astype(np.float32)}
    if rows.shape[1] > 4:
        table["feat"] = np.ascontiguousarray(rows[:, 4:], np.float32)
    name = "interactions"
    links = {name: {"user": "user", "item": "item"}}
    return from_tables({name: table}, links=links, edges=[name], times={name: "time"}, name=path.stem)


# --- matrices


def matrix_in(path: Path) -> Path | None:
    """Return the file of Matrix Market, or of scipy.sparse.save_npz, that is alone at `path`, else None."""
    files = [*path.iterdir()] if path.is_dir() else [path]
    return files[0] if len(files) == 1 and _is_matrix(files[0]) else None


def _is_matrix(path: Path) -> bool:
    if path.suffix != ".npz" or not path.is_file():
        return path.is_file() and path.name.endswith(_MATRICES)
    try:
        with zipfile.ZipFile(path) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()} >= _OF_MATRIX
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def read_matrix(path: Path) -> Dataset:
    """Return the Dataset of an adjacency matrix: entry (u, v) is an edge from u to v, its value the weight.

    A matrix that is not square is between the node types "row" and "column".
    """
    path = matrix_in(path) or path
    rows, columns, values, shape = _of_scipy(path) if path.suffix == ".npz" else _of_matrix_market(path)
    table = {"row": rows, "column": columns, "weight": values}
    is_square = shape[0] == shape[1]
    types = ("node", "node") if is_square else ("row", "column")
    tables = {kind: {"id": np.arange(count)} for kind, count in zip(types, shape, strict=True)}
    links = {"entries": dict(zip(("row", "column"), types, strict=True))}
    return from_tables(
        {**tables, "entries": table},
        keys=dict.fromkeys(tables, "id"),
        links=links,
        edges=["entries"],
        types=not is_square,
        name=path.name.split(".")[0],
    )


_Entries = tuple[NDArray[Any], NDArray[Any], NDArray[Any], tuple[int, int]]  # rows, columns, values, shape


def _of_matrix_market(path: Path) -> _Entries:
    lines = text_lines(path)  # SciPy's reader, in C++, crashes on some damaged files
    words = next(lines, (0, ""))[1].lower().split()
    field, symmetry = (*words, "", "", "", "", "")[3:5]
    form = "%%MatrixMarket matrix coordinate, then real, integer or pattern, then general, symmetric or skew-symmetric"
    if (
        words[:3] != ["%%matrixmarket", "matrix", "coordinate"]
        or field not in ("real", "integer", "pattern")
        or symmetry not in ("general", "symmetric", "skew-symmetric")
    ):
        raise DatasetFormatError.of(path.name, shown(" ".join(words)), form, "Write it as such.")
    sizes = next((line for _, line in lines if not line.startswith("%")), "").split()
    if len(sizes) != 3 or not all(size.isascii() and size.isdigit() and len(size) < 19 for size in sizes):
        raise DatasetFormatError.of(path.name, f"the sizes {shown(' '.join(sizes))}", "rows, columns and entries")
    shape, count = (int(sizes[0]), int(sizes[1])), int(sizes[2])
    width = 2 if field == "pattern" else 3
    if max(shape) > MAX_NODES:
        raise DatasetFormatError.of(path.name, f"the sizes {[*shape]}", f"at most {MAX_NODES}")
    check_memory("datasets.open", f"{path.name}, {sum(shape)} nodes,", 64 * sum(shape), "Use a machine with more.")
    entries = read_table(path, columns=width, rows=count, delimiter=" ", comments=True, skip_rows=1)
    if (entries[:, :2] != np.floor(entries[:, :2])).any():
        raise DatasetFormatError.of(path.name, "a row or column with a fraction", "whole numbers")
    rows, columns = (
        checked_ids(path.name, name, entries[:, place].astype(np.int64) - 1, (count,), limit)
        for place, (name, limit) in enumerate(zip(("rows", "columns"), shape, strict=True))
    )
    values = entries[:, 2] if width == 3 else np.ones(count, np.float32)
    if symmetry != "general":
        others = np.flatnonzero(rows != columns)
        rows, columns = np.append(rows, columns[others]), np.append(columns, rows[others])
        values = np.append(values, values[others] * (-1 if symmetry == "skew-symmetric" else 1))
    return rows, columns, values, shape


def _of_scipy(path: Path) -> _Entries:
    arrays = NpzArrays(path.name, content_of(path))
    form = arrays.get("format").astype(str).tolist()
    if form not in ("csr", "csc"):
        raise DatasetFormatError.of(path.name, f"the format {shown(form)}", "csr or csc", "Convert it by .tocsr().")
    rows, columns, values, shape = arrays.csr("", by_columns=form == "csc")
    return (rows, columns, values, shape) if form == "csr" else (columns, rows, values, shape[::-1])


# --- headers


def _csv_files(path: Path) -> list[Path]:
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [file for file in files if TABLES.get(suffix_of(file.name)) == "csv" and file.is_file()]


def _header(path: Path) -> list[str]:
    """Return the cells of the first line of a CSV file; [] for another file, or one that cannot be read."""
    kind = suffix_of(path.name)
    if TABLES.get(kind) != "csv":
        return []
    try:
        return [cell.strip() for cell in head_of(path, kind).cells]
    except (OSError, EOFError, ValueError, csv.Error, zlib.error):
        return []  # the reader says what is wrong with it
