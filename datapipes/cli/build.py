"""Write a graph as a folder that opens at once, memory-mapped.

`datapipes build OUT` reads edges, or tables that refer to each other, from files that may be larger than memory.
`datapipes convert IN OUT` reads the files of a data set.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapipes.base.folder import check_place, check_root, new_folder
from datapipes.base.progress import hidden
from datapipes.cli.command import Commands, WrongUsage, add_command
from datapipes.cli.descriptions import facts_of_dataset, facts_of_graph, graph_lines
from datapipes.cli.inputs import add_input, open_dataset, refuse_options
from datapipes.datasets.dataset import graph_of_edges
from datapipes.datasets.from_tables import from_tables
from datapipes.datasets.ondisk import convert_ondisk, is_ondisk
from datapipes.datasets.table_yaml import is_table_yaml, read_table_yaml
from datapipes.graph.saved import is_saved_graph
from datapipes.partition.source import source_of

# the options of a graph of edges
_OF_EDGES = ("edges", "nodes", "node_attribute", "edge_attribute", "edge_ids", "index_dtype", "max_memory")


def add_to(commands: Commands) -> None:
    """Add `datapipes build OUT`."""
    parser = add_command(
        commands,
        "build",
        run,
        "Build a graph from edges in files, which may be larger than memory. It takes at most --max-memory. After a "
        "kill, call it again to go on. CSCGraph.open or HeteroCSCGraph.open reads the folder. With --tables, build a "
        "data set of tables, of which only the ids stay in memory. datasets.open reads its folder.",
    )
    add = parser.add_argument
    add("out", metavar="OUT", help="the folder to write; new or empty")
    edges = (
        "edges: .npy [2, n] or [n, 2], pairs as .int32 or .int64, .parquet, .csv, .tsv, or a folder of these; "
        "tables also by URI, such as gs://bucket/edges.parquet; once for each edge type src:rel:dst"
    )
    add("--edges", action="append", metavar="[TYPE=]PATH", help=edges)
    add("--nodes", action="append", metavar="[TYPE=]N", help="number of nodes; once for each type")
    for kind, or_column in (("node", ""), ("edge", ", or the name of a column of the table of edges")):
        values = f"values of all {kind}s as .npy{or_column}; with types [TYPE/]NAME=PATH"
        add(f"--{kind}-attribute", action="append", metavar="NAME=PATH", help=values)
    add("--edge-ids", action="store_true", help="keep the number of each edge in the files as its id")
    add("--index-dtype", choices=("auto", "int32", "int64"), help="of the neighbors; default auto")
    add("--max-memory", metavar="BYTES", help="the most memory to take; default 4GB")
    tables = (
        "instead of the options above: a .yaml with the arguments of from_tables; a database, or a folder of tables"
    )
    add("--tables", metavar="PATH", help=tables)
    add("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Build the graph or the data set, and return its description as (text, JSON values)."""
    given = {name: value for name in _OF_EDGES if (value := getattr(arguments, name)) not in (None, False)}
    if arguments.tables is None and not {"edges", "nodes"} <= given.keys():
        raise WrongUsage(
            "a graph needs --edges and --nodes, a data set --tables. Give --edges and --nodes, or --tables."
        )
    if arguments.tables is not None and given:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise WrongUsage(
            f"{names}: only for a graph, but --tables makes a data set. Leave out either --tables or {names}."
        )
    with hidden() if arguments.quiet else contextlib.nullcontext():
        return _build_tables(arguments) if arguments.tables is not None else _build_edges(arguments, given)


