"""`datapipes report TRACE`: what bounds the loader that wrote a trace; with `--html` as a page."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from datapipes.cli.command import FILE, Commands, WrongUsage, add_command, completes
from datapipes.loader.report import write_report
from datapipes.loader.trace import read_trace


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "report",
        run,
        "Say what bounds a loader, from a trace that loader.trace wrote. With --html it writes the page that "
        "loader.report writes.",
    )
    completes(parser.add_argument("trace", metavar="TRACE", help="a file that loader.trace wrote"), FILE)
    completes(parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as one HTML page"), FILE)


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return the counts and the bottleneck."""
    page: Path | None = arguments.html
    if page is not None and (page.is_dir() or not page.parent.is_dir()):
        raise WrongUsage(
            f"--html: {page} cannot be a file: its folder must exist, and it must not be one. Name a file."
        )
    if page is not None and page.exists() and os.path.samefile(page, arguments.trace):
        raise WrongUsage(f"--html: {page} is the trace itself, which would be lost. Name another file.")
    record = read_trace(arguments.trace)
    found = record.stats.found
    if page is not None:
        write_report(page, record)
    values = {"trace": arguments.trace, "bottleneck": None if found is None else found._asdict(), "stats": record.stats}
    return str(record.stats), values
