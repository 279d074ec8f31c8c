"""Arena: one file, arrays.npy, that has many arrays, and the list of these arrays in a JSON header.

However many arrays there are, they take one file descriptor and one memory mapping.
The file is a NumPy array of bytes. A JSON header beside it says which arrays there are, their dtypes and shapes, and
where each begins (a multiple of 64). Arrays are written one after the other, in pieces if they are large. The reader
trusts neither file, see npy.py: before it maps or reads the arena, it checks that all arrays lie within the file and
none overlaps another. The headers of graphs (storage.py), parts and books (partition/native) include an `Arena`.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.array_digest import StreamedDigest
from datapipes.base.checks import dtype_from_name, dtype_name, reason, shown
from datapipes.base.files import open_regular
from datapipes.base.records import OMITTED, Count, Form, list_of, plain, to_json, whole
from datapipes.base.sizes import check_memory
from datapipes.graph.npy import REMEDY, read_array, readable, says_all, to_numpy

ARRAYS = "arrays.npy"
ALIGNED = 64  # bytes: the size of a cache line, and NumPy's alignment of the values in a file
MOST_HEADER_BYTES = 2**21  # enough for 10,000 arrays; a hostile header takes 30 times its bytes once parsed
_MOST_DIMENSIONS = 64  # of an array; NumPy's limit
_SIZE = whole(0)
_HEX = re.compile("[0-9a-f]{32}")

Place = tuple[str, int, str]  # (kind of an array, position of its type, name; "" unless it is an attribute)


def _read_shape(name: str, value: Any) -> tuple[int, ...]:
    return tuple([_SIZE.read("a size in a shape", size) for size in list_of(name, value, _MOST_DIMENSIONS)])


DTYPE = Form(dtype_from_name, dtype_name)
SHAPE = Form(_read_shape, list)
_DIGEST = plain("32 hexadecimal digits", lambda value: isinstance(value, str) and bool(_HEX.fullmatch(value)))


class Array(NamedTuple):
    """An array to write to an arena. Its values come in `pieces`, which are made during the writing."""

    place: Place
    dtype: torch.dtype
    shape: Sequence[int]
    pieces: Iterable[Tensor]
    digest: str | None = None


@dataclass(frozen=True)
class Entry:
    """What the JSON header says of one array in arrays.npy.

    Attributes:
        kind: what the array is: "indptr", "indices", "edge_ids", "node_attributes", "edge_attributes" or others.
        type: the position of its node type or edge type in the header's list of types.
        name: the name of the attribute, if the array is an attribute.
        offset: the byte of the arena at which the array begins.
        digest: the array's `array_digest`; None if the header has none.
    """

    kind: str
    type: Count
    name: str
    dtype: Annotated[torch.dtype, DTYPE]
    shape: Annotated[tuple[int, ...], SHAPE]
    offset: Count
    digest: Annotated[Annotated[str, _DIGEST] | None, OMITTED] = None

    @property
    def place(self) -> Place:
        """(kind, type, name): the key of the array in its arena. The name is "" unless the array is an attribute."""
        return self.kind, self.type, self.name if self.kind.endswith("attributes") else ""

    @property
    def end(self) -> int:
        """The byte of the arena at which the array ends, exclusive."""
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Arena:
    """The list of the arrays in an arena file of `num_bytes` bytes, as a header contains it.

    Raises:
        ValueError: An array is not within `num_bytes`, does not begin at a multiple of 64, or overlaps another.
    """

    num_bytes: Count
    arrays: tuple[Entry, ...]

    def __post_init__(self) -> None:
        for entry in self.arrays:
            if entry.offset % ALIGNED or entry.end > self.num_bytes:
                raise ValueError(
                    f"the array {shown(entry.kind)} {shown(entry.name)} begins at byte {entry.offset} and ends at byte "
                    f"{shown(entry.end)}; it must begin at a multiple of {ALIGNED} and end at {self.num_bytes} or below"
                )
        held = sorted((entry.offset, entry.end) for entry in self.arrays if entry.end > entry.offset)
        for (begin, end), (other, _) in pairwise(held):
            if other < end:
                raise ValueError(f"two arrays overlap, which begin at bytes {begin} and {other}")


def planned(arrays: Iterable[Array]) -> Arena:
    """Plan a file that has `arrays` one after the other, and return its Arena. Nothing is written."""
    entries: list[Entry] = []
    end = 0
    for array in arrays:
        begin = -(-end // ALIGNED) * ALIGNED
        entries.append(Entry(*array.place, array.dtype, tuple(array.shape), begin, array.digest))
        end = entries[-1].end
    return Arena(end, tuple(entries))


def by_place(entries: Iterable[Entry], kinds: Mapping[str, int]) -> dict[Place, Entry]:
    """Return the entries of an arena as {(kind, type, name): entry}, checked.

    Args:
        kinds: {allowed kind of array: number of node types or edge types}.
    Raises:
        ValueError: An array has a kind that is not allowed or an unknown type, or is listed twice.
    """
    places: dict[Place, Entry] = {}
    for entry in entries:
        if entry.kind not in kinds:
            raise ValueError(f"unknown array {shown(entry.kind)} {shown(entry.name)}")
        if entry.type >= kinds[entry.kind]:
            types = kinds[entry.kind]
            raise ValueError(
                f"an array of {entry.kind} has the type number {entry.type}; types are numbered from 0 "
                f"on, and there are {types}"
            )
        if entry.place in places:
            raise ValueError(f"the array {shown(entry.place)} is named more than once")
        places[entry.place] = entry
    return places


def attributes_of(arrays: Mapping[Place, Tensor], kind: str, count: int) -> list[dict[str, Tensor]]:
    """Return the attributes among `arrays`: a list of {name: values}, one dict for each of `count` types.

    Args:
        arrays: {(kind, position of the type, name): values}.
        kind: "node_attributes" or "edge_attributes".
    """
    attributes: list[dict[str, Tensor]] = [{} for _ in range(count)]
    for (array_kind, number, name), values in arrays.items():
        if array_kind == kind:
            attributes[number][name] = values
    return attributes


# --- headers


def header_text(where: str, name: str, fields: Mapping[str, Any], arena: Arena) -> str:
    """Return the JSON text of a header: `fields`, then the list of the arrays in `arena`. `name` is for errors.

    Raises:
        ValueError: The text is longer than MOST_HEADER_BYTES, which the reader would refuse.
    """
    text = json.dumps({**fields, **to_json(arena)})
    if len(text) > MOST_HEADER_BYTES:
        raise ValueError(
            f"{where}: the names and shapes of {len(arena.arrays)} arrays take {len(text)} bytes in {name}; at most "
            f"{MOST_HEADER_BYTES} are allowed. Use fewer attributes, or shorter names."
        )
    return text


@contextmanager
def valid_header(where: str, path: Path, remedy: str) -> Iterator[None]:
    """Context manager: if reading a corrupt header fails inside, raise a ValueError that names the file `path`."""
    try:
        yield
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if says_all(error, path):
            raise ValueError(f"{where}: {error}") from error
        raise ValueError(f"{where}: {path} is not a valid header: {reason(error)} {remedy}") from error


def refuse_other_format(header: Any, wanted: str, version: int) -> None:
    """Raise ValueError unless the header has the format `wanted` and this version. Call it inside `valid_header`."""
    if not isinstance(header, dict):
        raise ValueError(f"it is {shown(header)}; an object with the fields of a header is needed")
    form, number = header["format"], header["version"]
    if (form, number) != (wanted, version) or type(number) is not int:
        raise ValueError(f"format {shown(form)} version {shown(number)}; needed: {wanted!r} version {version}")


# --- the file


def write_arena(
    path: Path,
    arena: Arena,
    arrays: Iterable[Iterable[Tensor]],
    on_bytes: Callable[[memoryview], None] = lambda values: None,
) -> None:
    """Write all arrays of an arena to the file `path`; overwrite an existing file.

    Args:
        arena: the result of `planned`.
        arrays: for each array its pieces; together they have its values in C order.
        on_bytes: called with all bytes of the file, in order, as they are written.
    Raises:
        ValueError: The pieces have more or fewer bytes than the array.
    """
    with path.open("wb") as file:

        def put(values: memoryview) -> None:
            file.write(values)
            on_bytes(values)

        put(_file_header(arena))
        end = 0  # bytes written so far, without the file header
        for entry, pieces in zip(arena.arrays, arrays, strict=True):
            put(memoryview(bytes(entry.offset - end)))
            end = entry.offset
            for piece in pieces:
                assert piece.dtype == entry.dtype
                values = to_numpy(piece).reshape(-1).view(np.uint8)
                put(values.data)
                end += values.nbytes
            if end != entry.end:
                raise ValueError(
                    f"{path}: {end - entry.offset} bytes were written for an array of {entry.end - entry.offset}. The "
                    "values changed while they were written; write them again."
                )


def _file_header(arena: Arena) -> memoryview:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": (arena.num_bytes,)})
    return header.getbuffer()


class ArenaWriter:
    """Context manager: writes the arrays of an arena side by side. Each `put` appends values to one of the arrays.

    Args:
        arena: the result of `planned`.
        kinds_of_ids: kinds of arrays that contain ids, whose digests are the same for int32 and int64.
    Raises:
        OSError: The disk has too little space.
    """

    def __init__(self, path: Path, arena: Arena, kinds_of_ids: Sequence[str]) -> None:
        self.arena = arena
        self._digests = [
            StreamedDigest(entry.dtype, entry.shape[1:], as_int64=entry.kind in kinds_of_ids) for entry in arena.arrays
        ]
        self._written = [0] * len(arena.arrays)
        self._file = path.open("wb", buffering=0)
        header = _file_header(arena)
        self._begin = len(header)
        with contextlib.suppress(OSError) if arena.num_bytes == 0 else contextlib.nullcontext():
            os.posix_fallocate(self._file.fileno(), 0, self._begin + arena.num_bytes)
        self._put(header, 0)

    def put(self, number: int, values: Tensor) -> None:
        """Append values to an array; `number` is the array's position in `arena.arrays`."""
        entry = self.arena.arrays[number]
        assert values.dtype == entry.dtype
        data = to_numpy(values).reshape(-1).view(np.uint8).data
        assert self._written[number] + len(data) <= entry.end - entry.offset
        self._put(data, self._begin + entry.offset + self._written[number])
        self._written[number] += len(data)
        self._digests[number].take(values)

    def finished(self) -> Arena:
        """Return the arena with the digests of all arrays added. Call it after all values were put."""
        entries = self.arena.arrays
        assert self._written == [entry.end - entry.offset for entry in entries]
        digested = [
            replace(entry, digest=streamed.digest()) for entry, streamed in zip(entries, self._digests, strict=True)
        ]
        return replace(self.arena, arrays=tuple(digested))

    def _put(self, data: memoryview, place: int) -> None:
        while data:
            count = os.pwrite(self._file.fileno(), data, place)
            data, place = data[count:], place + count

    def __enter__(self) -> ArenaWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def read_arena(where: str, path: Path, num_bytes: int, mmap: bool) -> NDArray[np.uint8]:
    """Return all bytes of an arena file: memory-mapped with `mmap`, else read into memory."""
    if not mmap:
        check_memory(where, f"{path} with mmap=False", num_bytes, "Open it with mmap=True.")
    with readable(where, path, torch.uint8, (num_bytes,)), open_regular(path) as file:
        return bytes_of(file, num_bytes, mmap)


def bytes_of(file: BinaryIO, num_bytes: int, mmap: bool = True) -> NDArray[np.uint8]:
    """Return all bytes of an arena, given its open file; memory-mapped with `mmap`. Call it inside `readable`."""
    array = read_array(file, (num_bytes,), mmap)
    if array.dtype != np.uint8:
        raise ValueError(f"the file has the dtype {array.dtype}")
    if isinstance(array, np.memmap) and array.ctypes.data % ALIGNED:
        raise ValueError(f"the values begin at byte {array.offset}, not at a multiple of {ALIGNED}")
    # An array without values has stride 0, which torch does not view as another dtype.
    return np.asarray(array) if num_bytes > 0 else np.empty(1, np.uint8)[:0]


def part_of(where: str, path: Path, whole: NDArray[np.uint8], entry: Entry, remedy: str = REMEDY) -> Tensor:
    """Return the array that `entry` describes, as a view of `whole`, the bytes of the arena file `path`.

    The storage of the tensor covers only the array's own bytes, because torch pickles and saves a storage as a whole.
    """
    with readable(where, path, entry.dtype, entry.shape, remedy):
        return torch.from_numpy(whole[entry.offset : entry.end]).view(entry.dtype).view(entry.shape)
