"""Rows on their way into shared memory: parsed into small arrays that stay in the cache, and written from there.

A table is one block of rows in shared memory: the ids of nodes, one row of the edge index, the features, the labels.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from datapipes import _core

_BYTES = 2**18  # of the small arrays together


@dataclass(frozen=True)
class Table:
    """Rows of one dtype: where row 0 begins in the memory, and the widths of the columns that a row consists of."""

    memory: _core.SharedMemory
    begin: int
    dtype: np.dtype[Any]
    widths: Sequence[int]

    @property
    def row_bytes(self) -> int:
        """The bytes of a row."""
        return self.dtype.itemsize * sum(self.widths)


class Staging:
    """Small arrays for some rows of each table. One thread uses it.

    Attributes:
        num_rows: rows that fit.
        targets: the arrays that the parser writes to, one for each column of all tables.
    """

    def __init__(self, tables: Sequence[Table]) -> None:
        self.num_rows = max(_BYTES // sum(table.row_bytes for table in tables), 1)
        self.targets: list[NDArray[Any]] = []
        self._tables = []
        for table in tables:
            rows = np.empty((self.num_rows, sum(table.widths)), table.dtype)
            self._tables.append((table, rows.reshape(-1).view(np.uint8).data))
            self.targets += np.split(rows, np.cumsum(table.widths)[:-1], axis=1)

    def write(self, first_row: int, count: int) -> None:
        """Write the first `count` rows of the arrays to the rows of the tables from `first_row` on."""
        for table, data in self._tables:
            at, left = table.begin + first_row * table.row_bytes, data[: count * table.row_bytes]
            while left:
                written = os.pwrite(table.memory.descriptor, left, at)
                at, left = at + written, left[written:]
