"""A folder of tables and arrays without a YAML: the names of its files say what they are. The result is a Description.

| file | holds |
|---|---|
| `edges.csv` (.csv.gz, .tsv, .parquet, .npy), or a folder `edges/` of such parts | the edges of a graph without types |
| `edges/SRC__REL__DST.csv` (...), or a folder of that name | those of the type (SRC, REL, DST) |
| `nodes.csv` (...), `nodes/TYPE.csv` (...) | a row for each node, in the order of their ids |
| `nodes/NAME.npy`, `nodes/TYPE/NAME.npy` | an array with a row for each node: the feature NAME |

Edges are the columns "src" and "dst", or the only two; further columns are attributes. Of a table of nodes each
column is a feature, but for "id", which must count from 0; "label"; and "split", which has "train", "valid", "test" or
nothing. All columns but "split" hold numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import of_type
from datapipes.datasets.dataset import Task, without_empty
from datapipes.datasets.ondisk_rows import WHERE, format_errors
from datapipes.datasets.ondisk_yaml import SETS, TABLES, Description, described, without_nulls
from datapipes.graph.npy import NpyRows
from datapipes.graph.table_files import TABLES as TABLE_SUFFIXES
from datapipes.graph.table_files import TableFiles, suffix_of
from datapipes.seeds import HeteroItemSet, ItemSet

_FORMATS = {".npy": "numpy", **TABLE_SUFFIXES}
_BETWEEN = "__"  # of the names of an edge type
_SPLITS = dict(zip(SETS, (("train",), ("valid", "validation", "val"), ("test",)), strict=True))
_ID, _LABEL, _SPLIT = "id", "label", "split"
_NO_LABEL = -1


def is_by_name(folder: Path) -> bool:
    """Return whether a folder holds edges or nodes under these names."""
    return folder.is_dir() and any(_named(folder, name) for name in ("edges", "nodes"))


def _named(folder: Path, name: str) -> list[Path]:
    """Return the files `name` with a known suffix, and the folder of that name."""
    found = [folder / f"{name}{suffix}" for suffix in _FORMATS]
    return [each for each in found if each.is_file()] + ([folder / name] if (folder / name).is_dir() else [])


def described_by_name(folder: Path) -> Description:
    """Return what the names of the files say.

    Raises:
        DatasetFormatError: They contradict each other, or nothing tells how many nodes a type has.
    """
    with format_errors(folder.name):
        edges, nodes = (_found(folder, name) for name in ("edges", "nodes"))
        if len(edges) > 1:
            raise ValueError(f"found {[each.name for each in edges]}; expected one of them. Move the others away.")
        of_edges = _edges(folder, edges[0])
        num_nodes: dict[Any, int] = {}
        features = []
        for of, path in _node_files(nodes, has_types=of_edges[0]["type"] is not None):
            features += _features(folder, of, path, num_nodes)
        attributes = [
            {**file, "domain": "edge", "name": name}
            for file in of_edges
            if file["format"] in TABLES
            for name in _further_columns(folder / file["path"])
        ]
        graph = {
            "nodes": [{"type": of, "num": count} for of, count in num_nodes.items()],
            "edges": of_edges,
            "feature_data": attributes,
        }
        try:
            return described(folder, without_nulls({"graph": graph, "feature_data": features}))
        except ValueError as error:
            raise ValueError(f"{error}. Add a file such as nodes/TYPE.csv, or rename one.") from error


def _found(folder: Path, name: str) -> list[Path]:
    found = _named(folder, name)
    if not found:
        raise ValueError(f"found no {name}.csv and no folder {name}, nor one of another suffix. Add it.")
    return found


def _parts(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if not each.name.startswith((".", "_")))


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else path.name.removesuffix(suffix_of(path.name))


def _format_of(path: Path) -> str:
    first = next(iter(_parts(path)), path) if path.is_dir() else path
    if suffix_of(first.name) not in _FORMATS:
        raise ValueError(f"found {path.name}; expected files with one of the suffixes {[*_FORMATS]}. Rename it.")
    return _FORMATS[suffix_of(first.name)]


def _edges(folder: Path, path: Path) -> list[dict[str, Any]]:
    parts = _parts(path) if path.is_dir() else []
    typed = [each for each in parts if _stem(each).count(_BETWEEN) == 2]
    if not typed:
        return [{"type": None, "format": _format_of(path), "path": path.name}]
    if len(typed) < len(parts):
        others = [each.name for each in parts if each not in typed]
        raise ValueError(f"found {shown(others)} in edges/; expected SRC__REL__DST, as others have it. Rename them.")
    return [
        {"type": _stem(each).replace(_BETWEEN, ":"), "format": _format_of(each), "path": f"edges/{each.name}"}
        for each in typed
    ]


def _further_columns(path: Path) -> list[str]:
    """Return the columns of a table of edges that are not their ends."""
    names = TableFiles(WHERE, path).names
    return [each for each in names if each not in ("src", "dst")] if {"src", "dst"} <= {*names} else []


def _node_files(found: list[Path], *, has_types: bool) -> list[tuple[Any, Path]]:
    """Return (type, file) of the tables and arrays of nodes."""
    tables = [each for each in found if not each.is_dir()]
    if has_types and tables:
        raise ValueError(f"found {tables[0].name} beside edges with types; expected nodes/TYPE.csv. Move it there.")
    if len(tables) > 1:
        raise ValueError(f"found {[each.name for each in tables]}; expected one table. Move the others away.")
    parts = [part for each in found for part in (_parts(each) if each.is_dir() else [each])]
    if not has_types:
        return [(None, each) for each in parts]
    return [(_stem(each), part) for each in parts for part in (_parts(each) if each.is_dir() else [each])]


def _features(folder: Path, of: Any, path: Path, num_nodes: dict[Any, int]) -> list[dict[str, Any]]:
    """Return the features in a file of nodes, and note how many nodes it has."""
    kind, name = _format_of(path), str(path.relative_to(folder))
    if kind == "numpy":
        count, names = NpyRows(WHERE, path).shape[0], [_stem(path)]
    else:
        table = TableFiles(WHERE, path)
        count, names = table.num_rows, [each for each in table.names if each not in (_ID, _LABEL, _SPLIT)]
        if _ID in table.names and not torch.equal(table.numbers(_ID), torch.arange(count)):
            raise ValueError(f"{name}: the column 'id' does not count from 0. Sort the rows, or number them anew.")
    if num_nodes.setdefault(of, count) != count:
        raise ValueError(f"{name} has {count} rows, another file of nodes{of_type(of)} {num_nodes[of]}. Correct one.")
    said = {"domain": "node", "type": of, "format": kind, "path": name, "in_memory": kind != "numpy"}
    return [{**said, "name": each} for each in names]


def task_by_name(described: Description) -> list[Task]:
    """Return the task that the columns "label" and "split" state; none if no table has one of them."""
    sets: dict[str, dict[Any, ItemSet]] = {name: {} for name in SETS}
    for of in described.num_nodes:
        place = described.folder / ("nodes" if of is None else f"nodes/{of}")
        tables = [place.with_name(f"{place.name}{suffix}") for suffix in TABLE_SUFFIXES]
        for path in (each for each in tables if each.is_file()):
            with format_errors(str(path.relative_to(described.folder))):
                for name, items in _items_of(path).items():
                    sets[name][of] = items
    if not any(sets.values()):
        return []
    joined: Any = {
        name: part[None] if None in part else HeteroItemSet(without_empty(part)) for name, part in sets.items()
    }
    return [Task(**joined)]


def _items_of(path: Path) -> dict[str, ItemSet]:
    table = TableFiles(WHERE, path)
    names = table.names
    if not {_LABEL, _SPLIT} & {*names}:
        return {}
    count = table.num_rows
    labels: Tensor | None = None
    known = torch.ones(count, dtype=torch.bool)
    if _LABEL in names:
        labels = table.numbers(_LABEL, missing=_NO_LABEL)
        known = ~labels.isnan() if labels.is_floating_point() else labels >= 0
    words = np.full(count, "train")
    if _SPLIT in names:
        words = np.array(table.texts(_SPLIT))
        allowed = ["", *(word for group in _SPLITS.values() for word in group)]
        if not np.isin(words, allowed).all():
            wrong = words[~np.isin(words, allowed)][0]
            raise ValueError(f"found {shown(str(wrong))} in the column 'split'; expected {allowed[1:]} or nothing.")
    found = {}
    for name, group in _SPLITS.items():
        ids = (torch.from_numpy(np.isin(words, group)) & known).nonzero().flatten()
        found[name] = ItemSet(ids) if labels is None else ItemSet((ids, labels[ids]))
    return found
