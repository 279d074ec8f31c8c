"""Read a data set of the Open Graph Benchmark from its extracted folder of CSV files: raw/ and split/.

raw/ has the graph. ogb_graph.py reads it, and the settings that OGB keeps in its package. All files end in .csv.gz:

* Without types: edge (rows "source,destination"), num-node-list and num-edge-list, and perhaps node-feat, edge-feat,
  node_NAME, edge_NAME and node-label.
* With types: triplet-type-list and num-node-dict, and the same files in folders relations/SRC___REL___DST,
  node-feat/TYPE and node-label/TYPE.

split/NAME has train, valid and test. Each is one of these:

* node ids in a .csv.gz; with types, a folder for each type has such files;
* edges, saved by torch or as npz;
* triples (head, relation, tail), saved by torch. valid and test also have candidates: other nodes, among which the head
  or the tail of a triple is ranked.

Refused with `DatasetFormatError`: files that are truncated, corrupt or hostile; files that do not fit each other or the
settings; folders with several graphs; nodes in two parts of the split or without a label; ids outside their type.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType
from datapipes.datasets.npz import NpzArrays
from datapipes.datasets.ogb_graph import MASTER, PARTS, Rows, check_name, read_graph, read_row, settings_of
from datapipes.datasets.pickled_arrays import read_saved
from datapipes.datasets.raw import (
    MAX_FEATURE_BYTES,
    DatasetFormatError,
    checked_ids,
    checked_labels,
    content_of,
    ids_of,
)
from datapipes.datasets.raw_hetero import RawHeteroDataset, RawItems, inverse_of, with_inverses
from datapipes.datasets.text import read_table

_Split = tuple[dict[Any, RawItems], dict[Any, RawItems], dict[Any, RawItems]]


def is_ogb(folder: Path) -> bool:
    """Return whether the folder has OGB's layout."""
    return (folder / "raw").is_dir() and (folder / "split").is_dir()


def read_ogb(folder: Path, *, inverse_relations: bool | None = None) -> RawHeteroDataset:
    """Read a data set in OGB's layout.

    Args:
        folder: Holds raw/ and split/, and perhaps OGB's master.csv.
        inverse_relations: Whether to add the inverse of each edge (with types: of each relation). None: as the settings
            say.
    Returns:
        Features: "feat" from the files node-feat and edge-feat, NAME from node_NAME and edge_NAME. They are [n, width]
        as in the file; int64 if all numbers of the file are whole, else float32.

        Edge ids without types: edge i of the file has the id i. If inverse edges are added, it has the id 2i, and its
        inverse 2i + 1, as in OGB.

        Items are in the order of the files. Labels of nodes are int64 [n], or [n, k] for a file with k > 1 columns. For
        links, train has no labels; in validation and test labels are 1 for edges that exist and 0 for negative edges.
        With types, links are given by edge type.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken or hostile, or the files do not fit each other.
    """
    settings = settings_of(folder)
    raw = folder / "raw"
    is_hetero = (raw / "triplet-type-list.csv.gz").exists()
    if settings.is_hetero is not None and settings.is_hetero != is_hetero:
        fault = f"'is hetero' {settings.is_hetero}"
        why = f"since {raw} has {'a' if is_hetero else 'no'} triplet-type-list.csv.gz"
        raise DatasetFormatError.of(MASTER, fault, f"{is_hetero}, {why}")
    inverse = settings.add_inverse_edge if inverse_relations is None else inverse_relations
    num_nodes, edges, node_features, edge_features = read_graph(raw, settings, has_types=is_hetero)
    split_folder = _split_folder(folder / "split", settings.split)
    has_labels = (raw / ("nodetype-has-label.csv.gz" if is_hetero else "node-label.csv.gz")).exists()
    if has_labels:
        split, num_classes = _read_node_split(raw, split_folder, num_nodes, settings.num_classes)
    else:
        read_links = _read_triple_split if is_hetero else _read_link_split
        split, num_classes = read_links(split_folder, edges, edge_features, num_nodes), 0
    if inverse:
        edges, edge_features = _inverted(edges, edge_features)
    return RawHeteroDataset(
        name=settings.name,
        num_nodes=num_nodes,
        edges=edges,
        node_features=node_features,
        edge_features=edge_features,
        task="node_classification" if has_labels else "link_prediction",
        split=split,
        class_names=tuple(map(str, range(num_classes))),
    )


