"""A folder of the native layout: arrays.npy with all arrays (graph/arena.py), and a JSON header that names them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import check_int, shown
from datapipes.graph.arena import ARRAYS, ArenaWriter, Form, bytes_of, part_of, planned, read_form, refuse_overlaps
from datapipes.graph.npy import readable, refuse_repeats
from datapipes.partition.native.manifest import MOST_HEADER_BYTES, File, Manifest, check_hash, open_listed, read_header
from datapipes.partition.native.native_header import AGAIN, VERSION, Identity, valid_header
from datapipes.partition.native.piece_hash import PieceHash, hash_of_bytes

Place = tuple[str, int, str]  # of an array: its kind, the number of its type, its name ("" if the kind has one only)


class Array(NamedTuple):
    """An array that is to be written; the pieces are made while it is."""

    place: Place
    dtype: torch.dtype
    shape: Sequence[int]
    pieces: Iterable[Tensor]


class Folder(NamedTuple):
    """A kind of folder: the name of its header, and the format that the header states."""

    header: str
    format: str


PART = Folder("part.json", "datapipes-part")
HOT = ("hot_ids", "hot_counts")  # kinds of arrays of a part
BOOK = Folder("book.json", "datapipes-partition-book")


def write_folder(
    root: Path,
    name: str,
    kind: Folder,
    identity: Identity,
    fields: Mapping[str, Any],
    arrays: Sequence[Array],
    told: Callable[[int, int], None],
) -> dict[str, File]:
    """Write arrays and header into the folder `name` of `root`; return the size and hash of each file.

    Args:
        fields: what the header says besides.
        told: called with the bytes of arrays.npy that are written, and all of them.
    """
    forms = [*planned((array.dtype, array.shape) for array in arrays)]
    size = forms[-1].end if forms else 0
    entries = [
        {"kind": array.place[0], "type": array.place[1], "name": array.place[2], **form.described()}
        for array, form in zip(arrays, forms, strict=True)
    ]
    header = {"format": kind.format, "version": VERSION, **identity.described(), **fields}
    text = json.dumps({**header, "num_bytes": size, "arrays": entries}).encode()
    if len(text) > MOST_HEADER_BYTES:
        raise ValueError(
            f"partition: the names and shapes of {len(arrays)} arrays take {len(text)} bytes in {kind.header}; at most "
            f"{MOST_HEADER_BYTES} are allowed. Use fewer attributes, or shorter names."
        )
    folder = root / name
    folder.mkdir(exist_ok=True)  # the other layout may have made it
    digest = PieceHash()

    def update(values: Any) -> None:
        digest.update(values)
        told(min(digest.size, size), size)

    with ArenaWriter(folder / ARRAYS, forms, update) as arena:
        for array in arrays:
            arena.write(array.pieces)
    (folder / kind.header).write_bytes(text)
    return {
        f"{name}/{kind.header}": File(len(text), hash_of_bytes(text)),
        f"{name}/{ARRAYS}": File(digest.size, digest.hexdigest()),
    }


def read_folder(
    where: str, manifest: Manifest, name: str, kind: Folder, kinds: Mapping[str, int], *, verify: bool
) -> tuple[dict[str, Any], dict[Place, Tensor]]:
    """Return the header and the arrays of the folder `name`, memory-mapped.

    Args:
        kinds: {kind of array that is allowed: number of types that it may be of}.
        verify: compare the hashes too; else only the sizes.
    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file is truncated, changed, no regular file, of another partition or not valid.
    """
    path = manifest.root / name
    header = read_header(where, manifest, f"{name}/{kind.header}", kind.format, verify=verify)
    with valid_header(where, path / kind.header):
        num_bytes = check_int(kind.header, "num_bytes", header["num_bytes"], 0)
        forms = dict(entries := [_entry(entry, kinds, num_bytes, kind.header) for entry in header["arrays"]])
        refuse_repeats(("array", [place for place, _ in entries]))
        refuse_overlaps(forms.values())
    with open_listed(where, manifest, f"{name}/{ARRAYS}") as file:
        if verify:
            check_hash(where, manifest, f"{name}/{ARRAYS}", file)
        # The file that was hashed is the one that is mapped, whatever its path names by now.
        with readable(where, path / ARRAYS, torch.uint8, (num_bytes,), AGAIN):
            whole = bytes_of(file, num_bytes)
    return header, {place: part_of(where, path / ARRAYS, whole, form, AGAIN) for place, form in forms.items()}


def _entry(entry: Any, kinds: Mapping[str, int], num_bytes: int, header: str) -> tuple[Place, Form]:
    kind, name = entry["kind"], entry["name"]
    if not isinstance(kind, str) or kind not in kinds or not isinstance(name, str):
        raise ValueError(f"unknown array {shown(kind)} {shown(name)}")
    number = check_int(header, "the number of a type", entry["type"], 0, kinds[kind] - 1)
    place = kind, number, name if kind.endswith("attributes") else ""
    return place, read_form(entry, num_bytes, f"{shown(kind)} {shown(name)}", header)
