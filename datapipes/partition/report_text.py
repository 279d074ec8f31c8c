"""Tables, lists and lines in plain text, for reports."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[object]], most: int = 32) -> list[str]:
    """Return the rows of a table as lines: the first column to the left, numbers to the right, the first row a header.

    Args:
        most: rows after the header that are shown; a last line says how many are not.
    """
    shown = [[_cell(each) for each in row] for row in rows[: most + 1]]
    widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
    lines = []
    for first, *others in shown:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    rest = len(rows) - len(shown)
    return lines + ([f"... and {rest} more"] if rest > 0 else [])


def joined(values: Sequence[object], most: int = 32) -> str:
    """Return the values with commas between them; of more than `most` the first ones, and how many more there are."""
    rest = len(values) - most
    return ", ".join(map(str, values[:most])) + (f" and {rest} more" if rest > 0 else "")


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3f}" if isinstance(value, float) else str(value)
