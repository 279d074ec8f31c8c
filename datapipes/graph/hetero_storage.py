"""Write and read a HeteroCSCGraph as a folder: all arrays in one file, arrays.npy, and graph.json, written last.

A graph of a hundred relations has hundreds of arrays. arena.py keeps them in one file; graph.json says where in it each
array lies. The reader trusts neither file, see storage.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from datapipes.base.checks import check_int, shown
from datapipes.base.types import EdgeType, check_edge_type, check_node_type
from datapipes.graph import storage
from datapipes.graph.arena import ARRAYS, ArenaWriter, Form, part_of, planned, read_arena, read_form, refuse_overlaps
from datapipes.graph.arrays import HeteroArrays
from datapipes.graph.graph_digest import array_name, written_digest
from datapipes.graph.storage import HEADER

_OPEN = "HeteroCSCGraph.open"
_OF_EDGES = ("indptr", "indices", "edge_ids", "edge_attributes")


def save(arrays: HeteroArrays, folder: Path) -> None:
    """See HeteroCSCGraph.save."""
    where = "HeteroCSCGraph.save"
    storage.refuse_a_graph(where, folder)
    listed = _listed(arrays)
    forms = [*planned((tensor.dtype, tensor.shape) for *_, tensor in listed)]
    entries = [
        {"kind": kind, "type": number, "name": name, **form.described(), "digest": written_digest(kind, tensor)}
        for (kind, number, name, tensor), form in zip(listed, forms, strict=True)
    ]
    header = {
        "format": storage.HETERO_FORMAT,
        "version": storage.VERSION,
        "node_types": [[kind, count] for kind, count in arrays.num_nodes.items()],
        "edge_types": [[*key, indices.shape[0]] for key, (_, indices) in arrays.relations.items()],
        "num_bytes": forms[-1].end if forms else 0,
        "arrays": entries,
    }
    text = storage.header_text(where, header)
    folder.mkdir(parents=True, exist_ok=True)
    with ArenaWriter(folder / ARRAYS, forms) as arena:
        for *_, tensor in listed:
            arena.write([tensor])
    storage.write_header(folder, text)


def _listed(arrays: HeteroArrays) -> list[tuple[str, int, str, Tensor]]:
    """Return kind, number of the node or edge type, name and values of each array."""
    listed: list[tuple[str, int, str, Tensor]] = []
    for number, (key, (indptr, indices)) in enumerate(arrays.relations.items()):
        listed += [("indptr", number, "", indptr), ("indices", number, "", indices)]
        if key in arrays.edge_ids:
            listed.append(("edge_ids", number, "", arrays.edge_ids[key]))
        listed += [("edge_attributes", number, name, value) for name, value in arrays.edge_attributes[key].items()]
    for number, kind in enumerate(arrays.num_nodes):
        listed += [("node_attributes", number, name, value) for name, value in arrays.node_attributes[kind].items()]
    return listed


class _Entry(NamedTuple):
    """What graph.json says of one array; `of` is its node type or edge type."""

    kind: str
    of: Any
    name: str
    form: Form
    digest: str | None


def load(folder: Path, mmap: bool) -> tuple[HeteroArrays, dict[EdgeType, int]]:
    """Return the arrays in a folder, and how many edges graph.json promises; see HeteroCSCGraph.open."""
    path = folder / HEADER
    with storage.valid_header(_OPEN, path):
        header = storage.read_header(_OPEN, folder, storage.HETERO_FORMAT)
        num_nodes, num_edges = _node_types(header["node_types"]), _edge_types(header["edge_types"])
        num_bytes = check_int(HEADER, "num_bytes", header["num_bytes"], 0)
        types: dict[str, list[Any]] = {"edge": list(num_edges), "node": list(num_nodes)}
        entries = [_entry(entry, types, num_bytes) for entry in header["arrays"]]
        storage.refuse_repeats(("array", [entry[:3] for entry in entries]))
        refuse_overlaps(entry.form for entry in entries)
        named = {entry[:2] for entry in entries}
        missing = [(kind, key) for key in num_edges for kind in ("indptr", "indices") if (kind, key) not in named]
        if missing:
            raise ValueError(f"it names no {missing[0][0]} of {shown(missing[0][1])}")
    whole = read_arena(_OPEN, folder / ARRAYS, num_bytes, mmap)
    arrays = HeteroArrays({}, num_nodes, {}, {kind: {} for kind in num_nodes}, {key: {} for key in num_edges})
    return _filled(arrays, entries, whole, folder / ARRAYS), num_edges


def _node_types(given: Any) -> dict[str, int]:
    pairs = [(check_node_type(HEADER, kind), check_int(HEADER, "num_nodes", count, 0)) for kind, count in given]
    storage.refuse_repeats(("node type", [kind for kind, _ in pairs]))
    return dict(pairs)


def _edge_types(given: Any) -> dict[EdgeType, int]:
    pairs = [(check_edge_type(HEADER, (*key,)), check_int(HEADER, "num_edges", count, 0)) for *key, count in given]
    storage.refuse_repeats(("edge type", [key for key, _ in pairs]))
    return dict(pairs)


def _entry(entry: Any, types: dict[str, list[Any]], num_bytes: int) -> _Entry:
    kind, name = entry["kind"], entry["name"]
    if kind not in (*_OF_EDGES, "node_attributes") or not isinstance(name, str):
        raise ValueError(f"unknown array {shown(kind)} {shown(name)}")
    of = types["edge" if kind in _OF_EDGES else "node"]
    number = check_int(HEADER, "the number of a type", entry["type"], 0, len(of) - 1)
    form = read_form(entry, num_bytes, f"{shown(kind)} {shown(name)}", HEADER)
    return _Entry(kind, of[number], name if kind.endswith("attributes") else "", form, storage.read_digest(entry))


def _filled(arrays: HeteroArrays, entries: list[_Entry], whole: Tensor, path: Path) -> HeteroArrays:
    """Return `arrays` with the parts of `whole` that the entries name."""
    found: dict[tuple[str, Any], Tensor] = {}
    edge_ids: dict[EdgeType, Tensor] = {}
    for entry in entries:
        part = part_of(_OPEN, path, whole, entry.form)
        if entry.kind == "node_attributes":
            arrays.node_attributes[entry.of][entry.name] = part  # type: ignore[index]  # made by `load`
        elif entry.kind == "edge_attributes":
            arrays.edge_attributes[entry.of][entry.name] = part  # type: ignore[index]
        elif entry.kind == "edge_ids":
            edge_ids[entry.of] = part
        else:
            found[entry.kind, entry.of] = part
    relations = {key: (found["indptr", key], found["indices", key]) for key in arrays.edge_attributes}
    given = {array_name(entry.kind, entry.of, entry.name): entry.digest for entry in entries}
    return arrays._replace(
        relations=relations, edge_ids=edge_ids, digests=storage.digests_of(_OPEN, path.parent, given)
    )
