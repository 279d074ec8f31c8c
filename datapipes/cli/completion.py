"""`datapipes completion SHELL`: the script that completes the names of commands, options and files with Tab."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from datapipes.base.errors import needed
from datapipes.cli.command import Commands, add_command

SHELLS = ("bash", "zsh", "tcsh")


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "completion",
        run,
        "Print a script for Tab. It completes commands, options, their values, files and folders. Write it where the "
        "shell looks for it; for bash: datapipes completion bash > "
        "~/.local/share/bash-completion/completions/datapipes",
        prints=False,
    )
    parser.add_argument("shell", choices=SHELLS, help="the shell that the script is for")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the script."""
    shtab: Any = needed("shtab", "cli", "it")
    for action in _actions(arguments.root):
        if hasattr(action, "completes"):
            action.complete = getattr(shtab, action.completes)  # type: ignore[attr-defined]  # shtab reads it
    return shtab.complete(arguments.root, shell=arguments.shell), {}


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)