def _split_folder(folder: Path, name: str | None) -> Path:
    """Return the folder with the files of the split: the first of these that fits.

    * `folder`/`name`, if `name` is given and this folder exists.
    * `folder`, if it has files and no folders.
    * The only folder in `folder`, if `name` is None.
    """
    if name is not None:
        check_name(MASTER, name)
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


def _inverted(edges: dict[Any, np.ndarray], features: Rows) -> tuple[dict[Any, np.ndarray], Rows]:
    """Return (edges, features) with the inverse of each edge added.

    `edges` is {edge type: int64 [2, n]}, `features` {(edge type, name): rows}. With types the inverses are edges of new
    types; without types each inverse comes right after its edge. An inverse has the features of its edge.
    """
    if None not in edges:
        both = with_inverses(edges)
        return both, {**features, **{(inverse_of(of_type), name): rows for (of_type, name), rows in features.items()}}
    ends = edges[None]
    doubled = np.stack([ends, ends[::-1]], axis=2).reshape(2, -1)
    return {None: doubled}, {key: np.repeat(rows, 2, axis=0) for key, rows in features.items()}


def _read_node_split(raw: Path, folder: Path, num_nodes: dict[Any, int], num_classes: int | None) -> tuple[_Split, int]:
    """Read the labels and the split of node classification; return (split, number of classes).

    Args:
        raw: the folder raw/, which has the labels.
        folder: the folder of the split, which has the node ids of each part.
        num_nodes: {node type: number of nodes}.
        num_classes: the number of classes in the settings; None: the highest label + 1.
    Returns:
        split is (train, validation, test), each {node type: items}.
    """
    types = [None] if None in num_nodes else _named_types(raw / "nodetype-has-label.csv.gz", num_nodes)
    split_types = types if None in num_nodes else _named_types(folder / "nodetype-has-split.csv.gz", num_nodes)
    if split_types != types:
        expected = f"a split for the types with labels in nodetype-has-label.csv.gz, {shown(types)}"
        remedy = "Fetch both files again from where they were published."
        fault = f"a split for the types {shown(split_types)}"
        raise DatasetFormatError.of("nodetype-has-split.csv.gz", fault, expected, remedy)
    split: _Split = ({}, {}, {})
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
        fault, allowed = shown(row), f"True or False for types among {shown(sorted(num_nodes))}, True for at least one"
        raise DatasetFormatError.of(path.name, fault, allowed)
    return types


def _read_labels(path: Path, count: int, num_classes: int | None) -> tuple[np.ndarray, int]:
    """Read the labels of `count` nodes from a file; return (labels, number of classes).

    Labels are int64 [count], or [count, k] for k > 1 columns; -1 where a label is missing. If `num_classes` is None,
    the number of classes is the highest label + 1.
    """
    table = read_table(path, rows=count, missing=True)
    whole = np.where(np.isnan(table), -1, table)
    if (whole != np.floor(whole)).any():
        raise DatasetFormatError.of(path.name, "a label that is no whole number", "classes from 0 on")
    inside = np.clip(whole, -2, 2**40).astype(np.int64)
    flat, classes = checked_labels(path.name, inside.ravel(), num_classes)
    return flat.reshape(inside.shape) if inside.shape[1] > 1 else flat, classes


_KEYS = ("head_type", "head", "relation", "tail_type", "tail")
_NONE = np.zeros(0, dtype=np.int64)


def _read_triple_split(
    folder: Path, edge_types: Iterable[EdgeType], edge_features: Rows, num_nodes: Mapping[Any, int]
) -> _Split:
    """Read a split of triples (head, relation, tail); return (train, validation, test), each {edge type: items}.

    Args:
        folder: Holds {train,valid,test}.pt, each a dict. "head_type" and "tail_type" are lists with a node type for
            each of n triples; "head", "relation" and "tail" are ids [n]. valid and test also have the candidates
            "head_neg" and "tail_neg", ids [n, k].
        edge_types: The edge types of the graph.
        edge_features: The edge features of the graph. Each edge type that has edges needs "reltype", its relation id.
        num_nodes: The number of nodes of each type.
    Returns:
        Train has the triples as pairs [n, 2], without labels. In validation and test each triple gives two queries:
        first its tail is ranked against tail_neg, then its head against head_neg. A query is the pair of the triple,
        with label 1, and then its pairs with the candidates, with label 0. `indexes` numbers the queries of an edge
        type from 0, in the order of the file.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken or hostile, or does not fit the graph.
    """
    numbers = _numbers_of(edge_types, edge_features)
    parts = []
    for part in PARTS:
        items = _read_part(folder / f"{part}.pt", numbers, num_nodes, part == PARTS[0])
        no_pairs = np.zeros((0, 2), dtype=np.int64)
        empty = RawItems(no_pairs) if part == PARTS[0] else RawItems(no_pairs, _NONE, indexes=_NONE)
        parts.append({edge_type: items.get(edge_type, empty) for edge_type in edge_types})
    return parts[0], parts[1], parts[2]


