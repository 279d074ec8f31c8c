"""The `datapipes` command: arguments, exit codes, and how results and errors are printed.

Exit codes: 0, the work is done; 1, it failed; 2, the arguments are wrong and nothing was done; 130, Ctrl-C.
Results go to stdout; progress and errors go to stderr. With `--json` stdout holds exactly one JSON object when the exit
code is 0 or 1: the result, or {"command", "error": {"type", "message"}}.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from datapipes.base.errors import text_of
from datapipes.cli import completion, convert, inspect, partition
from datapipes.cli.command import WrongUsage
from datapipes.partition.report_text import one_line

_COMMANDS = (partition, inspect, convert, completion)
DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code; `argv` are the arguments after its name, by default the process's."""
    try:
        arguments = make_parser().parse_args(argv)
    except SystemExit as end:  # argparse has printed the help, the version, or what is wrong
        return int(end.code or 0)
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of stdout has gone, as `head` does
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python would complain at its end
        return FAILED


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="datapipes",
        description="Partition graphs, look at what is in files, and convert data sets.",
        epilog="datapipes COMMAND --help says more about a command.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"datapipes {importlib.import_module('datapipes').__version__}"
    )
    parser.set_defaults(root=parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in _COMMANDS:
        module.add_to(commands)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    try:
        text, values = arguments.run(arguments)
        if arguments.json:
            _print_json({"command": arguments.command, **values})
        else:
            print(text)
        return DONE
    except KeyboardInterrupt:
        _say(f"datapipes {arguments.command}: interrupted")
        return INTERRUPTED
    except WrongUsage as wrong:
        _say(f"datapipes {arguments.command}: error: {one_line(text_of(wrong))}")
        return WRONG
    except BrokenPipeError:
        raise
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        message = one_line(" ".join(text_of(error).split())) or type(error).__name__
        _say(f"datapipes {arguments.command}: {message}")
        if arguments.json:
            _print_json({"command": arguments.command, "error": {"type": type(error).__name__, "message": message}})
        return FAILED


def _print_json(values: dict[str, Any]) -> None:
    print(json.dumps(values, allow_nan=False))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
