"""`datapipes partition IN OUT --parts K`: a graph or a data set in parts, with a report on them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from datapipes.cli.command import FILE, FOLDER, Commands, add_command, completes
from datapipes.cli.inputs import add_input, open_input
from datapipes.cli.picture import check_picture, write_picture
from datapipes.cli.progress import progress_of
from datapipes.partition.methods.assign import METHODS
from datapipes.partition.partitioner import Partitioner

_LAYOUTS = ("native", "pyg")
_CHOICES = (*_LAYOUTS, "native,pyg", "pyg,native")


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "partition",
        run,
        "Divide a graph into parts. OUT holds the parts and the book that says who owns which node; a partition that "
        "is there already is replaced, once the new one is whole.",
    )
    add_input(parser, "in", "a folder that graph.save wrote, or the files of a data set")
    completes(parser.add_argument("out", metavar="OUT", help="the folder to write: new, empty or a partition"), FOLDER)
    parser.add_argument("--parts", type=int, required=True, metavar="K", help="number of parts")
    parser.add_argument("--method", choices=METHODS, default="metis", help="how parts are chosen; default: metis")
    parser.add_argument("--recursive", action="store_true", help="METIS halves again and again")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is random; default: 0")
    parser.add_argument("--node-time-attr", metavar="NAME", help="store this time of the source node for each edge")
    layouts = "what to write: native, pyg, or native,pyg for both; default: both"
    parser.add_argument("--layouts", choices=_CHOICES, default="native,pyg", metavar="LAYOUTS", help=layouts)
    parser.add_argument(
        "--edge-map",
        action=argparse.BooleanOptionalAction,
        help="store the part of each edge too; default: if edges have attributes; pyg always does",
    )
    png = parser.add_argument("--png", metavar="FILE", help="draw the edges between the parts; replaces FILE, a .png")
    completes(png, FILE)
    parser.add_argument("--quiet", action="store_true", help="print no progress")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Partition, and return the report."""
    given, out = Path(getattr(arguments, "in")), Path(arguments.out)
    picture = None if arguments.png is None else Path(arguments.png)
    if picture is not None:
        check_picture(picture, arguments.parts, out)
    layouts = tuple(each for each in _LAYOUTS if each in arguments.layouts.split(","))
    data = open_input(given, arguments)
    with progress_of("partition", quiet=arguments.quiet) as progress:
        report = Partitioner(
            data,
            arguments.parts,
            out,
            arguments.recursive,
            method=arguments.method,
            node_time_attr=arguments.node_time_attr,
            rng_seed=arguments.seed,
            layouts=layouts,
            edge_map=arguments.edge_map,
            progress=progress,
        ).generate_partition()
    lines = [str(report), f"written to {out}: {' and '.join(layouts)} layout"]
    if picture is not None:
        write_picture(report, picture)
        lines.append(f"drawn in {picture}")
    values = {
        "in": str(given),
        "out": str(out),
        "layouts": list(layouts),
        "png": None if picture is None else str(picture),
        "report": report.to_json(),
    }
    return "\n".join(lines), values