def _numbers_of(edge_types: Iterable[EdgeType], features: Rows) -> dict[tuple[str, int, str], EdgeType]:
    """Return {(source type, relation id, destination type): edge type}, to find the edge type of a triple.

    The edge feature "reltype" in `features` has the relation id. An edge type without edges is left out.

    Raises:
        DatasetFormatError: An edge type has several relation ids, or two edge types have the same key.
    """
    edge_types_of: dict[tuple[str, int, str], EdgeType] = {}
    for edge_type in edge_types:
        for i, number in enumerate(np.unique(features.get((edge_type, "reltype"), _NONE)).tolist()):
            key = (edge_type[0], number, edge_type[2])
            if i > 0:
                fault = f"several numbers for {edge_type}, {number} among them"
                raise DatasetFormatError.of("edge_reltype.csv.gz", fault, "one number for each edge type")
            if key in edge_types_of:
                fault = f"the number {number} for {edge_types_of[key]} and for {edge_type}"
                raise DatasetFormatError.of("edge_reltype.csv.gz", fault, "a number of its own for each edge type")
            edge_types_of[key] = edge_type
    return edge_types_of


def _read_part(
    path: Path, numbers: Mapping[tuple[str, int, str], EdgeType], num_nodes: Mapping[Any, int], is_train: bool
) -> dict[EdgeType, RawItems]:
    table = read_saved(path)
    needed = _KEYS if is_train else (*_KEYS, "head_neg", "tail_neg")
    if not set(needed) <= table.keys():
        raise DatasetFormatError.of(path.name, f"the keys {shown(sorted(table))}", f"{needed}")
    relations = checked_ids(path.name, "'relation'", table["relation"], (None,), 2**31)
    count = len(relations)
    for key in ("head_type", "tail_type"):
        if not isinstance(table[key], list) or len(table[key]) != count:
            raise DatasetFormatError.of(
                path.name, f"{key!r} of another kind or length", f"a text for each of {count} triples"
            )
    places: dict[tuple[str, int, str], list[int]] = {}
    for place, kind in enumerate(zip(table["head_type"], relations.tolist(), table["tail_type"], strict=True)):
        places.setdefault(kind, []).append(place)
    unknown = places.keys() - numbers.keys()
    if unknown:
        fault, allowed = shown(min(unknown)), shown(sorted(numbers))
        raise DatasetFormatError.of(path.name, f"the head type, relation and tail type {fault}", f"one of {allowed}")
    columns = {
        name: checked_ids(path.name, repr(name), table[name], (count,) if name in _KEYS else (count, None), 2**62)
        for name in ("head", "tail", *needed[len(_KEYS) :])
    }
    items = {}
    for kind, rows in places.items():
        chosen = {
            name: ids_of(path.name, values[rows], num_nodes[kind[0 if name.startswith("head") else 2]], name)
            for name, values in columns.items()
        }
        pairs = np.stack([chosen["head"], chosen["tail"]], axis=1)
        items[numbers[kind]] = RawItems(pairs) if is_train else _of_triples(path.name, pairs, chosen)
    return items


def _of_triples(file: str, pairs: np.ndarray, chosen: Mapping[str, np.ndarray]) -> RawItems:
    """Return the items of some triples: two queries for each, the first ranks its tail, the second its head.

    Args:
        pairs: (head, tail) of each triple, int64 [n, 2].
        chosen: {"tail_neg", "head_neg": the candidates of each triple, int64 [n, k]}.
    """
    tails = ranked(file, pairs[:, 0], np.concatenate([pairs[:, 1:], chosen["tail_neg"]], axis=1))
    heads = ranked(file, pairs[:, 1], np.concatenate([pairs[:, :1], chosen["head_neg"]], axis=1))
    seeds = np.concatenate([tails[0], heads[0][:, ::-1]])
    queries = np.concatenate([2 * tails[2], 2 * heads[2] + 1])
    order = np.argsort(queries, kind="stable")
    return RawItems(seeds[order], np.concatenate([tails[1], heads[1]])[order], indexes=queries[order])


