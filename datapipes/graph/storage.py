"""Write and read a graph as a folder: arrays, and graph.json, written last, that names them.

A CSCGraph has a .npy file for each array. A HeteroCSCGraph of a hundred relations has hundreds of arrays: arena.py
keeps them in one file, arrays.npy, and graph.json says where in it each array lies.

The reader trusts no file: it unpickles nothing, and checks the size of every array against graph.json before it maps or
reads it. It refuses a truncated or corrupt file by name, and whatever is no regular file.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import check_int, dtype_from_name, dtype_name, shown
from datapipes.base.files import open_regular, read_regular
from datapipes.base.log import logger
from datapipes.base.sizes import check_memory
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import EdgeType, check_edge_type, check_node_type
from datapipes.graph.arena import ARRAYS, ArenaWriter, Form, part_of, planned, read_arena, read_form, refuse_overlaps
from datapipes.graph.arrays import CSCArrays, HeteroArrays
from datapipes.graph.graph_digest import array_name, written_digest
from datapipes.graph.npy import check_shape, read_array, readable, refuse_repeats, to_numpy

FORMAT = "datapipes-csc-graph"
HETERO_FORMAT = "datapipes-hetero-csc-graph"
_CLASSES = {FORMAT: "CSCGraph", HETERO_FORMAT: "HeteroCSCGraph"}  # what opens each
_VERSION = 1
HEADER = "graph.json"
MOST_HEADER_BYTES = 2**21  # of graph.json, 10,000 arrays or more; parsed, a hostile one takes 30 times as much memory
_DIGEST = re.compile("[0-9a-f]{32}")
_OF_EDGES = ("indptr", "indices", "edge_ids", "edge_attributes")  # kinds of arrays


def save(arrays: CSCArrays, folder: Path) -> None:
    """See CSCGraph.save."""
    _refuse_a_graph("CSCGraph.save", folder)
    named: list[tuple[str, str, Tensor]] = [("indptr", "", arrays.indptr), ("indices", "", arrays.indices)]
    if arrays.edge_ids is not None:
        named.append(("edge_ids", "", arrays.edge_ids))
    named += [("node_attributes", name, value) for name, value in (arrays.node_attributes or {}).items()]
    named += [("edge_attributes", name, value) for name, value in (arrays.edge_attributes or {}).items()]
    # The files have numbers, since an attribute name may hold characters that a file name may not.
    files = [f"{kind}-{number}.npy" if name else f"{kind}.npy" for number, (kind, name, _) in enumerate(named)]
    header = {
        "format": FORMAT,
        "version": _VERSION,
        "num_nodes": arrays.indptr.shape[0] - 1,
        "num_edges": arrays.indices.shape[0],
        "arrays": [
            {
                "kind": kind,
                "name": name,
                "file": file,
                "dtype": dtype_name(tensor.dtype),
                "shape": list(tensor.shape),
                "digest": written_digest(kind, tensor),
            }
            for (kind, name, tensor), file in zip(named, files, strict=True)
        ],
    }
    text = _header_text("CSCGraph.save", header, indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    for (_, _, tensor), file in zip(named, files, strict=True):
        np.save(folder / file, to_numpy(tensor), allow_pickle=False)
    _write_header(folder, text)


def _refuse_a_graph(where: str, folder: Path) -> None:
    """Raise FileExistsError if the folder holds a graph already."""
    if (folder / HEADER).exists():
        raise FileExistsError(f"{where}: {folder} holds a graph already; it is not overwritten. Choose another folder.")


def _header_text(where: str, header: dict[str, Any], indent: int | None = None) -> str:
    """Return the text of graph.json; refuse one that would not be opened."""
    text = json.dumps(header, indent=indent)
    if len(text) > MOST_HEADER_BYTES:
        raise ValueError(
            f"{where}: the names and shapes of {len(header['arrays'])} arrays take {len(text)} bytes in {HEADER}; at "
            f"most {MOST_HEADER_BYTES} are allowed. Use fewer attributes, or shorter names."
        )
    return text


def _write_header(folder: Path, text: str) -> None:
    """Write graph.json last: a folder without a header is no graph, so an interrupted save is never opened."""
    temporary = folder / f"{HEADER}.tmp"
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, folder / HEADER)


class _Entry(NamedTuple):
    """What graph.json says of one array."""

    kind: str
    name: str
    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    digest: str | None


def load(folder: Path, mmap: bool) -> tuple[CSCArrays, tuple[int, int]]:
    """Return the arrays in a folder, and how many nodes and edges graph.json promises; see CSCGraph.open."""
    path = folder / HEADER
    with _valid_header("CSCGraph.open", path):
        header = _read_header("CSCGraph.open", folder, FORMAT)
        entries = [_entry(entry) for entry in header["arrays"]]
        refuse_repeats(("array", [entry[:2] for entry in entries]), ("file", [entry.file for entry in entries]))
        promised = tuple(check_int(HEADER, name, header[name], 0) for name in ("num_nodes", "num_edges"))
    if not mmap:
        num_bytes = sum(_size_of(folder / entry.file) for entry in entries)
        check_memory("CSCGraph.open", f"the arrays in {folder} with mmap=False", num_bytes, "Open it with mmap=True.")
    tensors = {(entry.kind, entry.name): _read(folder / entry.file, entry, mmap) for entry in entries}
    single = {kind: tensor for (kind, name), tensor in tensors.items() if not kind.endswith("attributes")}
    missing = [kind for kind in ("indptr", "indices") if kind not in single]
    if missing:
        raise ValueError(
            f"CSCGraph.open: {path} names no {missing}; both indptr and indices are needed. Save the graph again."
        )
    nodes, edges = (
        {name: tensor for (kind, name), tensor in tensors.items() if kind == wanted}
        for wanted in ("node_attributes", "edge_attributes")
    )
    given = {array_name(entry.kind, None, entry.name): entry.digest for entry in entries}
    digests = _digests_of("CSCGraph.open", folder, given)
    arrays = CSCArrays(single["indptr"], single["indices"], single.get("edge_ids"), nodes, edges, digests)
    return arrays, (promised[0], promised[1])


@contextmanager
def _valid_header(where: str, path: Path) -> Iterator[None]:
    """Turn what a corrupt header may raise into one error; what says more already is left as it is."""
    try:
        yield
    except _OtherFormat as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: {path} is not a valid header: {shown(error)}. Save the graph again.") from error


class _OtherFormat(ValueError):
    """The header is that of the other kind of graph."""


def _read_header(where: str, folder: Path, wanted: str) -> dict[str, Any]:
    """Return graph.json, parsed, of the format `wanted`; its entries are not checked yet. Inside `_valid_header`."""
    path = folder / HEADER
    if not path.exists():
        raise FileNotFoundError(
            f"{where}: {path} does not exist; {folder} must be a folder written by save(). Check the path."
        )
    text = read_regular(path, MOST_HEADER_BYTES).decode("utf-8")
    header: dict[str, Any] = parse_strict(text)
    found, version = header["format"], header["version"]
    if found != wanted and isinstance(found, str) and found in _CLASSES:
        raise _OtherFormat(
            f"{where}: {folder} holds a graph of the class {_CLASSES[found]}; {_CLASSES[wanted]} reads its own only. "
            f"Use {_CLASSES[found]}.open."
        )
    if found != wanted or version != _VERSION:
        raise ValueError(f"format {shown(found)} version {shown(version)}, allowed {wanted!r} version {_VERSION}")
    return header


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0  # what is wrong is said when it is opened


def _entry(entry: Any) -> _Entry:
    kind, name = _kind_and_name(entry)
    file, shape = entry["file"], entry["shape"]
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(".npy"):
        raise ValueError(f"file {shown(file)} is not the name of a .npy file in the folder")
    return _Entry(
        kind, name, file, dtype_from_name(HEADER, entry["dtype"]), check_shape(shape, HEADER), _read_digest(entry)
    )


def _kind_and_name(entry: Any) -> tuple[str, str]:
    """Return what an entry of graph.json says its array is; arrays that are no attributes have the name ""."""
    kind, name = entry["kind"], entry["name"]
    if kind not in (*_OF_EDGES, "node_attributes") or not isinstance(name, str):
        raise ValueError(f"unknown array {shown(kind)} {shown(name)}")
    return kind, name if kind.endswith("attributes") else ""


def _read_digest(entry: Any) -> str | None:
    """Return the digest that an entry of graph.json has; None if it was written before there were any."""
    digest = entry.get("digest")
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise ValueError(f"digest {shown(digest)} is not 32 hexadecimal digits")
    return digest


def _digests_of(where: str, folder: Path, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the digests of the arrays that have one; log it if some have none."""
    if None in given.values():
        logger.info(
            "%s: %s was saved without digests of its arrays, so they are hashed anew when a state needs them. Save the "
            "graph again to keep them.",
            where,
            folder,
        )
    return {name: digest for name, digest in given.items() if digest is not None}


