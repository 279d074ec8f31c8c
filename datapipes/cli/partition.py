"""`datapipes partition IN OUT --parts K`: divide a graph or a data set into parts, with a report and a picture.

Progress is a bar if stderr is a terminal and tqdm is installed; else a line is printed now and then.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

import numpy as np

from datapipes.base.checks import one_line
from datapipes.base.errors import needed
from datapipes.cli.command import Commands, WrongUsage, add_command, check_output, progress_of
from datapipes.cli.inputs import add_input, open_input
from datapipes.partition.methods.all_nodes import EVEN
from datapipes.partition.methods.assign import METHODS
from datapipes.partition.partition_report import MOST_MATRIX_PARTS, PartitionReport
from datapipes.partition.partitioner import Partitioner
from datapipes.partition.pyg.pyg_names import PygMisfit

_LAYOUTS = ("native", "pyg")
_CHOICES = (*_LAYOUTS, "native,pyg", "pyg,native")


def add_to(commands: Commands) -> None:
    """Add `datapipes partition IN OUT` to the commands."""
    parser = add_command(
        commands,
        "partition",
        run,
        "Divide a graph into parts. OUT gets the parts and the partition book, which has the owner of each node; an "
        "older partition there is replaced once the new one is whole.",
    )
    add_input(parser, "in", "a folder that graph.save wrote, or the files of a data set")
    add = parser.add_argument
    add("out", metavar="OUT", help="the folder to write: new, empty or a partition")
    add("--parts", type=int, required=True, metavar="K", help="number of parts")
    add("--method", choices=METHODS, default="metis", help="how parts are chosen; default: metis")
    add("--recursive", action="store_true", help="METIS halves again and again")
    balance = "measures that metis and fennel balance, as nodes=1,edges=0.5; default: nodes=1,edges=1,train=1"
    add("--balance", type=_shares, metavar="SHARES", help=balance)
    add("--seed", type=int, default=0, metavar="N", help="seed of all random choices; default: 0")
    add("--node-time-attr", metavar="NAME", help="store this time of the source node for each edge")
    layouts = "native, pyg, or native,pyg for both; default: both, or native if pyg cannot hold the graph"
    add("--layouts", choices=_CHOICES, metavar="LAYOUTS", help=layouts)
    edge_map = "store the part of each edge too; default: if edges have attributes; pyg always does"
    add("--edge-map", action=argparse.BooleanOptionalAction, help=edge_map)
    add("--png", metavar="FILE", help="draw the edges between the parts; replaces FILE, a .png")
    add("--quiet", action="store_true", help="print no progress")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Make the partition, and return its report as (text, JSON values)."""
    path, out = Path(getattr(arguments, "in")), Path(arguments.out)
    picture = None if arguments.png is None else Path(arguments.png)
    if picture is not None:
        _check_picture(picture, arguments.parts, out)
    layouts = _LAYOUTS if arguments.layouts is None else tuple(sorted(arguments.layouts.split(",")))
    with progress_of("partition", quiet=arguments.quiet) as progress:
        partitioner = functools.partial(
            Partitioner,
            open_input(path, arguments),
            arguments.parts,
            out,
            arguments.recursive,
            method=arguments.method,
            node_time_attr=arguments.node_time_attr,
            rng_seed=arguments.seed,
            balance=arguments.balance,
            edge_map=arguments.edge_map,
            progress=progress,
        )
        try:
            report = partitioner(layouts=layouts).generate_partition()
        except PygMisfit as misfit:
            if arguments.layouts is not None:
                raise
            layouts = ("native",)
            report = partitioner(layouts=layouts).generate_partition()
            report = dataclasses.replace(report, left_out=(*report.left_out, f"PyG's layout: {misfit.why}"))
    lines = [str(report), f"written to {out}: {' and '.join(layouts)} layout"]
    if picture is not None:
        _write_picture(report, picture)
        lines.append(f"drawn in {picture}")
    values = {
        "in": str(path),
        "out": str(out),
        "layouts": list(layouts),
        "png": None if picture is None else str(picture),
        "report": report.to_json(),
    }
    return "\n".join(lines), values


def _shares(text: str) -> dict[str, float]:
    """Return {measure: share} from the text of `--balance`. The Partitioner checks the shares."""
    pairs = [share.partition("=") for share in text.split(",")]
    try:
        shares = {name.strip(): float(number) for name, _, number in pairs}
    except ValueError:
        shares = {}
    if len(shares) < len(pairs) or not set(shares) <= set(EVEN):
        raise argparse.ArgumentTypeError(
            f"{one_line(text)} is not NAME=NUMBER,NAME=NUMBER,... with the names {', '.join(EVEN)}, each once"
        )
    return shares


_MOST_WRITTEN = 16  # parts; with more parts, no numbers are written in the cells of the picture
_FOR = "--png"


def _check_picture(path: Path, num_parts: int, out: Path) -> None:
    """Raise if a picture cannot be made, or would be in the folder `out`. Call it before the work begins.

    Raises:
        WrongUsage: There are too many parts, or `path` cannot be a file, does not end in .png, or is in the folder of
            the partition.
        ImportError: matplotlib is not installed.
    """
    if num_parts > MOST_MATRIX_PARTS:
        raise WrongUsage(f"--png shows up to {MOST_MATRIX_PARTS} parts, --parts is {num_parts}. Leave --png out.")
    check_output("--png", path)
    picture, folder = Path(os.path.realpath(path)), Path(os.path.realpath(out))
    if folder in (picture, *picture.parents) or picture in folder.parents:
        raise WrongUsage(
            f"--png: {path} is in the folder of the partition {out}, which may hold nothing else. Name another file."
        )
    if path.suffix.lower() != ".png":
        raise WrongUsage(f"--png: {path} must end in .png; no other kind of picture is made. Name a .png file.")
    needed("matplotlib", "viz", _FOR)


def _write_picture(report: PartitionReport, path: Path) -> None:
    """Draw the edge matrix of a report as PNG; an older file at `path` is replaced once the new file is whole."""
    figure = _figure(np.array(report.edge_matrix, dtype=np.int64), report)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        figure.savefig(partial, format="png", dpi=150)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _figure(edges: Any, report: PartitionReport) -> Any:
    """Return the picture as a Figure. pyplot is not used, since it would choose a backend for the whole process."""
    colors: Any = needed("matplotlib.colors", "viz", _FOR)
    canvas: Any = needed("matplotlib.backends.backend_agg", "viz", _FOR)
    drawing: Any = needed("matplotlib.figure", "viz", _FOR)
    ticker: Any = needed("matplotlib.ticker", "viz", _FOR)
    size = 4.5 + min(report.num_parts, 24) * 0.22
    figure = drawing.Figure(figsize=(size + 1.2, size), layout="constrained")
    canvas.FigureCanvasAgg(figure)
    axes = figure.subplots()
    present = edges[edges > 0] if edges.any() else np.ones(1)
    # The scale begins at half the least count, since white means no edges.
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
    """Return a count as a text of at most five characters, such as 12k for 12,345."""
    for unit, name in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if count >= 10 * unit:
            return f"{count // unit}{name}"
    return str(count)
