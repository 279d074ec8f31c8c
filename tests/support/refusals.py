"""The fixture `refuses`: an error has the type that the test names, and the text that tests/refusals.json holds.

    def test_what_an_item_set_refuses(refuses):
        refuses(ValueError, dp.ItemSet, -1)
        with refuses(TypeError):
            dp.ItemSet("a")

`make refusals` writes the texts of all tests anew: read the difference before you commit it. In the texts, folders of
the run and addresses of objects are replaced. A text that is torch's own, or holds a number that differs between runs,
belongs into a test with pytest.raises and a pattern. Python 3.10 has no notes of errors: there they are not compared,
and the texts are written with a later Python.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import sys
from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

TEXTS = Path(__file__).parent.parent / "refusals.json"
_WRITE = "--write-refusals"
_written = pytest.StashKey[dict[str, list[str]]]()
_forgotten = pytest.StashKey[list[str]]()


class Refuses:
    """Compares the errors of one test, in order, with the texts that are held for it.

    Args:
        held: the texts of earlier errors, or None: the texts are to be written.
        folder: of the run; "FOLDER" stands for it in the texts.
    Attributes:
        held: as given.
        texts: of the errors so far, each with the name of its type.
    """

    def __init__(self, held: list[str] | None, folder: Path) -> None:
        self.texts: list[str] = []
        self.held, self._folder = held, re.compile(re.escape(str(folder)) + r"(?:(/\w+?)\d+\b)?")

    def __call__(self, error: type[BaseException], *call: Any, **keywords: Any) -> AbstractContextManager[None]:
        """Call `call[0]` with the arguments that follow; without a call, return a context for what is to be refused."""
        if not call:
            return self._context(error)
        function, *arguments = call
        with self._context(error):
            function(*arguments, **keywords)
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def _context(self, error: type[BaseException]) -> Iterator[None]:
        with pytest.raises(error) as caught:
            yield
        error_text = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
        error_text = re.sub(r"0x[0-9a-f]{6,}", "0xADDRESS", self._folder.sub(r"FOLDER\1", error_text))
        text = f"{type(caught.value).__name__}: {error_text}"
        place = len(self.texts)
        self.texts.append(text)
        if self.held is not None:
            held = self.held[place] if place < len(self.held) else "no text; `make refusals` writes it"
            has_notes = sys.version_info >= (3, 11)
            assert text == held or (not has_notes and held.startswith(text + "\n"))


@pytest.fixture
def refuses(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Refuses:
    """Refuses a call with a type, and with the text that is held for this test."""
    writes, test = request.config.getoption(_WRITE), request.node.nodeid
    held = None if writes else held_texts().get(test, [])
    return Refuses(held, tmp_path_factory.getbasetemp())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """After a test that has neither failed nor skipped itself, check that the file holds no further texts."""
    yield
    refuses = getattr(item, "funcargs", {}).get("refuses")
    if refuses is None:
        return
    if refuses.held is None:
        item.config.stash[_written][item.nodeid] = refuses.texts
    else:
        came_no_more = refuses.held[len(refuses.texts) :]
        assert not came_no_more, "the file holds more texts for this test than it raised errors; run `make refusals`"


@functools.cache
def held_texts() -> dict[str, list[str]]:
    """Return the texts of all tests, by the ids of the tests."""
    return json.loads(TEXTS.read_text()) if TEXTS.exists() else {}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(_WRITE, action="store_true", help=f"write {TEXTS.name} anew, for the tests that run")


def pytest_configure(config: pytest.Config) -> None:
    """Texts are written by one process, which has all of them, with the notes that errors have since Python 3.11."""
    is_one_of_many = hasattr(config, "workerinput") or getattr(config.option, "numprocesses", None)
    if config.getoption(_WRITE) and (is_one_of_many or sys.version_info < (3, 11)):
        raise pytest.UsageError(f"{_WRITE} needs one process, without --numprocesses, and Python 3.11 or newer.")
    config.stash[_written], config.stash[_forgotten] = {}, []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """To write, run only tests with the fixture. Of files that run as a whole, forget the texts of all other tests."""
    if not config.getoption(_WRITE):
        return
    files = {item.nodeid.partition("::")[0] for item in items}
    items[:] = [item for item in items if "refuses" in getattr(item, "fixturenames", ())]
    chosen, option = {item.nodeid for item in items}, config.option
    if not (option.keyword or option.markexpr or any("::" in argument for argument in config.args)):
        config.stash[_forgotten] = [test for test in held_texts() if test not in chosen and _is_in(files, test)]


def _is_in(files: Collection[str], test: str) -> bool:
    file = test.partition("::")[0]
    return file in files or not (TEXTS.parent.parent / file).exists()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the texts of the tests that ran."""
    stash = session.config.stash
    if stash[_written] or stash[_forgotten]:
        texts = held_texts() | stash[_written]
        for test in stash[_forgotten]:
            del texts[test]
        TEXTS.write_text(json.dumps(dict(sorted(texts.items())), indent=1, ensure_ascii=False) + "\n")
