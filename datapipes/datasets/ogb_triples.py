"""Read the split of a knowledge graph in OGB's layout with types (ogbl-biokg): triples, and others to rank them by.

The dicts in {train,valid,test}.pt have a text for each triple in head_type and tail_type, numbers in head, relation and
tail, and but for train head_neg and tail_neg, [n, k]. The feature edge_reltype of the edges says which relation has
which number.

Invariant: every id is inside its node type, every triple is of an edge type of the graph. Everything else is refused
with `DatasetFormatError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType
from datapipes.datasets.ogb_graph import Rows
from datapipes.datasets.ogb_links import checked_ids, ranked
from datapipes.datasets.ogb_settings import PARTS
from datapipes.datasets.raw import DatasetFormatError
from datapipes.datasets.raw_hetero import RawItems
from datapipes.datasets.tables import ids_of
from datapipes.datasets.torch_files import read_saved

_KEYS = ("head_type", "head", "relation", "tail_type", "tail")
_NONE = np.zeros(0, dtype=np.int64)


def read_triple_split(
    folder: Path, edge_types: list[EdgeType], edge_features: Rows, num_nodes: Mapping[Any, int]
) -> list[dict[EdgeType, RawItems]]:
    """Return the items of train, validation and test by edge type.

    Args:
        folder: Holds {train,valid,test}.pt.
        edge_types: Those of the graph.
        edge_features: Have "reltype" for each edge type that has edges.
        num_nodes: By node type.
    Returns:
        Train has the triples as pairs [n, 2], without labels. In validation and test each triple is two queries, with
        the label 1 for the triple and then 0 for each other pair: first its tail against tail_neg, then its head
        against head_neg. `indexes` numbers the queries of an edge type from 0, in the order of the file.
    Raises:
        FileNotFoundError: A file is missing.
        DatasetFormatError: A file is broken or hostile, or does not fit the graph.
    """
    numbers = _numbers_of(edge_types, edge_features)
    parts = []
    for part in PARTS:
        found = _read_part(folder / f"{part}.pt", numbers, num_nodes, part == PARTS[0])
        no_pairs = np.zeros((0, 2), dtype=np.int64)
        empty = RawItems(no_pairs) if part == PARTS[0] else RawItems(no_pairs, _NONE, indexes=_NONE)
        parts.append({edge_type: found.get(edge_type, empty) for edge_type in edge_types})
    return parts


def _numbers_of(edge_types: list[EdgeType], features: Rows) -> dict[tuple[str, int, str], EdgeType]:
    """Return the edge type of each (source, number of the relation, destination); of those that have edges."""
    found: dict[tuple[str, int, str], EdgeType] = {}
    for edge_type in edge_types:
        for i, number in enumerate(np.unique(features.get((edge_type, "reltype"), _NONE)).tolist()):
            key = (edge_type[0], number, edge_type[2])
            if key in found or i > 0:
                what = f"{edge_type} with the number {number} beside others"
                raise DatasetFormatError.of("edge_reltype.csv.gz", what, "one number of its own for each edge type")
            found[key] = edge_type
    return found


def _read_part(
    path: Path, numbers: Mapping[tuple[str, int, str], EdgeType], num_nodes: Mapping[Any, int], is_train: bool
) -> dict[EdgeType, RawItems]:
    table = read_saved(path)
    needed = _KEYS if is_train else (*_KEYS, "head_neg", "tail_neg")
    if not set(needed) <= table.keys():
        raise DatasetFormatError.of(path.name, f"the keys {shown(sorted(table))}", f"{needed}")
    relations = checked_ids(path.name, "relation", table["relation"], (None,), 2**31)
    count = len(relations)
    for key in ("head_type", "tail_type"):
        if not isinstance(table[key], list) or len(table[key]) != count:
            raise DatasetFormatError.of(path.name, f"another {key!r}", f"a text for each of {count} triples")
    places: dict[tuple[str, int, str], list[int]] = {}
    for place, kind in enumerate(zip(table["head_type"], relations.tolist(), table["tail_type"], strict=True)):
        places.setdefault(kind, []).append(place)
    unknown = places.keys() - numbers.keys()
    if unknown:
        found, allowed = shown(min(unknown)), shown(sorted(numbers))
        raise DatasetFormatError.of(path.name, f"triples of {found}", f"a type, a relation and a type among {allowed}")
    columns = {
        name: checked_ids(path.name, name, table[name], (count,) if name in _KEYS else (count, None), 2**62)
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
    """Return two queries for each triple: its tail against others, then its head against others."""
    tails = ranked(file, pairs[:, 0], np.concatenate([pairs[:, 1:], chosen["tail_neg"]], axis=1))
    heads = ranked(file, pairs[:, 1], np.concatenate([pairs[:, :1], chosen["head_neg"]], axis=1))
    seeds = np.concatenate([tails[0], heads[0][:, ::-1]])
    queries = np.concatenate([2 * tails[2], 2 * heads[2] + 1])
    order = np.argsort(queries, kind="stable")
    return RawItems(seeds[order], np.concatenate([tails[1], heads[1]])[order], indexes=queries[order])
