"""How much the tests do: a small form in `make test`, full numbers in `make test-all`, which sets FULL_TESTS=1.

Whatever repeats something takes its number from here. What takes more than a second is in tests/slow.txt, and has the
mark `slow`. What only adds another way to a place that is tested has the mark
`full`, and so have most interleavings of the queue's model, which no line of C++ changes, and of the dispatcher's and
its pools', the example of two ranks, and tests of tests.
Of a test with several `parametrize`, `make test` takes as many combinations as bring each value once (`spare`).
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import settings

T = TypeVar("T")
FULL = os.environ.get("FULL_TESTS") == "1"
SPAWN = "spawn" if FULL else "forkserver"  # both pickle what they pass on; a child of the fork server has torch


def amount(full: T, small: T) -> T:
    """Return how often something is done, or what: the small form in `make test`."""
    return full if FULL else small


def examples(full: int, **how: Any) -> settings:
    """Return settings of Hypothesis: `full` examples, in `make test` a tenth of them, but at least 5."""
    return settings(max_examples=amount(full, min(full, max(full // 10, 5))), **how)


def ranked(values: Iterable[Any], small: int) -> list[Any]:
    """Return parameters of a test, of which all but the first `small` are for `make test-all`."""
    rows = [value if isinstance(value, tuple) else (value,) for value in values]
    return [pytest.param(*row, marks=() if i < small else pytest.mark.full) for i, row in enumerate(rows)]


def spare(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Give the tests whose every parameter has its value in another test of the same function too, which stays."""
    functions = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec") and not any(item.iter_markers("full")):
            marks = frozenset(mark.name for mark in item.callspec.marks)  # one that is skipped stands for no other
            functions[item.nodeid.partition("[")[0], marks].append(item)
    for tests in functions.values():
        values = {item: _values(item) for item in tests}
        seen: set[Any] = set()
        while values and not all(each <= seen for each in values.values()):
            best = max(values, key=lambda item: len(values[item] - seen))  # the first of the best
            seen |= values.pop(best)
        yield from values


def slow_tests() -> set[str]:
    """Return the ids of the tests that `make test` leaves out since each takes more than a second: tests/slow.txt,
    which `make slow-tests` writes.
    """
    return {*(Path(__file__).parents[1] / "slow.txt").read_text(encoding="utf-8").splitlines()}


def _values(item: pytest.Item) -> set[Any]:
    """Return what each `parametrize`, or fixture with parameters, gives to a test: the same objects are equal."""
    params = item.callspec.params  # type: ignore[attr-defined]
    names = [mark.args[0] for mark in item.iter_markers("parametrize")]
    together = [(each,) if isinstance(each, str) else tuple(each) for each in names]
    alone = [(name,) for name in params if not any(name in each for each in together)]
    return {(each, tuple(id(params[name]) for name in each)) for each in (*together, *alone)}
