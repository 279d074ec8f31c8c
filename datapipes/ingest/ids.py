"""Number ids of any kind (integers, texts, bytes, UUIDs) by first occurrence, and find an id by its number.

Invariant: numbers depend on the order of the ids alone, not on the batches that they come in.
"""

from __future__ import annotations

import itertools
import operator
import secrets
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import shown
from datapipes.base.errors import needed
from datapipes.ingest.pieces import Pieces

TEXTS, _BYTES = ("string", "large_string", "string_view"), ("binary", "large_binary", "binary_view")  # Arrow's types
_AT_ONCE = 2**16  # names that an iteration takes at a time


class WrongCell(ValueError):
    """A value that a column cannot take. The text says what is wrong and what to do; its subject is the cell.

    Attributes:
        row: the place of the cell in its batch; None: the whole column is wrong.
    """

    def __init__(self, row: int | None, text: str) -> None:
        super().__init__(text)
        self.row = row


class Ids:
    """Numbers the ids of one type of nodes, or the values of one column, from 0 on.

    Attributes:
        kind: "integers", "texts", "bytes" or "uuids"; "" before the first id.
    """

    def __init__(self) -> None:
        self.kind = ""
        self._numbers: Any = None

    @property
    def count(self) -> int:
        """Number of different ids."""
        return 0 if self._numbers is None else int(self._numbers.count)

    def number(self, columns: Sequence[Any], *, add: bool) -> NDArray[Any]:
        """Return the numbers of ids, int64 [number of columns, rows]. A missing id has the number -1.

        Args:
            columns: pyarrow arrays of equal length. Ids are taken row by row, in each row column by column.
            add: number new ids; False: they get -1.
        Raises:
            WrongCell: The values are no ids, or are of another kind than the earlier ids.
        """
        pyarrow = needed("pyarrow", "ondisk", "a table")
        read = [_read(pyarrow, column) for column in columns]
        kinds = {kind for kind, _ in read if kind} | ({self.kind} - {""})
        if len(kinds) > 1:
            found = " beside ".join(sorted({kind for kind, _ in read if kind}))
            more = f" where earlier ids of the type are {self.kind}" * bool(self.kind)
            raise WrongCell(None, f"holds {found}{more}; ids of one type must be of one kind. Convert them to texts.")
        if not kinds or (self._numbers is None and not add):
            return np.full((len(columns), len(columns[0])), -1)
        if self._numbers is None:
            (self.kind,) = kinds
            self._numbers = _new_numbers(self.kind)
        arrays = [column if kind else _missing(pyarrow, self.kind, len(column)) for kind, column in read]
        numbers: NDArray[Any] = self._numbers.number([_viewed(pyarrow, array) for array in arrays], add=add)
        return numbers

    def names(self, begin: int, end: int) -> list[Any]:
        """Return the ids with the numbers [begin, end): int, str, bytes, or the text of a UUID."""
        if not self.kind:
            return []
        if self.kind == "integers":
            return list(self._arrays(begin, end)[0].tolist())
        offsets, content = self._arrays(begin, end)
        whole = content.tobytes()
        cells = [whole[first:last] for first, last in itertools.pairwise(offsets.tolist())]
        if self.kind == "uuids":
            return [str(uuid.UUID(bytes=cell)) for cell in cells]
        return cells if self.kind == "bytes" else [cell.decode("utf-8", "replace") for cell in cells]

    def _arrays(self, begin: int, end: int) -> tuple[NDArray[Any], ...]:
        """Return (integers,), or (offsets, bytes), of the ids with the numbers [begin, end)."""
        arrays: tuple[NDArray[Any], ...] = self._numbers.ids(begin, end)
        return arrays

    def __reduce__(self) -> Any:
        return (StoredIds, (self.kind, self._arrays(0, self.count))) if self.count else (Ids, ())


def _new_numbers(kind: str) -> Any:
    """Return an empty numbering; the secret keeps ids from a hostile file apart in its hash table."""
    return _core.IdNumbers("integers" if kind == "integers" else "texts", secrets.randbits(63))


