"""gather: returns the rows of a table for ids that lie on a GPU; the GPU's own threads read the rows.

The table is page-locked host memory, which the GPU reads over its link (UVA), or memory of that GPU. From the host the
link is the limit, and a few thousand threads fill it; more threads would only take compute from training. So the grid
can be capped: each of its programs then copies more rows, one after the other.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name
from datapipes.base.errors import not_installed
from datapipes.device.missing_ids import MissingIds
from datapipes.device.runtime import cuda

WARP = 32  # threads that load together
WIDEST_LOAD = 16  # bytes, of one thread
MAX_UVA_THREADS = 10240  # the default: as many as five SMs can hold, though more SMs run them; they fill the link

_here = threading.local()


class Tile(NamedTuple):
    """How the copying of rows is divided among the programs of a Triton grid.

    Attributes:
        num_warps: the warps of a program.
        bytes_per_thread: the bytes that a thread requests before it waits for the first.
        most_loads: the most loads that a thread has under way, if its loads are narrow.
    """

    num_warps: int  # of a program
    bytes_per_thread: int  # bytes that a thread asks for before it waits for the first
    most_loads: int  # of a thread at once, if its loads are narrow


# From the host: few programs with many threads. A program runs on one SM, so a capped grid is on no more SMs than it
# has programs: 10,240 threads are 20 programs, which the hardware normally gives to 20 SMs, each with room for others.
# They ask for 640 KiB at once; a link of 53 GB/s with an answer after 1.2 us needs 64 KiB. From device memory: many
# small programs, as the hardware spreads them best.
TILES = {"host": Tile(16, 64, 8), "device": Tile(4, 64, 8)}

# Sorted ids read page after page of the host. The GPU finds the pages of about 1 GiB at once; in a larger table,
# unsorted ids are read at half the link's rate or less. Sorting takes 40 us or more, which does not pay for few ids
# (benchmarks/uva.py, "reach").
SORTED_BEYOND = 2**30  # bytes of a table
SORTED_FROM = 2**15  # ids


def max_uva_threads() -> int:
    """Return how many GPU threads may read host memory in a gather that is started by the calling thread."""
    return int(getattr(_here, "max_uva_threads", MAX_UVA_THREADS))


@contextmanager
def limited_to(most: int) -> Iterator[None]:
    """Context manager: gathers that this thread starts use at most `most` GPU threads, but at least one warp.

    It may be nested. Nothing process-wide is set: two chains with different caps may read at the same time, each in its
    own thread.
    """
    before = max_uva_threads()
    _here.max_uva_threads = most
    try:
        yield
    finally:
        _here.max_uva_threads = before


class Kept(NamedTuple):
    """Copies of some rows of a table on the device: `gather` reads these rows here instead of in the table.

    Attributes:
        rows: [number of slots, *shape], contiguous, of the dtype of the table.
        slots: int64 [n], for each id its row in `rows`; -1 if the id is read from the table.
    """

    rows: Tensor
    slots: Tensor


def gather(
    table: Tensor,
    ids: Tensor,
    *,
    scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
    max_threads: int | None = None,
    sort_ids: bool | None = None,
    missing: MissingIds,
    kept: Kept | None = None,
) -> Tensor:
    """Return `table[ids]` on the device of `ids`. The gather is only queued, on the device's current stream.

    Args:
        table: [count, *shape] in page-locked host memory or on the device of `ids`, of any dtype; rows may lie apart,
            but the values of a row must be adjacent. It must not be freed before the gather has run.
        ids: int32 or int64 [n], contiguous, on a device; repeats allowed.
        scale: float32 [*shape] on the device, contiguous: the factors by which the values of an int8 table are
            multiplied.
        dtype: torch.float32: decode a table in which float32 values are stored with fewer bits, as float16, bfloat16 or
            int8; the results have the same bits as on a CPU. None: the dtype of the table.
        max_threads: the most threads of the GPU that take part, at least one warp of 32. None: as many as there is
            work.
        sort_ids: read the rows in ascending order of the ids; the returned rows keep the order of `ids`. None: sort if
            there are 32,768 ids or more and the table is host memory of more than 1 GiB.
        missing: counts the ids that are not in [0, count). Their rows are zeros.
        kept: rows that are read from `kept.rows`; their ids are not checked. None: all rows are read from the table.
    Returns:
        [n, *shape] of `dtype`.
    Raises:
        ImportError: triton is not installed.
    Cost: rows are read with the widest loads, up to 16 bytes, that divide the address, the row size and the distance
    between rows. Rows of multiples of 128 bytes at addresses of multiples of 128 are the fastest.
    """
    need_triton()
    from datapipes.device import kernels

    device, num_ids, count = ids.device, int(ids.shape[0]), int(table.shape[0])
    out = cuda().empty((num_ids, *table.shape[1:]), dtype or table.dtype, device)
    if num_ids == 0:
        return out
    row_bytes = math.prod(table.shape[1:]) * table.itemsize
    if row_bytes == 0 or (count == 0 and kept is None):
        tile = TILES["device"].num_warps * WARP
        with missing.counter() as counter:
            cuda().launch(kernels.check_ids, (-(-num_ids // tile),), device, ids, counter, num_ids, count, TILE=tile)
        out.view(torch.uint8).zero_()  # torch 2.4 fills no tensor of float8
        return out
    if sort_ids is None:
        is_far = not cuda().holds(table) and count * _step_bytes(table) > SORTED_BEYOND
        sort_ids = is_far and num_ids >= SORTED_FROM
    places = None
    if sort_ids:
        ids, places = torch.sort(ids)
        kept = None if kept is None else kept._replace(slots=kept.slots[places])
    with missing.counter() as counter:
        copy_rows(table, ids, out, counter, places=places, scale=scale, max_threads=max_threads, kept=kept)
    return out


def copy_rows(
    table: Tensor,
    ids: Tensor,
    out: Tensor,
    counter: Tensor,
    *,
    places: Tensor | None,
    scale: Tensor | None = None,
    max_threads: int | None = None,
    kept: Kept | None = None,
) -> None:
    """Queue `out[places] = table[ids]` on the current stream. An id whose place is negative is skipped.

    See `gather` for the other arguments.

    Args:
        out: [n, *shape] on the device, contiguous; a row must have at least one byte.
        counter: int64 [2] on the device, counts the ids outside the table; see MissingIds.counter.
        places: int64 [k] on the device, one for each id; places of 0 or more are distinct. None: 0, 1, 2 ...
    """
    from datapipes.device import kernels

    count, num_ids, is_here = int(table.shape[0]), int(ids.shape[0]), cuda().holds(table)
    if kept is not None and count == 0:
        table, is_here = kept.rows[:1], True  # an address; nothing is read there
    row_bytes, step_bytes = math.prod(table.shape[1:]) * table.itemsize, _step_bytes(table)
    decoded = out.dtype != table.dtype
    widest = 4 * table.itemsize if decoded else WIDEST_LOAD  # four float32 values are stored at once
    cached, slots = (None, None) if kept is None else (kept.rows.view(torch.uint8), kept.slots)
    unit_bytes = math.gcd(widest, table.data_ptr(), 0 if cached is None else cached.data_ptr(), row_bytes, step_bytes)
    value_bytes = table.itemsize if decoded else min(unit_bytes, 4)
    units = row_bytes // unit_bytes
    num_warps, tile, num_tiles, num_programs = _cut(num_ids * units, unit_bytes, is_here, max_threads)
    cuda().launch(
        *(kernels.gather_rows, (num_programs,), ids.device),
        _bytes_of(table, step_bytes) if is_here else table.data_ptr(),
        *(ids, out.view(torch.uint8), places, cached, slots, scale if decoded else None, counter),
        *(num_ids, count, step_bytes // unit_bytes, num_tiles),
        UNITS=units,
        LANES=unit_bytes // value_bytes,
        BITS=8 * value_bytes,
        DECODED_FROM=dtype_name(table.dtype) if decoded else "",
        TILE=tile,
        num_warps=num_warps,
        enable_fp_fusion=False,  # one rounding for each value, whatever the version of Triton
    )


def _step_bytes(table: Tensor) -> int:
    """Return how many bytes lie between the beginnings of two successive rows of the table."""
    return (table.stride(0) if table.shape[0] > 1 else math.prod(table.shape[1:])) * table.itemsize


def need_triton(instead: str = ". Or fetch before the copy: .fetch_feature(...).copy_to('cuda')") -> None:
    """Raise ImportError if triton is not installed; `instead` ends the error, with another remedy."""
    if not has_triton():
        raise not_installed("triton", "gpu", "Reading features with ids on a GPU", instead)


def has_triton() -> bool:
    """Return whether triton is installed; without it `gather` raises ImportError."""
    from datapipes.device import kernels

    return kernels.HAS_TRITON


def _cut(num_units: int, unit_bytes: int, is_here: bool, max_threads: int | None) -> tuple[int, int, int, int]:
    """Divide a gather of `num_units` units, of `unit_bytes` bytes each, among GPU threads.

    A unit is what a thread loads at once. A tile is what a program copies at once.

    Args:
        is_here: whether the table is in device memory.
        max_threads: the most threads; None: no bound.
    Returns:
        (warps of a program, units of a tile, number of tiles, number of programs).
    """
    num_warps, bytes_per_thread, most_loads = TILES["device" if is_here else "host"]
    while max_threads is not None and num_warps > 1 and num_warps * WARP > max_threads:
        num_warps //= 2
    threads = num_warps * WARP
    tile = threads * max(1, min(bytes_per_thread // unit_bytes, most_loads))
    num_tiles = -(-num_units // tile)
    num_programs = num_tiles if max_threads is None else min(num_tiles, max(1, max_threads // threads))
    return num_warps, tile, num_tiles, num_programs


def _bytes_of(table: Tensor, step_bytes: int) -> Tensor:
    """Return the memory of a table as uint8 [bytes], from its first row to the end of its last, gaps included."""
    num_values = (table.shape[0] - 1) * (step_bytes // table.itemsize) + math.prod(table.shape[1:])
    return table.as_strided((num_values,), (1,)).view(torch.uint8)
