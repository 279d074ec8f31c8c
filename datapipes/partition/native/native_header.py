"""What the JSON headers of the native layout share: who they belong to, and how a corrupt one is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import torch

from datapipes.base.checks import shown
from datapipes.base.files import open_regular
from datapipes.base.records import Count, OptionalEdgeType, OptionalNodeType, dtype_among, from_json, to_json, whole
from datapipes.base.strict_json import parse_strict
from datapipes.base.types import ends_of
from datapipes.graph import arena
from datapipes.graph.checks import MAX_NODES
from datapipes.partition.id_maps import MOST_PARTS
from datapipes.partition.native.piece_hash import hash_of_bytes

VERSION = 2
AGAIN = "copy the partition again, or make it again"
REMEDY = "Copy the partition again, or make it again."
IndexDtype = Annotated[torch.dtype, dtype_among("int32", "int64")]
_STORED = {"num_nodes": "node_types", "num_edges": "edge_types"}  # {field of an Identity: its name in a header}
_TAIL = b',\n "hash": "%s"\n}\n'


@dataclass(frozen=True)
class Identity:
    """What every file set of a partition says of it.

    Attributes:
        fingerprint: digest of the whole graph.
        partition_id, content_id: 16 hexadecimal digits each, see native_book.py.
        num_nodes, num_edges: numbers of the whole graph by type, sorted; {None: number} without types.
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
            raise ValueError(f"the types are {shown(nodes)} and {shown(edges)}, partly without names")
        for types in (nodes, edges):
            if None not in types and types != sorted(types):
                raise ValueError(f"the types {shown(types)} are not in order")
        missing = [end for edge_type in edges for end in ends_of(edge_type) if end not in self.num_nodes]
        if missing:
            raise ValueError(f"an edge type ends at {shown(missing[0])}, which is no node type")

    def described(self) -> dict[str, Any]:
        """Return what a header says of it."""
        return {_STORED.get(name, name): value for name, value in to_json(self).items()}


def read_identity(header: Mapping[str, Any]) -> Identity:
    """Return what a header says of the partition. Inside `valid_header`."""
    values = {**header, **{name: header[stored] for name, stored in _STORED.items()}}
    return from_json(Identity, "a header", values, others=True)


def valid_header(where: str, path: Path) -> AbstractContextManager[None]:
    """Turn what a corrupt header may raise into one error."""
    return arena.valid_header(where, path, REMEDY)


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