class StoredIds(Ids):
    """Ids in files, as `Names.store` wrote them. They are numbered again when an id is looked up.

    Args:
        arrays: (integers,), or (offsets, bytes), of all ids.
    """

    def __init__(self, kind: str, arrays: Sequence[NDArray[Any]]) -> None:
        super().__init__()
        self.kind, self._stored = kind, arrays

    @property
    def count(self) -> int:
        return len(self._stored[0]) - (len(self._stored) - 1)

    def number(self, columns: Sequence[Any], *, add: bool) -> NDArray[Any]:
        if self._numbers is None:
            numbers = _new_numbers(self.kind)
            for begin in range(0, self.count, _AT_ONCE):
                numbers.number([(*self._arrays(begin, min(begin + _AT_ONCE, self.count)), None)], add=True)
            if numbers.count != self.count:
                raise ValueError("names: the folder has a name twice; it is damaged. Write it anew.")
            self._numbers = numbers
        return super().number(columns, add=add)

    def _arrays(self, begin: int, end: int) -> tuple[NDArray[Any], ...]:
        if len(self._stored) == 1:
            return (np.ascontiguousarray(self._stored[0][begin:end]),)
        offsets, content = self._stored
        first, last = (int(offsets[place]) for place in (begin, end))
        return np.ascontiguousarray(offsets[begin : end + 1] - first), np.ascontiguousarray(content[first:last])


class Names(Sequence[Any]):
    """The ids of nodes, or the categories of a column, as they are in the tables: names[i] belongs to the number i.

    They are read from the numbering when they are used, so they take little memory of their own.

    Args:
        chosen: int64 [n], the numbers in `ids` of the names that are here; None: all, in their order.
    """

    def __init__(self, ids: Ids, chosen: NDArray[Any] | None = None) -> None:
        self._ids, self._chosen = ids, chosen

    def __len__(self) -> int:
        return self._ids.count if self._chosen is None else len(self._chosen)

    @overload
    def __getitem__(self, place: int) -> Any: ...
    @overload
    def __getitem__(self, place: slice | Sequence[int] | Tensor | NDArray[Any]) -> list[Any]: ...
    def __getitem__(self, place: Any) -> Any:
        if str(getattr(place, "dtype", "")).endswith("bool"):
            raise TypeError("names: places must be integers, got bool. Pass mask.nonzero().")
        if isinstance(place, slice):
            place = range(*place.indices(len(self)))
        if (isinstance(place, Sequence) and not isinstance(place, str)) or getattr(place, "ndim", 0) > 0:
            return [self[i] for i in place]
        try:
            number = range(len(self))[operator.index(place)]
        except TypeError:
            raise TypeError(
                f"names: a place must be an integer, got {shown(place)}. Pass the number of a node."
            ) from None
        except IndexError:
            raise IndexError(f"names: {shown(place)} is not in [0, {len(self)}). Pass an id of this type.") from None
        number = number if self._chosen is None else int(self._chosen[number])
        return self._ids.names(number, number + 1)[0]

    def __iter__(self) -> Iterator[Any]:
        if self._chosen is not None:
            yield from map(self.__getitem__, range(len(self)))
            return
        for begin in range(0, len(self), _AT_ONCE):
            yield from self._ids.names(begin, min(begin + _AT_ONCE, len(self)))

    def chosen(self, numbers: NDArray[Any]) -> Names:
        """Return the names with these numbers, int64 [n]; names[i] then belongs to the i-th of them."""
        return Names(self._ids, numbers)

    def numbers(self, names: Sequence[Any]) -> Tensor:
        """Return the numbers of `names`, int64 [n]; -1 for a name that is not here.

        Raises:
            ValueError: The names are of another kind, such as texts where integers are needed.
        """
        pyarrow = needed("pyarrow", "ondisk", "names")
        try:
            column = pyarrow.array(names.numpy() if isinstance(names, Tensor) else names)
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"names: {shown(names)} are no ids of one kind. Pass texts or integers.") from error
        try:
            if self._ids.kind == "uuids" and str(column.type) in TEXTS:
                cells = pyarrow.array([*map(_bytes_of_uuid, column.to_pylist())], pyarrow.binary(16))
                column = pyarrow.ExtensionArray.from_storage(pyarrow.uuid(), cells)
            numbers = self._ids.number([column], add=False)[0]
        except WrongCell as error:
            raise ValueError(f"names: {shown(names)} {error}") from error
        return torch.from_numpy(numbers if self._chosen is None else places_in(self._chosen, self._ids.count)[numbers])

    def store(self, new_pieces: Callable[[], Pieces]) -> tuple[str, list[NDArray[Any]]]:
        """Write the names to new pieces, and return (kind, arrays), the arguments of StoredIds."""
        kept = [new_pieces() for _ in range(1 if self._ids.kind == "integers" else 2)]
        if len(kept) == 2:
            kept[0].add(np.zeros(1, np.int64))
        kept[-1].add(np.zeros(0, np.int64 if len(kept) == 1 else np.uint8))
        num_bytes = 0
        for begin in range(0, len(self), _AT_ONCE):
            end = min(begin + _AT_ONCE, len(self))
            numbers = [] if self._chosen is None else self._chosen[begin:end].tolist()
            parts = [self._ids._arrays(number, number + 1) for number in numbers] or [self._ids._arrays(begin, end)]
            kept[-1].add(np.concatenate([part[-1] for part in parts]))
            if len(kept) == 2:
                ends = np.concatenate([part[0][1:] - part[0][:-1] for part in parts]).cumsum() + num_bytes
                kept[0].add(ends)
                num_bytes = int(ends[-1])
        return self._ids.kind, [pieces.whole() for pieces in kept]

    def __repr__(self) -> str:
        return f"{len(self)} names"


