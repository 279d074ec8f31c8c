"""Rows that begin at multiples of 128 bytes, so that a GPU reads each of them in as few lines as there can be."""

from __future__ import annotations

import torch
from torch import Tensor

from datapipes.base.sizes import check_memory
from datapipes.processes.mappings import contiguous_stride

LINE = 128  # bytes of a request of a GPU


def padded_rows(where: str, rows: Tensor) -> Tensor:
    """Return a copy of `rows`, [count, *shape], whose rows begin at multiples of 128 bytes; `rows` if they do already.

    Raises:
        MemoryError: The copy exceeds the memory that is left.
    """
    size, count = rows.element_size(), rows.shape[0]
    width = rows[:1].numel()
    if width == 0 or (rows.data_ptr() % LINE == 0 and (count == 1 or rows.stride(0) * size % LINE == 0)):
        return rows
    step = -(-width * size // LINE) * LINE
    num_bytes = count * step + LINE
    check_memory(where, f"a copy with rows of {step} bytes, pad_rows", num_bytes, "Leave pad_rows out.")
    memory = torch.empty(num_bytes, dtype=torch.uint8)
    begin = -memory.data_ptr() % LINE
    values = memory[begin : begin + count * step].view(rows.dtype)
    stride = (step // size, *contiguous_stride(rows[0]))
    return values.as_strided(rows.shape, stride, values.storage_offset()).copy_(rows)
