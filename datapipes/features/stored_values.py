"""Values of a feature stored with fewer bits: float32 as float16, bfloat16, or int8 with one scale for each column.

This module defines stored rows: `encode` makes them, and `decode` gives the values that every reader must give, to the
bit. A column is one position in a row, across all rows: rows of shape [3, 4] have 12 columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name, shown
from datapipes.base.rows import byte_rows, new_rows
from datapipes.base.sizes import check_memory
from datapipes.device.runtime import cuda

STORED_AS = (torch.float16, torch.bfloat16, torch.int8)
_LARGEST = 127  # of int8; -128 is left out, so that a value and its negative are stored alike
_PIECE_BYTES = 1 << 22  # bytes of values in work at once: few enough to stay in the cache


def check_stored_as(where: str, stored_as: Any, dtype: torch.dtype) -> torch.dtype | None:
    """Return the dtype that `stored_as` names, for values of `dtype`; None if it is None.

    Raises:
        ValueError: `stored_as` is none of STORED_AS.
        TypeError: The values are not float32.
    """
    if stored_as is None:
        return None
    named = {dtype_name(stored): stored for stored in STORED_AS}
    chosen = named.get(stored_as) if isinstance(stored_as, str) else stored_as
    if not isinstance(chosen, torch.dtype) or chosen not in STORED_AS:
        raise ValueError(
            f"{where}: stored_as must be None, or one of {list(named)} or a torch dtype of these names, got "
            f"{shown(stored_as)}. Pass one of them; None stores the values as they are."
        )
    if dtype != torch.float32:
        raise TypeError(
            f"{where}: stored_as={dtype_name(chosen)!r} needs values of dtype float32, got {dtype_name(dtype)}. Call "
            ".float(), or leave out stored_as to store them as they are."
        )
    return chosen


def encode(
    where: str, values: Tensor, stored_as: torch.dtype, scale: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """Return (rows, scale): float32 values [count, *shape] as they are stored, and for int8 the scale of each column.

    float16, bfloat16: each value is rounded to the nearest, ties to even. int8: the scale of a column is its largest
    |value| divided by 127, float32, and 0 if all its values are 0; a value is stored as value / scale, float32, rounded
    half to even. The values are read in pieces, so that a mapped tensor is never all in memory.

    Args:
        scale: for int8, the scale of existing rows, on the device of the values; by default computed from the values.
    Returns:
        (rows [count, *shape] of `stored_as`, scale float32 [*shape] or None).
    Raises:
        ValueError: `stored_as` cannot hold a value. For int8: NaN or an infinity; with `scale`, a value that is rounded
            to more than 127 times the scale. For the others: a finite value that would become infinite.
        MemoryError: The stored rows do not fit into memory.
    """
    rows = _memory_for(where, values, stored_as)
    encoder = Encoder(where, stored_as, scale)
    if encoder.needs_scale and scale is None:
        for _, piece in pieces_of(values, _PIECE_BYTES):
            encoder.look(piece)
    for begin, piece in pieces_of(values, _PIECE_BYTES):
        encoder.store(piece, rows[begin : begin + piece.shape[0]])
    return rows, encoder.scale(values.shape[1:], values.device)


class Encoder:
    """Stores float32 values that come in pieces, as `encode` does for values that are there at once.

    Attributes:
        needs_scale: whether the dtype is int8. Unless the scale was given, call `look` for all pieces before `store`.
    """

    def __init__(self, where: str, stored_as: torch.dtype, scale: Tensor | None = None) -> None:
        self._where, self.stored_as, self.needs_scale = where, stored_as, stored_as == torch.int8
        self._largest: Tensor | None = None
        self._scale, self._is_given = scale, scale is not None

    def look(self, piece: Tensor) -> None:
        """Note the largest magnitude in each column of `piece`, [n, *shape], from which `scale` is computed."""
        if piece.shape[0] == 0:
            return
        largest = piece.abs().amax(0)
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)  # both keep NaN

    def scale(self, shape: Sequence[int], device: torch.device) -> Tensor | None:
        """Return the scale of each column, float32 [*shape], if the dtype is int8; else None. It is computed from the
        pieces that `look` has seen, unless it was given.
        """
        if self.needs_scale and self._scale is None:
            largest = torch.zeros(tuple(shape), device=device) if self._largest is None else self._largest
            self._scale = _scale_of(self._where, largest)
        return self._scale

    def store(self, piece: Tensor, into: Tensor) -> None:
        """Write the stored rows of `piece` to `into`, which has the shape of `piece` and the dtype `stored_as`."""
        scale = self.scale(piece.shape[1:], piece.device)
        if scale is None:
            into.copy_(piece)
            _check_no_overflow(self._where, piece, into)
        else:
            # A tiny scale has few bits, so the quotient may exceed 127; 0 / 0 is NaN.
            quotient = piece.div(scale).round_()
            if self._is_given:
                _check_within(self._where, piece, quotient, scale)
            quotient.clamp_(-_LARGEST, _LARGEST)
            into.copy_(quotient.where(scale > 0, 0))


def decode(rows: Tensor, scale: Tensor | None) -> Tensor:
    """Return the float32 values of stored rows, on their device: int8 times the scale, rounded once."""
    values = rows.to(torch.float32)
    return values if scale is None else values.mul_(scale)


def take_decoded(
    table: NDArray[np.uint8],
    stored_as: torch.dtype,
    scale: Tensor | None,
    shape: tuple[int, ...],
    ids: Tensor,
    out: Tensor | None = None,
    num_threads: int = 1,
) -> Tensor:
    """Return the values of stored rows: `decode(rows[ids], scale)` for `table = byte_rows(rows)`, in one pass.

    Args:
        shape: the shape of one row.
        out: float32 [n, *shape], contiguous, which is filled and returned; by default a new tensor, whose memory may be
            recycled from earlier results.
    Raises:
        IndexError: An id is outside the rows.
    """
    columns = None if scale is None else scale.flatten()[: table.shape[1]]  # a table without rows has none
    taken = _core.gather_decoded(
        table,
        ids.numpy(),
        stored_as=dtype_name(stored_as),
        scale=None if columns is None else columns.numpy(),
        out=None if out is None or out.numel() == 0 else byte_rows(out),
        num_threads=num_threads,
    )
    if out is not None:
        return out
    if taken.size == 0:
        return torch.empty((ids.shape[0], *shape), dtype=torch.float32)
    return torch.from_numpy(taken).view(torch.float32).reshape(ids.shape[0], *shape)


def _memory_for(where: str, values: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor of `dtype`, in the shape of `values` and on their device.

    In host memory the tensor has huge pages: rows are read at random, and with small pages nearly every read misses the
    TLB.
    """
    num_bytes = values.numel() * dtype.itemsize
    if cuda().holds(values):
        return cuda().empty(tuple(values.shape), dtype, values.device)
    check_memory(where, f"a copy stored as {dtype_name(dtype)}", num_bytes, "Leave out stored_as to map the tensor.")
    return new_rows(values.shape[0], tuple(values.shape[1:]), dtype)


