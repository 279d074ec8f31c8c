"""Node types and edge types: how they are written, ordered and named in errors.

A node type is a str, an edge type a tuple (src, rel, dst) of str. A graph without types has the one node type None and
the one edge type None. Where a user gives an edge type, the text "src:rel:dst" is accepted too.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from datapipes.base.checks import shown

NodeType = str
MOST_CHARACTERS = 4096  # of a name; a file might hold longer ones
MOST_COMPARED = 1000  # known names among which the nearest is looked for
EdgeType = tuple[str, str, str]


def check_node_type(where: str, value: Any) -> NodeType:
    """Return `value`, a str that is not empty."""
    if not isinstance(value, str):
        raise TypeError(f"{where}: a node type must be a str, got {shown(value)}. Write 'paper'.")
    if not value:
        raise ValueError(f"{where}: found an empty name of a node type; at least one character is needed. Name it.")
    _refuse_long(where, value)
    return value


def check_edge_type(where: str, value: Any) -> EdgeType:
    """Return an edge type as a tuple; `value` is (src, rel, dst), or the text "src:rel:dst"."""
    if isinstance(value, str):
        parts = tuple(value.split(":"))
        if len(parts) > 3:
            raise ValueError(
                f"{where}: the text {shown(value)} splits into src:rel:dst in more than one way. Give the tuple (src, "
                "rel, dst)."
            )
    elif isinstance(value, tuple):
        parts = value
    else:
        raise TypeError(f"{where}: an edge type must be a tuple (src, rel, dst), got {shown(value)}. Write it so.")
    if len(parts) != 3 or not all(isinstance(part, str) for part in parts):
        raise ValueError(
            f"{where}: an edge type must be three texts (src, rel, dst), or 'src:rel:dst', got {shown(value)}. Write "
            "it so."
        )
    if not all(parts):
        raise ValueError(
            f"{where}: found an empty name in the edge type {shown(value)}; each of (src, rel, dst) needs at least one "
            "character. Name it."
        )
    for part in parts:
        _refuse_long(where, part)
    return parts[0], parts[1], parts[2]


def known_node_type(where: str, value: Any, known: Collection[Any]) -> NodeType:
    """Return `value`, one of the `known` node types; the error names the nearest."""
    node_type = check_node_type(where, value)
    if node_type not in known:
        raise unknown_type(where, "node type", value, known)
    return node_type


def known_edge_type(where: str, value: Any, known: Collection[Any]) -> EdgeType:
    """Return `value` as a tuple, one of the `known` edge types; the error names the nearest."""
    edge_type = check_edge_type(where, value)
    if edge_type not in known:
        raise unknown_type(where, "edge type", value, known)
    return edge_type


def type_in(where: str, domain: str, value: Any, known: Collection[Any]) -> Any:
    """Return `value`, one of the `known` types of a domain, "node" or "edge"; None where the graph has no types."""
    if None in known:
        if value is not None:
            raise ValueError(
                f"{where}: the graph has no types, so the {domain} type must be None, got {shown(value)}. Pass None."
            )
        return None
    return (known_node_type if domain == "node" else known_edge_type)(where, value, known)


def listed_edge_types(where: str, given: Any, known: Collection[Any]) -> list[EdgeType]:
    """Return the edge types of an argument `edge_types`: at least one of the `known` ones, and none twice."""
    if None in known:
        raise TypeError(f"{where}: edge_types is {shown(given)}, but the graph has no edge types. Leave it out.")
    is_one = isinstance(given, (str, bytes)) or (isinstance(given, tuple) and given in [*known])
    if is_one or not isinstance(given, Iterable):
        raise TypeError(
            f"{where}: edge_types must be a list of edge types, got {shown(given)}; known are {shown([*known])}. Pass "
            "a list of some, or leave it out."
        )
    found = [known_edge_type(f"{where}, edge_types", of, known) for of in given]
    if not found or len({*found}) < len(found):
        raise ValueError(
            f"{where}: edge_types must name at least one edge type and none twice, got {shown(found)}; known are "
            f"{shown([*known])}. Leave it out to take all."
        )
    return found


def ends_of(edge_type: EdgeType | None) -> tuple[NodeType | None, NodeType | None]:
    """Return the source type and the destination type; (None, None) in a graph without types."""
    return (None, None) if edge_type is None else (edge_type[0], edge_type[2])


def values_of(values: Any, of: Any) -> Any:
    """Return the values of a type; those that are given without types, of any."""
    return values.get(of) if isinstance(values, dict) else values


def type_text(value: Any) -> str:
    """Return a type as one word for pictures and errors: paper, author:writes:paper."""
    return ":".join(value) if isinstance(value, tuple) else str(value)


def of_type(value: Any) -> str:
    """Return what an error says behind a noun: " of src:rel:dst"; nothing for None."""
    return "" if value is None else f" of {type_text(value)}"


def by_edge_type(where: str, given: Mapping[Any, Any]) -> dict[EdgeType, Any]:
    """Return `given` with its keys as edge types in sorted order; a type that is written in two ways is refused."""
    found: dict[EdgeType, Any] = {}
    for key, value in given.items():
        edge_type = check_edge_type(where, key)
        if edge_type in found:
            raise ValueError(f"{where}: the edge type {edge_type} is given twice, as tuple and as text. Give it once.")
        found[edge_type] = value
    return {edge_type: found[edge_type] for edge_type in sorted(found)}


def _refuse_long(where: str, name: str) -> None:
    if len(name) > MOST_CHARACTERS:
        raise ValueError(
            f"{where}: found a name of a type of {len(name)} characters; at most {MOST_CHARACTERS} are allowed. Use a "
            "shorter one."
        )


def unknown_type(where: str, kind: str, value: Any, known: Collection[Any]) -> ValueError:
    """Return the error for a type that is not known; it names the nearest."""
    # The search takes time in proportion to the square of the length, and names may come from a file.
    texts = {type_text(each)[:100]: each for each in itertools.islice(known, MOST_COMPARED)}
    near = difflib.get_close_matches(type_text(value)[:100], texts, 1, 0.0)
    nearest = f" The nearest is {texts[near[0]]!r}." if near else ""
    return ValueError(
        f"{where}: no {kind} {shown(value)}; known are {shown(sorted(known))}.{nearest} Use one of these, or add it to "
        "the graph."
    )
