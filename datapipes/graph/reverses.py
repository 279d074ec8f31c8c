"""The edge types of reverses: which type holds the reverses of another one.

A mapping {edge type: that of its reverses} has None for a type without reverses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.types import EdgeType, by_edge_type, check_edge_type, known_edge_type, type_text

Reverses = dict[EdgeType, EdgeType | None]


def reverses_of(where: str, edge_types: Iterable[Any], mapping: Mapping[EdgeType, EdgeType | None] | None) -> Any:
    """Return {edge type: that of its reverses}, {None: None} without types; a type that has none is left out.

    Raises:
        ValueError: The mapping does not name a type that goes from one node type to another.
    """
    found: dict[Any, Any] = {}
    for of in edge_types:
        if of is None or (of[0] == of[2] and of not in (mapping or {})):
            found[of] = of
        elif mapping is None or of not in mapping:
            raise ValueError(
                f"{where}: the edge type of the reverses of {type_text(of)} is not known; reverse_etypes_mapping has "
                f"{shown(sorted(mapping or {}))}. Add it: {{{of}: ({of[2]!r}, its relation, {of[0]!r})}}; or "
                f"{{{of}: None}} if it has no reverses."
            )
        elif mapping[of] is not None:
            found[of] = mapping[of]
    return found


def with_reverses(where: str, pairs: Mapping[Any, Tensor], mapping: Any) -> dict[Any, Tensor]:
    found = {of: [each] for of, each in pairs.items()}
    for of, back in reverses_of(where, pairs, mapping).items():
        found.setdefault(back, []).append(pairs[of].flip(1))
    return {of: torch.cat(each) for of, each in found.items()}


def checked_mapping(where: str, mapping: Any, known: Collection[Any] | None) -> Reverses | None:
    """Return a mapping of edge types to those of their reverses; `known` are those of the graph, if it is known."""
    if mapping is None:
        return None
    if not isinstance(mapping, Mapping):
        raise TypeError(
            f"{where}: reverse_etypes_mapping must be a dict {{edge type: edge type}}, got {shown(mapping)}. Pass one."
        )
    if known is not None and None in known:
        raise mapping_without_types(where)
    what = f"{where}, reverse_etypes_mapping"
    found: Reverses = {}
    for of, given in by_edge_type(what, mapping).items():
        other = None if given is None else check_edge_type(what, given)
        for each in (of, other) if known is not None else ():
            if each is not None:
                known_edge_type(what, each, known or ())
        if other is not None and (other[0], other[2]) != (of[2], of[0]):
            raise ValueError(
                f"{what}: {other} cannot hold the reverses of {of}; they go from {of[2]!r} to {of[0]!r}. Name such a "
                "type, or None."
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
