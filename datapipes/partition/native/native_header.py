"""What the JSON headers of the native layout share: who they belong to, and how a corrupt one is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from datapipes.base.checks import check_int, shown
from datapipes.base.files import open_regular
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import EdgeType, NodeType, check_edge_type, check_node_type, ends_of
from datapipes.graph.checks import MAX_NODES
from datapipes.partition.id_maps import MOST_PARTS
from datapipes.partition.native.piece_hash import hash_of_bytes

VERSION = 2  # of version 1, whose names came from samples of large arrays, see `named_by_files`
AGAIN = "copy the partition again, or make it again"
REMEDY = "Copy the partition again, or make it again."
_NAME = "a header"
_TAIL = b',\n "hash": "%s"\n}\n'


@dataclass(frozen=True)
class Identity:
    """What every file set of a partition says of it.

    Attributes:
        fingerprint: digest of the whole graph.
        partition_id, content_id: 16 hexadecimal digits each, see native_book.py.
        num_nodes, num_edges: numbers of the whole graph by type, sorted.
    """

    num_parts: int
    fingerprint: str
    partition_id: str
    content_id: str
    num_nodes: Mapping[NodeType | None, int]
    num_edges: Mapping[EdgeType | None, int]

    def described(self) -> dict[str, Any]:
        """Return what a header says of it."""
        fields = {name: getattr(self, name) for name in ("num_parts", "fingerprint", "partition_id", "content_id")}
        return {
            **fields,
            "node_types": [[node_type, count] for node_type, count in self.num_nodes.items()],
            "edge_types": [[edge_type, count] for edge_type, count in self.num_edges.items()],
        }


def read_identity(header: Mapping[str, Any]) -> Identity:
    """Return what a header says of the partition. Inside `valid_header`."""
    num_nodes = {
        _type(check_node_type, kind): check_int(_NAME, "a number of nodes", count, 0, MAX_NODES)
        for kind, count in header["node_types"]
    }
    num_edges = {
        _type(check_edge_type, kind): check_int(_NAME, "a number of edges", count, 0)
        for kind, count in header["edge_types"]
    }
    for found, given in ((num_nodes, header["node_types"]), (num_edges, header["edge_types"])):
        if len(found) != len(given) or (None in found and len(found) > 1) or [*found] != sorted(found, key=_order):
            raise ValueError("types that are named twice, or not in order")
    ends = {end for edge_type in num_edges for end in ends_of(edge_type)}
    if not ends <= set(num_nodes):
        raise ValueError(f"an edge type between {shown(sorted(ends, key=_order))}, but nodes of {shown([*num_nodes])}")
    return Identity(
        check_int(_NAME, "num_parts", header["num_parts"], 1, MOST_PARTS),
        check_text("fingerprint", header["fingerprint"]),
        check_text("partition_id", header["partition_id"]),
        check_text("content_id", header["content_id"]),
        num_nodes,
        num_edges,
    )


def named_by_files(header: Mapping[str, Any], identity: Identity, files: Mapping[str, Sequence[Any]]) -> Identity:
    """Return the identity of a partition; one of version 1 is named by the hashes of all its files as well.

    So its names cover every byte. They are not those of the whole graph, so no state moves between the two.

    Args:
        header: the header that `identity` came from.
        files: {path of each file of the partition: (size, hash)}.
    """
    if header["version"] != 1:
        return identity
    listed = json.dumps([[name, *files[name]] for name in sorted(files)])
    names: dict[str, Any] = {
        name: hashlib.blake2b(f"{getattr(identity, name)} {listed}".encode(), digest_size=size).hexdigest()
        for name, size in (("fingerprint", 16), ("partition_id", 8), ("content_id", 8))
    }
    return replace(identity, **names)


@contextmanager
def valid_header(where: str, path: Path) -> Iterator[None]:
    """Turn what a corrupt header may raise into one error."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{where}: {path} is not a valid header: {shown(error)}. {REMEDY}") from error


def refuse_other_format(header: Mapping[str, Any], wanted: str) -> None:
    """Raise ValueError if a header is of another format or version. Inside `valid_header`."""
    found, version = header["format"], header["version"]
    if found != wanted or version not in (1, VERSION) or isinstance(version, bool):
        raise ValueError(f"format {shown(found)} version {shown(version)}, allowed {wanted!r} version 1 or {VERSION}")


@contextmanager
def opened_file(where: str, path: Path, why: str, at: tuple[int, str] | None = None) -> Iterator[BinaryIO]:
    """Give a regular file, open for reading; `at` is that of `open_regular`.

    Raises:
        FileNotFoundError: It is missing; the message says `why` it should be there.
        ValueError: It is no regular file.
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
    """Return a JSON object, a line for each field, with one field more: the hash of what stands before it.

    Raises:
        TypeError, ValueError, RecursionError: A value is no JSON, or one that `parse_strict` would refuse.
    """
    lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(value, allow_nan=False)}" for name, value in fields.items())
    parse_strict("{" + lines + "}", floats=True)
    before = f"{{\n{lines}".encode()
    return before + _TAIL % hash_of_bytes(before).encode()


def refuse_other_hash(content: bytes) -> None:
    """Raise ValueError unless the last field is the hash of what stands before it. Inside `valid_header`."""
    before = content[: -len(_TAIL % bytes(64))]
    if content != before + _TAIL % hash_of_bytes(before).encode():
        raise ValueError("its content is not that which its last field names by its hash")


def check_text(what: str, value: Any) -> str:
    """Return `value`, a str."""
    if not isinstance(value, str):
        raise TypeError(f"{what} must be a text, got {shown(value)}")
    return value


def _type(check: Any, given: Any) -> Any:
    return None if given is None else check(_NAME, tuple(given) if isinstance(given, list) else given)


def _order(given: Any) -> Any:
    return (given is not None, given or "")
