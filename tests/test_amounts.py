"""`make test` leaves out slow tests, the combinations of parameters that bring no new value, and no other test."""

import ast
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import pytest
from amounts import slow_tests, spare

ROOT = Path(__file__).parents[1]


class Item(SimpleNamespace):
    """What `spare` uses of a test."""

    __hash__ = object.__hash__


def grid(*axes, left_out=()):
    """Return the tests of a function with a `parametrize` for each axis, which is {name: values}."""
    marks = [pytest.mark.parametrize(tuple(axis) if len(axis) > 1 else next(iter(axis)), []).mark for axis in axes]
    found = []
    for rows in product(*[zip(*axis.values(), strict=True) for axis in axes]):
        params = {
            name: value for axis, row in zip(axes, rows, strict=True) for name, value in zip(axis, row, strict=True)
        }
        own = [pytest.mark.full.mark] if tuple(params.values()) in left_out else []
        callspec = SimpleNamespace(params=params, marks=own)
        found.append(
            Item(
                nodeid=f"test_it[{len(found)}]",
                callspec=callspec,
                iter_markers=lambda name, all_=[*marks, *own]: [mark for mark in all_ if mark.name == name],
            )
        )
    return found


def test_tests_that_are_listed_as_slow_exist():
    functions = {}
    for test in slow_tests():
        path, _, name = test.partition("::")
        functions.setdefault(path, set()).add(name.partition("[")[0])
    for path, names in functions.items():
        tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
        there = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert names <= there, f"{path}: these are gone: run `make slow-tests`"


def kept(tests):
    dropped = {*spare(tests)}
    return [tuple(test.callspec.params.values()) for test in tests if test not in dropped]


def test_of_a_grid_each_value_stays():
    found = kept(grid({"a": [1, 2, 3]}, {"b": ["x", "y"]}))
    assert len(found) == 3
    assert {a for a, _ in found} == {1, 2, 3}
    assert {b for _, b in found} == {"x", "y"}


def test_of_one_parametrize_each_row_stays():
    assert len(kept(grid({"a": [1, 1, 2], "b": ["x", "y", "y"]}))) == 3
    assert len(kept(grid({"a": [1, 2]}, {"b": ["x", "x", "y"], "c": [5, 6, 6]}))) == 3


def test_a_value_does_not_count_where_its_test_is_left_out_anyhow():
    found = kept(grid({"a": [1, 2]}, {"b": ["x", "y"]}, left_out=[(1, "x")]))
    assert (1, "x") in found  # by its own mark it is in `make test-all`
    assert {*found} >= {(1, "y"), (2, "x")}
