"""Features of padding: ids of -1, which `pad` adds to a minibatch, have rows of zeros.

No feature knows of padding: it is asked for some row, which is then set to zeros. So this holds for every kind of
feature, a user's too, wherever its rows lie; and a wrong id is still an error.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.rows import bits_of
from datapipes.minibatch import SparseRows


def existing(ids: Tensor, count: int) -> Tensor:
    """Return `ids` with an existing id in place of padding; no ids if the feature has no rows, `count` == 0."""
    return ids.clamp(min=0) if count > 0 else ids[:0]


def with_zeros(rows: Any, ids: Tensor) -> Any:
    """Return the rows at `existing(ids)` with zeros where `ids` has padding. A tensor is changed in place.

    Args:
        rows: a tensor [n, ...] or SparseRows.
    """
    is_padding = ids < 0
    if isinstance(rows, SparseRows):
        return _with_empty_rows(rows, is_padding)
    if rows.shape[0] < ids.shape[0]:
        return rows.new_zeros((ids.shape[0], *rows.shape[1:]))
    bits = bits_of(rows)
    if bits.device.type == "cpu":
        bits[is_padding] = 0
    else:  # a mask as an index would wait for the device
        bits.masked_fill_(is_padding.view(-1, *[1] * (bits.ndim - 1)), 0)
    return rows


def _with_empty_rows(rows: SparseRows, is_padding: Tensor) -> SparseRows:
    if rows.indptr.shape[0] <= is_padding.shape[0]:
        indptr = rows.indptr.new_zeros(is_padding.shape[0] + 1)
        return SparseRows(indptr, rows.indices, rows.num_columns, rows.values)
    counts = rows.indptr.diff()
    is_kept = ~torch.repeat_interleave(is_padding, counts)
    indptr = torch.zeros_like(rows.indptr)
    indptr[1:] = counts.masked_fill(is_padding, 0).cumsum(0)
    values = None if rows.values is None else rows.values[is_kept]
    return SparseRows(indptr, rows.indices[is_kept], rows.num_columns, values)
