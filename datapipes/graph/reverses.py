"""The edge types of reverse edges: which edge type has the reverses of the edges of another type.

A mapping is {edge type: type of its reverses}; None stands for a type without reverses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, by_edge_type, check_edge_type, known_edge_type, type_text
from datapipes.graph.checks import check_mapping

Reverses = dict[EdgeType, EdgeType | None]


def reverses_of(where: str, edge_types: Iterable[Any], mapping: Mapping[EdgeType, EdgeType | None] | None) -> Any:
    """Return {edge type: type of its reverses} for `edge_types`. Types without reverses are left out.

    A type from a node type to itself that is not in `mapping` has its own reverses. Without types the result is {None:
    None}.

    Raises:
        ValueError: The mapping lacks an edge type between two different node types.
    """
    backs: dict[Any, Any] = {}
    for edge_type in edge_types:
        if edge_type is None or (edge_type[0] == edge_type[2] and edge_type not in (mapping or {})):
            backs[edge_type] = edge_type
        elif mapping is None or edge_type not in mapping:
            src, _, dst = edge_type
            raise ValueError(
                f"{where}: the edge type of the reverses of {type_text(edge_type)} is not known; "
                f"reverse_etypes_mapping has {shown(sorted(mapping or {}))}. Add it: {{{edge_type}: ({dst!r}, its "
                f"relation, {src!r})}}; or {{{edge_type}: None}} if it has no reverses."
            )
        elif mapping[edge_type] is not None:
            backs[edge_type] = mapping[edge_type]
    return backs


def with_reverses(where: str, pairs: Mapping[Any, Tensor], mapping: Any) -> dict[Any, Tensor]:
    pieces = {edge_type: [rows] for edge_type, rows in pairs.items()}
    for edge_type, back in reverses_of(where, pairs, mapping).items():
        pieces.setdefault(back, []).append(pairs[edge_type].flip(1))
    return {edge_type: torch.cat(rows) for edge_type, rows in pieces.items()}


def checked_mapping(where: str, mapping: Any, edge_types: Collection[Any] | None) -> Reverses | None:
    """Check the argument reverse_etypes_mapping, and return it with tuples as edge types. None stays None.

    Args:
        edge_types: the edge types of the graph; None if the graph is not known.
    """
    if mapping is None:
        return None
    check_mapping(where, "reverse_etypes_mapping", mapping, "{edge type: edge type}")
    if edge_types is not None and None in edge_types:
        raise mapping_without_types(where)
    where = f"{where}, reverse_etypes_mapping"
    backs: Reverses = {}
    for edge_type, value in by_edge_type(where, mapping).items():
        back = None if value is None else check_edge_type(where, value)
        for key in (edge_type, back) if edge_types is not None else ():
            if key is not None:
                known_edge_type(where, key, edge_types or ())
        src, _, dst = edge_type
        if back is not None and (back[0], back[2]) != (dst, src):
            raise ValueError(
                f"{where}: {back} cannot hold the reverses of {edge_type}; they go from {dst!r} to {src!r}. Name a "
                "type with these ends, or None."
            )
        backs[edge_type] = back
    return backs


def refuse_mapping(where: str, mapping: Any, why: str) -> None:
    """Raise ValueError if `mapping` is given (not None) though nothing uses reverses; `why` says why not."""
    if mapping is not None:
        raise ValueError(
            f"{where}: reverse_etypes_mapping is given, but {why}; only reverses have a use for it. Leave it out."
        )


def mapping_without_types(where: str) -> TypeError:
    """Return the error for the case that reverse_etypes_mapping is given, but the graph has no types."""
    return TypeError(
        f"{where}: reverse_etypes_mapping is given, but the graph has no edge types; a reverse is an edge like the "
        "others there. Leave it out."
    )
