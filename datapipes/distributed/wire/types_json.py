"""Types of nodes and edges as JSON: None, a text, or a list of three; read strictly."""

from __future__ import annotations

from typing import Any

from datapipes.base.checks import shown


def type_to_json(value: Any) -> Any:
    """Return a node type or an edge type as a JSON value."""
    return [*value] if isinstance(value, tuple) else value


def node_type_of(value: Any) -> Any:
    """Return the node type that a JSON value says; ValueError if it says none."""
    if value is None or isinstance(value, str):
        return value
    raise ValueError(f"found the node type {shown(value)}, allowed are null and a text")


def edge_type_of(value: Any) -> Any:
    """Return the edge type that a JSON value says; ValueError if it says none."""
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 3 and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError(f"found the edge type {shown(value)}, allowed are null and a list of three texts")


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number in [low, high]; ValueError if it is none."""
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {shown(value)}, allowed are whole numbers in [{low}, {high}]")
    return value


def fields_of(name: str, value: Any, names: tuple[str, ...]) -> list[Any]:
    """Return the values of a JSON object that has exactly these names; ValueError if it has others."""
    if not isinstance(value, dict) or value.keys() != {*names}:
        found = sorted(value) if isinstance(value, dict) else value
        raise ValueError(f"{name} is {shown(found)}, it must have exactly {[*names]}")
    return [value[each] for each in names]


def list_of(name: str, value: Any, most: int = 2**16) -> list[Any]:
    """Return a JSON list of up to `most` entries; ValueError if it is none."""
    if not isinstance(value, list) or len(value) > most:
        found = f"a list of {len(value)}" if isinstance(value, list) else shown(value)
        raise ValueError(f"{name} is {found}, it must be a list of at most {most}")
    return value
