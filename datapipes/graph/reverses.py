"""The edge types of reverses: which type holds the reverses of another one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, by_edge_type, known_edge_type, type_text


def reverse_of(where: str, edge_type: Any, mapping: Mapping[EdgeType, EdgeType] | None) -> Any:
    """Return the edge type of the reverses of a type; None without types.

    Raises:
        ValueError: The mapping does not name it, and it goes from one node type to another.
    """
    if edge_type is None:
        return None
    if mapping is not None and edge_type in mapping:
        return mapping[edge_type]
    src, _, dst = edge_type
    if src == dst:
        return edge_type
    raise ValueError(
        f"{where}: the edge type of the reverses of {type_text(edge_type)} is not known; reverse_etypes_mapping has "
        f"{shown(sorted(mapping or {}))}. Add it: {{{edge_type}: ({dst!r}, its relation, {src!r})}}."
    )


def with_reverses(where: str, pairs: Mapping[Any, Tensor], mapping: Any) -> dict[Any, Tensor]:
    found = {of: [each] for of, each in pairs.items()}
    for of, each in pairs.items():
        found.setdefault(reverse_of(where, of, mapping), []).append(each.flip(1))
    return {of: torch.cat(each) for of, each in found.items()}


def checked_mapping(where: str, mapping: Any, known: Collection[Any] | None) -> dict[EdgeType, EdgeType] | None:
    """Return a mapping of edge types to those of their reverses; `known` are those of the graph, if it is known."""
    if mapping is None:
        return None
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"{where}: reverse_etypes_mapping must be a dict {{edge type: edge type}}, got {shown(mapping)}. Pass one."
        )
    if known is not None and None in known:
        raise mapping_without_types(where)
    what, found = f"{where}, reverse_etypes_mapping", {}
    for of, given in by_edge_type(what, mapping).items():
        (other,) = by_edge_type(what, {given: None})
        for each in (of, other) if known is not None else ():
            known_edge_type(what, each, known or ())
        if (other[0], other[2]) != (of[2], of[0]):
            raise ValueError(
                f"{what}: {other} cannot hold the reverses of {of}; they go from {of[2]!r} to {of[0]!r}. Name such a "
                "type."
            )
        found[of] = other
    return found


def refuse_mapping(where: str, mapping: Any, why: str) -> None:
    """Raise ValueError if a mapping is given where there are no reverses."""
    if mapping is not None:
        raise ValueError(
            f"{where}: reverse_etypes_mapping is given, but {why}; only reverses have a use for it. Leave it out."
        )


def mapping_without_types(where: str) -> TypeError:
    """Return the error of a mapping for a graph without types."""
    return TypeError(
        f"{where}: reverse_etypes_mapping is given, but the graph has no edge types; a reverse is an edge like the "
        "others there. Leave it out."
    )
