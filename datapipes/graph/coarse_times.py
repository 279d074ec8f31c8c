"""Coarse times: the times of in-edges in 16 bits, for rows that are in no order by time.

Such rows are scanned (docs/semantics.md, section 4.6). The scan reads coarse times, a quarter of the bytes, and the
times themselves only where two coarse ones are equal; what is drawn does not change. They take 2 bytes an in-edge, and
none where nearly all rows are sorted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.processes.sharing import zeros_for_workers

__all__: list[str] = []

WORTH = 16  # they are made if the rows in no order have more than 1 / WORTH of the in-edges


class CoarseTimes(NamedTuple):
    """The coarse times of an edge type.

    Attributes:
        values: int16 [num_edges + padding]; [0] where there are none.
        scale: int64 [2], which times the values stand for (csrc/graph/coarse_times.h).
    """

    values: Tensor
    scale: Tensor

    def arrays(self) -> tuple[Any, int, int] | None:
        """Return (values, low, shift) as the kernels take them; None if there are none."""
        if self.values.shape[0] == 0:
            return None
        low, shift = self.scale.tolist()
        return self.values.numpy(), low, shift


class TimedRows(NamedTuple):
    """Rows of in-edges with times, see EdgeTimes."""

    indptr: Tensor
    latest: Tensor
    sorted_rows: Tensor


def coarse_times(where: str, of: Sequence[TimedRows]) -> list[CoarseTimes]:
    """Return the coarse times of edge types, all in one memory that workers map. Made by threads, O(num_edges).

    Args:
        where: who asks, for errors.
    Raises:
        MemoryError: Too little memory is left.
    """
    counts = [each.latest.shape[0] + _core.COARSE_PADDING if _pays(each) else 0 for each in of]
    remedy = "Sort the in-edges of each node by time; such rows need none."
    check_memory(where, "the coarse times of in-edges in no order", 2 * sum(counts), remedy)
    made = zeros_for_workers([((count,), torch.int16) for count in counts])
    found = []
    for rows, values in zip(of, made, strict=True):
        scale = (0, 0)
        if values.shape[0] > 0:
            scale = _core.fill_coarse_times(rows.latest.numpy(), values.numpy(), num_threads=num_threads())
        found.append(CoarseTimes(values, torch.tensor(scale)))
    return found


def _pays(rows: TimedRows) -> bool:
    degrees = rows.indptr.diff()
    return int(degrees[rows.sorted_rows == 0].sum()) * WORTH > rows.latest.shape[0]
