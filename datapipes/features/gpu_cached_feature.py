"""GPUCachedFeature: rows of a feature in host memory or on a disk, kept in the memory of a GPU.

A cache changes the place of reads, never their values: rows have the bits of the feature. It keeps rows as the feature
stores them, and decodes values on the GPU.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor
from datapipes.device.gather import Kept, copy_rows, gather, need_triton
from datapipes.device.missing_ids import MissingIds, wait_for_all
from datapipes.device.runtime import OutOfMemory, cuda
from datapipes.features.cached_feature import CachingFeature, check_room
from datapipes.features.feature import Feature
from datapipes.features.fetch_for_copy import lies_on_gpu, reads_into

__all__ = ["GPUCachedFeature"]

_WHERE = "GPUCachedFeature"

WAYS = 16  # slots of a set: their keys are one line of 128 bytes
OF_SLOT = 16  # bytes of a slot besides its row: key and stamp
_LOOKED_UP, _CHOSEN = 64, 4  # ids that one program of look_up, of choose_slots handles

NO_ORDER = 2**63 - 1  # the order of an id that was found or has no row


class GPUCachedFeature(CachingFeature):
    """A feature whose rows are kept in the memory of a GPU, as many as fit, and read with ids on that GPU.

    The id of a row determines the 16 slots in which the row may be kept. A new row replaces the row in these slots that
    was asked for longest ago, but never a row of the same read. Which rows are kept depends on the reads alone. If the
    feature is a page-locked TensorFeature, the GPU itself reads the missing rows, and the host does not wait. Otherwise
    a read waits until the GPU has found which rows are missing; the feature reads these rows, with ids in host memory,
    and they are copied to the GPU.

    Args:
        feature: the feature from which missing rows are read: a TensorFeature in host memory, a DiskFeature, a
            CPUCachedFeature or your own.
        max_bytes: memory for the rows and for the tables that find them, 16 bytes a row: "4GB", or bytes as an int. The
            memory is taken at once, on the current device of the thread that makes the cache. If the feature has fewer
            rows, less is taken.
    Raises:
        ValueError: max_bytes has no room for a row; the rows lie on a GPU already; there is no CUDA device.
        MemoryError: The GPU has less memory left; nothing is taken.
        ImportError: triton is not installed.
    """

    def __init__(self, feature: Feature, max_bytes: int | str) -> None:
        super().__init__(feature)
        if isinstance(feature, GPUCachedFeature) or lies_on_gpu(feature):
            raise ValueError(
                f"{_WHERE}: {feature!r} has its rows on a GPU; only rows in host memory or on a disk are cached "
                "there. Leave this cache out."
            )
        self._max_bytes = check_room(_WHERE, max_bytes, self._row_bytes + OF_SLOT)
        if cuda().device_count() == 0:
            raise ValueError(
                f"{_WHERE}: this machine offers no CUDA device to torch {torch.__version__}. Leave the cache out, or "
                "install a CUDA build of torch."
            )
        need_triton(". Or leave the cache out")
        self._device = cuda().device(torch.device("cuda"))
        self._missing = MissingIds(_WHERE, feature.count, self._device)
        self._cache: RowCache | None = None
        if feature.count * self._row_bytes > 0:
            form = feature.count, feature.shape, feature._stored_dtype
            self._cache = RowCache(_WHERE, *form, self._max_bytes, self._device)

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the feature's rows at `ids` on the GPU, see Feature.read.

        Args:
            ids: on the GPU. The read is queued on the current stream there, and runs after all earlier reads.
            out: must be None.
        """
        return self._decode(self._read_stored(ids, out))

    def _read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids` on the GPU as the feature stores them; see `read`."""
        wanted = check_index_tensor(_WHERE, "ids", ids, in_host=False)
        if wanted.device != self._device or not cuda().holds(wanted):
            raise ValueError(
                f"{_WHERE}: the ids lie on {wanted.device}, the rows are kept on {self._device}. Put "
                f"copy_to({str(self._device)!r}) before fetch_feature, or read the feature without the cache."
            )
        if out is not None:
            raise ValueError(f"{_WHERE}: out is given; rows are read into new memory of {self._device}. Pass out=None.")
        if self._cache is None:
            nothing = torch.empty((self.count, *self.shape), dtype=self._stored_dtype)
            return gather(nothing, wanted, missing=self._missing)
        if wanted.shape[0] == 0:
            return cuda().empty((0, *self.shape), self._stored_dtype, self._device)
        with self._cache.turn():
            kept, orders = self._cache.look_up(wanted)
            rows = self._read_beside(wanted, kept, orders)
            self._cache.put(orders, rows)
        return rows

    def _read_beside(self, ids: Tensor, kept: Kept, orders: Tensor) -> Tensor:
        """Return the rows at `ids`. Rows that are not in the cache are read from the feature.

        Args:
            kept, orders: what RowCache.look_up returned for `ids`.
        """
        feature = self.feature
        if reads_into(feature) and feature.reads_on(self._device) == "uva":
            return feature._read_beside(ids, kept)
        self._missing.raise_known()
        is_lacking = orders < NO_ORDER
        lacking, numbers = torch.unique(ids[is_lacking], return_inverse=True)  # waits for the GPU
        read = feature._read_stored(cuda().copy(lacking, torch.device("cpu"), non_blocking=False))
        rows = cuda().copy(read.contiguous(), self._device, non_blocking=False)
        # There are at most as many rows as the feature has, so an id without a row stays without one.
        return gather(rows, ids.long().masked_scatter(is_lacking, numbers), missing=self._missing, kept=kept)

    def reads_on(self, device: torch.device) -> str | None:
        """See Feature.reads_on. On the GPU of this cache: "uva" if the GPU itself reads missing rows from host memory,
        else "device memory". On other GPUs: None.
        """
        if cuda().device(device) != self._device:
            return None
        return (self.feature.reads_on(device) if reads_into(self.feature) else None) or "device memory"

    def _forget(self, ids: Tensor) -> Tensor:
        """Drop all rows, since some have changed. Return no ids: each row is read again when it is asked for."""
        if self._cache is not None:
            with self._cache.turn():
                self._cache.clear()
        return ids[:0]

    def _finish_reads(self) -> None:
        wait_for_all([self.feature._finish_reads, self._missing.finish])

    def stats(self) -> dict[str, int]:
        """Return counts: "gpu_hits" and "gpu_misses" (ids found in the cache or not), "gpu_cache_bytes", and the counts
        of the feature. Wait for the reads that are queued.
        """
        hits, misses = (0, 0) if self._cache is None else self._cache.counted()
        num_bytes = 0 if self._cache is None else self._cache.num_bytes
        return {"gpu_hits": hits, "gpu_misses": misses, "gpu_cache_bytes": num_bytes, **self.feature.stats()}

    def __repr__(self) -> str:
        slots = 0 if self._cache is None else self._cache.slots
        return f"{_WHERE}({self.feature!r}, {slots} rows on {self._device})"


# --- the rows in the memory of the GPU


class RowCache:
    """Rows of a feature in the memory of a GPU, found by their ids. Call `look_up`, `put` and `clear` inside `with
    cache.turn():`; any thread may do so.

    It is set-associative: an id may lie in the 16 slots of set `id % num_sets`, and the row that was asked for longest
    ago is replaced first. The GPU looks up ids and chooses slots, so the host waits for neither. Reads take turns: on
    whatever stream a read is queued, it runs after the previous read. So all rows that it finds have been written.

    Args:
        where: the words with which errors begin.
        count: ids in [0, count) have a row.
        shape, dtype: shape and dtype of a row, which must have at least one byte.
        max_bytes: bytes for rows and their keys and stamps; at least the bytes of one row plus OF_SLOT.
        device: the GPU whose memory is taken.
    Raises:
        MemoryError: The device has less memory left. Nothing is taken then.
    """

    def __init__(
        self, where: str, count: int, shape: tuple[int, ...], dtype: torch.dtype, max_bytes: int, device: torch.device
    ) -> None:
        row_bytes = dtype.itemsize * torch.Size(shape).numel()
        room = max_bytes // (row_bytes + OF_SLOT)
        self._ways = min(WAYS, 1 << (room.bit_length() - 1))
        self._num_sets = max(min(room // self._ways, -(-count // self._ways)), 1)
        self._count, self._per_set, self._now = count, max(-(-count // self._num_sets), 1), 0
        self.slots = self._ways * self._num_sets
        self._memory = _taken(where, self.slots * (row_bytes + OF_SLOT), device)
        self.device = self._memory.device
        finders = self._memory[: self.slots * OF_SLOT].view(torch.int64)
        self._keys, self._stamps = finders[: self.slots], finders[self.slots :]
        self.rows = self._memory[self.slots * OF_SLOT :].view(dtype).view(self.slots, *shape)
        self._counts, self._unused = (cuda().empty((2,), torch.int64, device).zero_() for _ in range(2))
        self._lock, self._last = threading.Lock(), cuda().new_event()
        self.clear()
        self._last.record(cuda().current_stream(self.device))

    @property
    def num_bytes(self) -> int:
        """Bytes of GPU memory that the cache takes."""
        return self._memory.shape[0]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Context manager for one read of the cache. Only one thread at a time is inside.

        On the GPU, the work that its `with` block queues on the current stream runs after the work of all earlier
        `with` blocks.
        """
        with self._lock:
            stream = cuda().current_stream(self.device)
            stream.wait_event(self._last)
            for tensor in (self._memory, self._counts, self._unused):
                cuda().used_on(tensor, stream)
            try:
                yield
            finally:
                self._last.record(stream)

    def look_up(self, ids: Tensor) -> tuple[Kept, Tensor]:
        """Look up ids, int32 or int64 [n] on the device.

        Returns:
            (kept, orders). `kept` says in which slots the rows of the found ids are. `orders` is int64 [n], an argument
            of `put`. For each missing id it has the position of the id in the order of all ids by set. For an id that
            was found, or has no row, it has NO_ORDER.
        """
        from datapipes.device import kernels

        num_ids, self._now = int(ids.shape[0]), self._now + 1
        slots, orders = (cuda().empty((num_ids,), torch.int64, self.device) for _ in range(2))
        cuda().launch(
            *(kernels.look_up, (-(-num_ids // _LOOKED_UP),), self.device),
            *(ids, self._keys, self._stamps, slots, orders, self._counts),
            *(num_ids, self._count, self._num_sets, self._per_set, self._now),
            WAYS=self._ways,
            TILE=_LOOKED_UP,
        )
        return Kept(self.rows, slots), orders

    def put(self, orders: Tensor, rows: Tensor) -> None:
        """Keep rows of the ids that `look_up` did not find, as many as the sets have room for. Call it inside the same
        `with` block.

        Args:
            orders: the orders that `look_up` returned.
            rows: [n, *shape], the row of each id that was looked up.
        """
        from datapipes.device import kernels

        num_ids = int(orders.shape[0])
        ascending, numbers = torch.sort(orders)
        places = cuda().empty((num_ids,), torch.int64, self.device).fill_(-1)
        try:
            cuda().launch(
                *(kernels.choose_slots, (-(-num_ids // _CHOSEN),), self.device),
                *(ascending, self._keys, self._stamps, places),
                *(num_ids, self._num_sets, self._per_set, self._now),
                WAYS=self._ways,
                TILE=_CHOSEN,
                num_warps=1,  # a warp loads before it stores
            )
            copy_rows(rows, numbers, self.rows, self._unused, places=places)
        except BaseException:
            self.clear()  # else ids may be there without their rows
            raise

    def clear(self) -> None:
        """Drop all rows. Call it inside `with cache.turn():`."""
        self._keys.fill_(-1)
        self._stamps.zero_()

    def counted(self) -> list[int]:
        """Return [hits, misses] so far, counted in ids, after all earlier reads of the cache have finished."""
        with self.turn():
            counts: list[int] = self._counts.tolist()
        return counts


def _taken(where: str, num_bytes: int, device: torch.device) -> Tensor:
    """Return an uninitialised uint8 tensor [num_bytes] on `device`; raise MemoryError if too little memory is left."""
    left = cuda().memory_left(device)
    try:
        if num_bytes <= left:
            return cuda().empty((num_bytes,), torch.uint8, device)
    except OutOfMemory:
        left = cuda().memory_left(device)  # the memory is fragmented, or another process took it
    raise MemoryError(
        f"{where}: a cache of {num_bytes} bytes does not fit into the memory of {device}, of which {left} bytes are "
        "left. Lower max_bytes."
    )
