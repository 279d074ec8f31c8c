"""`datapipes build OUT`: a graph of edges in files, which may be larger than memory, as a folder that opens at once."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from datapipes.base.folder import check_place
from datapipes.base.progress import hidden
from datapipes.cli.command import FOLDER, Commands, WrongUsage, add_command, completes
from datapipes.cli.descriptions import facts_of_graph, graph_lines
from datapipes.cli.inputs import AnyGraph
from datapipes.graph import CSCGraph, HeteroCSCGraph

_OF_TYPE = "with types [TYPE/]NAME=PATH"


def add_to(commands: Commands) -> None:
    """Add the command."""
    parser = add_command(
        commands,
        "build",
        run,
        "Build a graph of edges in files, larger than memory if need be. It takes as much memory as --max-memory says, "
        "and goes on after a kill if it is called again. CSCGraph.open or HeteroCSCGraph.open reads the folder.",
    )
    completes(parser.add_argument("out", metavar="OUT", help="the folder to write; new or empty"), FOLDER)
    parser.add_argument(
        "--edges",
        action="append",
        required=True,
        metavar="[TYPE=]PATH",
        help="edges: .npy [2, n] or [n, 2], pairs as .int32 or .int64, .parquet, .csv, .tsv, or a folder of such; "
        "tables also by URI, such as gs://bucket/edges.parquet; for each edge type src:rel:dst once",
    )
    parser.add_argument(
        "--nodes", action="append", required=True, metavar="[TYPE=]N", help="number of nodes, of each type once"
    )
    for kind in ("node", "edge"):
        parser.add_argument(
            f"--{kind}-attribute",
            action="append",
            default=[],
            metavar="NAME=PATH",
            help=f"values of all {kind}s as .npy"
            + (", or the name of a column of the table of edges" if kind == "edge" else "")
            + f"; {_OF_TYPE}",
        )
    parser.add_argument("--edge-ids", action="store_true", help="keep the number of each edge in the files as its id")
    parser.add_argument("--index-dtype", default="auto", choices=("auto", "int32", "int64"), help="of the neighbors")
    parser.add_argument("--max-memory", default="4GB", metavar="BYTES", help="what it may take; default 4GB")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Build, and return what was written."""
    edges, nodes = (_by_type(f"--{name}", getattr(arguments, name)) for name in ("edges", "nodes"))
    has_types = None not in nodes
    if has_types is (None in edges):
        raise WrongUsage(
            "--edges and --nodes must both name types, or neither. Write --edges src:rel:dst=PATH --nodes src=N."
        )
    attributes: dict[str, Any] = {
        f"{kind}_attributes": _attributes(f"--{kind}-attribute", getattr(arguments, f"{kind}_attribute"), has_types)
        for kind in ("node", "edge")
    }
    counts = {of: _number(text) for of, text in nodes.items()}
    out = check_place("OUT", arguments.out)  # it may hold this very graph
    options = {name: getattr(arguments, name) for name in ("edge_ids", "index_dtype", "max_memory")}
    graph: AnyGraph
    with hidden() if arguments.quiet else contextlib.nullcontext():
        if has_types:
            graph = HeteroCSCGraph.build(edges, out, counts, **attributes, **options)
        else:
            of_one: dict[str, Any] = {kind: given.get(None) for kind, given in attributes.items()}
            graph = CSCGraph.build(edges[None], out, counts[None], **of_one, **options)
    facts = facts_of_graph(graph)
    return "\n".join([f"{out} is the graph", *graph_lines(facts)]), {"out": str(out), "graph": facts}


def _by_type(option: str, given: Sequence[str]) -> dict[Any, str]:
    """Return {type or None: value} of an option that is given once for each type."""
    found: dict[Any, str] = {}
    for text in given:
        of, sign, value = text.rpartition("=") if option == "--nodes" else _with_type(text)
        key = of if sign else None
        if key in found or (found and (key is None or None in found)):
            raise WrongUsage(f"{option} {text}: give it once, or once for each type as {option} TYPE=VALUE.")
        found[key] = value
    return found


def _with_type(text: str) -> tuple[str, str, str]:
    """Cut "src:rel:dst=PATH"; a path or a URI alone may hold the sign too."""
    of, sign, path = text.partition("=")
    is_type = sign and of.count(":") == 2 and "://" not in of and not Path(text).exists()
    return (of, sign, path) if is_type else ("", "", text)


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise WrongUsage(f"--nodes must be a number of nodes, got {text!r}. Write --nodes 1000.") from None


def _attributes(option: str, given: Sequence[str], has_types: bool) -> dict[Any, dict[str, str]]:
    found: dict[Any, dict[str, str]] = {}
    for text in given:
        name, sign, path = text.partition("=")
        of, slash, own = name.rpartition("/") if has_types else (None, "/", name)
        if not sign or not slash or not own:
            form = "TYPE/NAME=PATH" if has_types else "NAME=PATH"
            raise WrongUsage(f"{option} must be {form}, got {text!r}. Write it so.")
        if own in found.setdefault(of, {}):
            raise WrongUsage(f"{option} {text}: {name} is given twice. Give it once.")
        found[of][own] = path
    return found
