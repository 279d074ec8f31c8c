"""Write and read a CSCGraph as a folder: one .npy file per array, and graph.json, written last, that names them.

The reader trusts no file: it unpickles nothing and checks every array against graph.json. It refuses a truncated or
corrupt file by name.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import dtype_from_name, dtype_name
from datapipes.graph.arrays import CSCArrays
from datapipes.processes.sharing import know_mapping

FORMAT = "datapipes-csc-graph"
VERSION = 1
HEADER = "graph.json"


def save(arrays: CSCArrays, folder: Path) -> None:
    """See CSCGraph.save."""
    if (folder / HEADER).exists():
        raise FileExistsError(
            f"CSCGraph.save: {folder} holds a graph already; it is not overwritten. Choose another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)
    named: list[tuple[str, str, Tensor]] = [("indptr", "", arrays.indptr), ("indices", "", arrays.indices)]
    if arrays.edge_ids is not None:
        named.append(("edge_ids", "", arrays.edge_ids))
    named += [("node_attributes", name, value) for name, value in (arrays.node_attributes or {}).items()]
    named += [("edge_attributes", name, value) for name, value in (arrays.edge_attributes or {}).items()]
    entries = []
    for number, (kind, name, tensor) in enumerate(named):
        # The file has a number, since an attribute name may hold characters that a file name may not.
        file = f"{kind}.npy" if not name else f"{kind}-{number}.npy"
        np.save(folder / file, _to_numpy(tensor), allow_pickle=False)
        entries.append(
            {"kind": kind, "name": name, "file": file, "dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape)}
        )
    header = {
        "format": FORMAT,
        "version": VERSION,
        "num_nodes": arrays.indptr.shape[0] - 1,
        "num_edges": arrays.indices.shape[0],
        "arrays": entries,
    }
    temporary = folder / f"{HEADER}.tmp"
    temporary.write_text(json.dumps(header, indent=1), encoding="utf-8")
    # Last: a folder without a header is no graph, so an interrupted save is never opened.
    os.replace(temporary, folder / HEADER)


def load(folder: Path, mmap: bool) -> tuple[CSCArrays, tuple[Any, Any]]:
    """Return the arrays in a folder, and how many nodes and edges graph.json promises; see CSCGraph.open."""
    path = folder / HEADER
    if not path.is_file():
        raise FileNotFoundError(
            f"CSCGraph.open: {path} does not exist; {folder} must be a folder written by save(). Check the path."
        )
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
        if header["format"] != FORMAT or header["version"] != VERSION:
            raise ValueError(
                f"format {header['format']!r} version {header['version']!r}, allowed {FORMAT!r} version {VERSION}"
            )
        entries = [_entry(entry) for entry in header["arrays"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"CSCGraph.open: {path} is not a valid header: {error!r}. Save the graph again.") from error
    single: dict[str, Tensor] = {}
    attributes: dict[str, dict[str, Tensor]] = {"node_attributes": {}, "edge_attributes": {}}
    for kind, name, file, dtype, shape in entries:
        tensor = _read(folder / file, dtype, shape, mmap)
        if kind in attributes:
            attributes[kind][name] = tensor
        else:
            single[kind] = tensor
    missing = [kind for kind in ("indptr", "indices") if kind not in single]
    if missing:
        raise ValueError(
            f"CSCGraph.open: {path} names no {missing}; both indptr and indices are needed. Save the graph again."
        )
    arrays = CSCArrays(single["indptr"], single["indices"], single.get("edge_ids"), **attributes)
    return arrays, (header.get("num_nodes"), header.get("num_edges"))


def _entry(entry: Any) -> tuple[str, str, str, torch.dtype, tuple[int, ...]]:
    kind, name, file, shape = entry["kind"], entry["name"], entry["file"], tuple(entry["shape"])
    if kind not in ("indptr", "indices", "edge_ids", "node_attributes", "edge_attributes") or not isinstance(name, str):
        raise ValueError(f"unknown array {kind!r} {name!r}")
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(".npy"):
        raise ValueError(f"file {file!r} is not the name of a .npy file in the folder")
    return kind, name, file, dtype_from_name("CSCGraph.open", entry["dtype"]), shape


def _read(path: Path, dtype: torch.dtype, shape: tuple[int, ...], mmap: bool) -> Tensor:
    array: np.ndarray[Any, Any]
    try:
        # Not np.load, which guesses the format and would unpack an archive.
        if mmap and 0 not in shape:
            # "c": pages are shared until a process writes to them; torch needs a writable array.
            array = np.lib.format.open_memmap(path, mode="c")
            know_mapping(array)
        else:
            with path.open("rb") as file:
                array = np.lib.format.read_array(file, allow_pickle=False)
        if array.dtype.kind not in "biufc":
            raise ValueError(f"dtype {array.dtype}")
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        if tensor.dtype != dtype:
            tensor = tensor.view(dtype)  # dtypes unknown to NumPy, such as bfloat16, are stored as integers
        if tuple(tensor.shape) != shape:
            raise ValueError(f"shape {list(tensor.shape)}")
    except Exception as error:  # a corrupt header can raise many kinds of error, from NumPy's parser to the memory map
        raise ValueError(
            f"CSCGraph.open: {path} cannot be read as {dtype_name(dtype)} {list(shape)}: {error}. It may be truncated "
            "or corrupt; save the graph again."
        ) from error
    return tensor


def _to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    tensor = tensor.cpu().contiguous()
    try:
        return tensor.numpy()
    except TypeError:  # NumPy has no such dtype
        return tensor.view(
            {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        ).numpy()
