"""Read a message from record batches of Arrow. Anybody may have sent the message, so all of it is checked before use.

Nothing is unpickled, whatever the metadata say. Tensors view the received memory, without a copy, except those that
come in several pieces or are not aligned. Of a request, Arrow reads only the schema. The batch (a request has one) is
read here: the schema tells where in it each tensor must be. Arrow would unpack a compressed batch, so that a few bytes
could make it take any amount of memory.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.rows import new_rows
from datapipes.base.strict_json import parse_strict
from datapipes.distributed.arrow import arrow
from datapipes.distributed.wire.arrow_message import (
    DTYPE,
    HEADER,
    SHAPE,
    Message,
    bytes_of,
    check_form,
    refuse_other_bools,
    shaped,
    view_of,
)

MOST_COLUMNS = 2**16
# Of an answer. A handshake names all types and features, some 200 bytes each. Reading strict JSON takes 0.1 s a MB.
MOST_HEADER_BYTES = 4 * 2**20
MOST_REQUEST_HEADER_BYTES = 256 * 2**10  # reading JSON takes up to 100 times its size in memory, and the GIL
MOST_SHAPE_CHARACTERS = 64 * 21
_MOST_MESSAGES = 2  # of a request: the schema and one batch


class BadMessage(ValueError):
    """Received bytes, or Arrow batches, are no valid message; the text of the error says what was found."""


def from_bytes(where: str, data: Any, most_bytes: int) -> Message:
    """Read a request, which is one Arrow stream, from `data`. The tensors of the returned message view `data`, without
    a copy.

    Args:
        data: bytes, or a buffer of Arrow.
        most_bytes: the most bytes of the stream.
    Raises:
        BadMessage: `data` is too large, is no Arrow stream, or contains no message; see `from_batches`.
    """
    pa = arrow(where)
    if len(data) > most_bytes:
        raise BadMessage(f"{where}: found {len(data)} bytes; at most {most_bytes} are allowed. Ask for less at once.")
    buffer = pa.py_buffer(data)
    try:
        messages = [*itertools.islice(pa.ipc.MessageReader.open_stream(buffer), _MOST_MESSAGES + 1)]
        schema = pa.ipc.open_stream(buffer).schema
        kinds, allowed = [message.type for message in messages], ["schema", *["record batch"] * (len(schema) > 0)]
        if kinds != allowed:
            raise ValueError(f"found messages of the types {kinds}, expected were {allowed}")
    except (pa.ArrowException, ValueError, OSError, OverflowError, MemoryError, EOFError) as error:
        raise BadMessage(f"{where}: found no valid Arrow stream: {_short(error)}.") from error
    arriving, place = _arriving(where, pa, schema, most_bytes), 0
    body = messages[-1].body if arriving else pa.py_buffer(b"")
    for tensor in arriving:  # as arrow_message._column writes it: two offsets, and the bytes, at a multiple of 8
        first, end = struct.unpack_from("=qq", body, place) if place + 16 <= body.size else (-1, 0)
        if first == 0 and end != tensor.num_bytes:
            raise tensor.wrong(str(end))
        if first != 0 or place + 16 + end > body.size:
            raise BadMessage(f"{where}: found a batch that is compressed, or has null values or several rows.")
        tensor.take(body.slice(place + 16, end))
        place += 16 + -(-end // 8) * 8
    if place != body.size:
        raise BadMessage(f"{where}: found a batch of {body.size} bytes; its columns have {place}.")
    header = header_of(where, schema, MOST_REQUEST_HEADER_BYTES)
    return Message(header, {tensor.name: tensor.whole() for tensor in arriving})


# Takes some rows of a tensor. Arguments: name of the tensor; index of the first row; the bytes of the rows, uint8 [n,
# bytes of a row], valid only during the call.
TakeBytes = Callable[[str, int, Tensor], None]
# Checks a message before its first row comes. Arguments: the header; {name of a tensor: (dtype, shape)}. Raises an
# error, or returns the function that takes the rows of the tensors as they arrive.
Sink = Callable[[dict[str, Any], dict[str, tuple[torch.dtype, tuple[int, ...]]]], TakeBytes]


def from_batches(
    where: str,
    schema: Any,
    batches: Iterable[Any],
    most_bytes: int,
    sink: Sink | None = None,
) -> Message:
    """Read a message from its Arrow schema and batches, to the end of `batches`, and return it.

    Args:
        most_bytes: the most bytes of all tensors together.
        sink: function that checks the header and the dtypes and shapes, and returns a function for the rows. The latter
            gets the rows of all tensors while they arrive, and the returned message has no tensors. None: the message
            has the tensors.
    Raises:
        BadMessage: A column is no large_binary, or states a dtype or shape that no tensor has; there are more or fewer
            bytes than the shape says; Arrow's full validation refuses a batch; or the header is not strict JSON.
    """
    pa = arrow(where)
    arriving = _arriving(where, pa, schema, most_bytes)
    header = header_of(where, schema)
    if sink is not None:
        take = sink(header, {tensor.name: (tensor.dtype, tensor.shape) for tensor in arriving})
        for tensor in arriving:
            tensor.pass_on = take
    for number, batch in enumerate(batches):
        _check_batch(where, pa, schema, batch)
        taken = sum(tensor.take(_value_of(column)) for tensor, column in zip(arriving, batch.columns, strict=True))
        if taken == 0 and number > 0:
            raise BadMessage(f"{where}: found a batch without a byte after others.")
    tensors = {tensor.name: tensor.whole() for tensor in arriving}
    return Message(header, tensors if sink is None else {})


class _Arriving:
    """A tensor that is being received: collects its bytes, which arrive in one piece or several, or passes them on to a
    sink.
    """

    def __init__(self, where: str, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.where, self.name, self.dtype, self.shape = where, name, dtype, shape
        self.num_bytes, self.done = bytes_of(shape, dtype), 0
        self.piece: Any = None  # all bytes, if they came in one piece
        self.joined: Tensor | None = None
        self.pass_on: TakeBytes | None = None

    def take(self, piece: Any) -> int:
        """Take `piece`, a buffer with the next bytes of the tensor; return how many bytes it has."""
        count = int(piece.size)
        if count > self.num_bytes - self.done:
            raise self.wrong(f"{self.done + count} or more")
        if self.pass_on is not None:
            self._pass_on(self.pass_on, piece, count)
        elif count == self.num_bytes:
            self.piece = piece
        elif count > 0:
            if self.joined is None:  # recycled memory: fresh memory takes longer to get than to fill
                self.joined = new_rows(self.num_bytes, (), torch.uint8)
            self.joined[self.done : self.done + count] = view_of(self.where, self.name, piece, torch.uint8, (count,))
        self.done += count
        return count

    def _pass_on(self, take: TakeBytes, piece: Any, count: int) -> None:
        unit = bytes_of(self.shape[1:], self.dtype)
        if count == 0:
            return
        if count % unit != 0 or len(self.shape) == 0:
            raise BadMessage(f"{self.where}: {shown(self.name)} is cut within a row, at byte {self.done + count}.")
        rows = view_of(self.where, self.name, piece, torch.uint8, (count,))
        try:
            refuse_other_bools(self.where, self.name, rows, self.dtype)
        except ValueError as error:
            raise BadMessage(str(error)) from error
        take(self.name, self.done // unit, rows.view(-1, unit))

    def whole(self) -> Tensor:
        """Return the complete tensor; raise BadMessage if bytes are missing. If a sink got the rows, return an empty
        tensor.
        """
        if self.done != self.num_bytes:
            raise self.wrong(str(self.done))
        if self.pass_on is not None:
            return torch.empty(0)
        try:
            if self.joined is not None:
                return shaped(self.where, self.name, self.joined, self.dtype, self.shape)
            return view_of(self.where, self.name, self.piece, self.dtype, self.shape)
        except ValueError as error:
            raise BadMessage(str(error)) from error

    def wrong(self, size: str) -> BadMessage:
        """Return an error for the wrong number of bytes: `size`, a text, tells how many came."""
        return BadMessage(
            f"{self.where}: {shown(self.name)} has {size} bytes; {self.dtype} of shape {list(self.shape)} has "
            f"{self.num_bytes}."
        )


def _arriving(where: str, pa: Any, schema: Any, most_bytes: int) -> list[_Arriving]:
    if len(schema) > MOST_COLUMNS:
        raise BadMessage(f"{where}: found {len(schema)} columns; at most {MOST_COLUMNS} are allowed.")
    tensors = [_form(where, pa, field) for field in schema]
    if len({tensor.name for tensor in tensors}) < len(tensors):
        raise BadMessage(f"{where}: found two columns of one name; each tensor has its own.")
    total = sum(tensor.num_bytes for tensor in tensors)
    if total > most_bytes:
        raise BadMessage(
            f"{where}: found tensors of {total} bytes; at most {most_bytes} are allowed. Ask for less at once."
        )
    return tensors


def _form(where: str, pa: Any, field: Any) -> _Arriving:
    name = field.name
    if field.type != pa.large_binary():
        raise BadMessage(f"{where}: column {shown(name)} is of the type {shown(str(field.type))}, not large_binary.")
    metadata = field.metadata or {}
    if metadata.keys() != {DTYPE, SHAPE}:
        raise BadMessage(f"{where}: column {shown(name)} has the metadata {shown([*metadata])}, not dtype and shape.")
    try:
        text = metadata[SHAPE].decode("ascii")
        shape = parse_strict(text) if len(text) <= MOST_SHAPE_CHARACTERS else text
        form = check_form(where, shown(name), metadata[DTYPE].decode("ascii"), shape)
    except ValueError as error:  # of `decode`, `parse_strict`, `check_form`
        raise BadMessage(f"{where}: column {shown(name)}: {_short(error)}") from error
    return _Arriving(where, name, *form)


def header_of(where: str, schema: Any, most_bytes: int = MOST_HEADER_BYTES) -> dict[str, Any]:
    """Read the header of a message from the metadata of its Arrow schema. Raise BadMessage if it has no valid header of
    at most `most_bytes`.
    """
    metadata: Mapping[bytes, bytes] | None = schema.metadata
    if metadata is None or metadata.keys() != {HEADER}:
        raise BadMessage(f"{where}: found the metadata {shown([*(metadata or {})])}, not one header.")
    data = metadata[HEADER]
    if len(data) > most_bytes:
        raise BadMessage(f"{where}: found a header of {len(data)} bytes; at most {most_bytes} are allowed.")
    try:
        header = parse_strict(data.decode("ascii"), floats=True)  # statistics have a rate
    except ValueError as error:
        raise BadMessage(f"{where}: the header is no strict JSON: {_short(error)}.") from error
    if not isinstance(header, dict):
        raise BadMessage(f"{where}: the header is {shown(header)}, not an object.")
    return header


def _check_batch(where: str, pa: Any, schema: Any, batch: Any) -> None:
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise BadMessage(f"{where}: found no valid Arrow batch: {_short(error)}.") from error
    if batch.num_rows != 1 or batch.num_columns != len(schema) or any(column.null_count for column in batch.columns):
        raise BadMessage(
            f"{where}: found a batch of {batch.num_rows} rows and {batch.num_columns} columns; allowed is 1 row of "
            f"{len(schema)}, none of them null."
        )


def _value_of(column: Any) -> Any:
    """Return the only value of an Arrow column, which was validated, as a buffer. The value is not copied; making an
    Arrow scalar would copy it.
    """
    _, offsets, data = column.buffers()
    first, end = struct.unpack_from("=qq", offsets, 8 * column.offset)
    return data.slice(first, end - first)


def _short(error: BaseException) -> str:
    return shown(str(error))
