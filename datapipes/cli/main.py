"""The `datapipes` command: arguments, exit codes, and the printing of results and errors.

Exit codes: 0, the work is done; 1, it failed; 2, the arguments are wrong and nothing was done; 130, Ctrl-C.
Results go to stdout; progress and errors go to stderr. With `--json` stdout has exactly one JSON object if the exit
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

from datapipes.base.checks import one_line
from datapipes.base.errors import text_of
from datapipes.cli import bench, build, doctor, inspect, partition, serve, status
from datapipes.cli.command import DoneInPart, WrongUsage, add_completion, in_options, say

_ADDERS = (
    *(build.add_to, partition.add_to, inspect.add_to, build.add_convert, bench.add_report, bench.add_to),
    *(serve.add_to, status.add_to, doctor.add_to, add_completion),
)
DONE, FAILED, WRONG, INTERRUPTED = 0, 1, 2, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code.

    `argv` has the arguments after the name of the command; by default those of this process.
    """
    _open_closed_streams()
    try:
        try:
            arguments = make_parser().parse_args(argv)
        except SystemExit as end:  # argparse has printed the help, the version, or an error
            code = int(end.code or 0)
        else:
            code = _run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader of stdout has ended, such as `head`
        _drop_stdout()
    except OSError as error:  # raised by the flush; _run has reported all other errors
        _drop_stdout()
        say(f"datapipes: {_unwritten(error)}")
    return FAILED


def _open_closed_streams() -> None:
    """Open /dev/null in place of each closed standard stream, before another opened file takes its descriptor.

    Python has None for a closed stream, and text for a closed stderr would go to stdout. Writing to the new stdout
    fails, as in any program with a closed stdout; text written to the new stderr is lost.
    """
    for number, (name, flags) in enumerate((("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))):
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flags)  # the lowest free one: that of the stream, unless it is taken
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(descriptor, mode, closefd=False, encoding="utf-8"))  # noqa: SIM115


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    parser = argparse.ArgumentParser(
        prog="datapipes",
        description="Build, partition and serve graphs, look at and convert files, and measure what bounds a loader.",
        epilog="datapipes COMMAND --help says more about a command.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"datapipes {importlib.import_module('datapipes').__version__}"
    )
    parser.set_defaults(root=parser)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for add_to in _ADDERS:
        add_to(commands)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    try:
        code = DONE
        try:
            text, values = arguments.run(arguments)
        except DoneInPart as partly:
            code, text, values = FAILED, partly.text, partly.values
        if arguments.json:
            _print_json({"command": arguments.command, **values})
        elif text:
            _print(text)
        return code
    except KeyboardInterrupt:
        say(f"datapipes {arguments.command}: interrupted")
        return INTERRUPTED
    except WrongUsage as wrong:
        say(f"datapipes {arguments.command}: error: {one_line(in_options(text_of(wrong)))}")
        return WRONG
    except BrokenPipeError:
        raise
    except Exception as error:
        if arguments.debug:
            traceback.print_exc()
        message = one_line(in_options(" ".join(text_of(error).split()))) or type(error).__name__
        say(f"datapipes {arguments.command}: {message.removeprefix(f'{arguments.command}: ')}")
        if arguments.json:
            with contextlib.suppress(OSError):  # the failure is already on stderr
                _print_json({"command": arguments.command, "error": {"type": type(error).__name__, "message": message}})
        return FAILED


def _print_json(values: dict[str, Any]) -> None:
    _print(json.dumps(values, allow_nan=False))


def _print(text: str) -> None:
    """Print to stdout at once, so that a failing write raises here and not when Python exits."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        _drop_stdout()
        raise
    except OSError as error:
        _drop_stdout()
        raise OSError(_unwritten(error)) from error


def _unwritten(error: OSError) -> str:
    return f"stdout cannot be written: {error.strerror or error}. Direct it to a file, on a disk with room."


def _drop_stdout() -> None:
    """Discard output that was not written; otherwise Python would report an error when it exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
