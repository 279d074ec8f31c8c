"""How far a command is: a bar if stderr is a terminal and tqdm is there, else a line now and then."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import time
from collections.abc import Iterator
from typing import Any

from datapipes.partition.source import Progress

_LINE_EVERY_S = 10.0  # within a step
_STEP_EVERY_S = 2.0  # a step that begins sooner after the last line gets none of its own yet
# A bar shows shares and times: what is counted is edges, bytes or blocks. Only the text where the total is not known.
_SHARE = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
_TEXT = "{desc}"


@contextlib.contextmanager
def progress_of(command: str, *, quiet: bool) -> Iterator[Progress]:
    """Give what is to be called with (text, done, total); a total of 0 means that it is not known."""
    if quiet:
        yield lambda text, done, total: None
        return
    try:
        tqdm: Any = importlib.import_module("tqdm").tqdm if sys.stderr.isatty() else None
    except ImportError:
        tqdm = None
    if tqdm is None:
        yield _Lines(command).say
        return
    bars = _Bars(tqdm)
    try:
        yield bars.say
    finally:
        bars.end()


class _Lines:
    """A line when a step begins, and every 10 s within it; none within 2 s of another."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._step = ""
        self._next = 0.0

    def say(self, text: str, done: int, total: int) -> None:
        now, step = time.monotonic(), _step_of(text)
        if now < self._next - (_LINE_EVERY_S - _STEP_EVERY_S) * (step != self._step):
            return
        self._step, self._next = step, now + _LINE_EVERY_S
        how_far = f": {100 * done // total} %" if total > 0 else ""
        print(f"datapipes {self._command}: {text}{how_far}", file=sys.stderr, flush=True)


class _Bars:
    """A bar for the step that runs; it goes when the step has ended."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._step = ""

    def say(self, text: str, done: int, total: int) -> None:
        if self._bar is None or _step_of(text) != self._step:
            self.end()
            self._step = _step_of(text)
            # A new bar prints itself, so it gets its total at once. What is counted differs: shares have no unit.
            form = _SHARE if total > 0 else _TEXT
            self._bar = self._tqdm(
                desc=text, total=total or None, initial=done, leave=False, file=sys.stderr, bar_format=form
            )
            return
        self._bar.bar_format = _SHARE if total > 0 else _TEXT
        self._bar.set_description_str(text, refresh=False)
        self._bar.total, self._bar.n = total or None, done
        self._bar.refresh()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _step_of(text: str) -> str:
    """Return what the texts of a step have in common: all but the numbers."""
    return re.sub("[0-9]+", "", text)