_OF_QUERIES = ("source_node", "target_node", "target_node_neg")


def _read_link_split(folder: Path, edges: Mapping[Any, np.ndarray], _: Rows, num_nodes: Mapping[Any, int]) -> _Split:
    """Read a split of edges in a graph without types; return (train, validation, test), each {None: items}.

    Each part (train, valid, test) has the keys "edge" [n, 2] and perhaps "edge_neg" [m, 2], negative edges. Or it has
    "source_node" [n], "target_node" [n] and perhaps "target_node_neg" [n, k], k negative destinations for each source.

    Args:
        folder: Holds {train,valid,test}.pt, each a dict that torch saved, or one npz file with the same arrays,
            named like `train_edge`. If the npz file has no arrays of train, all edges of the graph are train items.
        edges: {None: int64 [2, n]}, the edges of the graph as in the files.
        num_nodes: {None: number of nodes}; the ends of all edges must be below this number.
    Returns:
        Train has the edges that exist, without labels. Validation and test have the edges that exist, with label 1,
        then the negative edges, with label 0; without negative edges they have no labels.

        With "target_node_neg", items are ordered by source: one edge that exists, then k negative edges; `indexes` is
        the position of the source in the file. A part with the keys "edge" and "year", and without "edge_neg", has
        `timestamps`.
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
            tables[0] = {"edge": np.ascontiguousarray(edges[None].T)}
    else:
        paths = [folder / f"{part}.pt" for part in PARTS]
        files, tables = [path.name for path in paths], [read_saved(path) for path in paths]
    train, validation, test = (_items(*part, num_nodes[None]) for part in zip(files, tables, strict=True))
    existing = train.seeds if train.labels is None else train.seeds[train.labels == 1]
    first = RawItems(existing, None, train.timestamps if train.labels is None else None)
    return {None: first}, {None: validation}, {None: test}


def _items(file: str, table: dict[str, Any], num_nodes: int) -> RawItems:
    if set(_OF_QUERIES[:2]) <= table.keys():
        return _of_queries(file, table, num_nodes)
    if "edge" not in table or not all(isinstance(rows, np.ndarray) for rows in table.values()):
        allowed = "edge and edge_neg, or source_node, target_node and target_node_neg"
        raise DatasetFormatError.of(file, f"the keys {shown(sorted(table))}", allowed)
    positive = checked_ids(file, "'edge'", table["edge"], (None, 2), num_nodes)
    if "edge_neg" not in table:
        year = table.get("year")
        times = None if year is None else checked_ids(file, "'year'", year.ravel(), (len(positive),), 2**62)
        return RawItems(positive, None, times)
    negative = checked_ids(file, "'edge_neg'", table["edge_neg"], (None, 2), num_nodes)
    labels = np.repeat([1, 0], [len(positive), len(negative)])
    return RawItems(np.concatenate([positive, negative]), labels)


def _of_queries(file: str, table: dict[str, Any], num_nodes: int) -> RawItems:
    sources = checked_ids(file, "'source_node'", table["source_node"], (None,), num_nodes)
    targets = checked_ids(file, "'target_node'", table["target_node"], sources.shape, num_nodes)
    if "target_node_neg" not in table:
        return RawItems(np.stack([sources, targets], axis=1))
    others = checked_ids(file, "'target_node_neg'", table["target_node_neg"], (len(sources), None), num_nodes)
    pairs, labels, queries = ranked(file, sources, np.concatenate([targets[:, None], others], axis=1))
    return RawItems(pairs, labels, indexes=queries)


def ranked(file: str, sources: np.ndarray, destinations: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (pairs, labels, queries) of a ranking: for each of `sources` [n], k candidates in `destinations` [n, k].

    Pairs are int64 [n * k, 2], row by row. Labels are int64 [n * k]: 1 for the first destination of each row, 0 for the
    others. Queries are int64 [n * k], the row of each pair.
    """
    count, width = destinations.shape
    if 32 * width * count > MAX_FEATURE_BYTES:
        fault = f"{width} destinations for each of {count} sources"
        raise DatasetFormatError.of(file, fault, f"at most {MAX_FEATURE_BYTES} bytes of pairs")
    labels = np.tile(np.arange(width) == 0, count).astype(np.int64)
    queries = np.repeat(np.arange(count), width)
    return np.stack([sources[queries], destinations.ravel()], axis=1), labels, queries
