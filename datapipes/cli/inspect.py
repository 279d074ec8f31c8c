"""`datapipes inspect PATH`: describe a saved graph, a data set or a partition."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch

from datapipes.base.checks import one_line
from datapipes.base.types import ends_of
from datapipes.cli.command import Commands, add_command
from datapipes.cli.descriptions import facts_of_dataset, facts_of_graph, graph_lines
from datapipes.cli.inputs import add_input, open_dataset, refuse_options
from datapipes.graph.saved import is_saved_graph, open_graph
from datapipes.partition.book import IdMap, PartitionBook
from datapipes.partition.layouts import layout_of
from datapipes.partition.native.manifest import read_manifest
from datapipes.partition.native.native_book import open_book
from datapipes.partition.native.part import Part
from datapipes.partition.partition_report import (
    MOST_MATRIX_PARTS,
    PartitionReport,
    refuse_contradictions,
    refuse_other_part,
    refuse_other_report,
)
from datapipes.partition.pyg.pyg_read import PygFolder

_VERIFIED = {
    "graph": "all edges were read: they are valid",
    "dataset": "all edges were read: they are valid",
    "partition": "every file was read and checked: they fit each other",
}


def add_to(commands: Commands) -> None:
    """Add `datapipes inspect PATH` to the commands."""
    parser = add_command(
        commands,
        "inspect",
        run,
        "Describe a saved graph, a data set or a partition. Nothing is changed, except that the first look at a folder "
        "of tables or with metadata.yaml builds the graph, in preprocessed_datapipes/ there.",
    )
    add_input(parser, "path", "a folder that graph.save wrote, the files of a data set, or a partition")
    parser.add_argument("--verify", action="store_true", help="read everything, and fail if something is wrong")


def run(arguments: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """Return a description of the graph, data set or partition at the path, as (text, JSON values)."""
    path = Path(arguments.path)
    if is_saved_graph(path):
        refuse_options(path, "a saved graph", arguments)
        graph = open_graph(path)
        kind, facts = "graph", facts_of_graph(graph.validate() if arguments.verify else graph)
        lines = graph_lines(facts)
    elif layouts := layout_of(path):
        refuse_options(path, "a partition", arguments)
        kind, facts = "partition", facts_of_partition(path, layouts, verify=arguments.verify)
        lines = _partition_lines(facts)
    else:
        data = open_dataset(path, arguments, also="a folder that graph.save wrote, and a partition")
        if arguments.verify:
            data.graph.validate()
        kind, facts = "dataset", facts_of_dataset(data)
        lines = [*data.describe().splitlines(), *graph_lines(facts["graph"])]
    if arguments.verify:
        lines.append(_VERIFIED[kind])
    return "\n".join(lines), {"path": str(path), "kind": kind, "verified": arguments.verify, kind: facts}


_WHERE = "inspect"
_IDENTITY = ("fingerprint", "partition_id", "content_id")


def facts_of_partition(root: Path, layouts: set[str], *, verify: bool) -> dict[str, Any]:
    """Return a description of a partition, as JSON values. With `verify`, read and check all files.

    "report" is the report that the native layout stores. If none is stored, a report is made from PyG's layout, but
    only with `verify`, since this reads all edges. Else "report" is None.

    Raises:
        FileNotFoundError, ValueError: A file is missing or wrong; or, with `verify`, the layouts disagree.
    """
    native = _native(root, verify=verify) if "native" in layouts else None
    facts, book = native or ({}, None)
    if "pyg" in layouts and (verify or book is None):
        folder = PygFolder(root)
        if book is not None:
            _refuse_other_book(root, book, folder.book)
        report = _report_of(folder) if verify else None
        if facts and facts["report"] is None and report is not None:
            facts["report"] = report.to_json()  # old partitions have no report
        facts = facts or {
            **dict.fromkeys(_IDENTITY),
            "num_parts": folder.book.num_parts,
            "node_types": [[kind, folder.book.nodes(kind).num_ids] for kind in folder.meta.node_types],
            "edge_types": [[kind, folder.book.edges(kind).num_ids] for kind in folder.meta.edge_types],
            "node_time_attr": None,
            "report": None if report is None else report.to_json(),
        }
    sizes = [os.lstat(os.path.join(base, file)).st_size for base, _, files in os.walk(root) for file in files]
    return {"layouts": sorted(layouts), "bytes": sum(sizes), **facts}


def _partition_lines(facts: dict[str, Any]) -> list[str]:
    """Return the result of `facts_of_partition` as lines of text, with unprintable characters escaped."""
    lines = [f"a partition in {' and '.join(facts['layouts'])} layout, {_size_text(facts['bytes'])}"]
    if facts["fingerprint"] is not None:
        lines.append(one_line(f"graph {facts['fingerprint']}, partition {facts['partition_id']}"))
    if facts["node_time_attr"] is not None:
        lines.append(f"each edge has the {facts['node_time_attr']!r} of its source")
    if facts["report"] is not None:
        return lines + str(PartitionReport.from_json(facts["report"])).split("\n")
    nodes, edges = (sum(count for _, count in facts[types]) for types in ("node_types", "edge_types"))
    return [*lines, f"{facts['num_parts']} parts of {nodes} nodes and {edges} edges; --verify counts what is cut"]


def _native(root: Path, *, verify: bool) -> tuple[dict[str, Any], PartitionBook]:
    manifest = read_manifest(_WHERE, root)
    book = open_book(root, verify=verify)
    identity, stored = manifest.identity, manifest.about.get("report")
    report, where = None, f"{_WHERE}: {manifest.path}"
    if stored is not None:
        report = PartitionReport.from_json(stored)
        refuse_contradictions(where, report)
        refuse_other_report(where, report, identity.num_parts, identity.num_nodes, identity.num_edges)
    for number in range(book.num_parts) if verify else ():
        part = Part.open(root, number, book=book)
        if report is not None:
            nodes = {kind: int(part.node_ids(kind).shape[0]) for kind in part.node_types}
            edges = sum(part.relation(kind).num_edges for kind in part.edge_types)
            refuse_other_part(where, report, number, nodes, edges)
    return {
        **{name: getattr(identity, name) for name in _IDENTITY},
        "num_parts": identity.num_parts,
        "node_types": [*map(list, identity.num_nodes.items())],
        "edge_types": [*map(list, identity.num_edges.items())],
        "node_time_attr": manifest.node_time_attr,
        "report": None if report is None else report.to_json(),
    }, book


def _refuse_other_book(root: Path, native: PartitionBook, pyg: PartitionBook) -> None:
    if native.num_parts != pyg.num_parts:
        raise ValueError(
            f"{_WHERE}: the native layout in {root} has {native.num_parts} parts (partition.json), PyG's has "
            f"{pyg.num_parts} (META.json); both must be of one partition. Make the partition again."
        )
    same = native.node_types == pyg.node_types
    if not same or not all(torch.equal(native.nodes(kind).dense(), pyg.nodes(kind).dense()) for kind in pyg.node_types):
        raise ValueError(
            f"{_WHERE}: the two layouts in {root} give nodes to different parts; they are of two partitions. Make the "
            "partition again."
        )


def _report_of(folder: PygFolder) -> PartitionReport:
    """Compute and return the report of a partition in PyG's layout. Reads every part."""
    book, meta = folder.book, folder.meta
    parts = range(book.num_parts)
    matrix = torch.zeros(book.num_parts, book.num_parts, dtype=torch.int64)
    halos, cut = [], dict.fromkeys(meta.edge_types, 0)
    for part in parts:
        folder.node_features(part), folder.edge_features(part)
        seen = {kind: torch.zeros(book.nodes(kind).num_ids, dtype=torch.bool) for kind in meta.node_types}
        for edge_type, edges in folder.edges(part).items():
            source = ends_of(edge_type)[0]
            of_sources = book.nodes(source).part_of(edges.row)
            matrix[part] += torch.bincount(of_sources, minlength=book.num_parts)
            remote = edges.row[of_sources != part]
            seen[source][remote] = True
            cut[edge_type] += int(remote.shape[0])
        halos.append(sum(int(nodes.sum()) for nodes in seen.values()))
    return PartitionReport(
        num_parts=book.num_parts,
        nodes_by_type={kind: _counts(book.nodes(kind)) for kind in meta.node_types},
        training_nodes=None,
        edges=tuple(matrix.sum(1).tolist()),
        halo_nodes=tuple(halos),
        edges_by_type={kind: (book.edges(kind).num_ids, cut[kind]) for kind in meta.edge_types},
        edge_matrix=tuple(map(tuple, matrix.tolist())) if book.num_parts <= MOST_MATRIX_PARTS else None,
    )


def _size_text(num_bytes: int) -> str:
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.1f} {name}"
    return f"{num_bytes / 1024:.1f} KiB"


def _counts(ids: IdMap) -> tuple[int, ...]:
    return tuple(map(ids.count_of, range(ids.num_parts)))
