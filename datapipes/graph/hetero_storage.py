"""Write and read a HeteroCSCGraph as a folder: all arrays in one file, arrays.npy, and graph.json, written last.

A graph of a hundred relations has hundreds of arrays. In one file they take one descriptor and one mapping. The file
is a NumPy array of bytes; graph.json says where in it each array begins (a multiple of 64), its dtype and its shape.
The reader trusts neither file, see storage.py: before it maps or reads arrays.npy it has checked that all arrays lie
within it and none overlaps another.
"""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import check_int, dtype_from_name, dtype_name, shown
from datapipes.base.files import open_regular
from datapipes.base.sizes import check_memory
from datapipes.base.types import EdgeType, check_edge_type, check_node_type
from datapipes.graph import storage
from datapipes.graph.arrays import HeteroArrays
from datapipes.graph.storage import HEADER

ARRAYS = "arrays.npy"
ALIGNED = 64  # bytes; a line of the cache, and NumPy's alignment of the values in a file
_OPEN = "HeteroCSCGraph.open"
_OF_EDGES = ("indptr", "indices", "edge_ids", "edge_attributes")


def save(arrays: HeteroArrays, folder: Path) -> None:
    """See HeteroCSCGraph.save."""
    where = "HeteroCSCGraph.save"
    storage.refuse_a_graph(where, folder)
    entries, tensors, end = [], [], 0
    for kind, number, name, tensor in _listed(arrays):
        begin = -(-end // ALIGNED) * ALIGNED
        end = begin + tensor.nbytes
        form = {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), "offset": begin}
        entries.append({"kind": kind, "type": number, "name": name, **form})
        tensors.append((begin, tensor))
    header = {
        "format": storage.HETERO_FORMAT,
        "version": storage.VERSION,
        "node_types": [[kind, count] for kind, count in arrays.num_nodes.items()],
        "edge_types": [[*key, indices.shape[0]] for key, (_, indices) in arrays.relations.items()],
        "num_bytes": end,
        "arrays": entries,
    }
    text = storage.header_text(where, header)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ARRAYS).open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (end,)})
        first = file.tell()
        for begin, tensor in tensors:
            file.write(bytes(first + begin - file.tell()))
            file.write(storage.to_numpy(tensor).reshape(-1).view(np.uint8).data)
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
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


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
        _refuse_overlaps(entries)
        named = {entry[:2] for entry in entries}
        missing = [(kind, key) for key in num_edges for kind in ("indptr", "indices") if (kind, key) not in named]
        if missing:
            raise ValueError(f"it names no {missing[0][0]} of {shown(missing[0][1])}")
    whole = _read(folder / ARRAYS, num_bytes, mmap)
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
    kind, name, dtype = entry["kind"], entry["name"], dtype_from_name(HEADER, entry["dtype"])
    if kind not in (*_OF_EDGES, "node_attributes") or not isinstance(name, str):
        raise ValueError(f"unknown array {shown(kind)} {shown(name)}")
    of = types["edge" if kind in _OF_EDGES else "node"]
    number = check_int(HEADER, "the number of a type", entry["type"], 0, len(of) - 1)
    shape, begin = storage.check_shape(entry["shape"]), check_int(HEADER, "offset", entry["offset"], 0)
    end = begin + math.prod(shape) * dtype.itemsize
    if begin % ALIGNED or end > num_bytes:
        raise ValueError(
            f"the array {shown(kind)} {shown(name)} at bytes [{begin}, {shown(end)}); it must begin at a multiple of "
            f"{ALIGNED} and lie within {num_bytes} bytes"
        )
    return _Entry(kind, of[number], name if kind.endswith("attributes") else "", dtype, shape, begin, end)


def _refuse_overlaps(entries: list[_Entry]) -> None:
    held = sorted((entry for entry in entries if entry.end > entry.begin), key=lambda entry: entry.begin)
    for one, other in pairwise(held):
        if other.begin < one.end:
            raise ValueError(f"the arrays at bytes {one.begin} and {other.begin} overlap")


def _read(path: Path, num_bytes: int, mmap: bool) -> Tensor:
    """Return all bytes of arrays.npy as one tensor."""
    if not mmap:
        check_memory(_OPEN, f"{path} with mmap=False", num_bytes, "Open it with mmap=True.")
    with storage.readable(_OPEN, path, torch.uint8, (num_bytes,)):
        with open_regular(path) as file:
            array = storage.read_array(file, (num_bytes,), mmap)
        if array.dtype != np.uint8:
            raise ValueError(f"dtype {array.dtype}")
        if isinstance(array, np.memmap) and array.ctypes.data % ALIGNED:
            raise ValueError(f"the values begin at byte {array.offset}, and must at a multiple of {ALIGNED}")
        return torch.from_numpy(array)


def _filled(arrays: HeteroArrays, entries: list[_Entry], whole: Tensor, path: Path) -> HeteroArrays:
    """Return `arrays` with the parts of `whole` that the entries name."""
    found: dict[tuple[str, Any], Tensor] = {}
    edge_ids: dict[EdgeType, Tensor] = {}
    for entry in entries:
        with storage.readable(_OPEN, path, entry.dtype, entry.shape):
            part = whole[entry.begin : entry.end].view(entry.dtype).view(entry.shape)
        if entry.kind == "node_attributes":
            arrays.node_attributes[entry.of][entry.name] = part  # type: ignore[index]  # made by `load`
        elif entry.kind == "edge_attributes":
            arrays.edge_attributes[entry.of][entry.name] = part  # type: ignore[index]
        elif entry.kind == "edge_ids":
            edge_ids[entry.of] = part
        else:
            found[entry.kind, entry.of] = part
    relations = {key: (found["indptr", key], found["indices", key]) for key in arrays.edge_attributes}
    return arrays._replace(relations=relations, edge_ids=edge_ids)
