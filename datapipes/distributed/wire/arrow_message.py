"""A message (a header, and tensors by name) as record batches of Arrow. This module writes, arrow_reading.py reads.

The metadata of the schema have the header as JSON. Each tensor is a column of the type large_binary; the metadata of
the column have the dtype and the shape. Each batch has one row: the next bytes of each tensor, which is cut only
between its rows. No memory is copied. A message without tensors has no batch.

A received tensor views the memory of its message. Do not write to a received tensor; torch cannot make it read-only.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import dtype_name, shown
from datapipes.distributed.arrow import arrow

# Bytes of tensors in one batch. Each batch costs some 0.2 ms, and gRPC joins its pieces in fresh memory.
BATCH_BYTES = 4 * 2**20
HEADER, DTYPE, SHAPE = b"datapipes", b"dtype", b"shape"  # keys of the metadata


class Message(NamedTuple):
    """What client and server send each other: a header {name: JSON value}, and tensors {name: tensor}."""

    header: dict[str, Any]
    tensors: dict[str, Tensor]

    @property
    def num_bytes(self) -> int:
        """How many bytes all tensors have."""
        return sum(bytes_of(tuple(tensor.shape), tensor.dtype) for tensor in self.tensors.values())


def to_batches(where: str, message: Message, batch_bytes: int = BATCH_BYTES) -> tuple[Any, Iterator[Any]]:
    """Write `message` in Arrow's form: return (schema, iterator of record batches). The batches share the memory of the
    tensors.

    Raises:
        TypeError: A tensor cannot be sent; see `plain`.
        ValueError: The header has a number that is not finite.
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
    # In a batch without columns, one row could not be told from no row.
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
    """Choose which bytes of each tensor go into each batch. Yield a list for each batch, with (first byte, end) for
    each tensor. Tensors are cut only between rows. A row that is larger than a batch gets a batch that is larger than
    `batch_bytes`.

    Args:
        sizes: the bytes of each tensor.
        units: the bytes of a row of each tensor.
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
    """Write `message` as the bytes of one Arrow stream, with all tensors in one batch. A client sends a request in this
    form, as the ticket of a Flight call.

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


# --- tensors as bytes

# Without sub-byte and quantized dtypes, whose rows are not whole bytes.
_NAMES = (
    *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
    *("float16", "bfloat16", "float32", "float64", "complex32", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
)
# vars, since getattr makes torch import some of its modules, which takes seconds.
DTYPES: dict[str, torch.dtype] = {name: vars(torch)[name] for name in _NAMES if name in vars(torch)}
MOST_DIMS = 64
_INT64_MAX = 2**63 - 1


class _Memory:
    """Wrapper by which NumPy views an Arrow buffer as a writable array, since torch warns about read-only arrays. It
    keeps the buffer alive.
    """

    def __init__(self, buffer: Any) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "data": (buffer.address, False),
            "shape": (buffer.size,),
            "typestr": "|u1",
            "version": 3,
        }


def plain(where: str, name: str, value: Tensor) -> Tensor:
    """Check that the tensor `value` can be sent, and return it in contiguous form. The result shares the memory of
    `value` if `value` is contiguous; otherwise it is a copy.

    Raises:
        TypeError: `value` is not dense, not in host memory, or of a dtype without whole bytes.
    """
    if not isinstance(value, Tensor) or value.layout is not torch.strided or value.device.type != "cpu":
        raise TypeError(
            f"{where}: {name} must be a dense tensor in host memory, got {shown(type(value))}. Call .cpu()."
        )
    if dtype_name(value.dtype) not in DTYPES:
        raise TypeError(f"{where}: {name} has the dtype {value.dtype}; allowed are {list(DTYPES)}. Convert it.")
    plain = value.detach().resolve_conj().resolve_neg()
    # A tensor of one value is contiguous with any strides.
    return plain if plain.is_contiguous() else plain.contiguous()


def bytes_of(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Return how many bytes a contiguous tensor of this shape and dtype has."""
    return math.prod(shape) * dtype.itemsize


def check_form(where: str, name: str, dtype: Any, shape: Any) -> tuple[torch.dtype, tuple[int, ...]]:
    """Check the dtype and the shape that a received message states for the tensor `name`. Return them as (torch dtype,
    tuple).

    Raises:
        ValueError: There is no such dtype, or no tensor has such a shape.
    """
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"{where}: {name} has the dtype {shown(dtype)}; allowed are {list(DTYPES)}.")
    if (
        not isinstance(shape, list)
        or len(shape) > MOST_DIMS
        or any(type(size) is not int or not 0 <= size <= _INT64_MAX for size in shape)
    ):
        raise ValueError(
            f"{where}: {name} has the shape {shown(shape)}; allowed are up to {MOST_DIMS} sizes of 0 or more."
        )
    # Strides must fit into int64 too, even the strides of an empty tensor.
    if math.prod(max(size, 1) for size in shape) * DTYPES[dtype].itemsize > _INT64_MAX:
        raise ValueError(f"{where}: {name} has the shape {shown(shape)}, whose bytes int64 cannot count.")
    return DTYPES[dtype], tuple(shape)


def view_of(where: str, name: str, buffer: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the bytes of an Arrow buffer as a tensor. It is a view of the buffer if the buffer is aligned for `dtype`,
    else a copy.

    The caller must have compared the size of the buffer with dtype and shape.

    Raises:
        ValueError: A byte of a bool tensor is neither 0 nor 1.
    """
    if buffer is None or buffer.size == 0:
        return torch.empty(0, dtype=torch.uint8).view(dtype).reshape(shape)
    flat = np.asarray(_Memory(buffer))
    if buffer.address % min(dtype.itemsize, 8) != 0:
        # The core's memory is recycled; fresh memory takes longer to get than to fill.
        flat = _core.gather_rows(flat.reshape(1, -1), np.zeros(1, dtype=np.int64)).reshape(-1)
    return shaped(where, name, torch.from_numpy(flat), dtype, shape)


def shaped(where: str, name: str, flat: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the bytes `flat`, uint8 [n], as a tensor of `dtype` and `shape` that shares the memory of `flat`.

    Raises:
        ValueError: A byte of a bool tensor is neither 0 nor 1.
    """
    refuse_other_bools(where, name, flat, dtype)
    return flat.view(dtype).reshape(shape)


def refuse_other_bools(where: str, name: str, flat: Tensor, dtype: torch.dtype) -> None:
    """Raise ValueError if `dtype` is bool and a byte of `flat`, uint8 [n], is neither 0 nor 1."""
    if dtype == torch.bool and flat.numel() > 0 and int(flat.max()) > 1:
        raise ValueError(f"{where}: {name} has the byte {int(flat.max())} as a bool; allowed are 0 and 1.")
