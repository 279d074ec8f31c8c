"""JSON of requests that is read by hand: objects and whole numbers."""

from __future__ import annotations

from typing import Any

from datapipes.base.checks import shown


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