def _bytes_of_uuid(name: Any) -> bytes | None:
    try:
        return uuid.UUID(name).bytes
    except (ValueError, TypeError):  # no UUID, so it is no name
        return None


def places_in(chosen: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the place in `chosen` of each number in [0, count), -1 for others; and for -1 a last entry, -1."""
    places = np.full(count + 1, -1)
    places[chosen] = np.arange(len(chosen))
    return places


def words_of(type_: Any) -> str:
    """Return a pyarrow type in plain words."""
    name = str(type_)
    return "texts" if name in TEXTS else {"null": "nothing", "double": "floats", "int64": "integers"}.get(name, name)


def _read(pyarrow: Any, column: Any) -> tuple[str, Any]:
    """Return (kind, ids as a pyarrow array of int64, large text, or bytes); the kind "" if all ids are missing."""
    kinds = pyarrow.types
    if kinds.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if isinstance(column.type, pyarrow.BaseExtensionType):
        kind = "uuids" if str(column.type) == "extension<arrow.uuid>" else str(column.type)
        column = column.storage
        if kind == "uuids":
            return kind, column.cast(pyarrow.large_binary())
    if column.null_count == len(column):
        return "", column
    if kinds.is_floating(column.type):  # pandas has floats where an integer is missing
        column = exact_floats(column, "id")
    try:
        if kinds.is_integer(column.type) or kinds.is_floating(column.type):
            return "integers", column.cast(pyarrow.int64())
        if str(column.type) in TEXTS:
            return "texts", column.cast(pyarrow.large_string())
        if str(column.type) in _BYTES or kinds.is_fixed_size_binary(column.type):
            return "bytes", column.cast(pyarrow.large_binary())
    except (ValueError, NotImplementedError) as error:
        row = first_that_fails(column, pyarrow.int64())
        text = f"has {shown(column[row].as_py())}, which is no id: a whole number of 64 bits, or a text. Correct it."
        raise WrongCell(row, text) from error
    raise WrongCell(
        None, f"holds {words_of(column.type)}; ids are integers, texts, bytes or UUIDs. Convert it to text."
    )


def exact_floats(column: Any, what: str) -> Any:
    """Return a pyarrow array of floats, which are ids or times (`what` names one), as float64 with null for NaN.

    Raises:
        WrongCell: A float is so large that it may have been rounded.
    """
    pyarrow, compute = (needed(name, "ondisk", "a table") for name in ("pyarrow", "pyarrow.compute"))
    digits = {16: 11, 32: 24, 64: 53}[column.type.bit_width]
    column = without_nan(column).cast(pyarrow.float64())
    too_large = np.asarray(compute.fill_null(compute.abs(column), 0).to_numpy(zero_copy_only=False)) >= 2**digits
    if too_large.any():
        text = f"has a float of 2^{digits} or more, which is no exact {what}. Write integers."
        raise WrongCell(int(too_large.argmax()), text)
    return column


def without_nan(column: Any) -> Any:
    """Return a pyarrow array of floats with null in place of each NaN."""
    compute = needed("pyarrow.compute", "ondisk", "a table")
    return compute.if_else(compute.is_nan(column), None, column)


def first_that_fails(column: Any, type_: Any) -> int:
    """Return the first row whose value alone cannot be cast to a type."""
    low, high = 0, len(column)  # the first `low` rows can be cast, the first `high` cannot
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column[low:middle].cast(type_)
            low = middle
        except ValueError:
            high = middle
    return low


def _missing(pyarrow: Any, kind: str, count: int) -> Any:
    return pyarrow.nulls(count, pyarrow.int64() if kind == "integers" else pyarrow.large_binary())


def _viewed(pyarrow: Any, array: Any) -> tuple[Any, ...]:
    """Return the memory of an array of ids as `_core.IdNumbers.number` takes it."""
    valid = None if array.null_count == 0 else array.is_valid().to_numpy(zero_copy_only=False).view(np.uint8)
    _, *buffers = array.buffers()
    arrays = [np.frombuffer(buffer or b"", np.int64 if i == 0 else np.uint8) for i, buffer in enumerate(buffers)]
    end = array.offset + len(array) + (len(buffers) == 2)
    if len(arrays[0]) < end:  # an empty array may have no buffers
        arrays[0] = np.zeros(end, np.int64)
    return (arrays[0][array.offset : end], *arrays[1:], valid)
