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
    """Return `value` if it is a node type, a str that is not empty; else raise."""
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


def known_node_type(where: str, value: Any, allowed: Collection[Any]) -> NodeType:
    """Return `value` if it is one of the `allowed` node types; else raise an error that names the most similar one."""
    node_type = check_node_type(where, value)
    if node_type not in allowed:
        raise unknown_type(where, "node type", value, allowed)
    return node_type


def known_edge_type(where: str, value: Any, allowed: Collection[Any]) -> EdgeType:
    """Return `value` as a tuple if it is one of the `allowed` edge types.

    Otherwise raise an error that names the most similar allowed type.
    """
    edge_type = check_edge_type(where, value)
    if edge_type not in allowed:
        raise unknown_type(where, "edge type", value, allowed)
    return edge_type


def type_in(where: str, domain: str, value: Any, allowed: Collection[Any]) -> Any:
    """Return `value` if it is one of the `allowed` types; `domain` is "node" or "edge".

    If None is allowed, the graph has no types, and `value` must be None.
    """
    if None in allowed:
        if value is not None:
            raise ValueError(
                f"{where}: the graph has no types, so the {domain} type must be None, got {shown(value)}. Pass None."
            )
        return None
    return (known_node_type if domain == "node" else known_edge_type)(where, value, allowed)


def listed_edge_types(where: str, edge_types: Any, allowed: Collection[Any]) -> list[EdgeType]:
    """Return a user's argument `edge_types` as a list; it must name at least one of the `allowed` types, none twice."""
    if None in allowed:
        raise TypeError(f"{where}: edge_types is {shown(edge_types)}, but the graph has no edge types. Leave it out.")
    is_one = isinstance(edge_types, (str, bytes)) or (isinstance(edge_types, tuple) and edge_types in [*allowed])
    if is_one or not isinstance(edge_types, Iterable):
        raise TypeError(
            f"{where}: edge_types must be a list of edge types, got {shown(edge_types)}; known are "
            f"{shown([*allowed])}. Pass a list of these, or leave it out."
        )
    listed = [known_edge_type(f"{where}, edge_types", edge_type, allowed) for edge_type in edge_types]
    if not listed or len({*listed}) < len(listed):
        raise ValueError(
            f"{where}: edge_types must name at least one edge type and none twice, got {shown(listed)}; known are "
            f"{shown([*allowed])}. Leave it out to take all."
        )
    return listed


def ends_of(edge_type: EdgeType | None) -> tuple[NodeType | None, NodeType | None]:
    """Return the source type and the destination type; (None, None) in a graph without types."""
    return (None, None) if edge_type is None else (edge_type[0], edge_type[2])


def values_of(values: Any, wanted_type: Any) -> Any:
    """Return `values[wanted_type]` if `values` is a dict by type; None if the dict lacks the type.

    Any other value applies to every type and is returned as it is.
    """
    return values.get(wanted_type) if isinstance(values, dict) else values


def type_text(value: Any) -> str:
    """Return a type as one word for pictures and errors, such as "paper" or "author:writes:paper"."""
    return ":".join(value) if isinstance(value, tuple) else str(value)


def of_type(value: Any) -> str:
    """Return " of paper" or " of author:writes:paper" for a type, to follow a noun in an error; "" for None."""
    return "" if value is None else f" of {type_text(value)}"


def by_edge_type(where: str, values: Mapping[Any, Any]) -> dict[EdgeType, Any]:
    """Return `values` with edge types (tuples) as keys, sorted; raise if a type is given both as tuple and as text."""
    by_type: dict[EdgeType, Any] = {}
    for key, value in values.items():
        edge_type = check_edge_type(where, key)
        if edge_type in by_type:
            raise ValueError(f"{where}: the edge type {edge_type} is given twice, as tuple and as text. Give it once.")
        by_type[edge_type] = value
    return {edge_type: by_type[edge_type] for edge_type in sorted(by_type)}


def _refuse_long(where: str, name: str) -> None:
    if len(name) > MOST_CHARACTERS:
        raise ValueError(
            f"{where}: found a type's name of {len(name)} characters; at most {MOST_CHARACTERS} are allowed. Use a "
            "shorter one."
        )


def unknown_type(where: str, kind: str, value: Any, allowed: Collection[Any]) -> ValueError:
    """Return the error for a type that is not one of the `allowed` types; the error names one that is similar."""
    # The search takes time in proportion to the square of the length, and names may come from a file.
    texts = {type_text(known_type)[:100]: known_type for known_type in itertools.islice(allowed, MOST_COMPARED)}
    near = difflib.get_close_matches(type_text(value)[:100], texts, 1)
    nearest = f" The most similar is {texts[near[0]]!r}." if near and len(texts) > 1 else ""
    use = "Use one of these, or add it" if allowed else "Add it"
    return ValueError(
        f"{where}: no {kind} {shown(value)}; known are {shown(sorted(allowed))}.{nearest} {use} to the graph."
    )
