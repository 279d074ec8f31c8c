"""partition.json: what a partition is, and the size and hash of every file of the native layout.

It is written last. A folder without it holds no native partition. The reader trusts no file: numbers and names are
checked, nothing is unpickled, and each file is compared with its size and hash when it is opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch

from datapipes.base.checks import check_choice, check_int, dtype_from_name, dtype_name, shown
from datapipes.base.files import open_regular
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import EdgeType, NodeType, check_edge_type, check_node_type, ends_of
from datapipes.graph.checks import MAX_NODES
from datapipes.partition.id_maps import MOST_PARTS
from datapipes.partition.piece_hash import hash_of_bytes, hash_of_file

MANIFEST = "partition.json"
FORMAT = "datapipes-partition"
VERSION = 1
MOST_BYTES = 2**23  # of partition.json: two files for each of 2^15 parts, and a report
MOST_HEADER_BYTES = 2**21  # of part.json and book.json
REMEDY = "copy the partition again, or make it again"


class File(NamedTuple):
    """What partition.json says of a file."""

    size: int
    hash: str


@dataclass(frozen=True)
class Identity:
    """What every file set of a partition says of it.

    Attributes:
        fingerprint: digest of the whole graph.
        partition_id: 16 hexadecimal digits, see native_book.py.
        num_nodes, num_edges: numbers of the whole graph by type, sorted.
    """

    num_parts: int
    fingerprint: str
    partition_id: str
    num_nodes: Mapping[NodeType | None, int]
    num_edges: Mapping[EdgeType | None, int]

    def described(self) -> dict[str, Any]:
        """Return what a header says of it."""
        fields = {name: getattr(self, name) for name in ("num_parts", "fingerprint", "partition_id")}
        return {
            **fields,
            "node_types": [[node_type, count] for node_type, count in self.num_nodes.items()],
            "edge_types": [[edge_type, count] for edge_type, count in self.num_edges.items()],
        }


@dataclass(frozen=True)
class Manifest:
    """A native partition in the folder `root`.

    Attributes:
        index_dtype: dtype of neighbors.
        node_time_attr: the node attribute whose values are stored for each edge, or None.
        about: everything else that partition.json says, JSON values: method, rng_seed, report ...
        files: {path within root: its size and hash}.
    """

    root: Path
    identity: Identity
    index_dtype: torch.dtype
    node_time_attr: str | None
    about: Mapping[str, Any]
    files: Mapping[str, File]

    @property
    def path(self) -> Path:
        """Path of partition.json."""
        return self.root / MANIFEST


def manifest_text(manifest: Manifest) -> str:
    """Return the text of partition.json; refuse what could not be read again.

    Raises:
        ValueError: `about` is no JSON, has a name that partition.json needs, or takes too much room.
    """
    fields = {
        "format": FORMAT,
        "version": VERSION,
        **manifest.identity.described(),
        "index_dtype": dtype_name(manifest.index_dtype),
        "node_time_attr": manifest.node_time_attr,
    }
    taken = sorted({*fields, "files"} & {*manifest.about})
    if taken:
        raise ValueError(f"partition: {MANIFEST} has a field {taken[0]!r} of its own. Give it another name.")
    files = {name: [*file] for name, file in manifest.files.items()}
    try:
        text = json.dumps({**fields, **manifest.about, "files": files}, indent=1, allow_nan=False)
        parse_strict(text, floats=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"partition: {MANIFEST} cannot hold {shown(manifest.about)}: {error}. Give finite numbers, texts, lists "
            "and dicts."
        ) from error
    if len(text) > MOST_BYTES:
        raise ValueError(
            f"partition: {MANIFEST} would have {len(text)} bytes; at most {MOST_BYTES} are allowed. Use fewer parts, "
            "or a shorter report."
        )
    return text


def read_manifest(where: str, root: str | Path) -> Manifest:
    """Return what partition.json in the folder `root` says.

    Raises:
        FileNotFoundError: `root` has no partition.json.
        ValueError: It is not valid.
    """
    root = Path(root)
    path = root / MANIFEST
    with _opened(where, path, f"{root} holds no native partition") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"{where}: {path} has {size} bytes; at most {MOST_BYTES} are allowed. {_remedy()}")
        content = file.read(size)
    with valid_header(where, path):
        header = parse_strict(content.decode("utf-8"), floats=True)
        refuse_other_format(header, FORMAT)
        identity = read_identity(header)
        files = {
            str(name): File(check_int(MANIFEST, "a size", size, 0), _text("a hash", digest))
            for name, (size, digest) in dict(header["files"]).items()
        }
        dtype = dtype_from_name(
            MANIFEST, check_choice(MANIFEST, "index_dtype", header["index_dtype"], ["int32", "int64"])
        )
        time_attr = header["node_time_attr"]
        known = {"format", "version", *identity.described(), "index_dtype", "node_time_attr", "files"}
        about = {name: value for name, value in header.items() if name not in known}
        return Manifest(
            root, identity, dtype, None if time_attr is None else _text("node_time_attr", time_attr), about, files
        )


def read_identity(header: Mapping[str, Any]) -> Identity:
    """Return what a header says of the partition. Inside `valid_header`."""
    num_nodes = {
        _type(check_node_type, kind): check_int(MANIFEST, "a number of nodes", count, 0, MAX_NODES)
        for kind, count in header["node_types"]
    }
    num_edges = {
        _type(check_edge_type, kind): check_int(MANIFEST, "a number of edges", count, 0)
        for kind, count in header["edge_types"]
    }
    for found, given in ((num_nodes, header["node_types"]), (num_edges, header["edge_types"])):
        if len(found) != len(given) or (None in found and len(found) > 1) or [*found] != sorted(found, key=_order):
            raise ValueError("types that are named twice, or not in order")
    ends = {end for edge_type in num_edges for end in ends_of(edge_type)}
    if not ends <= set(num_nodes):
        raise ValueError(f"an edge type between {shown(sorted(ends, key=_order))}, but nodes of {shown([*num_nodes])}")
    return Identity(
        check_int(MANIFEST, "num_parts", header["num_parts"], 1, MOST_PARTS),
        _text("fingerprint", header["fingerprint"]),
        _text("partition_id", header["partition_id"]),
        num_nodes,
        num_edges,
    )


def read_header(where: str, manifest: Manifest, name: str, wanted: str, *, verify: bool) -> dict[str, Any]:
    """Return part.json or book.json, parsed, of the format `wanted` and of the same partition as partition.json.

    Its own fields are not checked yet.
    """
    path = manifest.root / name
    with open_listed(where, manifest, name) as file:
        size = manifest.files[name].size
        if size > MOST_HEADER_BYTES:
            raise ValueError(f"{where}: {path} has {size} bytes; at most {MOST_HEADER_BYTES} are allowed. {_remedy()}")
        content = file.read(size)
    if verify and hash_of_bytes(content) != manifest.files[name].hash:
        raise _other_hash(where, path)
    with valid_header(where, path):
        header: dict[str, Any] = parse_strict(content.decode("utf-8"))
        refuse_other_format(header, wanted)
        identity = read_identity(header)
    if identity.partition_id != manifest.identity.partition_id:
        raise ValueError(
            f"{where}: {path} belongs to the partition {identity.partition_id}, {MANIFEST} beside it to "
            f"{manifest.identity.partition_id}; parts and book that disagree cannot be used together. {_remedy()}"
        )
    if identity != manifest.identity:
        field = next(name for name, value in asdict(identity).items() if value != getattr(manifest.identity, name))
        raise ValueError(f"{where}: {path} and {MANIFEST} give another {field}; they must be equal. {_remedy()}")
    return header


@contextmanager
def open_listed(where: str, manifest: Manifest, name: str) -> Iterator[BinaryIO]:
    """Give a file that partition.json names, open and of the right size.

    Raises:
        FileNotFoundError: It is missing.
        ValueError: It is not named, no regular file, or of another size.
    """
    path = manifest.root / name
    if name not in manifest.files:
        raise ValueError(f"{where}: {manifest.path} names no file {name}. {_remedy()}")
    with _opened(where, path, f"{manifest.path} names it") as file:
        found, size = os.fstat(file.fileno()).st_size, manifest.files[name].size
        if found != size:
            raise ValueError(
                f"{where}: {path} has {found} bytes, {MANIFEST} says {size}. It is truncated or changed; {REMEDY}."
            )
        yield file


def check_hash(where: str, manifest: Manifest, name: str, file: BinaryIO) -> None:
    """Raise ValueError if an open file has not the content that partition.json says."""
    size, digest = manifest.files[name]
    try:
        found = hash_of_file(file.fileno(), size)
    except ValueError as error:
        raise ValueError(f"{where}: {manifest.root / name} cannot be read: {error}. {_remedy()}") from error
    if found != digest:
        raise _other_hash(where, manifest.root / name)


@contextmanager
def valid_header(where: str, path: Path) -> Iterator[None]:
    """Turn what a corrupt header may raise into one error."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: {path} is not a valid header: {shown(error)}. {_remedy()}") from error


def refuse_other_format(header: Mapping[str, Any], wanted: str) -> None:
    """Raise ValueError if a header is of another format or version. Inside `valid_header`."""
    found, version = header["format"], header["version"]
    if found != wanted or version != VERSION or isinstance(version, bool):
        raise ValueError(f"format {shown(found)} version {shown(version)}, allowed {wanted!r} version {VERSION}")


@contextmanager
def _opened(where: str, path: Path, why: str) -> Iterator[BinaryIO]:
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{where}: {path} does not exist; {why}. Check the path, or {REMEDY}.") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    with file:
        yield file


def _type(check: Any, given: Any) -> Any:
    return None if given is None else check(MANIFEST, tuple(given) if isinstance(given, list) else given)


def _order(given: Any) -> Any:
    return (given is not None, given or "")


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, got {shown(value)}")
    return value


def _other_hash(where: str, path: Path) -> ValueError:
    return ValueError(f"{where}: the content of {path} is not that which {MANIFEST} names by its hash. {_remedy()}")


def _remedy() -> str:
    return f"{REMEDY[0].upper()}{REMEDY[1:]}."
