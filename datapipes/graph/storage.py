"""Write and read a graph as a folder with the files arrays.npy (see arena.py) and graph.json.

arrays.npy has the arrays. graph.json is written last, and says where each array begins. A graph without types has the
one node type null and the one edge type null.

The reader trusts no file: it unpickles nothing, and checks the size of every array against graph.json before it maps or
reads the array. It refuses truncated, corrupt and irregular files; the error names the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from datapipes.base.checks import shown
from datapipes.base.files import read_regular, write_text
from datapipes.base.records import Count, Form, OptionalNodeType, edge_type_of, from_json, to_json
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import EdgeType
from datapipes.graph.arena import (
    ARRAYS,
    MOST_HEADER_BYTES,
    Arena,
    Array,
    Entry,
    Place,
    by_place,
    header_text,
    part_of,
    planned,
    read_arena,
    refuse_other_format,
    valid_header,
    write_arena,
)
from datapipes.graph.arrays import GraphArrays, array_name, written_digest

FORMAT = "datapipes-csc-graph"
HETERO_FORMAT = "datapipes-hetero-csc-graph"
CLASSES = {FORMAT: "CSCGraph", HETERO_FORMAT: "HeteroCSCGraph"}  # {format: the class that opens it}
_VERSIONS = {FORMAT: 2, HETERO_FORMAT: 1}
HEADER = "graph.json"
_REMEDY = "Save the graph again."
_OF_EDGES = ("indptr", "indices", "edge_ids", "edge_attributes")  # kinds of arrays


_EDGE_TYPE = Form(
    lambda _, value: edge_type_of(None if value == [None] * 3 else value),
    lambda value: [None] * 3 if value is None else value,
    width=3,
)


@dataclass(frozen=True)
class Types:
    """The counts in graph.json: {node type: number of nodes} and {edge type: number of edges}."""

    node_types: Mapping[OptionalNodeType, Count]
    edge_types: Mapping[Annotated[EdgeType | None, _EDGE_TYPE], Count]


def save(arrays: GraphArrays, folder: Path) -> None:
    """Write the arrays of a graph to `folder`; see LocalGraph.save."""
    written = FORMAT if None in arrays.num_nodes else HETERO_FORMAT
    where = f"{CLASSES[written]}.save"
    if (folder / HEADER).exists():
        raise FileExistsError(f"{where}: {folder} holds a graph already; it is not overwritten. Choose another folder.")
    numbers = {type_: number for types in (arrays.relations, arrays.num_nodes) for number, type_ in enumerate(types)}
    listed = [
        Array((kind, numbers[type_], name), values.dtype, values.shape, [values], written_digest(kind, values))
        for kind, type_, name, values in arrays.each()
    ]
    arena = planned(listed)
    num_edges = {edge_type: indices.shape[0] for edge_type, (_, indices) in arrays.relations.items()}
    text = header_of(written, arrays.num_nodes, num_edges, arena)
    folder.mkdir(parents=True, exist_ok=True)
    write_arena(folder / ARRAYS, arena, [array.pieces for array in listed])
    write_text(folder / HEADER, text)  # last: a folder without a header is no graph, so half a graph is never opened


def header_of(
    written: str,
    num_nodes: Mapping[Any, int],
    num_edges: Mapping[Any, int],
    arena: Arena,
    edges: str | None = None,
) -> str:
    """Return the text of graph.json.

    Args:
        written: the format: FORMAT for a CSCGraph, HETERO_FORMAT for a HeteroCSCGraph.
        num_nodes, num_edges: {type: number}.
        arena: the list of the arrays in arrays.npy.
        edges: a digest of the arguments and source files of `build`, which `built_of` reads; None: not by `build`.
    """
    fields = {"format": written, "version": _VERSIONS[written], **to_json(Types(num_nodes, num_edges))}
    if edges is not None:
        fields["built_of"] = edges
    return header_text(f"{CLASSES[written]}.save", HEADER, fields, arena)


def built_of(folder: Path) -> str | None:
    """Return the digest of what the graph in a folder was built from, which `build` stores; None if there is none."""
    named = header_in(folder).get("built_of")
    return named if isinstance(named, str) else None


def header_in(folder: Path) -> dict[str, Any]:
    """Return graph.json of a folder, parsed and unchecked; {} if the file is missing or no JSON object."""
    header: Any = None
    with contextlib.suppress(OSError, ValueError):  # `load` raises the proper error
        header = parse_strict(read_regular(folder / HEADER, MOST_HEADER_BYTES).decode("utf-8"))
    return header if isinstance(header, dict) else {}


def load(folder: Path, wanted: str, mmap: bool) -> tuple[GraphArrays, Types]:
    """Read the graph in a folder for LocalGraph.open; return (arrays, types). The format must be `wanted`."""
    where, path = f"{CLASSES[wanted]}.open", folder / HEADER
    header = _read_header(where, folder, wanted)
    with valid_header(where, path, _REMEDY):
        refuse_other_format(header, wanted, _VERSIONS[wanted])
        types = from_json(Types, HEADER, header, others=True)
        arena = from_json(Arena, HEADER, header, others=True)
        nodes, edges = [*types.node_types], [*types.edge_types]
        if ((nodes, edges) == ([None], [None])) != (wanted == FORMAT):
            raise ValueError(
                f"the node types are {shown(nodes)} and the edge types {shown(edges)}; a CSCGraph has [None] and "
                "[None], a HeteroCSCGraph has names"
            )
        counts = dict.fromkeys(_OF_EDGES, len(edges)) | {"node_attributes": len(nodes)}
        entries: dict[Place, Entry] = by_place(arena.arrays, counts)
        for number, edge_type in enumerate(edges):
            for kind in ("indptr", "indices"):
                if (kind, number, "") not in entries:
                    raise ValueError(f"it names no {array_name(kind, edge_type)}")
    file = folder / ARRAYS
    whole = read_arena(where, file, arena.num_bytes, mmap)
    tensors = {place: part_of(where, file, whole, entry) for place, entry in entries.items()}
    named = {
        (kind, (nodes if kind == "node_attributes" else edges)[number], name): place
        for place in entries
        for kind, number, name in [place]
    }
    arrays = GraphArrays.of(types.node_types, edges, {key: tensors[place] for key, place in named.items()})
    digests = {array_name(*key): entries[place].digest for key, place in named.items()}
    return arrays._replace(digests={name: digest for name, digest in digests.items() if digest is not None}), types


def _read_header(where: str, folder: Path, wanted: str) -> dict[str, Any]:
    """Return graph.json of a folder, parsed; its fields are not checked yet.

    Raises:
        FileNotFoundError: The folder has no graph.json.
        ValueError: The file is corrupt, or the graph is of the other class than `wanted`.
    """
    path = folder / HEADER
    if not path.exists():
        raise FileNotFoundError(
            f"{where}: {path} does not exist; {folder} must be a folder written by save(). Check the path."
        )
    with valid_header(where, path, _REMEDY):
        header: dict[str, Any] = parse_strict(read_regular(path, MOST_HEADER_BYTES).decode("utf-8"))
        form = header["format"]
    if isinstance(form, str) and form in CLASSES and form != wanted:
        raise ValueError(
            f"{where}: {folder} holds a graph of the class {CLASSES[form]}; {CLASSES[wanted]} reads its own only. "
            f"Use {CLASSES[form]}.open."
        )
    return header
