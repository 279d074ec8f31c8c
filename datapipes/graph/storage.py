"""Write and read a CSCGraph as a folder: one .npy file per array, and graph.json, written last, that names them.

The reader trusts no file: it unpickles nothing, and checks the size of every array against graph.json before it maps or
reads it. It refuses a truncated or corrupt file by name, and whatever is no regular file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import check_int, dtype_from_name, dtype_name, shown
from datapipes.base.files import open_regular, read_regular
from datapipes.base.log import logger
from datapipes.base.sizes import check_memory
from datapipes.base.strict_json import parse_strict
from datapipes.graph.arrays import CSCArrays
from datapipes.graph.graph_digest import array_name, written_digest
from datapipes.processes.sharing import know_mapping

FORMAT = "datapipes-csc-graph"
HETERO_FORMAT = "datapipes-hetero-csc-graph"
FORMATS = {FORMAT: "CSCGraph", HETERO_FORMAT: "HeteroCSCGraph"}  # and the class that opens each
VERSION = 1
HEADER = "graph.json"
MOST_HEADER_BYTES = 2**21  # of graph.json, 10,000 arrays or more; parsed, a hostile one takes 30 times as much memory
REMEDY = "save the graph again"
MOST_DIMENSIONS = 64  # of an array; NumPy has no more
_DIGEST = re.compile("[0-9a-f]{32}")

_READ_HEADER = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def save(arrays: CSCArrays, folder: Path) -> None:
    """See CSCGraph.save."""
    refuse_a_graph("CSCGraph.save", folder)
    named: list[tuple[str, str, Tensor]] = [("indptr", "", arrays.indptr), ("indices", "", arrays.indices)]
    if arrays.edge_ids is not None:
        named.append(("edge_ids", "", arrays.edge_ids))
    named += [("node_attributes", name, value) for name, value in (arrays.node_attributes or {}).items()]
    named += [("edge_attributes", name, value) for name, value in (arrays.edge_attributes or {}).items()]
    # The files have numbers, since an attribute name may hold characters that a file name may not.
    files = [f"{kind}-{number}.npy" if name else f"{kind}.npy" for number, (kind, name, _) in enumerate(named)]
    header = {
        "format": FORMAT,
        "version": VERSION,
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
    text = header_text("CSCGraph.save", header, indent=1)
    folder.mkdir(parents=True, exist_ok=True)
    for (_, _, tensor), file in zip(named, files, strict=True):
        np.save(folder / file, to_numpy(tensor), allow_pickle=False)
    write_header(folder, text)


def refuse_a_graph(where: str, folder: Path) -> None:
    """Raise FileExistsError if the folder holds a graph already."""
    if (folder / HEADER).exists():
        raise FileExistsError(f"{where}: {folder} holds a graph already; it is not overwritten. Choose another folder.")


def header_text(where: str, header: dict[str, Any], indent: int | None = None) -> str:
    """Return the text of graph.json; refuse one that would not be opened."""
    text = json.dumps(header, indent=indent)
    if len(text) > MOST_HEADER_BYTES:
        raise ValueError(
            f"{where}: the names and shapes of {len(header['arrays'])} arrays take {len(text)} bytes in {HEADER}; at "
            f"most {MOST_HEADER_BYTES} are allowed. Use fewer attributes, or shorter names."
        )
    return text


def write_header(folder: Path, text: str) -> None:
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
    with valid_header("CSCGraph.open", path):
        header = read_header("CSCGraph.open", folder, FORMAT)
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
    digests = digests_of("CSCGraph.open", folder, given)
    arrays = CSCArrays(single["indptr"], single["indices"], single.get("edge_ids"), nodes, edges, digests)
    return arrays, (promised[0], promised[1])


@contextmanager
def valid_header(where: str, path: Path) -> Iterator[None]:
    """Turn what a corrupt header may raise into one error; what says more already is left as it is."""
    try:
        yield
    except _OtherFormat as error:
        raise ValueError(str(error)) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: {path} is not a valid header: {shown(error)}. Save the graph again.") from error


class _OtherFormat(ValueError):
    """The header is that of the other kind of graph."""


def read_header(where: str, folder: Path, wanted: str) -> dict[str, Any]:
    """Return graph.json, parsed, of the format `wanted`; its entries are not checked yet. Inside `valid_header`."""
    path = folder / HEADER
    if not path.exists():
        raise FileNotFoundError(
            f"{where}: {path} does not exist; {folder} must be a folder written by save(). Check the path."
        )
    text = read_regular(path, MOST_HEADER_BYTES).decode("utf-8")
    header: dict[str, Any] = parse_strict(text)
    found, version = header["format"], header["version"]
    if found != wanted and isinstance(found, str) and found in FORMATS:
        raise _OtherFormat(
            f"{where}: {folder} holds a graph of the class {FORMATS[found]}; {FORMATS[wanted]} reads its own only. Use "
            f"{FORMATS[found]}.open."
        )
    if found != wanted or version != VERSION:
        raise ValueError(f"format {shown(found)} version {shown(version)}, allowed {wanted!r} version {VERSION}")
    return header


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except (OSError, ValueError):
        return 0  # what is wrong is said when it is opened


def _entry(entry: Any) -> _Entry:
    kind, name, file, shape = entry["kind"], entry["name"], entry["file"], entry["shape"]
    if kind not in ("indptr", "indices", "edge_ids", "node_attributes", "edge_attributes") or not isinstance(name, str):
        raise ValueError(f"unknown array {shown(kind)} {shown(name)}")
    if not isinstance(file, str) or Path(file).name != file or not file.endswith(".npy"):
        raise ValueError(f"file {shown(file)} is not the name of a .npy file in the folder")
    name = name if kind.endswith("attributes") else ""
    return _Entry(kind, name, file, dtype_from_name(HEADER, entry["dtype"]), check_shape(shape), read_digest(entry))


def read_digest(entry: Any) -> str | None:
    """Return the digest that an entry of graph.json has; None if it was written before there were any."""
    digest = entry.get("digest")
    if digest is not None and not (isinstance(digest, str) and _DIGEST.fullmatch(digest)):
        raise ValueError(f"digest {shown(digest)} is not 32 hexadecimal digits")
    return digest


def digests_of(where: str, folder: Path, given: Mapping[str, str | None]) -> dict[str, str]:
    """Return the digests of the arrays that have one; log it if some have none."""
    if None in given.values():
        logger.info(
            "%s: %s was saved without digests of its arrays, so they are hashed anew when a state needs them. Save the "
            "graph again to keep them.",
            where,
            folder,
        )
    return {name: digest for name, digest in given.items() if digest is not None}


def check_shape(shape: Any, header: str = HEADER) -> tuple[int, ...]:
    """Return a shape that a header gives."""
    if not isinstance(shape, list) or len(shape) > MOST_DIMENSIONS:
        raise ValueError(f"shape {shown(shape)} is not a list of up to {MOST_DIMENSIONS} sizes")
    return tuple(check_int(header, "a size in a shape", size, 0) for size in shape)


def refuse_repeats(*lists: tuple[str, list[Any]]) -> None:
    """Refuse an array or a file that is named twice: each mapping takes a descriptor, so they would soon be used up."""
    for what, named in lists:
        if len(set(named)) < len(named):
            seen: set[Any] = set()
            twice = next(each for each in named if each in seen or seen.add(each))  # type: ignore[func-returns-value]
            raise ValueError(f"the {what} {shown(twice)} is named more than once")


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


@contextmanager
def readable(
    where: str, path: Path, dtype: torch.dtype, shape: tuple[int, ...], remedy: str = REMEDY
) -> Iterator[None]:
    """Turn what a corrupt file may raise into one error: NumPy's parser and the memory map raise many kinds."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE):
            raise _unreadable(where, path, dtype, shape, error, remedy) from error
        other = ", or open the graph with mmap=False" if remedy == REMEDY else ""
        raise OSError(
            error.errno,
            f"{where}: no descriptor is left for {path}; each mapped file keeps one. Raise the limit (ulimit -n)"
            f"{other}",
        ) from error
    except Exception as error:
        raise _unreadable(where, path, dtype, shape, error, remedy) from error


