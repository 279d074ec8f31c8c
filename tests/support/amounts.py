"""How much the tests do: a small form in `make test`, full numbers in `make test-all`, which sets FULL_TESTS=1.

Whatever repeats something takes its number from here. What only adds another way to a place that is tested has the mark
`full`, and so have most interleavings of the queue's model, which no line of C++ changes, and the example of two ranks.
"""

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import settings

FULL = os.environ.get("FULL_TESTS") == "1"


def amount(full: int, small: int) -> int:
    """Return how often something is done: `small` times in `make test`."""
    return full if FULL else small


def examples(full: int, **how: Any) -> settings:
    """Return settings of Hypothesis: `full` examples, in `make test` a fifth of them, but at least 10."""
    return settings(max_examples=amount(full, min(full, max(full // 5, 10))), **how)


def ranked(values: Iterable[Any], small: int) -> list[Any]:
    """Return parameters of a test, of which all but the first `small` are for `make test-all`."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=() if i < small else pytest.mark.full) for i, row in enumerate(rows)]
