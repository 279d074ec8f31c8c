"""docs/promises.md: what is deprecated goes in time, and what runs beside the package is what the page says."""

import ast
import re
import warnings
from pathlib import Path

import pytest

import datapipes as dp
from datapipes.base.errors import deprecated

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")


def removals(source: str) -> list[str]:
    """Return the releases in which what a module deprecates goes."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    named = [call for call in calls if getattr(call.func, "id", getattr(call.func, "attr", "")) == "deprecated"]
    return [ast.literal_eval(each.value) for call in named for each in call.keywords if each.arg == "removal"]


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def overdue(source: str, version: str) -> list[str]:
    return sorted(removal for removal in removals(source) if numbers(version) >= numbers(removal))


def test_nothing_deprecated_is_left_in_the_release_that_removes_it():
    sample = 'def old():\n    errors.deprecated("old", "new", removal="0.3")\ndeprecated("a", "b", removal="0.10")'
    found = [overdue(sample, version) for version in ("0.2.9", "0.3.0", "0.10.1")]
    assert found == [[], ["0.3"], ["0.10", "0.3"]]
    modules = {
        str(path): overdue(path.read_text(encoding="utf-8"), dp.__version__) for path in ROOT.glob("datapipes/**/*.py")
    }
    assert {path: due for path, due in modules.items() if due} == {}


def test_the_caller_of_a_deprecated_name_is_told_the_release_and_what_to_use():
    def old() -> None:
        deprecated("old()", "new()", removal="0.3")

    with pytest.warns(dp.DatapipesDeprecationWarning) as caught:
        old()
    assert str(caught[0].message) == "old() is deprecated and goes in release 0.3. Use new()."
    assert caught[0].filename == __file__
    with warnings.catch_warnings(record=True) as shown:
        warnings.resetwarnings()
        warnings.simplefilter("default", FutureWarning)
        old()
    assert len(shown) == 1


def test_the_windows_of_python_and_torch_are_those_that_are_tested():
    pythons = re.search(r"^PYTHONS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)[1].split()
    row = re.search(r"^\| Python (.*?) \| (.*?): half", PAGE, re.MULTILINE)
    assert row[1].split("; ") == pythons
    assert len(row[2].split("; ")) == len(pythons)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={pythons[0]}"' in project
    oldest = re.search(r"^\| torch (\S+) \|", PAGE, re.MULTILINE)[1]
    assert f'"torch>={oldest}"' in project
    assert f"torch=={oldest}." in (ROOT / "tools/matrix.py").read_text(encoding="utf-8")


def test_every_namespace_of_the_page_has_public_names():
    names = re.findall(r"`(datapipes(?:\.\w+)?)`", PAGE.split("API reference")[0])
    assert len(names) == 5
    for name in names:
        if name != "datapipes.pyg":  # needs torch_geometric
            found = dp if name == "datapipes" else getattr(dp, name.split(".")[1])
            assert found.__all__
