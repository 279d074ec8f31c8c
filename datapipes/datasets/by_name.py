"""Read a folder of tables and arrays that has no YAML: the names of the files say what they contain.

The result is a Description, which lists the files as a metadata.yaml would (ondisk_yaml.py).

| file | contains |
|---|---|
| `edges.csv` (.csv.gz, .tsv, .parquet, .npy), or a folder `edges/` of such files | the edges of a graph without types |
| `edges/SRC__REL__DST.csv` (...), or a folder of that name | the edges of the type (SRC, REL, DST) |
| `nodes.csv` (...), `nodes/TYPE.csv` (...) | a row for each node, in the order of ids or with a column of ids |
| `nodes/NAME.npy`, `nodes/TYPE/NAME.npy` | an array with a row for each node: the feature NAME |

Edges are the columns "src" and "dst", or the only two columns; further columns are attributes. Each column of a node
table is a feature, except these:

* "id", "node_id" or "node": the node id of each row; ids are 0, 1, ... in any order.
* "label": the label of each node.
* "split", with "train", "valid", "test" or nothing; or instead "train_mask", "val_mask" and "test_mask", with 0 and 1.

All columns except "split" are numbers. The labels and the split of a node type must be in the same table. An array must
not have the name of a column in this list.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.errors import sentence
from datapipes.base.types import of_type
from datapipes.datasets.dataset import MASKS, Task, one_set
from datapipes.datasets.ondisk_yaml import SETS, TABLES, WHERE, Description, described, without_nulls
from datapipes.datasets.raw import format_errors
from datapipes.graph.npy import NpyRows
from datapipes.ingest.table_files import TABLES as TABLE_SUFFIXES
from datapipes.ingest.table_files import TableFiles, stem_of, suffix_of
from datapipes.seeds import ItemSet

_FORMATS = {".npy": "numpy", **TABLE_SUFFIXES}
_BETWEEN = "__"  # separates the three names of an edge type
SPLITS = dict(zip(SETS, (("train",), ("valid", "validation", "val"), ("test",)), strict=True))
_IDS, _LABEL, _SPLIT = ("id", "node_id", "node"), "label", "split"
_NO_FEATURES = {*_IDS, _LABEL, _SPLIT, *MASKS.values()}
_NO_LABEL = -1


def is_by_name(folder: Path) -> bool:
    """Return whether a folder has a subfolder "edges" or "nodes", or a file of these names, such as edges.csv."""
    return folder.is_dir() and any(_named(folder, name) for name in ("edges", "nodes"))


def _named(folder: Path, name: str) -> list[Path]:
    """Return the paths that exist: files `name` with a known suffix, such as edges.csv, and the subfolder `name`."""
    files = [folder / f"{name}{suffix}" for suffix in _FORMATS]
    return [*filter(Path.is_file, files), *filter(Path.is_dir, [folder / name])]


def described_by_name(folder: Path) -> tuple[Description, list[Task]]:
    """Describe a folder without a YAML by the names of its files; return (description, tasks).

    The Description lists the files, as for a folder with a metadata.yaml; edges and features are not read yet. The list
    of tasks has one Task, made from the labels and the split in the node tables; it is [] if no table has any.

    Raises:
        DatasetFormatError: The files contradict each other, or no file says how many nodes a type has.
    """
    with format_errors(folder.name):
        for name in ("edges", "nodes"):
            if not _named(folder, name):
                raise ValueError(f"found no {name}.csv and no folder {name} (.parquet or .npy will do). Add one.")
        places = _named(folder, "edges")
        if len(places) > 1:
            raise ValueError(f"found {[path.name for path in places]}; expected one of them. Move the others away.")
        edges = _edges(places[0])
        nodes = _Nodes(folder)
        for node_type, path in _node_files(_named(folder, "nodes"), has_types=edges[0]["type"] is not None):
            nodes.add(node_type, path)
        attributes = [
            {**file, "domain": "edge", "name": name}
            for file in edges
            if file["format"] in TABLES
            for name in _further_columns(folder / file["path"])
        ]
        counts = [{"type": node_type, "num": count} for node_type, count in nodes.counts.items()]
        graph = {"nodes": counts, "edges": edges, "feature_data": attributes}
        try:
            description = described(folder, without_nulls({"graph": graph, "feature_data": nodes.features}))
        except ValueError as error:
            raise ValueError(f"{sentence(error)} Add a file such as nodes/TYPE.csv, or rename one.") from error
    return replace(description, id_columns=nodes.id_columns), nodes.tasks()


def _parts(path: Path) -> list[Path]:
    """Return the sorted paths in a folder, without names that begin with "." or "_". For a file, return [path]."""
    return sorted(part for part in path.iterdir() if part.name[0] not in "._") if path.is_dir() else [path]


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else stem_of(path.name)


def _format_of(path: Path) -> str:
    first = next(iter(_parts(path)), path)
    if suffix_of(first.name) not in _FORMATS:
        raise ValueError(f"found {path.name}; expected files with one of the suffixes {[*_FORMATS]}. Rename it.")
    return _FORMATS[suffix_of(first.name)]


def _edges(path: Path) -> list[dict[str, Any]]:
    parts = _parts(path) if path.is_dir() else []
    typed = [part for part in parts if _stem(part).count(_BETWEEN) == 2]
    if not typed:
        return [{"type": None, "format": _format_of(path), "path": path.name}]
    if len(typed) < len(parts):
        others = [part.name for part in parts if part not in typed]
        raise ValueError(f"found {shown(others)} in edges/; expected SRC__REL__DST, like the others. Rename them.")
    return [
        {"type": _stem(part).replace(_BETWEEN, ":"), "format": _format_of(part), "path": f"edges/{part.name}"}
        for part in typed
    ]


def _further_columns(path: Path) -> list[str]:
    """Return the columns of an edge table other than "src" and "dst"; [] if the table lacks "src" or "dst"."""
    names = TableFiles(WHERE, path).names
    return [name for name in names if name not in ("src", "dst")] if {"src", "dst"} <= {*names} else []


def _node_files(places: list[Path], *, has_types: bool) -> list[tuple[Any, Path]]:
    """Return (node type, path) for each file of nodes, which is a table or an array.

    Args:
        places: the paths of nodes.csv (or .parquet ...) and of the folder nodes/, if they exist.
        has_types: True: the files are nodes/TYPE.csv or nodes/TYPE/NAME.npy. False: the node type is None.
    """
    tables = [path for path in places if not path.is_dir()]
    if has_types and tables:
        raise ValueError(f"found {tables[0].name} beside edges with types; expected nodes/TYPE.csv. Move it there.")
    if len(tables) > 1:
        raise ValueError(f"found {[path.name for path in tables]}; expected one table. Move the others away.")
    parts = [part for path in places for part in _parts(path)]
    if not has_types:
        return [(None, part) for part in parts]
    return [(_stem(part), file) for part in parts for file in _parts(part)]


class _Nodes:
    """Collects counts, features, labels and split from the node files of a folder; `add` reads one file.

    Attributes:
        counts: {node type: number of nodes}.
        features: one dict for each feature, as in the "feature_data" of a metadata.yaml.
        id_columns: {path of a node table: the column with the node id of each row}, for tables that have one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.counts: dict[Any, int] = {}
        self.features: list[dict[str, Any]] = []
        self.id_columns: dict[str, str] = {}
        self._items: dict[Any, dict[str, ItemSet]] = {}

    def add(self, node_type: Any, path: Path) -> None:
        """Read one file of nodes: its number of rows, its features, labels and split. An array is one feature."""
        kind, name = _format_of(path), str(path.relative_to(self._folder))
        if kind == "numpy":
            count, names = NpyRows(WHERE, path).shape[0], [_stem(path)]
            if names[0] in _NO_FEATURES:
                raise ValueError(f"found {name}; expected a column of this name in a table such as nodes.csv. Move it.")
        else:
            table = TableFiles(WHERE, path)
            count, names = table.num_rows, table.names
            if not table.has_names and count == 0:
                raise ValueError(f"{name} is empty; expected a row for each node, or the names of columns alone.")
            with format_errors(name):
                self._add_table(node_type, name, table)
        if (others := self.counts.setdefault(node_type, count)) != count:
            raise ValueError(
                f"{name} has {count} rows, another file of nodes{of_type(node_type)} {others}. Correct one."
            )
        feature = {"domain": "node", "type": node_type, "format": kind, "path": name, "in_memory": kind != "numpy"}
        self.features += [{**feature, "name": column} for column in names if column not in _NO_FEATURES]

    def _add_table(self, node_type: Any, name: str, table: TableFiles) -> None:
        ids = [column for column in _IDS if column in table.names]
        if len(ids) > 1:
            raise ValueError(
                f"found the columns {ids}; expected one column of ids. Rename the others, or leave them out."
            )
        if ids:
            table.sort_by(ids[0])
            self.id_columns[name] = ids[0]
        items = _items_of(table)
        if items and self._items.setdefault(node_type, items) is not items:
            where = f"{of_type(node_type)} in two tables"
            raise ValueError(f"found labels, masks or a split{where}; expected all in one table. Join the tables.")

    def tasks(self) -> list[Task]:
        """Return [task], made from the labels and the split of all node types; [] if no table has any."""
        if not self._items:
            return []
        sets = ({node_type: items[name] for node_type, items in self._items.items()} for name in SETS)
        train, validation, test = map(one_set, sets)
        return [Task(train, validation, test)]


