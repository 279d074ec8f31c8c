"""The graph of a folder of files: built out of core into `preprocessed_datapipes/` there, and opened mapped.

`sources.json` beside the graph says what it was built of: what was asked for, and size, time and digest of each file.
It is written last, so a folder without it is not whole. A graph is fresh if all of that is as it was. Files whose size
or time differs are hashed: if only the time has changed, the new one is noted and nothing is built.
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

from torch import Tensor

from datapipes.base.files import lock_within, open_regular, read_regular, write_text
from datapipes.base.folder import room_told
from datapipes.base.log import logger
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import of_type
from datapipes.datasets.ondisk_rows import WHERE, Arrays, format_errors
from datapipes.datasets.ondisk_yaml import Description, EdgeFile, RowsFile
from datapipes.datasets.raw import DatasetFormatError
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.graph.arena import ARRAYS
from datapipes.graph.saved import open_graph
from datapipes.graph.storage import HEADER
from datapipes.ingest.edge_chunks import edge_source
from datapipes.ingest.table_files import TABLES, TableFiles, parts_of, suffix_of

AnyGraph = CSCGraph | HeteroCSCGraph
FOLDER = ("preprocessed_datapipes", "graph")  # GraphBolt removes "preprocessed" whenever a file has changed
SOURCES = "sources.json"
_VERSION, _MOST_SOURCES, _HASHED = 1, 2**26, 2**20  # bytes of sources.json; read at once
_CHUNK = 2**20  # edges of a table that are read at once
_MOST_WAIT_S = 24 * 3600  # for a process that builds: the largest graphs take hours
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def graph_of(described: Description, *, index_dtype: str, force: bool | None, verify: bool) -> AnyGraph:
    """Return the graph of a folder, whose edge ids are the numbers of the edges in the files.

    Args:
        index_dtype: "auto" or "int64".
        force: None builds it if it is not fresh; True always; False only if there is none, whatever the files hold now.
        verify: compare the digests of all files, and of the graph.
    Raises:
        DatasetFormatError: The files hold no such graph.
        OSError: The folder cannot be written to, or the disk is full. No half graph is left.
    """
    place = described.folder.joinpath(*FOLDER)
    asked = _asked(described, index_dtype)
    with _locked(place.parent):
        if force is True or not _is_fresh(place, described, asked, looks=force is None, verify=verify):
            for name in (SOURCES, HEADER, ARRAYS):  # of an older graph; what is no part of one stays, and is refused
                (place / name).unlink(missing_ok=True)
            files = _source_files(described)
            before = {name: _stat_of(described.folder / name) for name in files}
            build(described, place, described.attributes, {}, index_dtype)
            found = {name: [*before[name], _digest_of(described.folder / name)] for name in files}
            if any(_stat_of(described.folder / name) != before[name] for name in files):
                raise DatasetFormatError(
                    f"{described.folder.name}: its files have changed while they were read. Load it again."
                )
            with room_told(WHERE, place):
                write_text(place / SOURCES, json.dumps({"version": _VERSION, "asked": asked, "files": found}))
        with format_errors(f"{place}, which is built anew if it is removed"):
            return open_graph(place, verify=verify)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Let one process at a time look at the graph and build it; the lock ends with its holder."""
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
                found = f"another process has built for {_MOST_WAIT_S} s"
                raise TimeoutError(errno.ETIMEDOUT, f"{WHERE}: {found}. Stop it, or wait", str(folder))
        yield
    finally:
        os.close(lock)


# --- freshness


def _asked(described: Description, index_dtype: str) -> str:
    """Return a digest of what is built, but for the content of the files."""
    facts = [
        index_dtype,
        [[of, count] for of, count in described.num_nodes.items()],
        [[of, file.format, file.path] for of, file in described.edges.items()],
        [[key, file.format, file.path] for key, file in described.attributes.items()],
    ]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def _is_fresh(place: Path, described: Description, asked: str, *, looks: bool, verify: bool) -> bool:
    folder = described.folder
    try:
        noted = parse_strict(read_regular(place / SOURCES, _MOST_SOURCES).decode())
        if (noted["version"], noted["asked"]) != (_VERSION, asked):
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
    """Return the files that a graph is built of, as paths within the folder."""
    files: list[Any] = [*described.edges.values(), *described.attributes.values()]
    found = [each for file in files for each in parts_of(described.path(file))]
    return sorted({os.path.relpath(each, described.folder) for each in found})


