"""What the commands share: how each is declared, wrong usage, and the extras that some need."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable
from typing import Any

Commands = Any  # argparse gives the object that holds the commands no public name
Run = Callable[[argparse.Namespace], tuple[str, dict[str, Any]]]  # what is printed: as text, and as JSON values

FILE, FOLDER = "FILE", "DIRECTORY"  # what an argument is completed as, by shtab's names


class WrongUsage(Exception):
    """The arguments do not fit what they name; nothing was done."""


def add_command(commands: Commands, name: str, run: Run, description: str, *, prints: bool = True) -> Any:
    """Return the parser of a new command; `prints`: it has a result that `--json` prints as one object."""
    parser = commands.add_parser(
        name, help=description.split(". ")[0].rstrip("."), description=description, allow_abbrev=False
    )
    parser.set_defaults(run=run, json=False)
    if prints:
        parser.add_argument("--json", action="store_true", help="print the result, or the error, as one JSON object")
    parser.add_argument("--debug", action="store_true", help="print the traceback of an error")
    return parser


def completes(action: argparse.Action, how: str) -> None:
    """Say that an argument is a file or a folder, for completion."""
    action.completes = how  # type: ignore[attr-defined]  # argparse leaves it alone


def say(text: str) -> None:
    """Print a line to stderr. If that cannot be written, the work goes on: its result is on stdout."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
