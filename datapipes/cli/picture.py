"""The edges between the parts of a partition as a picture."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.cli.command import WrongUsage, needed
from datapipes.partition.report import MOST_MATRIX_PARTS, PartitionReport

_MOST_WRITTEN = 16  # parts, up to which the numbers stand in the cells
_FOR = "--png"


def check_picture(path: Path, num_parts: int, out: Path) -> None:
    """Refuse a picture that could not be made, or that would lie in the folder `out`, before the work begins.

    Raises:
        WrongUsage: There are too many parts, or `path` cannot be a file, does not end in .png, or is in the way of the
            partition.
        ImportError: matplotlib is not installed.
    """
    if num_parts > MOST_MATRIX_PARTS:
        raise WrongUsage(f"--png shows up to {MOST_MATRIX_PARTS} parts, --parts is {num_parts}. Leave it out.")
    if path.is_dir() or not path.parent.is_dir():
        raise WrongUsage(f"--png: {path} cannot be a file: its folder must exist, and it must not be one. Name a file.")
    picture, folder = Path(os.path.realpath(path)), Path(os.path.realpath(out))
    if folder in (picture, *picture.parents) or picture in folder.parents:
        raise WrongUsage(
            f"--png: {path} is in the place of the partition {out}, which may hold nothing else. Name a file elsewhere."
        )
    if path.suffix.lower() != ".png":
        raise WrongUsage(f"--png: {path} must end in .png; no other kind of picture is made. Name a .png file.")
    needed("matplotlib", _FOR, "viz")


def write_picture(report: PartitionReport, path: Path) -> None:
    """Write the matrix of a report as PNG; a file at `path` is replaced, once the new one is whole."""
    figure = _figure(np.array(report.edge_matrix, dtype=np.int64), report)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(partial, format="png", dpi=150)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _figure(edges: Any, report: PartitionReport) -> Any:
    """Return the picture. It is drawn without pyplot, which would choose a backend for the whole process."""
    colors: Any = needed("matplotlib.colors", _FOR, "viz")
    canvas: Any = needed("matplotlib.backends.backend_agg", _FOR, "viz")
    drawing: Any = needed("matplotlib.figure", _FOR, "viz")
    ticker: Any = needed("matplotlib.ticker", _FOR, "viz")
    size = 4.5 + min(report.num_parts, 24) * 0.22
    figure = drawing.Figure(figsize=(size + 1.2, size), layout="constrained")
    canvas.FigureCanvasAgg(figure)
    axes = figure.subplots()
    present = edges[edges > 0] if edges.any() else np.ones(1)
    # From half of the least count: it must not be white, which means none.
    norm = colors.LogNorm(present.min() / 2, max(present.max(), 2))
    image = axes.imshow(np.ma.masked_equal(edges, 0), cmap="Blues", norm=norm)
    if report.num_parts <= _MOST_WRITTEN:
        for (row, column), count in np.ndenumerate(edges):
            color = "white" if count > 0 and norm(count) > 0.6 else "black"
            axes.text(column, row, _short(int(count)), ha="center", va="center", color=color, fontsize=7)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(ticker.MaxNLocator(integer=True, nbins=min(report.num_parts, 16)))
    axes.set(xlabel="part of the source", ylabel="part of the destination")
    axes.set_title(f"Edges between {report.num_parts} parts; {100 * report.cut_share:.1f} % are cut", fontsize=10)
    figure.colorbar(image, ax=axes, label="edges (white: none)", shrink=0.85)
    return figure


def _short(count: int) -> str:
    """Return a count in at most five characters."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 10 * unit:
            return f"{count // unit}{name}"
    return str(count)
