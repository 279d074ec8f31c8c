"""A message, tensors by name and a header, as record batches of Arrow; arrow_reading.py reads them.

The schema has the header as JSON in its metadata, and a large_binary column for each tensor, whose metadata state dtype
and shape. Each batch has one row: the next bytes of each tensor, cut between two of its rows. No memory is copied.
Without tensors there is no batch.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from datapipes.base.checks import dtype_name
from datapipes.distributed.arrow import arrow
from datapipes.distributed.wire.tensor_buffers import bytes_of, plain

# Of tensors in one batch. Each batch costs some 0.2 ms, and gRPC joins its pieces in fresh memory.
BATCH_BYTES = 4 * 2**20
HEADER, DTYPE, SHAPE = b"datapipes", b"dtype", b"shape"  # keys of the metadata


class Message(NamedTuple):
    """What travels: JSON values by name, and tensors by name."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """The bytes of all tensors."""
        return sum(bytes_of(tuple(tensor.shape), tensor.dtype) for tensor in self.tensors.values())


def to_batches(where: str, message: Message, batch_bytes: int = BATCH_BYTES) -> tuple[Any, Iterator[Any]]:
    """Return the schema of a message and its batches, which share the memory of the tensors.

    Raises:
        TypeError: A tensor cannot be sent; see `plain`.
        ValueError: The header holds a number that is not finite.
    """
    pa = arrow(where)
    tensors = {name: plain(where, name, tensor) for name, tensor in message.tensors.items()}
    header = json.dumps(message.header, allow_nan=False, separators=(",", ":")).encode()
    fields = [
        pa.field(
            name,
            pa.large_binary(),
            nullable=False,
            metadata={DTYPE: dtype_name(tensor.dtype), SHAPE: json.dumps([*tensor.shape], separators=(",", ":"))},
        )
        for name, tensor in tensors.items()
    ]
    schema = pa.schema(fields, metadata={HEADER: header})
    return schema, _batches(pa, schema, [*tensors.values()], batch_bytes)


def _batches(pa: Any, schema: Any, tensors: list[Tensor], batch_bytes: int) -> Iterator[Any]:
    # A row in a batch without columns could not be told from none.
    if not tensors:
        return
    sizes = [bytes_of(tuple(tensor.shape), tensor.dtype) for tensor in tensors]
    units = [bytes_of(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors]
    empty = _column(pa, pa.py_buffer(b""))  # most columns of most batches
    for cuts in _cuts(sizes, units, batch_bytes):
        columns = [
            empty if first == end else _column(pa, pa.foreign_buffer(tensor.data_ptr() + first, end - first, tensor))
            for tensor, (first, end) in zip(tensors, cuts, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _cuts(sizes: list[int], units: list[int], batch_bytes: int) -> Iterator[list[tuple[int, int]]]:
    """Yield for each batch what part of each tensor it has, (first byte, end), in whole units; a unit that is larger
    than a batch comes whole too.
    """
    done = [0] * len(sizes)
    while True:
        left, cuts = batch_bytes, []
        for number, (size, unit) in enumerate(zip(sizes, units, strict=True)):
            first = done[number]
            fitting = unit if left == batch_bytes and unit > left else left // max(unit, 1) * unit
            taken = min(size - first, fitting)
            cuts.append((first, first + taken))
            done[number], left = first + taken, max(left - taken, 0)
        yield cuts
        if done == sizes:
            return


def _column(pa: Any, data: Any) -> Any:
    offsets = pa.py_buffer(struct.pack("=qq", 0, data.size))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), 1, [None, offsets, data])


def to_bytes(where: str, message: Message) -> bytes:
    """Return a message as one Arrow stream, for a ticket; all its tensors in one batch.

    Raises:
        TypeError, ValueError: See `to_batches`.
    """
    pa = arrow(where)
    schema, batches = to_batches(where, message, batch_bytes=2**62)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data
