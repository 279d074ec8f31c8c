"""Helpers for all commands: add a command, complete words with Tab, raise WrongUsage for wrong arguments, show
progress, and replace names of Python arguments in error texts by command-line options.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from datapipes.base.errors import needed
from datapipes.base.progress import Progress, bars, hidden, nothing, step_of, terminal_bar

Commands = Any  # argparse's class for this has no public name
Run = Callable[[argparse.Namespace], tuple[str, dict[str, Any]]]  # returns the result, as text and as JSON values

# {metavar of an argument: how Tab completes it, as shtab calls it}
_COMPLETED = {
    **dict.fromkeys(("FILE", "GRAPH", "IN", "NAMEBOOK", "PATH", "TRACE"), "FILE"),
    **dict.fromkeys(("OUT", "ROOT"), "DIRECTORY"),
}


class WrongUsage(Exception):
    """Raised if the arguments of a command are wrong; nothing was done."""


class DoneInPart(Exception):
    """Raised if the work is done, but something was found wrong. The result is printed nevertheless.

    Args:
        text: the result as text.
        values: the result as JSON values, for `--json`.
    """

    def __init__(self, text: str, values: dict[str, Any]) -> None:
        super().__init__(text)
        self.text, self.values = text, values


def add_command(commands: Commands, name: str, run: Run, description: str, *, prints: bool = True) -> Any:
    """Add the command `name`, which calls `run`, and return its parser.

    With `prints`, the command has a result, and its option `--json` prints the result as one JSON object.
    """
    parser = commands.add_parser(
        name, help=description.split(". ")[0].rstrip("."), description=description, allow_abbrev=False
    )
    parser.set_defaults(run=run, json=False)
    if prints:
        parser.add_argument("--json", action="store_true", help="print the result, or the error, as one JSON object")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def check_output(option: str, path: Path | None) -> None:
    """Raise WrongUsage if no file can be written at `path`. None is allowed: there is no file to write."""
    if path is not None and (path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK)):
        raise WrongUsage(
            f"{option}: {path} cannot be written: it must be a file in an existing folder, and writable. Name one."
        )


def add_completion(commands: Commands) -> None:
    """Add `datapipes completion SHELL`: the script that completes the names of commands, options and files with Tab."""
    parser = add_command(
        commands,
        "completion",
        _run_completion,
        "Print a script for Tab. It completes commands, options, their values, files and folders. Write it where the "
        "shell looks for it; for bash: datapipes completion bash > "
        "~/.local/share/bash-completion/completions/datapipes",
        prints=False,
    )
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"), help="the shell that the script is for")


def _run_completion(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    shtab: Any = needed("shtab", "cli", "it")
    for action in _actions(arguments.root):
        if action.metavar in _COMPLETED:
            action.complete = getattr(shtab, _COMPLETED[action.metavar])  # type: ignore[attr-defined]  # shtab reads it
    return shtab.complete(arguments.root, shell=arguments.shell), {}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def say(text: str) -> None:
    """Print a line to stderr. An error of writing is ignored, since the result of the work goes to stdout."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


_LINE_EVERY_S = 10.0  # between two lines within a step
_STEP_EVERY_S = 2.0  # at least, between the last line and the first line of another step


@contextlib.contextmanager
def progress_of(command: str, *, quiet: bool) -> Iterator[Progress]:
    """Give a function (text, work done, total work) that shows the progress of `command`. Total work 0: unknown.

    If `quiet`, the function shows nothing.
    """
    if quiet:
        with hidden():
            yield nothing
    elif terminal_bar() is None:
        yield _Lines(command).say
    else:
        with bars() as say_in_bars:
            yield say_in_bars


class _Lines:
    """Shows progress as lines: one at the begin of a step, and one every 10 s within a step.

    Lines are at least 2 s apart.
    """

    def __init__(self, command: str) -> None:
        self._command = command
        self._step = ""
        self._next = 0.0

    def say(self, text: str, done: int, total: int) -> None:
        now, step = time.monotonic(), step_of(text)
        if now < self._next - (_LINE_EVERY_S - _STEP_EVERY_S) * (step != self._step):
            return
        self._step, self._next = step, now + _LINE_EVERY_S
        how_far = f": {100 * done // total} %" if total > 0 else ""
        say(f"datapipes {self._command}: {text}{how_far}")


# {Python's argument in a message of the library: the option of the command line}
_SAME_NAME = ("node_time_attr", "balance", "part", "address", "concurrency", "max_waiting", "max_memory", "insecure")
_FLAGS = ("recursive", "edge_map", "insecure", "normalize_features", "largest_component", "inverse_relations")
_VALUES: dict[str, list[Any]] = {
    "layouts": [("native",)],
    "method": ["metis", "fennel"],
    "columns": [
        *(("src", "dst"), ("dst", "src"), ("src", "dst", "time"), ("src", "dst", "weight")),
        *(("src", "dst", "rating", "time"), ("src", "dst", "weight", "time")),
    ],
}
_OPTIONS = {
    **{name: f"--{name.replace('_', '-')}" for name in (*_SAME_NAME, "split", "columns")},
    **{f"{name}=True": f"--{name.replace('_', '-')}" for name in _FLAGS},
    **{f"{name}=False": f"--no-{name.replace('_', '-')}" for name in ("edge_map", "inverse_relations")},
    **{
        f"{name}={value!r}": f"--{name} {value if isinstance(value, str) else ','.join(value)}"
        for name, values in _VALUES.items()
        for value in values
    },
    "num_parts": "--parts",
    "rng_seed": "--seed",
    "metrics": "--metrics-port",
    "num_threads": "--threads",
    "max_request_bytes": "--max-request",
    "max_answer_bytes": "--max-answer",
    "max_bytes_in_flight": "--max-in-flight",
    "tls=TLSConfig(cert, key, ca)": "--tls-cert, --tls-key and --tls-ca",
    **{f"{name} of the TLSConfig": f"--tls-{name}" for name in ("cert", "key", "ca")},
    "deadline": "--timeout",
    "with mmap=False": "with --in-memory",
    "with mmap=True": "without --in-memory",
}
_NAMES = sorted(_OPTIONS, key=len, reverse=True)  # the longest first: a name may begin with another


def _pattern_of(name: str) -> str:
    text = re.escape(name)
    if name.isalpha():  # an English word, too: match it only where messages name an argument
        return rf"(?:(?<=[:;] )|(?<=so )){text}(?= must | is )|(?:(?<=Pass )|(?<=eave )){text}"
    return text


# Never in a path or in quotes: that text is the user's.
_NAMED = re.compile(rf"(?<![\w/.'\"-])(?:{'|'.join(map(_pattern_of, _NAMES))})(?![\w/'\"=-]|\.\w)")


def in_options(text: str) -> str:
    """Return an error text of the library with names of Python arguments replaced by options of the commands."""
    return _NAMED.sub(lambda match: _OPTIONS[match[0]], text)