def _items_of(table: TableFiles) -> dict[str, ItemSet]:
    """Return the items (node ids, and labels if there are any) of a node table, as {"train_set" ...: items}.

    {}: the table has neither labels nor a split.
    """
    names, count = table.names, table.num_rows
    if not {_LABEL, _SPLIT, *MASKS.values()} & {*names}:
        return {}
    labels: Tensor | None = None
    labelled = torch.ones(count, dtype=torch.bool)
    if _LABEL in names:
        labels = table.numbers(_LABEL, missing=_NO_LABEL)
        labels = labels if labels.is_floating_point() else labels.long()
        labelled = ~labels.isnan() if labels.is_floating_point() else labels >= 0
    ids_of = {name: (is_in & labelled).nonzero().flatten() for name, is_in in _places_of(table).items()}
    return {name: ItemSet(ids if labels is None else (ids, labels[ids])) for name, ids in ids_of.items()}


def _places_of(table: TableFiles) -> dict[str, Tensor]:
    """Return {set name: mask}: which nodes of `table` are in each set, bool [num_nodes].

    Without the column "split" and without masks, all nodes are in "train_set".
    """
    masks = {name: mask for name, mask in MASKS.items() if mask in table.names}
    nowhere = torch.zeros(table.num_rows, dtype=torch.bool)
    if not masks:
        words = np.array(table.texts(_SPLIT), str) if _SPLIT in table.names else np.full(table.num_rows, "train")
        allowed = ["", *(word for group in SPLITS.values() for word in group)]
        if not np.isin(words, allowed).all():
            wrong = words[~np.isin(words, allowed)][0]
            raise ValueError(
                f"found {shown(str(wrong))} in the column 'split'; expected {allowed[1:]} or nothing. Correct it."
            )
        return {name: torch.from_numpy(np.isin(words, group)) for name, group in SPLITS.items()}
    if _SPLIT in table.names:
        raise ValueError(
            f"found the column 'split' beside {[*masks.values()]}; expected one of both. Remove 'split' or the masks."
        )
    places = dict.fromkeys(SETS, nowhere)
    for name, mask in masks.items():
        values = table.numbers(mask, missing=0).numpy()
        wrong = values[~np.isin(values, (0, 1))]
        if len(wrong):
            raise ValueError(
                f"found {wrong[0]} in the mask {mask!r}; expected 0 or 1. Rename the column if it is no mask."
            )
        places[name] = torch.from_numpy(values.astype(bool))
    return places
