"""HTML of the package's templates, for reports and notebooks. Every text that is filled in is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from datapipes.base.checks import one_line

COLORS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#72b7b2", "#9d755d", "#d6a800", "#ff9da6")  # on white and black
MOST_ROWS = 24  # of a table that a notebook shows


def filled(template: str, **values: Any) -> str:
    """Return a template of the folder templates/ with values filled in."""
    return str(_environment().get_template(template).render(**values))


def table_html(title: str, rows: Sequence[Sequence[object]], notes: Sequence[str] = ()) -> str:
    """Return a table with a title above it and notes below it as HTML. The first row is the header.

    After MOST_ROWS more rows, a line says how many are left out.
    """
    left_out = len(rows) - 1 - MOST_ROWS
    more = [f"... and {left_out} more"] if left_out > 0 else []
    return filled("table.html", title=title, rows=rows[: MOST_ROWS + 1], notes=[*more, *notes])


@cache
def _environment() -> Any:
    import jinja2  # its import takes 40 ms, and most programs show no HTML

    folder = Path(__file__).parent / "templates"
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )


def _printable(value: Any) -> Any:
    """Return `value`; a text gets escapes for its control characters, which could reverse the text that follows."""
    return one_line(value) if type(value) is str else value
