"""How far a command is: a bar if stderr is a terminal and tqdm is there, else a line now and then."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from datapipes.partition.source import Progress

_LINE_EVERY_S = 10.0  # within one step


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
    """A line at the beginning of each step, and every 10 s within it."""

    def __init__(self, command: str) -> None:
        self._command = command
        self._text = ""
        self._said = 0.0

    def say(self, text: str, done: int, total: int) -> None:
        now = time.monotonic()
        if text != self._text or now - self._said >= _LINE_EVERY_S:
            self._text, self._said = text, now
            how_far = f": {done} of {total}" if total > 0 and done > 0 else ""
            print(f"datapipes {self._command}: {text}{how_far}", file=sys.stderr, flush=True)


class _Bars:
    """A bar for each step; it stays when the step has ended."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._text = ""

    def say(self, text: str, done: int, total: int) -> None:
        if self._bar is None or text != self._text:
            self.end()
            self._text = text
            self._bar = self._tqdm(desc=text, total=total or None, file=sys.stderr, unit="", unit_scale=True)
        self._bar.n = done
        self._bar.refresh()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None