def _unreadable(
    where: str, path: Path, dtype: torch.dtype, shape: tuple[int, ...], error: Exception, remedy: str
) -> ValueError:
    why = (str(error) or type(error).__name__).removesuffix(".")
    return ValueError(
        f"{where}: {path} cannot be read as {dtype_name(dtype)} {shown(list(shape))}: {why}. It may be truncated or "
        f"corrupt; {remedy}."
    )


def read_array(file: BinaryIO, shape: tuple[int, ...], mmap: bool) -> np.ndarray[Any, Any]:
    """Return the array in an open .npy file. Not np.load, which guesses the format and would unpack an archive."""
    found, fortran, dtype = _READ_HEADER[np.lib.format.read_magic(file)](file)
    if dtype.kind not in "biufc":
        raise ValueError(f"dtype {dtype}")
    if found != shape:
        raise ValueError(f"shape {shown(list(found))}")
    # Before anything is allocated or mapped. A mapping beyond the end of the file would kill the process when read.
    begin, size = file.tell(), os.fstat(file.fileno()).st_size
    if begin + math.prod(shape) * dtype.itemsize != size:
        raise ValueError(f"{size - begin} bytes of values, {dtype.itemsize} for each are needed")
    order: Any = "F" if fortran else "C"
    if not mmap or size == begin:
        return np.fromfile(file, dtype, math.prod(shape)).reshape(shape, order=order)
    # "c": pages are shared until a process writes to them; torch needs a writable array.
    array = np.memmap(file, dtype, "c", begin, shape, order)
    know_mapping(array, file)
    return array


def to_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return the values as a contiguous array; those of a dtype that NumPy lacks as integers of the same size."""
    tensor = tensor.cpu().contiguous()
    try:
        return tensor.numpy()
    except TypeError:  # NumPy has no such dtype
        return tensor.view(
            {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
        ).numpy()