def _read(path: Path, entry: _Entry, mmap: bool) -> Tensor:
    with readable("CSCGraph.open", path, entry.dtype, entry.shape):
        with open_regular(path) as file:
            array = read_array(file, entry.shape, mmap)
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if tensor.dtype != entry.dtype:
            tensor = tensor.view(entry.dtype)  # dtypes unknown to NumPy, such as bfloat16, are stored as integers
        if tuple(tensor.shape) != entry.shape:
            raise ValueError(f"shape {list(tensor.shape)}")
    return tensor


# --- with types

_OPEN = "HeteroCSCGraph.open"


def save_hetero(arrays: HeteroArrays, folder: Path) -> None:
    """See HeteroCSCGraph.save."""
    where = "HeteroCSCGraph.save"
    _refuse_a_graph(where, folder)
    listed = _listed(arrays)
    forms = [*planned((tensor.dtype, tensor.shape) for *_, tensor in listed)]
    entries = [
        {"kind": kind, "type": number, "name": name, **form.described(), "digest": written_digest(kind, tensor)}
        for (kind, number, name, tensor), form in zip(listed, forms, strict=True)
    ]
    header = {
        "format": HETERO_FORMAT,
        "version": _VERSION,
        "node_types": [[kind, count] for kind, count in arrays.num_nodes.items()],
        "edge_types": [[*key, indices.shape[0]] for key, (_, indices) in arrays.relations.items()],
        "num_bytes": forms[-1].end if forms else 0,
        "arrays": entries,
    }
    text = _header_text(where, header)
    folder.mkdir(parents=True, exist_ok=True)
    with ArenaWriter(folder / ARRAYS, forms) as arena:
        for *_, tensor in listed:
            arena.write([tensor])
    _write_header(folder, text)


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


