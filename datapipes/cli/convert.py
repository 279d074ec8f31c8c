"""`datapipes convert IN OUT`: the files of a data set as a folder that opens at once, memory-mapped."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from datapipes.base.folder import check_place, check_root, new_folder
from datapipes.cli.command import FOLDER, Commands, WrongUsage, add_command, completes
from datapipes.cli.descriptions import facts_of_graph, graph_lines
from datapipes.cli.inputs import AnyGraph, add_input, open_dataset, refuse_options
from datapipes.datasets.ondisk import convert_ondisk, is_ondisk
from datapipes.graph.saved import is_saved_graph
from datapipes.partition.source import source_of


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "convert",
        run,
        "Write a data set as a folder of memory-mapped arrays. Features, labels and the masks of its split become "
        "attributes of the graph; CSCGraph.open or HeteroCSCGraph.open reads the folder.",
    )
    add_input(parser, "in", "the files of a data set: what datapipes.datasets.open reads")
    completes(parser.add_argument("out", metavar="OUT", help="the folder to write; new or empty"), FOLDER)


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Convert, and return what was written."""
    given, out = Path(getattr(arguments, "in")), Path(os.path.realpath(arguments.out))
    if is_saved_graph(given):
        raise WrongUsage(f"{given} is a folder of a saved graph already. Open it, or give the files of a data set.")
    check_place("OUT", out)
    graph, left_out = _converted(given, out, arguments)
    facts = facts_of_graph(graph)
    lines = [f"{given} is now the graph {out}", *graph_lines(facts)]
    lines += [f"not in the graph: {each}" for each in left_out]
    return "\n".join(lines), {"in": str(given), "out": str(out), "graph": facts, "left_out": list(left_out)}


def _converted(given: Path, out: Path, arguments: argparse.Namespace) -> tuple[AnyGraph, tuple[str, ...]]:
    if is_ondisk(given):  # which may be larger than memory
        refuse_options(given, "other files", arguments)
        return convert_ondisk(given, out)
    check_root("OUT", out)
    source = source_of(open_dataset(given, arguments), where="data set")
    _write(source.graph, out)
    return source.graph, source.left_out


def _write(graph: AnyGraph, out: Path) -> None:
    with new_folder("OUT", out) as folder:
        graph.save(folder)
