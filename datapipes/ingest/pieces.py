"""Arrays that are collected piece by piece, in memory or in .npy files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

_HEADER = 512  # bytes; the header is written when the number of rows is known
_AT_ONCE = 2**20  # rows


class Pieces:
    """Rows of equal shape and dtype, added piece by piece.

    Args:
        path: the .npy file to write; None keeps the rows in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.count = 0
        self._kept: list[NDArray[Any]] = []
        self._first: NDArray[Any] | None = None  # no rows, but their shape and dtype

    @property
    def row_shape(self) -> tuple[int, ...] | None:
        """The shape of a row; None before the first row."""
        return self._first.shape[1:] if self._first is not None and self.count else None

    def add(self, rows: NDArray[Any]) -> None:
        """Append rows. Those of the first piece that has any decide shape and dtype."""
        if self.count == 0:
            self._first = rows[:0]
        if len(rows) == 0:
            return
        assert self._first is not None
        rows = np.ascontiguousarray(rows, self._first.dtype)
        if self.path is None:
            self._kept.append(rows)
        else:
            with self.path.open("ab" if self.count else "wb") as file:
                if self.count == 0:
                    file.write(b" " * _HEADER)
                rows.tofile(file)
        self.count += len(rows)

    def whole(self) -> NDArray[Any]:
        """Return all rows; memory-mapped, and not to be written to, if they are in a file."""
        first = np.zeros(0, np.int64) if self._first is None else self._first
        if self.path is None:
            self._kept = [np.concatenate(self._kept)] if self._kept else [first]
            return self._kept[0]
        shape = (self.count, *first.shape[1:])
        text = f"{{'descr': {np.lib.format.dtype_to_descr(first.dtype)!r}, 'fortran_order': False, 'shape': {shape}, }}"
        header = b"\x93NUMPY\1\0" + (_HEADER - 10).to_bytes(2, "little") + f"{text:{_HEADER - 11}}\n".encode()
        with self.path.open("r+b" if self.count else "wb") as file:
            file.write(header)
        return np.memmap(self.path, first.dtype, "r", _HEADER, shape) if self.count else first


def read_in_pieces(*arrays: NDArray[Any]) -> Iterator[tuple[NDArray[Any], ...]]:
    """Yield the rows of arrays of equal length in pieces, which do not depend on how the arrays were collected."""
    for begin in range(0, len(arrays[0]), _AT_ONCE):
        yield tuple(array[begin : begin + _AT_ONCE] for array in arrays)


def mapped(function: Callable[..., NDArray[Any]], into: Pieces, *arrays: NDArray[Any]) -> NDArray[Any]:
    """Return the rows that `function` makes of the rows of arrays, called with one piece of each at a time."""
    into.add(function(*(array[:0] for array in arrays)))
    for pieces in read_in_pieces(*arrays):
        into.add(function(*pieces))
    return into.whole()
