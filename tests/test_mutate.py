"""tools/mutate.py: what it changes in Python and in C++, and that it names what no test notices."""

import os
import subprocess
import sys
from pathlib import Path

import mutate
import pytest


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a.py", "x = a <b", {"x = a <=b"}),
        ("a.py", "x = a is not b < c", {"x = a is b < c", "x = a is not b <= c"}),
        ("a.py", "x = not (a and b)", {"x = bool(a and b)", "x = not (True and b)", "x = not (a and True)"}),
        ("a.py", "x = a if b else 7", {"x = a if False else 7", "x = a if b else 8"}),
        ("a.py", "x = max('ß', f'{a < 1}')  # a < 1", {"x = min('ß', f'{a < 1}')  # a < 1"}),
        ("a.py", "def f() -> bool: return a", {"def f() -> bool: return not (a)"}),
        ("a.py", "def f(a: Literal[1]) -> int: return a", {"def f(a: Literal[1]) -> int: return None"}),
        ("a.py", "with self._lock, open(a): pass", {"with __import__(\"contextlib\").nullcontext(), open(a): pass"}),
        ("a.py", "raise ValueError(a < 1)\nassert a < 1\nlogger.info(1)\ns = 0.1", set()),
        ("a.cpp", "v<T> x = a < b;  // a < b", {"v<T> x = a <= b;  // a < b"}),
        ("a.cpp", "if (f(a) && b) throw X(1 + 1);", {"if (f(a) || b) throw X(1 + 1);", "if (false) throw X(1 + 1);"}),
        ("a.cpp", "if (const auto x = f()) x = std::min(a, 1);",
         {"if (const auto x = f()) x = std::max(a, 1);", "if (const auto x = f()) x = std::min(a, 2);"}),
        ("a.h", "  const std::lock_guard lock(mutex_);\n  return true;",
         {"  \n  return true;", "  const std::lock_guard lock(mutex_);\n  return false;"}),
    ],
)  # fmt: skip
def test_one_place_changes_at_a_time(path, before, after):
    text = before.encode()
    assert {mutation.applied(text).decode() for mutation in mutate.mutations_of(path, text)} == after


def test_a_change_that_no_test_notices_is_named(tmp_path):
    (tmp_path / "sizes.py").write_text("most = max(1.5, 2.5)\nequal = max(1.5, 1.5)\n")
    (tmp_path / "test_sizes.py").write_text(
        "import sizes\ndef test(): assert (sizes.most, sizes.equal) == (2.5, 1.5)\n"
    )
    program = (
        f"import mutate, pathlib; mutate.main([], pathlib.Path({str(tmp_path)!r}), {{'sizes': './test_sizes.py'}})"
    )
    # In a process of its own, since it kills whatever its tests leave behind.
    ran = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(mutate.__file__).parent,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    first, second, third, *survivors = ran.stdout.splitlines()
    assert first == "2 of 2 mutations, seed 0"
    assert second.startswith("1/2 sizes.py:1: bound: FAILED test_sizes.py::test")
    assert third.startswith("2/2 sizes.py:2: bound: SURVIVED")
    lines = ["    before: equal = max(1.5, 1.5)", "    after:  equal = min(1.5, 1.5)"]
    assert survivors == ["1 survived", "sizes.py:2: bound", *lines]
    assert (tmp_path / "sizes.py").read_text().count("max") == 2
