"""Turn the columns of a table into arrays: times, numbers, categories, lists of one width, or what a function returns.

A Column takes one batch of a table after another, and gives the whole array at the end. The arrays do not depend on the
batches. A missing value (null, or NaN of a number) becomes 0 and is noted in `missing`; a missing category becomes -1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.errors import needed, sentence
from datapipes.base.sizes import check_memory
from datapipes.ingest.ids import TEXTS, Ids, Names, WrongCell, exact_floats, first_that_fails, words_of
from datapipes.ingest.pieces import Pieces, read_in_pieces

UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of a second
KINDS = ("number", "category", "time")
Kind = str | Callable[[list[Any]], Any]  # one of KINDS, or a function from cells to an array with a row for each
_WIDER = {"uint16": np.int32, "uint32": np.int64, "uint64": np.int64, "float64": np.float32}  # what torch gathers well


def kind_of(type_: Any) -> str | None:
    """Return how a column of this pyarrow type is read if nothing is said: one of KINDS; None: not at all."""
    kinds = needed("pyarrow.types", "ondisk", "a table")
    is_list = False
    while kinds.is_list(type_) or kinds.is_large_list(type_) or kinds.is_fixed_size_list(type_):
        type_, is_list = type_.value_type, True
    if any(test(type_) for test in (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)):
        return "number"
    if is_list:
        return None
    if kinds.is_dictionary(type_):
        return "category" if str(type_.value_type) in TEXTS or kinds.is_integer(type_.value_type) else None
    return "time" if kinds.is_timestamp(type_) or kinds.is_date(type_) else None


def times_of(column: Any, unit: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (times, missing): int64 [n] in `unit` since 1970 in UTC, 0 where missing; bool [n].

    Integers are taken to be in `unit`. Timestamps and dates, also as ISO text, are rounded down; without a zone they
    are in UTC.

    Raises:
        WrongCell: A value is no time, or lies outside int64.
    """
    pyarrow, compute = (needed(name, "ondisk", "a table") for name in ("pyarrow", "pyarrow.compute"))
    kinds = pyarrow.types
    if str(column.type) in TEXTS:
        column = _parsed(pyarrow, compute, column, "ns" if unit == "ns" else "us")
    if kinds.is_floating(column.type):
        column = exact_floats(column, "time")
    missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
    per_second = UNITS[unit]
    if kinds.is_date(column.type):
        column = column.cast(pyarrow.date32(), safe=False).cast(pyarrow.int32())
        values, step, back = _whole(pyarrow, column), 86400 * per_second, 1
    elif kinds.is_timestamp(column.type):
        has, values = UNITS[column.type.unit], _whole(pyarrow, column.cast(pyarrow.int64()))
        step, back = max(per_second // has, 1), max(has // per_second, 1)
    elif kinds.is_integer(column.type) or kinds.is_floating(column.type):
        values, step, back = _whole(pyarrow, column), 1, 1
    else:
        raise WrongCell(None, f"holds {column.type}; times are timestamps, dates, ISO texts or integers. Convert it.")
    most = np.iinfo(np.int64).max // step
    outside = (values > most) | (values < -most)
    if outside.any():
        row = int(outside.argmax())
        raise WrongCell(row, f"has a time outside int64 in the unit {unit!r}. Choose a coarser time_unit.")
    return values // back * step, missing


def time_of(value: Any, unit: str) -> int:
    """Return one time, int in `unit`; see times_of. Raises WrongCell, also for a missing one."""
    pyarrow = needed("pyarrow", "ondisk", "a time")
    try:
        (time,), (is_missing,) = times_of(pyarrow.array([value]), unit)
    except (TypeError, OverflowError) as error:
        raise WrongCell(0, f"is {shown(value)}, which is no time of 64 bits. Write a date.") from error
    if is_missing:
        raise WrongCell(0, f"is {shown(value)}, which is no time. Write it like 2024-05-31 or 2024-05-31T09:00:00.")
    return int(time)


def is_until(column: Any, last: Any, unit: str) -> NDArray[Any]:
    """Return which times are at most `last`, bool [n]; False for a missing time. `unit` is that of integers.

    Timestamps are compared in their own unit, which may be finer than `unit`.
    """
    pyarrow = needed("pyarrow", "ondisk", "a table")
    if str(column.type) in TEXTS:
        unit = "ns" if unit == "ns" else "us"
    elif pyarrow.types.is_timestamp(column.type):
        unit = column.type.unit
    times, missing = times_of(column, unit)
    try:
        limit = time_of(last, unit)
    except WrongCell:  # beyond what the unit holds, as any time of it is
        limit = np.sign(time_of(last, "s")) * np.iinfo(np.int64).max
    is_early: NDArray[Any] = (times <= limit) & ~missing
    return is_early


def _whole(pyarrow: Any, column: Any) -> NDArray[Any]:
    try:
        filled = column.fill_null(0).cast(pyarrow.int64())
    except ValueError as error:
        row = first_that_fails(column, pyarrow.int64())
        raise WrongCell(
            row, f"has {shown(column[row].as_py())}, which is no whole number of 64 bits. Round it."
        ) from error
    return np.asarray(filled.to_numpy(zero_copy_only=False))


def _parsed(pyarrow: Any, compute: Any, column: Any, unit: str) -> Any:
    """Return ISO texts as timestamps in UTC, in "us" or "ns"; finer digits are cut off. Empty texts are missing."""
    column = compute.utf8_trim_whitespace(column.cast(pyarrow.large_string()))
    column = compute.if_else(compute.equal(column, ""), None, column)
    digits = {"us": 6, "ns": 9}[unit]
    column = compute.replace_substring_regex(column, rf"(\.\d{{{digits}}})\d+", r"\1")
    zoned = compute.match_substring_regex(column, r":.*(Z|[+-]\d\d(:?\d\d)?)$")
    plain = compute.if_else(zoned, None, column)
    parts = []
    for texts, type_ in (
        (plain, pyarrow.timestamp(unit)),
        (compute.if_else(zoned, column, None), pyarrow.timestamp(unit, "UTC")),
    ):
        try:
            parts.append(texts.cast(type_))
        except ValueError as error:
            if unit == "ns":  # a time beyond those of 64 bits, perhaps
                return _parsed(pyarrow, compute, column, "us")
            row = first_that_fails(texts, type_)
            how = "Write it like 2024-05-31 or 2024-05-31T09:00:00"
            raise WrongCell(row, f"has {shown(texts[row].as_py())}, which is no ISO time. {how}.") from error
    return compute.coalesce(parts[0].cast(pyarrow.timestamp(unit, "UTC")), parts[1])


def numbers_of(column: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return (values, missing): numbers or booleans [n], or [n, width] for lists of one width; bool [n].

    float64 and decimals become float32, unsigned integers of 16 bits or more the next wider signed ones.

    Raises:
        WrongCell: A list has another width than the first; a number is beyond float32; the values are no numbers.
    """
    pyarrow, compute = (needed(name, "ondisk", "a table") for name in ("pyarrow", "pyarrow.compute"))
    kinds = pyarrow.types
    if kinds.is_list(column.type) or kinds.is_large_list(column.type) or kinds.is_fixed_size_list(column.type):
        missing = np.asarray(column.is_null().to_numpy(zero_copy_only=False))
        lengths = np.asarray(compute.list_value_length(column).fill_null(-1).to_numpy(zero_copy_only=False))
        width = int(lengths[~missing][0]) if not missing.all() else 0
        other = ~missing & (lengths != width)
        if other.any():
            row = int(other.argmax())
            raise WrongCell(row, f"has a list of {lengths[row]} values after lists of {width}. Make them equally long.")
        try:
            flat, inside = numbers_of(compute.list_flatten(column))
            if inside.any():
                raise WrongCell(int(inside.argmax()), "has a list with a missing number. Fill it in.")
        except WrongCell as error:  # its row counts the values
            place = None if error.row is None else int(np.flatnonzero(~missing)[error.row // width])
            raise WrongCell(place, str(error)) from error
        shape = (len(column), width, *flat.shape[1:])
        check_memory(
            "a table", f"a column of lists, {shown([*shape])},", math.prod(shape) * flat.itemsize, "Shorten them."
        )
        values = np.zeros(shape, flat.dtype)
        values[~missing] = flat.reshape(-1, width, *flat.shape[1:]) if width else 0
        return values, missing
    if kinds.is_decimal(column.type):
        column = column.cast(pyarrow.float64())
    if kinds.is_null(column.type):
        column = column.cast(pyarrow.float32())
    if not any(test(column.type) for test in (kinds.is_integer, kinds.is_floating, kinds.is_boolean)):
        raise WrongCell(
            None, f"holds {words_of(column.type)}; numbers are needed. Read it as a 'category', or leave it out."
        )
    filled = column.fill_null(False if kinds.is_boolean(column.type) else 0)
    values = np.array(filled.to_numpy(zero_copy_only=False))  # a copy: Arrow's memory is read-only
    missing = np.array(column.is_null().to_numpy(zero_copy_only=False))
    if values.dtype.kind == "f":
        missing |= np.isnan(values)
        values[missing] = 0
    wider = _WIDER.get(values.dtype.name)
    if wider is None:
        return values, missing
    with np.errstate(over="ignore"):
        cast = values.astype(wider)
    lost = (cast < 0) if values.dtype.kind == "u" else np.isinf(cast) & np.isfinite(values)
    if lost.any():
        row = int(lost.argmax())
        raise WrongCell(row, f"has {values[row]}, beyond {np.dtype(wider)}. Scale it.")
    return cast, missing


class Column:
    """Collects one column of a table.

    Args:
        kind: one of KINDS, or a function that turns a list of cells (None where missing) into an array [n, ...].
        unit: of times.
        new_pieces: makes the Pieces that keep the values.
    """

    def __init__(self, kind: Kind, unit: str, new_pieces: Callable[[], Pieces]) -> None:
        self.kind, self._unit = kind, unit
        self._ids = Ids()
        self._values, self._missing = new_pieces(), new_pieces()
        self._dtype: np.dtype[Any] | None = None  # of the first array of a function
        self._unshaped = 0  # leading rows that are all missing, before the shape of a row is known

    def add(self, cells: Any) -> None:
        """Take the next rows, a pyarrow array. Raises WrongCell."""
        missing = np.zeros(len(cells), bool)
        if len(cells) == 0 and callable(self.kind):
            return
        if self.kind == "category":
            if needed("pyarrow", "ondisk", "a table").types.is_boolean(cells.type):
                cells = cells.cast("int64")
            values = self._ids.number([cells], add=True)[0]
        elif self.kind == "time":
            values, missing = times_of(cells, self._unit)
        elif self.kind == "number":
            values, missing = numbers_of(cells)
        else:
            values = self._called(cells)
        self._missing.add(missing)
        before = self._values.row_shape
        if missing.all() and len(values):  # an empty list says nothing of the length of the others
            if before is None and values.ndim > 1:
                self._unshaped += len(values)
                return
            before = () if before is None else before
            values = np.zeros((len(values), *before), values.dtype)
        elif before is not None and len(values) and values.shape[1:] != before:
            shapes = f"{[*values.shape[1:]]} after rows of shape {[*before]}"
            raise WrongCell(int((~missing).argmax()), f"gives a row of shape {shapes}. Make them equal.")
        if self._unshaped and len(values):
            self._values.add(np.zeros((self._unshaped, *values.shape[1:]), values.dtype))
            self._unshaped = 0
        self._values.add(values)

    def _called(self, cells: Any) -> NDArray[Any]:
        assert callable(self.kind)
        made = self.kind(cells.to_pylist())
        try:
            made = made.detach().cpu().numpy() if isinstance(made, Tensor) else made
            values = np.array(made)  # a copy: the function may use its memory again
        except (TypeError, ValueError) as error:  # bfloat16; rows of different lengths
            text = f"is read by a function whose result is no array: {sentence(error)} Return an array of numbers."
            raise WrongCell(None, text) from error
        if values.shape[:1] != (len(cells),) or values.dtype.kind not in "biuf" or values.dtype.itemsize > 8:
            found = f"{values.dtype} {shown([*values.shape])} for {len(cells)} cells"
            text = f"is read by a function that returned {found}. Return an array of numbers with a row for each cell."
            raise WrongCell(None, text)
        if self._dtype is not None and not np.can_cast(values.dtype, self._dtype, "safe"):
            text = f"is read by a function that returned {values.dtype} after {self._dtype}. Return one dtype."
            raise WrongCell(None, text)
        self._dtype = values.dtype.newbyteorder("=") if self._dtype is None else self._dtype
        return values.astype(self._dtype, copy=False)

    def values(self) -> NDArray[Any]:
        """Return the values of all rows; of categories the numbers by first occurrence, -1 where missing."""
        if self._unshaped:
            self._values.add(np.zeros(self._unshaped, np.float32))
            self._unshaped = 0
        return self._values.whole()

    def missing(self) -> NDArray[Any]:
        """Return whether the value of each row is missing, bool [num_rows]; all False for categories and functions."""
        return self._missing.whole()

    def categories(self) -> Names:
        """Return the category of each number."""
        return Names(self._ids)


def vocabulary(numbers: NDArray[Any], count: int, is_known: NDArray[Any] | None) -> NDArray[Any]:
    """Return the numbers of the categories that occur in known rows, by first occurrence there.

    Args:
        numbers: int64 [n] in [-1, count), the category of each row.
        is_known: bool [n], of which rows the categories may be known; None: of all.
    """
    if is_known is None:
        return np.arange(count)
    first, before = np.full(count + 1, len(numbers)), 0
    for some, known in read_in_pieces(numbers, is_known):
        categories, rows = np.unique(some[known], return_index=True)
        first[categories] = np.minimum(first[categories], np.flatnonzero(known)[rows] + before)
        before += len(some)
    first = first[:count]  # the last place is that of -1, a missing value
    return np.argsort(first, kind="stable")[: int((first < len(numbers)).sum())]


def statistics(values: NDArray[Any], is_wanted: NDArray[Any] | None) -> dict[str, Any]:
    """Return {"mean": ..., "std": ...} of the finite numbers in the wanted rows, as floats or as lists of floats.

    The sums are over pieces of fixed size, so their bits depend on the rows alone.
    """

    def mean_of(function: Callable[[NDArray[Any]], NDArray[Any]]) -> NDArray[Any]:
        count, total = np.zeros(values.shape[1:], np.int64), np.zeros(values.shape[1:])
        for rows, *wanted in read_in_pieces(values, *([] if is_wanted is None else [is_wanted])):
            rows = (rows[wanted[0]] if wanted else rows).astype(np.float64)
            is_finite = np.isfinite(rows)
            count, total = count + is_finite.sum(axis=0), total + np.where(is_finite, function(rows), 0).sum(axis=0)
        return total / np.maximum(count, 1)

    mean = mean_of(lambda rows: rows)
    return {"mean": mean.tolist(), "std": np.sqrt(mean_of(lambda rows: (rows - mean) ** 2)).tolist()}
