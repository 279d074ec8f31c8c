"""TensorFeature: rows of a tensor in host memory or on a GPU, as they are or stored with fewer bits.

A GPU reads rows with ids in its own memory (DeviceRows). It reads as few lines as possible for a row that begins at a
multiple of 128 bytes (padded_rows).
"""

from __future__ import annotations

import mmap
import threading
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_bool, check_index_tensor
from datapipes.base.log import logger
from datapipes.base.rows import RowTable, bits_of, byte_rows, has_adjacent_values, take_rows
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.device.gather import Kept, gather, max_uva_threads
from datapipes.device.host_memory import Pinnable, is_locked_elsewhere, without_pin
from datapipes.device.host_pages import refuse_read_only
from datapipes.device.missing_ids import MissingIds, wait_for_all
from datapipes.device.runtime import cuda
from datapipes.features.feature import StoredFeature, check_out
from datapipes.features.stored_values import check_stored_as, encode, take_decoded
from datapipes.processes.mappings import ask_for_huge_pages, contiguous_stride

__all__ = ["TensorFeature"]

LINE = 128  # bytes of a request of a GPU


class TensorFeature(Pinnable, StoredFeature):
    """The rows of a tensor or array of any fixed-width dtype, which is viewed, so it may be memory-mapped.

    Rows in host memory are read with ids in host memory, and also with ids on a GPU if the memory is page-locked
    (`pin_memory_`). Rows on a GPU are read with ids on that GPU.

    Args:
        tensor: `[count, *shape]`; rows may lie apart. If the values of one row lie apart, as in a pandas table, they
            are copied, and the log says so.
        stored_as: torch.float16, torch.bfloat16 or torch.int8, or one of these names: float32 values are stored in this
            dtype, in memory of their own, half or a quarter as large; `read` gives float32 again. Less is read for each
            minibatch, and the values are rounded: float16 keeps 11 bits of each (and no value below 6e-8), bfloat16
            keeps 8. int8 keeps the nearest of 255 even steps from -m to m, where m is the largest magnitude in the
            column; a column is one position in a row, across all rows. None stores the values as they are.
    Raises:
        TypeError: stored_as is given, and the tensor is not float32.
        ValueError: The tensor has no dimension, is neither in host memory nor on a CUDA device; or the values of a row
            lie apart, and the tensor is memory-mapped or expanded. Or stored_as cannot hold a value: for int8 NaN or an
            infinity, for the others a finite value beyond their largest (float16: 65504).
        MemoryError: The stored rows or the copy do not fit into memory.
    Cost: with stored_as the tensor is read once, for int8 twice, in pieces. Without it, only rows whose values lie
    apart are copied.
    """

    def __init__(self, tensor: Tensor | NDArray[Any], *, stored_as: torch.dtype | str | None = None) -> None:
        rows = as_tensor("TensorFeature", "tensor", tensor)
        if isinstance(tensor, np.memmap) and isinstance(tensor._mmap, mmap.mmap):  # type: ignore[attr-defined]
            ask_for_huge_pages(tensor._mmap)  # type: ignore[attr-defined]
        if rows.ndim == 0:
            raise ValueError(
                "TensorFeature: tensor must have at least 1 dimension, the rows, got a 0-d tensor. Call .reshape(1)."
            )
        if rows.device.type != "cpu" and not cuda().holds(rows):
            raise ValueError(
                f"TensorFeature: must be in host memory or on a CUDA device, found the tensor on {rows.device}. Call "
                ".cpu()."
            )
        rows = rows.resolve_conj().resolve_neg()
        is_by_row = has_adjacent_values(rows)
        if not is_by_row:
            rows = _by_row(rows, is_mapped=isinstance(tensor, np.memmap))
        self.stored_as = check_stored_as("TensorFeature", stored_as, rows.dtype)
        is_frozen = is_by_row and isinstance(tensor, np.ndarray) and not tensor.flags.writeable
        self._frozen_at = rows.data_ptr() if is_frozen else None
        self._scales: dict[torch.device, Tensor] = {}
        self._dtype = rows.dtype
        if self.stored_as is not None:
            rows, self.scale = encode("TensorFeature", rows, self.stored_as)
        self._sort_ids: bool | None = None
        self._show(rows)

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, see Feature.read, equal to `tensor[ids]`; uses `torch.get_num_threads()` threads.

        With `stored_as` the rows are equal to `decode(tensor[ids])`.

        Args:
            ids: may lie on a GPU if the rows are page-locked or lie on that GPU. The read is then queued on the current
                stream of the GPU, and the host does not wait. See Feature.reads_on for ids without a row.
            out: memory for the rows, which is filled and returned: [n, *shape] of the same dtype, contiguous, in host
                memory (it may be pinned), not overlapping the rows or the ids. By default the rows are in a new tensor,
                whose memory may be recycled from earlier minibatches. Not allowed for ids on a GPU.
        """
        if self.stored_as is None:
            return self._read_stored(ids, out)
        if _is_on_device(ids):
            return self._read_on_device(ids, out, self.dtype)
        wanted = check_index_tensor("TensorFeature", "ids", ids, is_kept=False)
        if out is not None:
            check_out("TensorFeature", out, wanted.shape[0], self.shape, self.dtype)
        return take_decoded(self._host_table(), self.stored_as, self.scale, self.shape, wanted, out, num_threads())

    def _read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the stored rows at `ids`, equal to `tensor[ids]`, of the dtype `stored_as` if given.

        Args:
            ids, out: as for `read`; `out` has the dtype of the stored rows.
        """
        if _is_on_device(ids):
            return self._read_on_device(ids, out, self.tensor.dtype)
        table = self._host_table()
        wanted = check_index_tensor("TensorFeature", "ids", ids, is_kept=False)
        if out is not None:
            check_out("TensorFeature", out, wanted.shape[0], self.shape, self.tensor.dtype)
            to = None if out.numel() == 0 else byte_rows(out)
            _core.gather_rows(table, wanted.numpy(), out=to, num_threads=num_threads())
            return out
        return take_rows(self.tensor, table, wanted, num_threads())

    def _read_beside(self, ids: Tensor, kept: Kept) -> Tensor:
        """Return the result of `_read_stored` for ids on a GPU, but take the rows that are in `kept` from there."""
        return self._read_on_device(ids, None, self.tensor.dtype, kept)

    def write_rows(self, ids: Tensor, values: Tensor) -> None:
        where, device, on_device = "TensorFeature.update", self.tensor.device, cuda().holds(self.tensor)
        if on_device:
            ids, rows = (cuda().copy(tensor, device, non_blocking=False) for tensor in (ids, values))
        else:
            refuse_read_only(where, self.tensor, self.tensor.data_ptr() == self._frozen_at)
            rows = values.cpu()
        rows = rows if self.stored_as is None else encode(where, rows, self.stored_as, self._scale_on(device))[0]
        if on_device or self._is_locked():
            cuda().synchronize()  # reads may be queued
        with torch.inference_mode(self.tensor.is_inference()):
            bits_of(self.tensor).index_copy_(0, ids, bits_of(rows))
        self._device_rows.note_written()

    def pin_memory_(self, *, pad_rows: bool = False, sort_ids: bool | None = None) -> TensorFeature:
        """Lock the rows in memory, so that GPUs read them there with ids in GPU memory; return this feature.

        Nothing is copied without `pad_rows`, and a second call changes nothing but `sort_ids`. Rows in a mapped file
        are locked for reading only; if the driver cannot do that, the system copies their pages into memory, and the
        log says so. The lock ends with `unpin_memory_`, or with this feature, after the work of the GPUs. A forked
        child and a copy of the feature, also a copy in a worker, have no lock, and may make their own.

        Args:
            pad_rows: first copy the rows, if need be, to a table in which each row begins at a multiple of 128 bytes. A
                GPU then reads a row of 400 bytes as 4 lines of 128 bytes, otherwise as 4 or 5. The padded table becomes
                `tensor`, and its rows take more memory.
            sort_ids: sort the ids of each read on the GPU before it reads; the rows are the same. None sorts if it
                pays: for 32,768 ids or more, if the rows take more than 1 GiB.
        Raises:
            ValueError: The rows lie on a GPU.
            RuntimeError: There is no CUDA device here, or CUDA refuses.
            MemoryError: The limit of locked memory (`ulimit -l`) is too low, or too little is left for the copy.
        Cost: every page is brought into memory and locked, so the time grows with the bytes.
        """
        where = "TensorFeature.pin_memory_"
        check_bool(where, "pad_rows", pad_rows)
        if sort_ids is not None:
            check_bool(where, "sort_ids", sort_ids)
        if cuda().holds(self.tensor):
            raise ValueError(
                f"{where}: the rows lie on {self.tensor.device}; only host memory is locked. Leave pin_memory_ out."
            )
        if pad_rows and (table := padded_rows(where, self.tensor)) is not self.tensor:
            before, pinned = self.tensor, self._pinned
            self._show(table)
            self._pinned = None
            try:
                super().pin_memory_()
            except BaseException:
                self._show(before)
                self._pinned = pinned
                raise
            if pinned is not None:
                pinned.release()
        super().pin_memory_()
        self._sort_ids = sort_ids
        return self

    def _pinned_tensors(self) -> list[Tensor]:
        return [self.tensor]

    def reads_on(self, device: torch.device) -> str | None:
        return self._device_rows.reads_on(device, self._is_locked())

    def _finish_reads(self) -> None:
        self._device_rows.finish()

    @property
    def count(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def _stored_dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"TensorFeature({self._form()})"

    def __getstate__(self) -> dict[str, Any]:
        # `_table` is a view of the rows, which pickle would copy; the others belong to this process.
        return without_pin({**self.__dict__, "_table": None, "_device_rows": None, "_scales": {}})

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._show(self.tensor)

    def _show(self, tensor: Tensor) -> None:
        """Use `tensor`, the stored rows, from now on: set `self.tensor`, and make the objects that read its rows."""
        self.tensor = tensor
        self._table = None if cuda().holds(tensor) else RowTable(tensor)
        self._device_rows = DeviceRows(tensor)

    def _read_on_device(self, ids: Tensor, out: Tensor | None, dtype: torch.dtype, kept: Kept | None = None) -> Tensor:
        wanted = check_index_tensor("TensorFeature", "ids", ids, in_host=False)
        if out is not None:
            raise ValueError(
                f"TensorFeature: out is given with ids on {ids.device}; rows are read into new memory of that "
                "device. Pass out=None, or ids.cpu()."
            )
        scale = self._scale_on(ids.device)
        return self._device_rows.read(
            *(wanted, dtype), is_locked=self._is_locked(), scale=scale, sort_ids=self._sort_ids, kept=kept
        )

    def _is_locked(self) -> bool:
        """Return whether this feature or torch has locked the rows. Locks of other objects of this package do not
        count, since they may end earlier.
        """
        return self.is_pinned() or is_locked_elsewhere(self.tensor)

    def _host_table(self) -> NDArray[np.uint8]:
        if self._table is None:
            raise ValueError(
                f"TensorFeature: the rows lie on {self.tensor.device}, the ids in host memory. Put copy_to before "
                f"fetch_feature, or pass ids on {self.tensor.device}."
            )
        return self._table.bytes_now()


def _is_on_device(ids: Any) -> bool:
    return isinstance(ids, Tensor) and cuda().holds(ids)


def _by_row(rows: Tensor, *, is_mapped: bool) -> Tensor:
    """Return a copy whose rows have adjacent values, and log that they are copied.

    Raises:
        ValueError: The copy would be far larger than its source, or the source is a file mapped to save memory.
    """
    form = f"got shape {list(rows.shape)} with stride {rows.stride()}"
    if is_mapped or 0 in [step for size, step in zip(rows.shape, rows.stride(), strict=True) if size > 1]:
        what, how = "the rows of an expanded tensor share memory, which is not allowed", "Call .contiguous()"
        if is_mapped:
            what = "the values of a row must be adjacent in a mapped file"
            how = "Write numpy.ascontiguousarray of the array to the file"
        raise ValueError(f"TensorFeature: {what}, {form}. {how}.")
    size = rows.numel() * rows.element_size()
    check_memory("TensorFeature", "a copy by row", size, "Pass the rows by row, with numpy.ascontiguousarray.")
    logger.warning(
        "TensorFeature: the values of a row lie apart, %s, as in a table of pandas; they are copied by row, %d bytes. "
        "Pass numpy.ascontiguousarray(table) to have one copy for all uses.",
        *(form, size),
    )
    return rows.contiguous()


# --- the same rows, read by a GPU


def padded_rows(where: str, rows: Tensor) -> Tensor:
    """Return `rows` [count, *shape] if each begins at a multiple of 128 bytes, else a copy of which this is true.

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
        """Let later reads wait for writes to the table that are queued by now on the current stream of its device."""
        if self._is_on_device:
            self._written = cuda().new_event()
            self._written.record(cuda().current_stream(self._table.device))

    def reads_on(self, device: torch.device, is_locked: bool) -> str | None:
        """Return how `read` works with ids on `device`, a CUDA device: "uva", "device memory" or None, as defined by
        Feature.reads_on.

        Args:
            is_locked: whether the rows stay page-locked as long as the feature lives.
        """
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
        """Return the rows at `ids`, int32 or int64 [n] on a GPU. The read is queued on the current stream of that GPU.

        Args:
            is_locked: as for `reads_on`.
            dtype: dtype of the returned rows: the dtype of the table, or float32 to decode the rows.
            scale: float32 [*shape] on the device of the ids, to decode int8.
            sort_ids, kept: as for `gather` (device/gather.py), if the rows lie in host memory.
        Raises:
            ValueError: The rows cannot be read from that device.
            IndexError: Ids of an earlier read have no row, as is known by now.
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
        """Wait until it is known whether all ids that were read have a row; raise IndexError if an id has none."""
        with self._lock:
            waits = [missing.finish for missing in self._missing.values()]
        wait_for_all(waits)
