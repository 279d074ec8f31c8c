"""The table of docs/errors.md, "Faults", and what plays a row: stages that break, and an epoch that is read.

`Play.read` goes on after an error as the row says, and checks that every minibatch comes as the row says.
"""

from __future__ import annotations

import builtins
import contextlib
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pipelines import digests, sampled, wait_until

import datapipes as dp

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
COLUMNS = ["fault", "charged", "tried again", "you see", "go on"]
BAD = 3  # the minibatch at which stages break


# --- the table


class Row(NamedTuple):
    charged: str
    tried_again: str
    you_see: str
    go_on: str

    @property
    def errors(self) -> set[type[BaseException]]:
        """The types that the user sees; "its error" is the KeyError of a stage that breaks."""
        first = {KeyError} if self.you_see.startswith("its error") else set()
        return first | {error for name in re.findall(r"`(?:dp\.)?(\w+)`", self.you_see) if (error := _error(name))}


def _error(name: str) -> Any:
    known = getattr(dp, name, None) or getattr(builtins, name, None)
    is_base = name in ("TimeoutError", "ConnectionError")  # what another error of the row is
    return known if isinstance(known, type) and issubclass(known, BaseException) and not is_base else None


def rows_of(page: str) -> dict[str, Row]:
    """Return the table of the section "Faults", by its first cell."""
    section = page.partition("\n## Faults\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    header, _, *cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert header == COLUMNS
    assert len({fault for fault, *_ in cells}) == len(cells)
    return {fault: Row(*others) for fault, *others in cells}


# --- stages that break


class PickyError(Exception):
    """An error that cannot be built from one text."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class Breaks(dp.MiniBatchTransformer):
    """Breaks at minibatch BAD as `how` says, as long as a file exists."""

    def __init__(self, source: dp.Stage, is_broken: str, how: str) -> None:
        super().__init__(source)
        self.is_broken, self.how = is_broken, how

    def transform(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        if minibatch.index == BAD and os.path.exists(self.is_broken):
            HOW[self.how](self.is_broken)
        return minibatch


class BreaksAsync(Breaks):
    """Does so while other minibatches are in flight."""

    concurrency = 3

    async def transform_async(self, minibatch: dp.MiniBatch) -> dp.MiniBatch:
        return self.transform(minibatch)


def raises(kind: type[BaseException], *arguments: Any) -> Callable[[str], None]:
    def raise_it(_: str) -> None:
        raise kind(*arguments)

    return raise_it


def die(_: str = "") -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(is_broken: str, _: int = 0) -> None:
    """Die, unless another process has died of it."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(is_broken)
        die()


HOW: dict[str, Callable[[str], None]] = {
    "raise": raises(KeyError, "the disk is full"),
    "raise picky": raises(PickyError, 1, 2),
    "exit": raises(SystemExit, 5),
    "die": die,
    "die once": die_once,
    "wait": lambda is_broken: wait_until(lambda: not os.path.exists(is_broken)),
}


# --- an epoch that is read


class Received:
    """The minibatches of an epoch of a channel, as a loader gives them."""

    def __init__(self, channel: dp.stages.ChannelBase, timeout_s: float | None = None) -> None:
        self.channel, self.timeout_s = channel, timeout_s

    def __iter__(self) -> Iterator[dp.MiniBatch]:
        with contextlib.suppress(dp.EndOfEpoch):
            while True:
                yield dp.MiniBatch.from_message(self.channel.recv(timeout=self.timeout_s))


class Play:
    """One row, while its fault happens, and what was seen.

    Attributes:
        folder: for files.
        fixture: gives a fixture of the test by its name.
        is_broken: the file that exists until the chains of `broken` are repaired.
        max_restarts: of loaders.
        seen: the errors that the user has seen.
    """

    def __init__(self, row: Row, request: pytest.FixtureRequest, max_restarts: int) -> None:
        self.row, self.fixture, self.max_restarts = row, request.getfixturevalue, max_restarts
        self.folder: Path = self.fixture("tmp_path")
        self.is_broken = self.folder / "is_broken"
        self.seen: list[BaseException] = []

    def broken(self, how: str, kind: type[Breaks] = Breaks) -> Breaks:
        """Return a chain that breaks at minibatch BAD until it is repaired."""
        self.is_broken.touch()
        return kind(sampled(), str(self.is_broken), how)

    def repair(self) -> None:
        """Let the chains of `broken` be as `sampled()` is."""
        self.is_broken.unlink(missing_ok=True)

    def check_notes(self, *patterns: str) -> None:
        """Check that the last error has notes that begin so. Python 3.10 has no notes."""
        if sys.version_info >= (3, 11):
            notes = self.seen[-1].__notes__
            assert all(any(re.match(pattern, note) for note in notes) for pattern in patterns), notes

    def read(
        self,
        source: Any,
        fault: Callable[[], None] = lambda: None,
        repair: Callable[[], None] | None = None,
        expected: list[str] | None = None,
    ) -> None:
        """Read an epoch, in which `fault` happens after two minibatches, and compare it with an undisturbed one.

        After an error, `repair` what it came from, and go on as the row says.

        Args:
            source: a stage, a loader or what has an epoch of a channel.
            repair: by default `self.repair`.
            expected: the digests of the undisturbed epoch; by default of `sampled()`.
        """
        found: list[str] = []
        minibatches = iter(source)
        while True:
            try:
                for minibatch in minibatches:
                    found.append(minibatch.digest())
                    if len(found) == 2:
                        fault()
                break
            except (Exception, SystemExit) as error:
                self.seen.append(error)
                (repair or self.repair)()
                minibatches = self._after(error, source, minibatches)
        expected = digests(sampled()) if expected is None else expected
        left_out = isinstance(source, Received) and "the minibatch is left out" in self.row.go_on
        assert found == [digest for index, digest in enumerate(expected) if not (left_out and index == BAD)]

    def _after(self, error: BaseException, source: Any, minibatches: Any) -> Iterator[dp.MiniBatch]:
        """Return the rest of the epoch after an error, as the row says."""
        if type(error) not in self.row.errors:
            raise error
        if isinstance(source, Received):
            assert "call `recv` again" in self.row.go_on
            return iter(source)
        if "call `next` again" in self.row.go_on:
            return minibatches
        assert "from the state" in self.row.go_on
        with pytest.raises(RuntimeError, match="broke off at an error") as second:
            next(minibatches)
        assert second.value.__cause__ is error
        source.load_state_dict(source.state_dict())
        return iter(source)