class _TypedEntry(NamedTuple):
    """What graph.json says of one array; `of` is its node type or edge type."""

    kind: str
    of: Any
    name: str
    form: Form
    digest: str | None


def load_hetero(folder: Path, mmap: bool) -> tuple[HeteroArrays, dict[EdgeType, int]]:
    """Return the arrays in a folder, and how many edges graph.json promises; see HeteroCSCGraph.open."""
    path = folder / HEADER
    with _valid_header(_OPEN, path):
        header = _read_header(_OPEN, folder, HETERO_FORMAT)
        num_nodes, num_edges = _node_types(header["node_types"]), _edge_types(header["edge_types"])
        num_bytes = check_int(HEADER, "num_bytes", header["num_bytes"], 0)
        types: dict[str, list[Any]] = {"edge": list(num_edges), "node": list(num_nodes)}
        entries = [_typed_entry(entry, types, num_bytes) for entry in header["arrays"]]
        refuse_repeats(("array", [entry[:3] for entry in entries]))
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
    refuse_repeats(("node type", [kind for kind, _ in pairs]))
    return dict(pairs)


def _edge_types(given: Any) -> dict[EdgeType, int]:
    pairs = [(check_edge_type(HEADER, (*key,)), check_int(HEADER, "num_edges", count, 0)) for *key, count in given]
    refuse_repeats(("edge type", [key for key, _ in pairs]))
    return dict(pairs)


def _typed_entry(entry: Any, types: dict[str, list[Any]], num_bytes: int) -> _TypedEntry:
    kind, name = _kind_and_name(entry)
    of = types["edge" if kind in _OF_EDGES else "node"]
    number = check_int(HEADER, "the number of a type", entry["type"], 0, len(of) - 1)
    form = read_form(entry, num_bytes, f"{shown(kind)} {shown(entry['name'])}", HEADER)
    return _TypedEntry(kind, of[number], name, form, _read_digest(entry))


def _filled(arrays: HeteroArrays, entries: list[_TypedEntry], whole: Tensor, path: Path) -> HeteroArrays:
    """Return `arrays` with the parts of `whole` that the entries name."""
    found: dict[tuple[str, Any], Tensor] = {}
    edge_ids: dict[EdgeType, Tensor] = {}
    for entry in entries:
        part = part_of(_OPEN, path, whole, entry.form)
        if entry.kind == "node_attributes":
            arrays.node_attributes[entry.of][entry.name] = part  # type: ignore[index]  # made by `load_hetero`
        elif entry.kind == "edge_attributes":
            arrays.edge_attributes[entry.of][entry.name] = part  # type: ignore[index]
        elif entry.kind == "edge_ids":
            edge_ids[entry.of] = part
        else:
            found[entry.kind, entry.of] = part
    relations = {key: (found["indptr", key], found["indices", key]) for key in arrays.edge_attributes}
    given = {array_name(entry.kind, entry.of, entry.name): entry.digest for entry in entries}
    return arrays._replace(relations=relations, edge_ids=edge_ids, digests=_digests_of(_OPEN, path.parent, given))
