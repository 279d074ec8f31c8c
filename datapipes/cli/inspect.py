"""`datapipes inspect PATH`: what is in a saved graph, a data set or a partition."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from datapipes.cli.command import Commands, add_command
from datapipes.cli.facts import dataset_lines, facts_of_dataset, facts_of_graph, graph_lines
from datapipes.cli.inputs import add_input, is_saved_graph, open_dataset, open_graph, refuse_options
from datapipes.cli.inspect_partition import facts_of_partition, partition_lines
from datapipes.partition.layouts import layout_of

_VERIFIED = {
    "graph": "all edges were read: they are valid",
    "dataset": "all edges were read: they are valid",
    "partition": "every file was read and checked: they fit each other",
}


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "inspect",
        run,
        "Say what is in a saved graph, a data set or a partition. Nothing is changed.",
    )
    add_input(parser, "path", "a folder that graph.save wrote, the files of a data set, or a partition")
    parser.add_argument("--verify", action="store_true", help="read everything, and fail if something is wrong")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return what is at the path."""
    path = Path(arguments.path)
    if is_saved_graph(path):
        refuse_options(path, "a saved graph", arguments)
        graph = open_graph(path)
        kind, facts = "graph", facts_of_graph(graph.validate() if arguments.verify else graph)
        lines = graph_lines(facts)
    elif layouts := layout_of(path):
        refuse_options(path, "a partition", arguments)
        kind, facts = "partition", facts_of_partition(path, layouts, verify=arguments.verify)
        lines = partition_lines(facts)
    else:
        data = open_dataset(path, arguments, also="a folder that graph.save wrote, and a partition")
        if arguments.verify:
            data.graph.validate()
        kind, facts = "dataset", facts_of_dataset(data)
        lines = dataset_lines(facts)
    if arguments.verify:
        lines.append(_VERIFIED[kind])
    return "\n".join(lines), {"path": str(path), "kind": kind, "verified": arguments.verify, kind: facts}