def _build_tables(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    path, out = Path(arguments.tables), check_root("OUT", arguments.out)
    data = read_table_yaml(path, out) if is_table_yaml(path) else from_tables(arguments.tables, folder=out)
    return f"{out} is the data set\n{data.describe()}", {"out": str(out), "dataset": facts_of_dataset(data)}


def _build_edges(arguments: argparse.Namespace, given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    edges, nodes = (_by_type(f"--{name}", given[name]) for name in ("edges", "nodes"))
    has_types = None not in nodes
    if has_types is (None in edges):
        raise WrongUsage(
            "--edges and --nodes must both name types, or neither. Write --edges src:rel:dst=PATH --nodes src=N."
        )
    of_nodes, of_edges = (
        _attributes(f"--{kind}-attribute", given.get(f"{kind}_attribute", ()), has_types) for kind in ("node", "edge")
    )
    counts = {node_type: _number(text) for node_type, text in nodes.items()}
    out = check_place("OUT", arguments.out)  # which may already hold this very graph
    options = {name: value for name, value in given.items() if name in ("edge_ids", "index_dtype", "max_memory")}
    graph = graph_of_edges(edges, counts, of_nodes, of_edges, out, **options)
    facts = facts_of_graph(graph)
    return "\n".join([f"{out} is the graph", *graph_lines(facts)]), {"out": str(out), "graph": facts}


def _by_type(option: str, values: Sequence[str]) -> dict[Any, str]:
    """Return {type: value} of an option that was given as TYPE=VALUE for each type; {None: VALUE} of a plain VALUE."""
    by_type: dict[Any, str] = {}
    for text in values:
        name, sign, value = text.rpartition("=") if option == "--nodes" else _with_type(text)
        kind = name if sign else None
        if kind in by_type or (by_type and (kind is None or None in by_type)):
            raise WrongUsage(f"{option} {text}: give it once, or once for each type as {option} TYPE=VALUE.")
        by_type[kind] = value
    return by_type


def _with_type(text: str) -> tuple[str, str, str]:
    """Split "src:rel:dst=PATH" into (type, "=", path). A text without a type gives ("", "", text).

    A path may contain "=" too.
    """
    name, sign, path = text.partition("=")
    is_type = sign and name.count(":") == 2 and "://" not in name and not Path(text).exists()
    return (name, sign, path) if is_type else ("", "", text)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongUsage(f"--nodes must be a number of nodes, got {text!r}. Write --nodes 1000.") from None


def _attributes(option: str, values: Sequence[str], has_types: bool) -> dict[Any, dict[str, str]]:
    by_type: dict[Any, dict[str, str]] = {}
    for text in values:
        whole_name, sign, path = text.partition("=")
        kind, slash, name = whole_name.rpartition("/") if has_types else (None, "/", whole_name)
        if not sign or not slash or not name:
            form = "TYPE/NAME=PATH" if has_types else "NAME=PATH"
            raise WrongUsage(f"{option} must be {form}, got {text!r}. Write it so.")
        if name in by_type.setdefault(kind, {}):
            raise WrongUsage(f"{option} {text}: {whole_name} is given twice. Give it once.")
        by_type[kind][name] = path
    return by_type


def add_convert(commands: Commands) -> None:
    """Add `datapipes convert IN OUT`."""
    parser = add_command(
        commands,
        "convert",
        _convert,
        "Write a data set as a folder of memory-mapped arrays. Features, labels and the masks of its split become "
        "attributes of the graph; CSCGraph.open or HeteroCSCGraph.open reads the folder.",
    )
    add_input(
        parser,
        "in",
        "the files of a data set that datapipes.datasets.open reads, or a .yaml with the arguments of from_tables",
    )
    parser.add_argument("out", metavar="OUT", help="the folder to write; new or empty")


def _convert(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Convert the data set, and return a description of the graph as (text, JSON values)."""
    path, out = Path(getattr(arguments, "in")), Path(os.path.realpath(arguments.out))
    if is_saved_graph(path):
        raise WrongUsage(f"{path} is a folder of a saved graph already. Open it, or give the files of a data set.")
    check_place("OUT", out)
    if is_ondisk(path):  # such a data set may be larger than memory
        refuse_options(path, "other files", arguments)
        graph, left_out = convert_ondisk(path, out)
    elif is_table_yaml(path):
        refuse_options(path, "tables", arguments)
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            data = read_table_yaml(path, Path(folder) / "data")
            graph, left_out = convert_ondisk(Path(folder) / "data", out)
        left_out = (*(f"{'.'.join(key)}: {text}" for key, text in data.left_out.items()), *left_out)
    else:
        check_root("OUT", out)
        source = source_of(open_dataset(path, arguments), where="data set")
        graph, left_out = source.graph, source.left_out
        with new_folder("OUT", out) as folder:
            graph.save(folder)
    facts = facts_of_graph(graph)
    lines = [f"{path} is now the graph {out}", *graph_lines(facts)]
    lines += [f"not in the graph: {name}" for name in left_out]
    return "\n".join(lines), {"in": str(path), "out": str(out), "graph": facts, "left_out": list(left_out)}
