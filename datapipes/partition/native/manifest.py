"""partition.json: what a native partition is, and the size and hash of each of its files.

partition.json is written last. A folder without it holds no native partition. The reader trusts no file: numbers and
names are checked, nothing is unpickled, and each file is compared with its size and hash when it is opened. The headers
of the folders, part.json and book.json, also say to which partition they belong.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import torch

from datapipes.base.checks import shown
from datapipes.base.errors import sentence
from datapipes.base.files import open_regular
from datapipes.base.records import (
    OMITTED,
    Count,
    OptionalEdgeType,
    OptionalNodeType,
    dtype_among,
    from_json,
    to_json,
    whole,
)
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import ends_of
from datapipes.graph import arena
from datapipes.graph.arena import MOST_HEADER_BYTES, refuse_other_format
from datapipes.graph.checks import MAX_NODES
from datapipes.graph.graph import EarliestNode
from datapipes.partition.book import MOST_PARTS
from datapipes.partition.layouts import MANIFEST, layout_of
from datapipes.partition.native.piece_hash import hash_of_bytes, hash_of_file

VERSION = 2
AGAIN = "copy the partition again, or make it again"
REMEDY = "Copy the partition again, or make it again."
IndexDtype = Annotated[torch.dtype, dtype_among("int32", "int64")]
_STORED = {"num_nodes": "node_types", "num_edges": "edge_types"}  # {field of an Identity: its name in a header}
_TAIL = b',\n "hash": "%s"\n}\n'
FORMAT = "datapipes-partition"
MOST_BYTES = 2**25  # of partition.json: room for two files of each of 2^15 parts, and a report


@dataclass(frozen=True)
class Identity:
    """The facts by which partitions are told apart. Every header of a partition states them.

    Attributes:
        num_parts: number of parts.
        fingerprint: digest of the whole graph.
        partition_id: digest of fingerprint, number of parts, and the part of each node, 16 hexadecimal digits.
        content_id: digest of fingerprint, `node_time_attr` and all attributes, 16 hexadecimal digits.
        num_nodes, num_edges: {type: how many nodes or edges the whole graph has}, sorted by type; without types, the
            type is None.
    Raises:
        ValueError: The types do not fit each other.
    """

    num_parts: Annotated[int, whole(1, MOST_PARTS)]
    fingerprint: str
    partition_id: str
    content_id: str
    num_nodes: Mapping[OptionalNodeType, Annotated[int, whole(0, MAX_NODES)]]
    num_edges: Mapping[OptionalEdgeType, Count]

    def __post_init__(self) -> None:
        nodes: list[Any] = [*self.num_nodes]
        edges: list[Any] = [*self.num_edges]
        if None in (*nodes, *edges) and (nodes, edges) != ([None], [None]):
            raise ValueError(
                f"the node types are {shown(nodes)} and the edge types {shown(edges)}; a type without a name (None) "
                "must be the only one of both"
            )
        for types in (nodes, edges):
            if None not in types and types != sorted(types):
                raise ValueError(f"the types {shown(types)} are not sorted")
        missing = [end for edge_type in edges for end in ends_of(edge_type) if end not in self.num_nodes]
        if missing:
            raise ValueError(f"an edge type ends at {shown(missing[0])}, which is no node type")

    def described(self) -> dict[str, Any]:
        """Return the fields of a header that state this identity, as {name: JSON value}."""
        return {_STORED.get(name, name): value for name, value in to_json(self).items()}


def read_identity(header: Mapping[str, Any]) -> Identity:
    """Return the Identity that a parsed header states. Call it inside `valid_header`, which names the file."""
    values = {**header, **{name: header[stored] for name, stored in _STORED.items()}}
    return from_json(Identity, "a header", values, others=True)


class File(NamedTuple):
    """What partition.json states about a file: its size in bytes, and its hash."""

    size: Count
    hash: str


@dataclass(frozen=True)
class _Fields:
    """The fields that only partition.json has. A Manifest has attributes of the same names, and explains them."""

    index_dtype: IndexDtype
    node_time_attr: str | None
    files: Mapping[str, File]
    earliest_nodes: Annotated[Mapping[OptionalNodeType, EarliestNode] | None, OMITTED] = None


@dataclass(frozen=True)
class Manifest:
    """The content of partition.json in the folder `root`, which holds a native partition.

    Attributes:
        index_dtype: the dtype in which parts store neighbors.
        node_time_attr: the node attribute with times. Each edge is stored with the time of its source. None: no times
            are stored.
        about: {name: JSON value}, all other fields of partition.json, such as method, rng_seed and report.
        files: {path within `root`: File}.
        earliest_nodes: {node type: EarliestNode} of the types that have `node_time_attr`; None if partition.json lacks
            this field.
        folder: file descriptor of the folder `root`, valid until the with statement of `opened_manifest` ends. None:
            `root` is not open.
    """

    root: Path
    identity: Identity
    index_dtype: torch.dtype
    node_time_attr: str | None
    about: Mapping[str, Any]
    files: Mapping[str, File]
    earliest_nodes: Mapping[Any, EarliestNode] | None = None
    folder: int | None = None

    @property
    def path(self) -> Path:
        """The path of partition.json."""
        return self.root / MANIFEST


def manifest_bytes(manifest: Manifest) -> bytes:
    """Return the content of partition.json for `manifest`, after a check that `read_manifest` would accept it.

    Raises:
        ValueError: `about` is no JSON, has a name that partition.json needs, or is too large.
    """
    own_fields = _Fields(manifest.index_dtype, manifest.node_time_attr, manifest.files, manifest.earliest_nodes)
    header = {"format": FORMAT, "version": VERSION, **manifest.identity.described(), **to_json(own_fields)}
    taken = sorted({*header, "hash"} & {*manifest.about})
    if taken:
        raise ValueError(
            f"partition: about has the field {taken[0]!r}, and {MANIFEST} has one of this name already. Rename yours."
        )
    files = header.pop("files")
    try:
        content = with_own_hash({**header, **manifest.about, "files": files})
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(
            f"partition: {MANIFEST} cannot hold {shown(manifest.about)}: {sentence(error)} Give finite numbers, texts, "
            "lists and dicts."
        ) from error
    if len(content) > MOST_BYTES:
        raise ValueError(
            f"partition: {MANIFEST} would have {len(content)} bytes; at most {MOST_BYTES} are allowed. Use fewer "
            "parts, or a shorter report."
        )
    return content


def read_manifest(where: str, root: str | Path) -> Manifest:
    """Read partition.json in the folder `root`, and return the Manifest.

    Raises:
        FileNotFoundError: `root` has no partition.json.
        ValueError: partition.json is not valid.
    """
    with opened_manifest(where, root) as manifest:
        return replace(manifest, folder=None)


@contextmanager
def opened_manifest(where: str, root: str | Path) -> Iterator[Manifest]:
    """Open the folder `root`, read its partition.json, and yield the Manifest.

    The folder stays open until the with statement ends, and other functions open its files through its descriptor. So
    all files are of one partition, even if another partition takes the place of `root` meanwhile.

    Raises:
        FileNotFoundError: `root` has no partition.json. Or the body of the with statement found a file missing; the
            message tells if another folder has taken the place of `root`.
        ValueError: partition.json is not valid.
    """
    root = Path(root)
    try:
        folder = os.open(root, os.O_PATH | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(
            f"{where}: {root / MANIFEST} does not exist; {root} holds no native partition. Check the path, or {AGAIN}."
        ) from error
    try:
        yield _read(where, root, folder)
    except FileNotFoundError as error:
        if _is_at(folder, root):
            raise
        raise FileNotFoundError(
            f"{where}: another folder has taken the place of {root} while its files were opened. Open it again."
        ) from error
    finally:
        os.close(folder)


def _is_at(folder: int, root: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(folder), os.stat(root))
    except FileNotFoundError:
        return False


def _read(where: str, root: Path, folder: int) -> Manifest:
    path = root / MANIFEST
    other = ", only PyG's layout" if layout_of(root) == {"pyg"} else ""
    with opened_file(where, path, f"{root} holds no native partition{other}", (folder, MANIFEST)) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MOST_BYTES:
            raise ValueError(f"{where}: {path} has {size} bytes; at most {MOST_BYTES} are allowed. {REMEDY}")
        content = file.read(size)
    with valid_header(where, path):
        header = parse_strict(content.decode("utf-8"), floats=True)
        refuse_other_format(header, FORMAT, VERSION)
        refuse_other_hash(content)
        values = from_json(_Fields, MANIFEST, header, others=True)
        identity = read_identity(header)
    names = {"format", "version", *identity.described(), *to_json(values), "hash"}
    about = {name: value for name, value in header.items() if name not in names}
    return Manifest(root, identity, about=about, folder=folder, **vars(values))


def read_header(where: str, manifest: Manifest, name: str, wanted: str, *, verify: bool) -> dict[str, Any]:
    """Read the header `name` (part.json or book.json), and return its fields as a dict.

    The fields that only this header has are not checked here.

    Args:
        wanted: the text that the header must have as its "format".
        verify: compare the hash of the file, too.
    Raises:
        FileNotFoundError: The file is missing.
        ValueError: The file is broken, has another format, or is of another partition than `manifest`.
    """
    path = manifest.root / name
    with open_listed(where, manifest, name) as file:
        size = manifest.files[name].size
        if size > MOST_HEADER_BYTES:
            raise ValueError(f"{where}: {path} has {size} bytes; at most {MOST_HEADER_BYTES} are allowed. {REMEDY}")
        content = file.read(size)
    if verify and hash_of_bytes(content) != manifest.files[name].hash:
        raise _other_hash(where, path)
    with valid_header(where, path):
        header: dict[str, Any] = parse_strict(content.decode("utf-8"))
        refuse_other_format(header, wanted, VERSION)
        identity = read_identity(header)
    if identity.partition_id != manifest.identity.partition_id:
        raise ValueError(
            f"{where}: {path} belongs to the partition {identity.partition_id}, {MANIFEST} beside it to "
            f"{manifest.identity.partition_id}; parts and book that disagree cannot be used together. {REMEDY}"
        )
    if identity != manifest.identity:
        names = (field.name for field in fields(identity))
        field = next(name for name in names if getattr(identity, name) != getattr(manifest.identity, name))
        raise ValueError(f"{where}: {path} and {MANIFEST} have different {field}; they must be equal. {REMEDY}")
    return header


@contextmanager
def open_listed(where: str, manifest: Manifest, name: str) -> Iterator[BinaryIO]:
    """Open the file `name` of the partition for reading, check its size against partition.json, and yield it.

    Raises:
        FileNotFoundError: The file is missing.
        ValueError: partition.json does not name the file, or the file is not regular, or has another size.
    """
    path = manifest.root / name
    if name not in manifest.files:
        raise ValueError(f"{where}: {manifest.path} names no file {name}. {REMEDY}")
    at = None if manifest.folder is None else (manifest.folder, name)
    with opened_file(where, path, f"{manifest.path} names it", at) as file:
        stored, size = os.fstat(file.fileno()).st_size, manifest.files[name].size
        if stored != size:
            raise ValueError(
                f"{where}: {path} has {stored} bytes, {MANIFEST} says {size}. It is truncated or changed; {AGAIN}."
            )
        yield file


def check_hash(where: str, manifest: Manifest, name: str, file: BinaryIO) -> None:
    """Raise ValueError unless the open `file` has the hash that partition.json states for the file `name`."""
    size, digest = manifest.files[name]
    try:
        stored = hash_of_file(file.fileno(), size)
    except ValueError as error:
        raise ValueError(f"{where}: {manifest.root / name} cannot be read: {sentence(error)} {REMEDY}") from error
    if stored != digest:
        raise _other_hash(where, manifest.root / name)


def _other_hash(where: str, path: Path) -> ValueError:
    return ValueError(f"{where}: the content of {path} does not have the hash in {MANIFEST}. {REMEDY}")


# --- a header, and a file


def valid_header(where: str, path: Path) -> AbstractContextManager[None]:
    """Return a context manager for code that reads the header `path`.

    It turns every error of a corrupt header into a ValueError that names the file.
    """
    return arena.valid_header(where, path, REMEDY)


@contextmanager
def opened_file(where: str, path: Path, why: str, at: tuple[int, str] | None = None) -> Iterator[BinaryIO]:
    """Open a regular file for reading, and yield it; `at` is passed to `open_regular`.

    Raises:
        FileNotFoundError: The file is missing; the message says `why` it should be there.
        ValueError: The file is no regular file.
    """
    try:
        file = open_regular(path, at)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(f"{where}: {path} does not exist; {why}. Check the path, or {AGAIN}.") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    with file:
        yield file


def with_own_hash(fields: Mapping[str, Any]) -> bytes:
    """Return `fields` as the bytes of a JSON object, one line each.

    A last field "hash" has the hash of the text before it.

    Raises:
        TypeError, ValueError, RecursionError: A value is no JSON, or one that `parse_strict` would refuse.
    """
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields.items())
    parse_strict("{" + lines + "}", floats=True)
    before = f"{{\n{lines}".encode()
    return before + _TAIL % hash_of_bytes(before).encode()


def refuse_other_hash(content: bytes) -> None:
    """Raise ValueError unless the last field of `content` is the hash of the text before this field.

    Call it inside `valid_header`, which names the file in errors.
    """
    before = content[: -len(_TAIL % bytes(64))]
    if content != before + _TAIL % hash_of_bytes(before).encode():
        raise ValueError("its content does not have the hash in its last field")
