"""Read the arrays of a folder; build its graph out of core in `preprocessed_datapipes/`, and open the graph mapped.

`sources.json` beside the graph records what was asked for (see `_request_digest`), and size, time and digest of each
source file. It is written last: if it is missing, the graph was not built to the end. The graph is fresh, and is not
built again, as long as all this is the same as recorded. A file whose time differs is hashed: if its content is the
same, the new time is recorded and nothing is built.

An array is a .npy file, a tensor that torch.save wrote, or a column of a table. Only tensors are unpickled, by
TorchArchive. A file that is cut short or holds something else raises a DatasetFormatError before its values are used;
nothing beyond the end of a file is mapped.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import as_tensor
from datapipes.base.files import lock_within, open_regular, read_regular, write_text
from datapipes.base.folder import room_told
from datapipes.base.log import logger
from datapipes.base.sizes import check_memory
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import of_type
from datapipes.datasets.dataset import graph_of_edges
from datapipes.datasets.ondisk_yaml import WHERE, Description, EdgeFile, RowsFile
from datapipes.datasets.raw import DatasetFormatError, format_errors
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.graph.arena import ARRAYS
from datapipes.graph.npy import NpyRows, read_array
from datapipes.graph.saved import open_graph
from datapipes.graph.storage import HEADER
from datapipes.ingest.edge_chunks import edge_source
from datapipes.ingest.table_files import TABLES, TableFiles, parts_of, suffix_of
from datapipes.ingest.torch_archive import TENSORS, TorchArchive
from datapipes.processes.mappings import File, identity_of, map_file

AnyGraph = CSCGraph | HeteroCSCGraph
FOLDER = ("preprocessed_datapipes", "graph")  # GraphBolt removes "preprocessed" whenever a file has changed
SOURCES = "sources.json"
_VERSION, _MOST_SOURCES, _HASHED = 1, 2**26, 2**20  # of sources.json: its version, its most bytes; bytes hashed at once
_CHUNK = 2**20  # edges of a table read at once
_MOST_WAIT_S = 24 * 3600  # while another process builds: the largest graphs take hours
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def graph_of(described: Description, *, index_dtype: str, force: bool | None, verify: bool) -> AnyGraph:
    """Return the graph of the folder that `described` describes, memory-mapped; build it first if needed.

    The id of an edge is its position in the files of its type.

    Args:
        index_dtype: "auto" (int32 if the ids of all nodes fit, else int64) or "int64".
        force: True builds the graph anew. None builds it if there is none, or if `described`, `index_dtype` or the
            files have changed. False is like None, but opens a built graph even if the files have changed.
        verify: compare the digests of all files, and of the graph, with the recorded ones.
    Raises:
        DatasetFormatError: A file does not hold what `described` says.
        OSError: The folder cannot be written to, or the disk is full. No half graph is left.
    """
    place = described.folder.joinpath(*FOLDER)
    request = _request_digest(described, index_dtype)
    with _locked(place.parent):
        if force is True or not _is_fresh(place, described, request, looks=force is None, verify=verify):
            for name in (SOURCES, HEADER, ARRAYS):  # of an older graph; any other file stays and is refused
                (place / name).unlink(missing_ok=True)
            files = _source_files(described)
            before = {name: _stat_of(described.folder / name) for name in files}
            build(described, place, described.attributes, {}, index_dtype)
            noted = {name: [*before[name], _digest_of(described.folder / name)] for name in files}
            if any(_stat_of(described.folder / name) != before[name] for name in files):
                raise DatasetFormatError(
                    f"{described.folder.name}: its files have changed while they were read. Load it again."
                )
            with room_told(WHERE, place):
                write_text(place / SOURCES, json.dumps({"version": _VERSION, "asked": request, "files": noted}))
        with format_errors(f"{place}, which is built anew if it is removed"):
            return open_graph(place, verify=verify)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder during the with statement: meanwhile no other process looks at the graph or builds it.

    The lock ends with the process that holds it. A folder that cannot be written to is not locked.
    """
    try:
        folder.mkdir(exist_ok=True)
        lock = os.open(folder / "datapipes.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        if not folder.is_dir():
            raise type(error)(
                error.errno,
                f"{WHERE}: {folder}, where the graph is built, cannot be made: {error.strerror}. Copy the data to a "
                "folder that can be written to",
            ) from error
        yield  # nobody can build here
        return
    try:
        if not lock_within(lock, 0):
            logger.info("%s: another process builds the graph in %s; waiting for it.", WHERE, folder)
            if not lock_within(lock, _MOST_WAIT_S):
                text = f"{WHERE}: another process has been building the graph for {_MOST_WAIT_S} s. Stop it, or wait"
                raise TimeoutError(errno.ETIMEDOUT, text, str(folder))
        yield
    finally:
        os.close(lock)


# --- freshness


def _request_digest(described: Description, index_dtype: str) -> str:
    """Return a digest of what graph is to be built: its dtype, numbers of nodes, names and formats of files.

    A stored graph with another digest is built anew. The content of the files is not part of this digest.
    """
    facts = [
        index_dtype,
        [[node_type, count] for node_type, count in described.num_nodes.items()],
        [[edge_type, file.format, file.path] for edge_type, file in described.edges.items()],
        [[key, file.format, file.path] for key, file in described.attributes.items()],
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _is_fresh(place: Path, described: Description, request: str, *, looks: bool, verify: bool) -> bool:
    folder = described.folder
    try:
        noted = parse_strict(read_regular(place / SOURCES, _MOST_SOURCES).decode())
        if (noted["version"], noted["asked"]) != (_VERSION, request):
            return False
        files = dict(noted["files"])
        if not looks and not verify:
            return True
        if files.keys() != {*_source_files(described)}:
            return False
        is_new = False
        for name, (*before, digest) in files.items():
            now = [*_stat_of(folder / name)]
            if verify or now != before:
                if now[0] != before[0] or _digest_of(folder / name) != digest:
                    return False
                is_new = is_new or now != before
                files[name] = [*now, digest]
        if is_new:
            with contextlib.suppress(OSError):  # a folder that cannot be written to is hashed each time
                write_text(place / SOURCES, json.dumps({**noted, "files": files}))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False
    return True


def _source_files(described: Description) -> list[str]:
    """Return the sorted files from which the graph is built, as paths within the folder."""
    files: list[Any] = [*described.edges.values(), *described.attributes.values()]
    return sorted(
        {os.path.relpath(part, described.folder) for file in files for part in parts_of(described.path(file))}
    )


def _stat_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _digest_of(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        while piece := file.read(_HASHED):
            digest.update(piece)
    return digest.hexdigest()


# --- arrays

_MOST_PICKLE = 2**16  # bytes of the pickle that describes one tensor
_LESS = "Set in_memory: false."


class Arrays:
    """Reads arrays from a folder. A table is read once for all its columns, and kept in memory by this object."""

    def __init__(self, described: Description) -> None:
        self._described = described
        self._tables: dict[Path, TableFiles] = {}

    def read(self, file: RowsFile, wanted: tuple[int, str] | None = None) -> Tensor:
        """Return an array, mapped if `file.stays_on_disk`, else in memory. A column of a table is always in memory.

        Args:
            wanted: see `check_rows`. It is checked before the array is read; for a column of a table it is not checked.
        Raises:
            DatasetFormatError: The file does not hold this array.
            MemoryError: The array needs more memory than is left.
        """
        path = self._described.path(file)
        with format_errors(file.path):
            if file.format == "numpy":
                return _npy(path, file, wanted)
            if file.format == "torch":
                return _saved(path, file, wanted)
            if path not in self._tables:
                self._tables[path] = TableFiles(WHERE, path)
                if (ids := self._described.id_columns.get(file.path)) is not None:
                    self._tables[path].sort_by(ids)
            return self._tables[path].numbers(file.name)


def check_rows(file: RowsFile, count: int, wanted: tuple[int, str] | None) -> None:
    """Raise ValueError if a file with `count` rows does not have the count in `wanted`, such as (30, "nodes").

    If `wanted` is None, any count is allowed.
    """
    if wanted is not None and count != wanted[0]:
        raise ValueError(f"{file.path} has {count} rows for {wanted[0]} {wanted[1]}. Give one for each.")


def _npy(path: Path, file: RowsFile, wanted: tuple[int, str] | None) -> Tensor:
    header = NpyRows(WHERE, path)  # checks the size
    shape = header.shape[::-1] if header.is_transposed else header.shape
    check_rows(file, shape[0] if shape else 1, wanted)
    if not file.stays_on_disk:
        check_memory(WHERE, file.path, (2 if header.is_transposed else 1) * path.stat().st_size, _LESS)
    with open_regular(path) as stream:
        rows = as_tensor(WHERE, file.path, read_array(stream, shape, file.stays_on_disk))
    return rows if file.stays_on_disk else rows.contiguous()


def _saved(path: Path, file: RowsFile, wanted: tuple[int, str] | None) -> Tensor:
    with open_regular(path) as stream:
        status = os.fstat(stream.fileno())
        if status.st_size == 0:
            raise ValueError("found an empty file; expected one that torch.save wrote. Save the tensor again.")
        # Mapped by path, so that worker processes map the same file and share its pages.
        mapped = torch.frombuffer(map_file(File(str(path.resolve()), identity_of(status))), dtype=torch.uint8)
        archive = TorchArchive(stream, _MOST_PICKLE, mapped.untyped_storage())
        rows = archive.tensor(archive.read(TENSORS), "a tensor")
    if rows is None:
        raise ValueError("found something else than one tensor. Save the tensor alone: torch.save(tensor, path).")
    check_rows(file, rows.shape[0] if rows.ndim else 1, wanted)
    if file.stays_on_disk:
        return rows
    check_memory(WHERE, file.path, rows.nbytes, _LESS)
    return rows.clone(memory_format=torch.contiguous_format)


# --- building


def build(
    described: Description,
    place: Path,
    attributes: Mapping[Any, RowsFile],
    of_nodes: Mapping[Any, Mapping[str, Tensor]],
    index_dtype: str = "auto",
) -> None:
    """Write the graph that `described` describes to the folder `place`, in bounded memory.

    Args:
        attributes: {("node" or "edge", type, name): file} of attributes of the graph.
        of_nodes: {type: {name: values}} of further attributes of nodes.
        index_dtype: "auto" (int32 if the ids of all nodes fit, else int64) or "int64".
    """
    edges: dict[Any, Any] = {}
    of_edges: dict[Any, Any] = {}
    nodes: dict[Any, dict[str, Any]] = {kind: {**of_nodes.get(kind, {})} for kind in described.num_nodes}
    arrays = Arrays(described)
    files_of: dict[Any, dict[str, RowsFile]] = {edge_type: {} for edge_type in described.edges}
    with format_errors(described.folder.name):
        for (domain, kind, name), file in attributes.items():
            if domain == "node":
                nodes[kind][name] = _values(described, arrays, file)
            else:
                files_of[kind][name] = file
        for kind, edge_file in described.edges.items():
            edges[kind], of_edges[kind] = _edges(described, arrays, kind, edge_file, files_of[kind])
        graph_of_edges(edges, described.num_nodes, nodes, of_edges, place, index_dtype=index_dtype, edge_ids=True)


def _values(described: Description, arrays: Arrays, file: RowsFile) -> Any:
    """Return an array as `CSCGraph.build` takes it: the path of a .npy file, a mapped tensor, or a column in memory."""
    return described.path(file) if file.format == "numpy" else arrays.read(replace(file, in_memory=False))


def _edges(
    described: Description, arrays: Arrays, kind: Any, file: EdgeFile, attributes: Mapping[str, RowsFile]
) -> Any:
    """Return (edges, attributes) of the edge type `kind`, as `CSCGraph.build` takes them.

    `attributes` maps the name of an attribute to its values, or to its column in the edge table. If some attributes are
    in other files than the edge table, `edges` is a function that yields chunks with all attributes, and `attributes`
    is {}.
    """
    path, where = described.path(file), f"{file.path}{of_type(kind)}"
    files = parts_of(path)
    for part in files:
        if {".npy": "numpy", **TABLES}.get(suffix_of(part.name)) != file.format:
            fault = f"the file {part.name!r} for the format {file.format}"
            suffixes = "the suffix .npy for numpy, .csv, .csv.gz or .tsv for csv, .parquet for parquet"
            raise DatasetFormatError.of(where, fault, suffixes, "Rename the file, or correct the format.")
    columns = {name: name for name, rows in attributes.items() if rows.path == file.path}
    others = {name: _values(described, arrays, rows) for name, rows in attributes.items() if name not in columns}
    if file.format == "numpy" or not files:
        return path, others
    table = TableFiles(where, path)
    if not table.has_names and len(table.names) != 2:
        fault, remedy = f"{len(table.names)} columns without names", "Name src and dst, or leave an index column out."
        raise DatasetFormatError.of(where, fault, "two columns", remedy)
    table.two_columns(("src", "dst"))
    if not others:
        return path, columns
    tensors = {name: arrays.read(replace(attributes[name], in_memory=False)) for name in others}
    return _with_attributes(where, path, columns, tensors), {}


def _with_attributes(
    where: str, path: Path, columns: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> Callable[[], Iterator[Any]]:
    """Return a function that reads an edge table in chunks.

    It yields ((sources, destinations), {attribute: rows}) for each chunk.

    Args:
        columns: {attribute: its column in the table}.
        tensors: {attribute: its values, in the order of the rows of the table}.
    """

    def chunks() -> Iterator[Any]:
        done = 0
        for chunk in edge_source(where, path, columns).chunks(0, _CHUNK):
            end = done + len(chunk.src)
            yield (chunk.src, chunk.dst), {**chunk.attributes, **{k: v[done:end] for k, v in tensors.items()}}
            done = end
        for name, values in tensors.items():
            if len(values) != done:
                raise ValueError(f"{where}: {len(values)} values of {name!r} for {done} edges. Give one for each.")

    return chunks