def _scale_of(where: str, largest: Tensor) -> Tensor:
    """Return the scale of each column for int8.

    Args:
        largest: [*shape], the largest magnitude in each column.
    """
    if not bool(largest.isfinite().all()):
        bad = ~largest.isfinite()
        raise ValueError(
            f"{where}: stored_as='int8' needs finite values, but {_first_column(bad)} has {_first_value(largest, bad)}"
            f"{_and_others(bad)}. Replace it, with torch.nan_to_num for example, or store the values as 'bfloat16'."
        )
    scale = largest / _LARGEST
    # 127 times the rounded quotient may be above the largest float32; the float32 below it is not.
    return torch.where((scale * _LARGEST).isinf(), torch.nextafter(scale, torch.zeros_like(scale)), scale)


def _check_within(where: str, values: Tensor, quotient: Tensor, scale: Tensor) -> None:
    """Raise ValueError if int8 cannot hold some of `values` with `scale`, the scale of existing rows.

    Args:
        quotient: `values / scale`, rounded.
    """
    lost = ~((quotient.abs() <= _LARGEST) | (values == 0))  # NaN too
    if bool(lost.any()):
        columns = lost.any(0)
        first = int(columns.flatten().nonzero()[0])
        column, wrong = (rows.reshape(rows.shape[0], -1)[:, first] for rows in (values, lost))
        raise ValueError(
            f"{where}: the rows are stored as int8, with a scale that gives {_first_column(columns)} values up to "
            f"{float(scale.flatten()[first]) * _LARGEST:g}, got {_first_value(column, wrong)}{_and_others(columns)}. "
            "Clip the values and replace nan, or make a new feature, which has scales of its own."
        )


def _check_no_overflow(where: str, values: Tensor, stored: Tensor) -> None:
    if not bool(stored.isinf().any()):
        return
    lost = stored.isinf() & values.isfinite()
    if bool(lost.any()):
        columns, name = lost.any(0), dtype_name(stored.dtype)
        is_half = stored.dtype == torch.float16
        remedy = "Store the values as 'bfloat16', or scale them" if is_half else "Scale the values"
        raise ValueError(
            f"{where}: stored_as={name!r} holds values up to {torch.finfo(stored.dtype).max:g}, but "
            f"{_first_column(columns)} has {_first_value(values, lost)}{_and_others(columns)}. {remedy}."
        )


def _first_column(bad: Tensor) -> str:
    place = bad.nonzero()[0].tolist()
    return "the feature" if not place else f"column {place[0] if len(place) == 1 else place}"


def _first_value(values: Tensor, bad: Tensor) -> str:
    return f"{float(values[bad][0]):g}"


def _and_others(bad: Tensor) -> str:
    others = int(bad.sum()) - 1
    return f" (so {'has' if others == 1 else 'have'} {others} more)" if others else ""


def pieces_of(values: Tensor, num_bytes: int) -> Iterator[tuple[int, Tensor]]:
    """Split `values` into pieces of about `num_bytes`. Yield (index of the first row, rows) for each; one empty piece
    if there are no rows.
    """
    step = max(1, num_bytes // max(math.prod(values.shape[1:]) * values.element_size(), 1))
    for begin in range(0, max(values.shape[0], 1), step):
        yield begin, values[begin : begin + step]
