"""A folder of the native layout, of a part or of the book: one file with all arrays, and a JSON header.

All arrays are in arrays.npy (graph/arena.py); the header says where each of them begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.records import Count, from_json, to_json
from datapipes.graph.arena import (
    ARRAYS,
    Arena,
    Array,
    Place,
    by_place,
    bytes_of,
    header_text,
    part_of,
    planned,
    write_arena,
)
from datapipes.graph.npy import readable
from datapipes.partition.native.manifest import (
    AGAIN,
    VERSION,
    File,
    Identity,
    Manifest,
    check_hash,
    open_listed,
    read_header,
    valid_header,
)
from datapipes.partition.native.piece_hash import PieceHash, hash_of_bytes


@dataclass(frozen=True)
class Own:
    """How many nodes of each node type, and edges of each edge type, a part owns.

    The order is that of the sorted types.
    """

    nodes: tuple[Count, ...]
    edges: tuple[Count, ...]


@dataclass(frozen=True)
class PartFields:
    """The fields that part.json has beyond those that every header has: the id of the part, and what the part owns."""

    part: Count
    own: Own


@dataclass(frozen=True)
class BookFields:
    """The field that book.json has beyond those that every header has: whether the book has an edge map."""

    has_edges: bool


class Folder(NamedTuple):
    """What differs between the two kinds of folder, part and book.

    Attributes:
        header: the name of the JSON file.
        format: the text that the header must have as its "format".
        fields: the class of the fields that only this header has.
    """

    header: str
    format: str
    fields: type[Any]


PART = Folder("part.json", "datapipes-part", PartFields)
HOT = ("hot_ids", "hot_counts")  # kinds of arrays of a part, see Part.hot_nodes
BOOK = Folder("book.json", "datapipes-partition-book", BookFields)


def write_folder(
    root: Path,
    name: str,
    kind: Folder,
    identity: Identity,
    fields: PartFields | BookFields,
    arrays: Sequence[Array],
    progress: Callable[[int, int], None],
) -> dict[str, File]:
    """Write arrays and header into the folder `name` of `root`; return {path within `root`: File}, sizes and hashes.

    Args:
        identity: what every header of the partition states.
        fields: the fields that only this kind of header has.
        progress: called with (bytes of arrays.npy written so far, all bytes of arrays.npy).
    """
    arena = planned(arrays)
    header = {"format": kind.format, "version": VERSION, **identity.described(), **to_json(fields)}
    text = header_text("partition", kind.header, header, arena).encode()
    folder = root / name
    folder.mkdir(exist_ok=True)  # the other layout may have made it
    digest = PieceHash()

    def update(values: Any) -> None:
        digest.update(values)
        progress(min(digest.size, arena.num_bytes), arena.num_bytes)

    write_arena(folder / ARRAYS, arena, [array.pieces for array in arrays], update)
    (folder / kind.header).write_bytes(text)
    return {
        f"{name}/{kind.header}": File(len(text), hash_of_bytes(text)),
        f"{name}/{ARRAYS}": File(digest.size, digest.hexdigest()),
    }


def read_folder(
    where: str, manifest: Manifest, name: str, kind: Folder, kinds: Mapping[str, int], *, verify: bool
) -> tuple[Any, dict[Place, Tensor]]:
    """Read the folder `name` of a partition, and return (fields, arrays).

    fields: an object of the class `kind.fields`, from the header. arrays: {place: memory-mapped array}; a place is
    (kind of array, index of its type, name of the attribute or "").

    Args:
        kinds: {allowed kind of array: how many types it may have}.
        verify: compare the hashes of the files; if False, only their sizes.
    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is truncated, changed, no regular file, of another partition or not valid.
    """
    path, file_path = manifest.root / name / kind.header, manifest.root / name / ARRAYS
    header = read_header(where, manifest, f"{name}/{kind.header}", kind.format, verify=verify)
    with valid_header(where, path):
        fields: Any = from_json(kind.fields, kind.header, header, others=True)
        arena = from_json(Arena, kind.header, header, others=True)
        entries = by_place(arena.arrays, kinds)
    with open_listed(where, manifest, f"{name}/{ARRAYS}") as file:
        if verify:
            check_hash(where, manifest, f"{name}/{ARRAYS}", file)
        # Map the open file, which was hashed: its path may name another file by now.
        with readable(where, file_path, torch.uint8, (arena.num_bytes,), AGAIN):
            whole = bytes_of(file, arena.num_bytes)
    return fields, {place: part_of(where, file_path, whole, entry, AGAIN) for place, entry in entries.items()}
