"""RowCache: rows of a feature in the memory of a GPU, by their ids, as many as there is room for.

It is set-associative: an id may lie in the 16 slots of set `id % num_sets`, and the row that was asked for longest ago
leaves first. The GPU looks up ids and chooses slots, so the host waits for neither. Reads take turns: on whatever
stream a read is queued, it runs after the read before it, and so after the writes of all rows that it finds.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from datapipes.device.gather import Kept, copy_rows
from datapipes.device.runtime import OutOfMemory, cuda

__all__: list[str] = []

WAYS = 16  # slots of a set: their keys are one line of 128 bytes
OF_SLOT = 16  # bytes of a slot besides its row: key and stamp
_LOOKED_UP, _CHOSEN = 64, 4  # ids of a program

NO_ORDER = 2**63 - 1  # the order of an id that was found or has no row


class RowCache:
    """Rows of a feature, found by their ids. Call `look_up`, `put` and `clear` within `turn`; any thread may do so.

    Args:
        where: the words with which errors begin.
        count: ids in [0, count) have a row.
        shape, dtype: shape and dtype of a row, which must have at least one byte.
        max_bytes: bytes for rows and their keys and stamps; at least those of one row and OF_SLOT.
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
        """Bytes of memory taken."""
        return self._memory.shape[0]

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Give a context for one read of the cache: what the current stream does in it runs after all earlier contexts.

        Threads enter it one at a time.
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
            (kept, orders): the slots of the ids that were found; and int64 [n], for each missing id its place among all
            ids when these are sorted set by set. The order is NO_ORDER if the id was found or has no row.
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
        """Keep the rows of ids that `look_up` did not find in this turn, as many as the sets have room for.

        Args:
            orders: the orders that `look_up` returned.
            rows: [n, *shape], the row of each id.
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
        """Drop all rows; call it in a turn."""
        self._keys.fill_(-1)
        self._stamps.zero_()

    def counted(self) -> list[int]:
        """Return the hits and the misses so far, after all earlier reads of the cache have finished."""
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
        left = cuda().memory_left(device)  # the memory is in pieces, or somebody else was faster
    raise MemoryError(
        f"{where}: a cache of {num_bytes} bytes does not fit into the memory of {device}, of which {left} bytes are "
        "left. Lower max_bytes."
    )