def _stat_of(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _digest_of(path: Path) -> str:
    digest = hashlib.blake2b(digest_size=16)
    with open_regular(path) as file:
        while piece := file.read(_HASHED):
            digest.update(piece)
    return digest.hexdigest()


# --- building


def build(
    described: Description,
    place: Path,
    attributes: Mapping[Any, RowsFile],
    of_nodes: Mapping[Any, Mapping[str, Tensor]],
    index_dtype: str = "auto",
) -> None:
    """Write the graph of a folder, with the files of `attributes`, to the folder `place`, in bounded memory.

    Args:
        of_nodes: {type: {name: values}}, further attributes of the nodes.
    """
    edges: dict[Any, Any] = {}
    of_edges: dict[Any, Any] = {}
    nodes: dict[Any, dict[str, Any]] = {of: {**of_nodes.get(of, {})} for of in described.num_nodes}
    arrays = Arrays(described)
    with format_errors(described.folder.name):
        for (domain, of, name), file in attributes.items():
            if domain == "node":
                nodes[of][name] = _values(described, arrays, file)
        for of, edge_file in described.edges.items():
            own = {name: each for (domain, kind, name), each in attributes.items() if (domain, kind) == ("edge", of)}
            edges[of], of_edges[of] = _edges(described, arrays, of, edge_file, own)
        options: Any = {"index_dtype": index_dtype, "edge_ids": True}
        if None in edges:
            count = described.num_nodes[None]
            of_one: Any = {"node_attributes": nodes[None], "edge_attributes": of_edges[None]}
            CSCGraph.build(edges[None], place, count, **of_one, **options)
        else:
            typed: Any = {"node_attributes": nodes, "edge_attributes": of_edges}
            HeteroCSCGraph.build(edges, place, described.num_nodes, **typed, **options)


def _values(described: Description, arrays: Arrays, file: RowsFile) -> Any:
    """Return an array as `build` takes it: the path of a .npy file, or a mapped tensor."""
    return described.path(file) if file.format == "numpy" else arrays.read(replace(file, in_memory=False))


def _edges(described: Description, arrays: Arrays, of: Any, file: EdgeFile, attributes: Mapping[str, RowsFile]) -> Any:
    """Return the edges of a type, and {name: attribute}, as `build` takes them."""
    path, where = described.path(file), f"{file.path}{of_type(of)}"
    files = parts_of(path)
    for each in files:
        found = {".npy": "numpy", **TABLES}.get(suffix_of(each.name))
        if found != file.format:
            raise DatasetFormatError.of(where, f"the file {each.name!r} for the format {file.format}", _SUFFIXES, _NAME)
    own = {name: name for name, each in attributes.items() if each.path == file.path}
    others = {name: _values(described, arrays, each) for name, each in attributes.items() if name not in own}
    if file.format == "numpy" or not files:
        return path, others
    table = TableFiles(where, path)
    if not table.has_names and len(table.names) != 2:
        raise DatasetFormatError.of(
            where,
            f"{len(table.names)} columns without names",
            "two columns",
            "Name src and dst, or leave an index column out.",
        )
    table.two_columns(("src", "dst"))
    if not others:
        return path, own
    tensors = {name: arrays.read(replace(attributes[name], in_memory=False)) for name in others}
    return _with_attributes(where, path, own, tensors), {}


_SUFFIXES = "the suffix .npy for numpy, .csv, .csv.gz or .tsv for csv, .parquet for parquet"
_NAME = "Rename the file, or correct the format."


def _with_attributes(
    where: str, path: Path, own: Mapping[str, str], tensors: Mapping[str, Tensor]
) -> Callable[[], Iterator[Any]]:
    """Return what gives the edges of a table in chunks, each with its rows of `tensors`."""

    def chunks() -> Iterator[Any]:
        done = 0
        for chunk in edge_source(where, path, own).chunks(0, _CHUNK):
            end = done + len(chunk.src)
            yield (chunk.src, chunk.dst), {**chunk.attributes, **{k: v[done:end] for k, v in tensors.items()}}
            done = end
        for name, values in tensors.items():
            if len(values) != done:
                raise ValueError(f"{where}: {len(values)} values of {name!r} for {done} edges. Give one for each.")

    return chunks
