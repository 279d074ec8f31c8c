"""DeviceRows: a GPU reads rows of a table with ids in its memory. padded_rows: lay the table out for few reads.

Padded rows begin at multiples of 128 bytes, so that a GPU reads each row in as few lines as possible.
"""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from datapipes.base.sizes import check_memory
from datapipes.device.gather import Kept, gather, max_uva_threads
from datapipes.device.missing_ids import MissingIds, wait_for_all
from datapipes.device.runtime import cuda
from datapipes.processes.mappings import contiguous_stride

__all__: list[str] = []

LINE = 128  # bytes of a request of a GPU


def padded_rows(where: str, rows: Tensor) -> Tensor:
    """Return `rows`, [count, *shape], copied so that rows begin at multiples of 128 bytes, unless they do already.

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


class DeviceRows:
    """Reads the rows of one table with ids on a GPU.

    The rows lie in page-locked host memory, which every GPU can read, or in the memory of one GPU. Build this object in
    the process that made the table, and on the stream on which it was made.

    Args:
        table: [count, *shape], as the rows are stored.
    """

    def __init__(self, table: Tensor) -> None:
        self._table = table
        self._lock = threading.Lock()
        self._missing: dict[torch.device, MissingIds] = {}
        self._is_on_device = cuda().holds(table)
        self.note_written()

    def note_written(self) -> None:
        """Let later reads wait for the work that is queued by now on the current stream of the table's device."""
        if self._is_on_device:
            self._written = cuda().new_event()
            self._written.record(cuda().current_stream(self._table.device))

    def reads_on(self, device: torch.device, is_locked: bool) -> str | None:
        """See Feature.reads_on; `is_locked` tells whether host memory stays page-locked as long as the feature."""
        if self._is_on_device:
            return "device memory" if cuda().device(device) == self._table.device else None
        return "uva" if self._table.numel() == 0 or is_locked else None

    def read(
        self,
        ids: Tensor,
        dtype: torch.dtype,
        *,
        is_locked: bool,
        scale: Tensor | None,
        sort_ids: bool | None,
        kept: Kept | None = None,
    ) -> Tensor:
        """Return the rows at `ids`, int32 or int64 [n] on a device, queued on its current stream.

        Args:
            is_locked: as for `reads_on`.
            dtype: of the returned rows: the table's, or float32 to decode them.
            scale: float32 [*shape] on that device, to decode int8.
            sort_ids, kept: see gather; for rows in host memory.
        Raises:
            ValueError: The rows cannot be read from that device.
            IndexError: Ids that were read earlier have no row.
        """
        device, table = ids.device, self._table
        if self._is_on_device and table.device != device:
            raise ValueError(
                f"TensorFeature: the rows lie on {table.device}, the ids on {device}; a GPU reads only its own memory. "
                f"Copy the minibatch to {table.device}, or keep the rows in page-locked host memory: "
                "dp.TensorFeature(tensor.cpu()).pin_memory_()."
            )
        if not self._is_on_device and table.numel() > 0 and not is_locked:
            raise ValueError(
                f"TensorFeature: the ids lie on {device}, the rows in host memory that is not page-locked; no GPU can "
                "read that. Call .pin_memory_() on the feature, or put fetch_feature before copy_to."
            )
        with self._lock:
            if device not in self._missing:
                in_host = None if self._is_on_device else table
                self._missing[device] = MissingIds("TensorFeature", table.shape[0], device, in_host)
            missing = self._missing[device]
        missing.raise_known()
        if self._is_on_device:
            stream = cuda().current_stream(device)
            stream.wait_event(self._written)
            cuda().used_on(table, stream)
            return gather(table, ids, scale=scale, dtype=dtype, missing=missing)
        how: dict[str, Any] = {"max_threads": max_uva_threads(), "sort_ids": sort_ids, "kept": kept}
        return gather(table, ids, scale=scale, dtype=dtype, missing=missing, **how)

    def finish(self) -> None:
        """Wait until all ids that were read are known to have a row; raise IndexError if one has none."""
        with self._lock:
            waits = [missing.finish for missing in self._missing.values()]
        wait_for_all(waits)
