"""Rows of a tensor in host memory, of any dtype, as bytes for the row gather of the C++ core."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INT_OF_BYTES

# A view costs NumPy a fifth of the time that it costs torch.
_NUMPY_DTYPES: dict[torch.dtype, type[np.generic]] = {
    torch.float32: np.float32,
    torch.float16: np.float16,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.int8: np.int8,
}


def has_adjacent_values(rows: Tensor) -> bool:
    """Return whether the values of each row are adjacent in memory; there may be gaps between rows."""
    inner = rows[:1]
    return inner.is_contiguous() and (rows.shape[0] <= 1 or rows.stride(0) >= inner.numel())


def bits_of(values: Tensor) -> Tensor:
    """Return values as integers of the same size, since torch cannot index every dtype. Complex values stay complex.

    The result is a view, unless `values` is a conjugate or negative view, whose values torch changes on reading.
    Call it before byte_rows, which takes no conjugate or negative views.
    """
    if values.is_complex():
        return values.resolve_conj().resolve_neg()
    return values.resolve_neg().view(INT_OF_BYTES[values.element_size()])


def byte_rows(rows: Tensor) -> NDArray[np.uint8]:
    """Return `rows` as uint8 [count, bytes of a row], sharing its memory; the values of each row must be adjacent."""
    count, width = int(rows.shape[0]), rows[:1].numel()
    if width == 0 or count == 0:
        return np.empty((count, width * rows.element_size()), dtype=np.uint8)
    flat = rows.as_strided((count, width), (max(rows.stride(0), width), 1))
    return flat.view(torch.uint8).numpy()


class RowTable:
    """The rows of a tensor as bytes (see `byte_rows`), made anew whenever torch has moved the values.

    `share_memory_` moves them into shared memory and frees the old memory. Passing the tensor to another process does
    the same.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        # (address of the values, their byte_rows); set as one value, since two threads may call.
        self._made: tuple[int, NDArray[np.uint8]] | None = None

    def bytes_now(self) -> NDArray[np.uint8]:
        """Return the bytes of the rows, uint8 [count, bytes of a row], in the memory where torch has them now."""
        made, address = self._made, self.rows.data_ptr()
        if made is None or made[0] != address:
            made = self._made = address, byte_rows(self.rows)
        return made[1]


def take_rows(rows: Tensor, table: NDArray[np.uint8], ids: Tensor, num_threads: int = 1) -> Tensor:
    """Return `rows[ids]` as a new tensor, whose memory may be recycled from earlier tensors.

    Args:
        table: `byte_rows(rows)`.
    Raises:
        IndexError: An id is outside the rows.
    """
    taken = _core.gather_rows(table, ids.numpy(), num_threads=num_threads)
    shape, dtype = (ids.shape[0], *rows.shape[1:]), _NUMPY_DTYPES.get(rows.dtype)
    if taken.size == 0:
        return torch.empty(shape, dtype=rows.dtype)
    if dtype is not None:
        return torch.from_numpy(taken.view(dtype).reshape(shape))
    return torch.from_numpy(taken).view(rows.dtype).reshape(shape)


def new_rows(count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor [count, *shape], whose memory may be recycled from earlier tensors."""
    row_bytes = math.prod(shape) * dtype.itemsize
    if count == 0 or row_bytes == 0:
        return torch.empty((count, *shape), dtype=dtype)
    return torch.from_numpy(_core.new_rows(count, row_bytes)).view(dtype).reshape(count, *shape)


def put_rows(out: Tensor, places: Tensor, rows: Tensor, numbers: Tensor | None = None, num_threads: int = 1) -> None:
    """Do `out[places] = rows[numbers]`, or `out[places] = rows` without `numbers`.

    Args:
        out: contiguous; it must not overlap the other tensors.
        places: int64 [n], distinct.
        rows: rows of the same dtype and shape as those of `out`; the values of each row must be adjacent.
        numbers: index of a row of `rows` for each place, int32 or int64 [n].
    Raises:
        IndexError: A place is outside `out`, or a number outside `rows`.
    """
    if places.shape[0] > 0 and out[:1].numel() > 0:
        row_numbers = None if numbers is None else numbers.numpy()
        _core.place_rows(byte_rows(rows), row_numbers, places.numpy(), out=byte_rows(out), num_threads=num_threads)
