"""Progress of long calls: tqdm's bars where stderr is a terminal, nothing elsewhere.

The environment variable TQDM_DISABLE=1 hides the bars. A call that is over within DELAY_S shows nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

Progress = Callable[[str, int, int], None]  # text of the work, amount done, total amount (0: unknown)

DELAY_S = 1.0
_LOOK_S = 0.5
_SAID_EVERY_S = 0.25
# A bar shows shares and times, since units differ: edges, bytes, blocks. Without a known total: only the text.
_SHARE = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
_TEXT = "{desc}"
_TEXT_AND_TIME = "{desc} ... {elapsed}"
_hidden: ContextVar[bool] = ContextVar("hidden", default=False)


def nothing(text: str, done: int, total: int) -> None:
    """Show no progress."""


def now_and_then(progress: Progress) -> Progress:
    """Return a function (text, done, total) that calls `progress` with its arguments, a few times a second at most.

    It always does so at the first call, and whenever `done` has reached `total`.
    """
    next_s = 0.0

    def pass_on(text: str, done: int, total: int) -> None:
        nonlocal next_s
        now = time.monotonic()
        if now >= next_s or done >= total:
            next_s = now + _SAID_EVERY_S
            progress(text, done, total)

    return pass_on


@contextlib.contextmanager
def hidden() -> Iterator[None]:
    """Show no progress of the calls in this with statement."""
    token = _hidden.set(True)
    try:
        yield
    finally:
        _hidden.reset(token)


def terminal_bar() -> Any:
    """Return tqdm's class if stderr is a terminal and tqdm is installed; None otherwise."""
    try:
        if not _hidden.get() and sys.stderr is not None and sys.stderr.isatty():
            return importlib.import_module("tqdm").tqdm
    except (ImportError, ValueError):  # no tqdm; a closed stderr
        pass
    return None


@contextlib.contextmanager
def bars() -> Iterator[Progress]:
    """Give a function (text, done, total) that shows a bar for the running step of some work.

    It shows nothing if stderr is no terminal, or tqdm is not installed.
    """
    tqdm = terminal_bar()
    if tqdm is None:
        yield nothing
        return
    shown = _Bars(tqdm)
    try:
        yield shown.say
    finally:
        shown.end()


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show a text and the time passed while the with statement runs. For work of unknown progress; "" shows nothing."""
    tqdm = terminal_bar() if text else None
    if tqdm is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_tell, args=(tqdm, text, done), name="datapipes-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _tell(tqdm: Any, text: str, done: threading.Event) -> None:
    if done.wait(DELAY_S):
        return
    with tqdm(desc=text, leave=False, file=sys.stderr, bar_format=_TEXT_AND_TIME) as bar:
        while not done.wait(_LOOK_S):
            bar.refresh()


class _Bars:
    """Shows a bar for the running step of some work; the bar disappears when the step has ended."""

    def __init__(self, tqdm: Any) -> None:
        self._tqdm = tqdm
        self._bar: Any = None
        self._step = ""

    def say(self, text: str, done: int, total: int) -> None:
        if self._bar is None or step_of(text) != self._step:
            self.end()
            self._step = step_of(text)
            # A new bar prints itself, so it gets its total at once.
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


def step_of(text: str) -> str:
    """Return `text` without its digits. Two texts that differ in digits only are of one step, and so share a bar."""
    return re.sub("[0-9]+", "", text)
