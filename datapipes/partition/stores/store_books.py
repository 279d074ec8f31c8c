"""What the local stores have in common: which layout they read, and who owns what, as PyG's code sets and reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from datapipes.base.checks import as_tensor, shown
from datapipes.partition.book import PartitionBook
from datapipes.partition.id_maps import MOST_PARTS, limits_of
from datapipes.partition.layouts import layout_of
from datapipes.partition.native.part import Part


def choose_layout(where: str, root: str | Path, preferred: Sequence[str]) -> str:
    """Return the layout of a folder that is read.

    Raises:
        FileNotFoundError: It holds no partition.
    """
    found = layout_of(root)
    for layout in preferred:
        if layout in found:
            return layout
    raise FileNotFoundError(
        f"{where}: {root} holds no partition; it must be a folder with partition.json or META.json. Check the path."
    )


def book_of(kind: str, value: Any) -> PartitionBook | None:
    """Return a book of what a user sets as the parts of "nodes" or "edges": None, a book, or integers by type.

    Raises:
        TypeError, ValueError: The values are no parts.
    """
    if value is None or isinstance(value, PartitionBook):
        return value
    by_type = value if isinstance(value, Mapping) else {None: value}
    maps = {key: as_tensor("PartitionBook", "parts", each) for key, each in by_type.items()}
    most = max((limits_of(each)[1] for each in maps.values() if each.numel() > 0), default=0)
    if not 0 <= most < MOST_PARTS:
        raise ValueError(f"PartitionBook: found the part {shown(most)}; parts are in [0, {MOST_PARTS}). Correct it.")
    return PartitionBook(most + 1, maps) if kind == "nodes" else PartitionBook(most + 1, {}, maps)


def given_maps(book: PartitionBook | None, kind: str) -> Any:
    """Return the parts of "nodes" or "edges" as PyG's code reads them: a tensor, {type: tensor}, or None."""
    if book is None or (kind == "edges" and not book.has_edges):
        return None
    maps: dict[Any, Tensor] = (
        {each: book.nodes(each).dense() for each in book.node_types}
        if kind == "nodes"
        else {each: book.edges(each).dense() for each in book.edge_types}
    )
    return maps.get(None, maps)


def meta_of(part: Part) -> dict[str, Any]:
    """Return what META.json of PyG's layout would say of a native partition; its types are sorted."""
    is_hetero = None not in part.node_types
    offsets, before = [], 0
    for node_type in part.node_types:
        offsets.append(before)
        before += part.num_nodes_of(node_type)
    return {
        "num_parts": part.num_parts,
        "node_types": list(part.node_types) if is_hetero else None,
        "edge_types": [list(each or ()) for each in part.edge_types] if is_hetero else None,
        "node_offset": offsets if is_hetero else None,
        "is_hetero": is_hetero,
        "is_sorted": True,
    }
