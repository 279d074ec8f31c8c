"""META.json of PyG's layout: how many parts, which types, and how nodes of all types are numbered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.files import read_regular
from datapipes.base.types import EdgeType, NodeType, check_edge_type, check_node_type, known_node_type
from datapipes.partition.id_maps import MOST_PARTS
from datapipes.partition.pyg.pyg_checks import refuse
from datapipes.partition.pyg.pyg_names import META, check_file_names

MOST_BYTES = 2**21  # of META.json


@dataclass(frozen=True)
class Meta:
    """What META.json says.

    Attributes:
        path: the file.
        given: all of it, as PyG's stores show it.
        node_types, edge_types: (None,) without types; their order is that in which PyG numbers all nodes and edges.
    """

    path: Path
    given: dict[str, Any]
    num_parts: int
    node_types: tuple[NodeType | None, ...]
    edge_types: tuple[EdgeType | None, ...]
    is_hetero: bool
    is_sorted: bool

    def refuse_other_offsets(self, offsets: Mapping[NodeType | None, int]) -> None:
        """Refuse a `node_offset` that does not fit the maps of nodes. Older versions of PyG write none."""
        found, expected = self.given.get("node_offset"), list(offsets.values())
        if self.is_hetero and found is not None and found != expected:
            refuse(self.path, f"the node_offset {shown(found)}", f"{shown(expected)}, as the maps of nodes are long")


def read_meta(root: Path) -> Meta:
    """Return what META.json in `root` says.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is broken, too long, or says what no partition can be.
    """
    path = root / META
    if not path.exists():
        raise FileNotFoundError(
            f"partition: {path} does not exist; {root} must be a folder that holds a partition in PyG's layout. Check "
            "the path."
        )
    try:
        given = json.loads(read_regular(path, MOST_BYTES).decode("utf-8"))
        if not isinstance(given, dict):
            raise TypeError(f"found {type(given).__name__}, allowed is an object")
        return _meta(path, given)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"partition: {path} is not a valid META.json: {shown(error)}. Write the partition again."
        ) from error


def _meta(path: Path, given: dict[str, Any]) -> Meta:
    num_parts = check_int("META.json", "num_parts", given["num_parts"], 1, MOST_PARTS)
    is_hetero = check_bool("META.json", "is_hetero", given["is_hetero"])
    is_sorted = check_bool("META.json", "is_sorted", given.get("is_sorted", False))  # older versions of PyG: not there
    if not is_hetero:
        return Meta(path, given, num_parts, (None,), (None,), is_hetero, is_sorted)
    node_types = tuple(check_node_type("META.json", each) for each in given["node_types"])
    edge_types = tuple(check_edge_type("META.json", tuple(each)) for each in given["edge_types"])
    for types in (node_types, edge_types):
        check_file_names(types)
        if len(set(types)) < len(types):
            raise ValueError("a type is named twice")
    for src, _, dst in edge_types:
        known_node_type("META.json", src, node_types)
        known_node_type("META.json", dst, node_types)
    return Meta(path, given, num_parts, node_types, edge_types, is_hetero, is_sorted)
