"""The kernels that run on a GPU, in Triton; called by gather.py and features/gpu_cached_feature.py.

This is the only module that needs triton. It can be imported without triton; then `HAS_TRITON` is False, and the
kernels are plain functions that must not be called. No kernel is specialized for numbers that change between
minibatches: a new kernel would be compiled in the middle of an epoch.
"""
# No `from __future__ import annotations` here: Triton reads the annotations of a kernel.

from typing import Any

try:
    import triton
    import triton.language as tl
except ImportError:
    HAS_TRITON = False

    class tl:
        """Replaces `triton.language` if triton is not installed: the names that the kernels' signatures use."""

        constexpr = Any

    def _kernel(*changing: str) -> Any:
        return lambda function: function
else:
    HAS_TRITON = True

    def _kernel(*changing: str) -> Any:
        """Return a decorator for Triton kernels. New values of the arguments `changing` do not compile them anew."""
        return triton.jit(do_not_specialize=[*changing])


@_kernel("ids", "num_ids", "count", "stride", "num_tiles")
def gather_rows(
    table,  # address of the first row, or a tensor that begins there
    ids,  # int32 or int64 [num_ids]
    out,  # bytes, or float32 if decoded: [num_ids * UNITS * LANES] values
    places,  # int64 [num_ids]: where the row of each id goes, below 0 nowhere; None: in the order of the ids
    cached,  # other rows on the device, without gaps, or None
    slots,  # int64 [num_ids], with `cached`: the row of each id in `cached`; below 0: its row is in the table
    scale,  # float32 [UNITS * LANES] for int8 that is decoded, else None
    missing,  # int64 [2]: how many ids were outside the table, the smallest of them
    num_ids,
    count,  # rows of the table
    stride,  # from one row to the next, in units
    num_tiles,
    UNITS: tl.constexpr,  # of a row
    LANES: tl.constexpr,  # values of a unit
    BITS: tl.constexpr,  # of a value
    DECODED_FROM: tl.constexpr,  # "", "float16", "bfloat16" or "int8"
    TILE: tl.constexpr,  # units that a program copies at once
):
    """Copy the rows of `table` at `ids` to `out`. An id with a slot gets its row from `cached` instead.

    An id that is not in [0, count) and has no slot gets zeros, and is counted in `missing`. A row consists of UNITS
    units of LANES values of BITS bits. A thread loads one unit with one instruction, the next thread the next unit.
    Units are as wide as the alignment allows. Each offset is a number of units times a constant, so that the compiler
    knows the alignment.
    """
    if table.dtype.is_int():
        table = table.to(tl.int64)  # an address below 4 GiB, of a small table, is passed as int32
    if BITS == 8:
        values = table.to(tl.pointer_type(tl.int8))
        to = out.to(tl.pointer_type(tl.int8))
    elif BITS == 16:
        values = table.to(tl.pointer_type(tl.int16))
        to = out.to(tl.pointer_type(tl.int16))
    else:
        values = table.to(tl.pointer_type(tl.int32))
        to = out.to(tl.pointer_type(tl.int32))
    if DECODED_FROM != "":
        to = out.to(tl.pointer_type(tl.float32))
    values = tl.multiple_of(values, LANES * BITS // 8)
    lane = tl.arange(0, LANES)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        unit = tl.cast(tile, tl.int64) * TILE + tl.arange(0, TILE)
        if LANES == 1:
            unit = tl.max_contiguous(unit, 1)  # neighbours go to neighbouring threads; else a thread would take several
        number = unit // UNITS
        column = unit - number * UNITS
        is_wanted = number < num_ids
        row = tl.load(ids + number, mask=is_wanted, other=0).to(tl.int64)
        if places is not None:
            place = tl.load(places + number, mask=is_wanted, other=-1)
            is_wanted = is_wanted & (place >= 0)
        in_table = is_wanted
        if slots is not None:
            slot = tl.load(slots + number, mask=is_wanted, other=-1)
            in_cache = is_wanted & (slot >= 0)
            in_table = is_wanted & (slot < 0)
        has_row = in_table & (row >= 0) & (row < count)
        wrong = in_table & (column == 0) & ((row < 0) | (row >= count))
        nothing = unit * 0
        tl.atomic_add(missing + nothing, nothing + 1, mask=wrong, sem="relaxed")
        tl.atomic_min(missing + 1 + nothing, row, mask=wrong, sem="relaxed")
        source = (row * stride + column) * LANES
        target, values_of = unit * LANES, column * LANES
        if places is not None:
            target = (place * UNITS + column) * LANES
        if slots is not None:
            kept = (slot * UNITS + column) * LANES
            if LANES > 1:
                kept, in_cache = kept[:, None] + lane, in_cache[:, None]
        if LANES > 1:
            source, target, values_of = source[:, None] + lane, target[:, None] + lane, values_of[:, None] + lane
            has_row, is_wanted = has_row[:, None], is_wanted[:, None]
        read = tl.load(values + source, mask=has_row, other=0)
        if slots is not None:
            of_cache = cached.to(values.dtype)
            read = tl.where(in_cache, tl.load(of_cache + kept, mask=in_cache, other=0), read)
        if DECODED_FROM == "float16":
            read = _from_float16(read)
        elif DECODED_FROM == "bfloat16":
            read = (read.to(tl.int32) << 16).to(tl.float32, bitcast=True)
        elif DECODED_FROM == "int8":
            read = read.to(tl.float32) * tl.load(scale + values_of)
        tl.store(to + target, read, mask=is_wanted)


@_kernel()
def _from_float16(bits):
    """Convert float16 values, given as bits, to float32. A NaN keeps its bits and becomes quiet, as on a CPU."""
    wide = bits.to(tl.int32)
    nan = ((wide & 0x8000) << 16) | 0x7FC00000 | ((wide & 0x3FF) << 13)
    value = bits.to(tl.float16, bitcast=True).to(tl.float32)
    return tl.where((wide & 0x7FFF) > 0x7C00, nan.to(tl.float32, bitcast=True), value)


@_kernel("ids", "num_ids", "count")
def check_ids(ids, missing, num_ids, count, TILE: tl.constexpr):
    """Count in `missing` the ids that are not in [0, count), and copy nothing; for rows that have no bytes."""
    number = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    row = tl.load(ids + number, mask=number < num_ids, other=0).to(tl.int64)
    wrong = (number < num_ids) & ((row < 0) | (row >= count))
    nothing = number * 0
    tl.atomic_add(missing + nothing, nothing + 1, mask=wrong, sem="relaxed")
    tl.atomic_min(missing + 1 + nothing, row, mask=wrong, sem="relaxed")


# --- the cache of rows on a device, see features/gpu_cached_feature.py

_NO_ORDER = tl.constexpr(2**63 - 1) if HAS_TRITON else None  # the order of an id that was found or has no row


@_kernel("ids", "num_ids", "count", "num_sets", "per_set", "now")
def look_up(
    ids,  # int32 or int64 [num_ids]
    keys,  # int64 [num_sets * WAYS]: the id in each slot, -1 in a free one
    stamps,  # int64 [num_sets * WAYS]: the ordinal of the last read that asked for the slot's id
    slots,  # int64 [num_ids], is written: the slot of each id, -1 for a missing id
    orders,  # int64 [num_ids], is written: the position of each missing id among all ids, set by set
    counts,  # int64 [2]: ids that were found, ids that were missing
    num_ids,
    count,  # rows of the feature
    num_sets,
    per_set,  # at most so many rows of the feature belong to a set
    now,  # the ordinal of this read
    WAYS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Look up ids in a cache of rows. Write the slot of each cached id to `slots`, and missing ids to `orders`.

    The cache has `num_sets` sets of WAYS slots; an id belongs to the set `id % num_sets`. The order of a missing id is
    its position among all ids, set by set. The slots that are found are stamped with `now`, the ordinal of this read.
    If two programs write to one place, they write the same value.
    """
    number = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    is_wanted = number < num_ids
    row = tl.load(ids + number, mask=is_wanted, other=-1).to(tl.int64)
    has_row = is_wanted & (row >= 0) & (row < count)
    row = tl.where(has_row, row, 0)
    of_set = row % num_sets
    slot = of_set[:, None] * WAYS + tl.arange(0, WAYS)
    held = (tl.load(keys + slot) == row[:, None]) & has_row[:, None]
    tl.store(stamps + slot, slot * 0 + now, mask=held)
    held_in = tl.max(tl.where(held, slot, -1), axis=1)
    tl.store(slots + number, held_in, mask=is_wanted)
    lacking = has_row & (held_in < 0)
    tl.store(orders + number, tl.where(lacking, of_set * per_set + row // num_sets, _NO_ORDER), mask=is_wanted)
    tl.atomic_add(counts, tl.sum((has_row & (held_in >= 0)).to(tl.int64), axis=0), sem="relaxed")
    tl.atomic_add(counts + 1, tl.sum(lacking.to(tl.int64), axis=0), sem="relaxed")


@_kernel("num_ids", "num_sets", "per_set", "now")
def choose_slots(
    orders,  # int64 [num_ids]: the orders that `look_up` wrote, ascending
    keys,
    stamps,
    places,  # int64 [num_ids], all -1 before, is written: the slot that each of `orders` gets
    num_ids,
    num_sets,
    per_set,
    now,
    WAYS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Choose slots of the cache for ids that `look_up` did not find. `orders` are these ids, ascending, set by set.

    Each set gives its slots to its first WAYS orders: the slots with the oldest stamps first, but no slot that this
    read has stamped. A repeated id gets no second slot. The thread that has the first order of a set handles the whole
    set, so no other thread reads or writes its slots.
    """
    number = tl.program_id(0).to(tl.int64) * TILE + tl.arange(0, TILE)
    order = tl.load(orders + number, mask=number < num_ids, other=_NO_ORDER)
    before = tl.load(orders + number - 1, mask=(number > 0) & (number < num_ids), other=-1)
    of_set = order // per_set
    first = (order < _NO_ORDER) & ((before < 0) | (before // per_set != of_set))
    of_set = tl.where(first, of_set, 0)
    way = tl.arange(0, WAYS)
    slot = of_set[:, None] * WAYS + way
    stamp = tl.load(stamps + slot)
    other, this = stamp[:, None, :], stamp[:, :, None]
    is_older = (other < this) | ((other == this) & (way[None, None, :] < way[None, :, None]))
    at = number[:, None] + tl.sum(is_older.to(tl.int64), axis=2)  # the oldest slot is for the first order of the set
    has_order = first[:, None] & (at < num_ids)
    new = tl.load(orders + at, mask=has_order, other=_NO_ORDER)
    previous = tl.load(orders + at - 1, mask=has_order & (at > number[:, None]), other=-1)
    comes = has_order & (new < _NO_ORDER) & (new // per_set == of_set[:, None]) & (new != previous) & (stamp < now)
    tl.store(keys + slot, (new % per_set) * num_sets + of_set[:, None], mask=comes)
    tl.store(stamps + slot, slot * 0 + now, mask=comes)
    tl.store(places + at, slot, mask=comes)
