"""Arena: many arrays in one file, arrays.npy, so that they take one descriptor and one mapping.

The file is a NumPy array of bytes. A header beside it says where each array begins (a multiple of 64), its dtype and
its shape. Arrays are written one after the other, in pieces if they are large. The reader trusts neither file, see
npy.py: before it maps or reads the arena it has checked that all arrays lie within it and none overlaps another.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import check_int, dtype_from_name, dtype_name, shown
from datapipes.base.files import open_regular
from datapipes.base.sizes import check_memory
from datapipes.graph.npy import REMEDY, check_shape, read_array, readable, to_numpy

ARRAYS = "arrays.npy"
ALIGNED = 64  # bytes; a line of the cache, and NumPy's alignment of the values in a file


class Form(NamedTuple):
    """What an array is, and at which bytes of the arena it lies."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int

    def described(self) -> dict[str, Any]:
        """Return what a header says of it."""
        return {"dtype": dtype_name(self.dtype), "shape": list(self.shape), "offset": self.begin}


def planned(arrays: Iterable[tuple[torch.dtype, Sequence[int]]]) -> Iterator[Form]:
    """Yield the places of arrays of these dtypes and shapes; the end of the last is the size of the arena."""
    end = 0
    for dtype, shape in arrays:
        begin = -(-end // ALIGNED) * ALIGNED
        end = begin + math.prod(shape) * dtype.itemsize
        yield Form(dtype, tuple(shape), begin, end)


class ArenaWriter:
    """Writes an arena: `write` gives the values of each array, in the order of `forms`.

    Args:
        path: the file; it is overwritten.
        forms: as `planned` gives them.
        told: called with all bytes of the file, in order, as they are written.
    """

    def __init__(self, path: Path, forms: Sequence[Form], told: Callable[[Any], None] | None = None) -> None:
        self._left = [*reversed(forms)]
        self._told = told
        self._end = 0  # of the values written so far
        self._file = path.open("wb")
        header = io.BytesIO()
        num_bytes = forms[-1].end if forms else 0
        form = {"descr": "|u1", "fortran_order": False, "shape": (num_bytes,)}
        np.lib.format.write_array_header_1_0(header, form)
        self._put(header.getbuffer())

    def write(self, pieces: Iterable[Tensor]) -> None:
        """Write the next array; its values in C order are those of the pieces, one after the other.

        Raises:
            ValueError: The pieces have more or fewer bytes than the array.
        """
        form = self._left.pop()
        self._put(memoryview(bytes(form.begin - self._end)))
        self._end = form.begin
        for piece in pieces:
            assert piece.dtype == form.dtype
            values = to_numpy(piece).reshape(-1).view(np.uint8)
            self._put(values.data)
            self._end += values.nbytes
        if self._end != form.end:
            raise ValueError(
                f"{self._file.name}: {self._end - form.begin} bytes for an array of {form.end - form.begin}. The "
                "values changed while they were written; write them again."
            )

    def _put(self, values: memoryview) -> None:
        self._file.write(values)
        if self._told is not None:
            self._told(values)

    def __enter__(self) -> ArenaWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._file.close()
        assert kind is not None or not self._left


def read_form(entry: Any, num_bytes: int, what: str, header: str) -> Form:
    """Return the place of an array as a header gives it; ValueError if it is not within `num_bytes`."""
    dtype = dtype_from_name(header, entry["dtype"])
    shape, begin = check_shape(entry["shape"], header), check_int(header, "offset", entry["offset"], 0)
    form = Form(dtype, shape, begin, begin + math.prod(shape) * dtype.itemsize)
    if begin % ALIGNED or form.end > num_bytes:
        raise ValueError(
            f"the array {what} at bytes [{begin}, {shown(form.end)}); it must begin at a multiple of {ALIGNED} "
            f"and lie within {num_bytes} bytes"
        )
    return form


def refuse_overlaps(forms: Iterable[Form]) -> None:
    """Raise ValueError if two arrays share bytes."""
    held = sorted((form for form in forms if form.end > form.begin), key=lambda form: form.begin)
    for one, other in pairwise(held):
        if other.begin < one.end:
            raise ValueError(f"the arrays at bytes {one.begin} and {other.begin} overlap")


def read_arena(where: str, path: Path, num_bytes: int, mmap: bool) -> Tensor:
    """Return all bytes of an arena as one tensor."""
    if not mmap:
        check_memory(where, f"{path} with mmap=False", num_bytes, "Open it with mmap=True.")
    with readable(where, path, torch.uint8, (num_bytes,)), open_regular(path) as file:
        return bytes_of(file, num_bytes, mmap)


def bytes_of(file: BinaryIO, num_bytes: int, mmap: bool = True) -> Tensor:
    """Return all bytes of an arena whose file is open, as one tensor. Inside `readable`."""
    array = read_array(file, (num_bytes,), mmap)
    if array.dtype != np.uint8:
        raise ValueError(f"dtype {array.dtype}")
    if isinstance(array, np.memmap) and array.ctypes.data % ALIGNED:
        raise ValueError(f"the values begin at byte {array.offset}, and must at a multiple of {ALIGNED}")
    return torch.from_numpy(array) if num_bytes > 0 else torch.empty(0, dtype=torch.uint8)


def part_of(where: str, path: Path, whole: Tensor, form: Form, remedy: str = REMEDY) -> Tensor:
    """Return the array at its place in the arena `whole`, which was read from `path`."""
    with readable(where, path, form.dtype, form.shape, remedy):
        return whole[form.begin : form.end].view(form.dtype).view(form.shape)
