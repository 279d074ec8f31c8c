"""Read JSON of unknown origin. Whole numbers must have few digits, and all numbers must be finite."""

from __future__ import annotations

import json
import math
from typing import Any

from datapipes.base.checks import shown

MOST_DIGITS = 20  # of a whole number; the time to read n digits grows as n squared
MOST_CHARACTERS = 40  # of any other number


def parse_strict(text: str, *, floats: bool = False) -> Any:
    """Return the value of a JSON text; `floats` allows numbers that are not whole.

    Raises:
        ValueError: The text is not valid JSON, is nested too deep, or has a number that is too long, not whole or not
            finite.
    """
    of_others = _finite if floats else _not_allowed
    try:
        return json.loads(text, parse_int=_whole, parse_float=of_others, parse_constant=of_others)
    except RecursionError as error:
        raise ValueError("found values nested too deep") from error


def _whole(digits: str) -> int:
    return int(digits) if len(digits) <= MOST_DIGITS else _not_allowed(digits)


def _finite(text: str) -> float:
    value = float(text) if len(text) <= MOST_CHARACTERS else math.inf
    if not math.isfinite(value):
        raise ValueError(
            f"found the number {shown(text)}; allowed: finite numbers, up to 1.79e308, of up to {MOST_CHARACTERS} "
            "characters"
        )
    return value


def _not_allowed(text: str) -> int:
    raise ValueError(
        f"found the number {shown(text)}; allowed: integers, without a decimal point, of up to {MOST_DIGITS} digits"
    )
