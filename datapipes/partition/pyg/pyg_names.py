"""PyG's layout: the names of its files and of the attributes that hold times, and the content of META.json."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, NodeType

META = "META.json"
GRAPH, NODE_FEATS, EDGE_FEATS = "graph.pt", "node_feats.pt", "edge_feats.pt"
TIME, EDGE_TIME = "time", "edge_time"

_MOST_BYTES = 255  # of the name of a file


class PygMisfit(ValueError):
    """Raised for a graph that PyG's layout cannot hold, although the native layout can.

    Attributes:
        why: a text with what was found, and what is allowed.
    """

    def __init__(self, why: str, remedy: str) -> None:
        super().__init__(why, remedy)
        self.why = why

    def __str__(self) -> str:
        return f"PyG's layout: {self.why}. {self.args[1]}, or leave out PyG's layout with layouts=('native',)."


def map_file(root: Path, kind: str, key: NodeType | EdgeType | None) -> Path:
    """Return the path of the file that has the part of each node, or edge, of the type `key`.

    `kind` is "node_map" or "edge_map".
    """
    return root / f"{kind}.pt" if key is None else root / kind / f"{_joined(key)}.pt"


def offsets_of(counts: Mapping[Any, int]) -> dict[Any, int]:
    """Return {type: offset}: how many nodes or edges the types before it have, all together.

    PyG adds the offset to the ids of a type, so that the ids of all types are one sequence.
    """
    return dict(zip(counts, itertools.accumulate(counts.values(), initial=0), strict=False))


def meta_of(num_parts: int, num_nodes: Mapping[Any, int], edge_types: Iterable[EdgeType | None]) -> dict[str, Any]:
    """Return the content of META.json. `num_nodes` is {type: number of nodes}; without types, its one type is None."""
    is_hetero = None not in num_nodes
    return {
        "num_parts": num_parts,
        "node_types": list(num_nodes) if is_hetero else None,
        "edge_types": [list(edge_type or ()) for edge_type in edge_types] if is_hetero else None,
        "node_offset": [*offsets_of(num_nodes).values()] if is_hetero else None,
        "is_hetero": is_hetero,
        "is_sorted": True,
    }


def check_file_names(types: Iterable[Any]) -> None:
    """Raise PygMisfit if a type cannot be the name of a file, or if two types would have the same file."""
    files: dict[str, Any] = {}
    for key in types:
        if key is None:
            continue
        file = f"{_joined(key)}.pt"
        try:
            fits = len(file.encode("utf-8")) <= _MOST_BYTES and not {"/", "\0"} & set(file)
        except UnicodeEncodeError:
            fits = False
        if not fits:
            raise PygMisfit(
                f"the type {shown(key)} makes no name of a file; it may have no '/', and at most {_MOST_BYTES - 3} "
                "bytes, joined with '__'",
                "Rename it",
            )
        if file in files:
            raise PygMisfit(
                f"the types {shown(files[file])} and {shown(key)} both make the file {file!r}; each type needs one of "
                "its own",
                "Rename it",
            )
        files[file] = key


def _joined(key: NodeType | EdgeType) -> str:
    return key if isinstance(key, str) else "__".join(key)
