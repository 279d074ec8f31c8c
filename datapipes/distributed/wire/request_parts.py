"""What the requests share: their own entries of the header, and columns of ids."""

from __future__ import annotations

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.records import Record, from_json
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import COMMON

_DTYPES = {"ids": (torch.int32, torch.int64), "streams": (torch.uint32,), "times": (torch.int64,)}


def own_record(message: Message, kind: str, record: type[Record]) -> Record:
    """Return what the header says beyond the values of every request.

    Raises:
        ValueError: It says something else.
    """
    own = {name: value for name, value in message.header.items() if name not in COMMON}
    return from_json(record, f"the header of a request {kind!r}", own)


def ids_of(message: Message, count: int) -> list[Tensor]:
    """Return so many columns of ids, int32 or int64 [n] each, which must be all columns.

    Raises:
        ValueError: There are others.
    """
    return columns_of(message, ("ids",), count)["ids"]


def columns_of(message: Message, kinds: tuple[str, ...], count: int) -> dict[str, list[Tensor]]:
    """Return so many columns of each kind, "ids" the first of them, which must be all columns.

    Raises:
        ValueError: There are others, or a column has another dtype or length.
    """
    wanted = [f"{kind}.{number}" for kind in kinds for number in range(count)]
    if [*message.tensors] != wanted:
        raise ValueError(f"the columns are {shown([*message.tensors])}, expected were {shown(wanted)}")
    found = {kind: [message.tensors[f"{kind}.{number}"] for number in range(count)] for kind in kinds}
    for kind, columns in found.items():
        for number, column in enumerate(columns):
            if column.dtype not in _DTYPES[kind] or column.ndim != 1:
                allowed = " and ".join(dtype_name(dtype) for dtype in _DTYPES[kind])
                raise ValueError(
                    f"{kind}.{number} is {column.dtype} {list(column.shape)}, allowed are {allowed} of 1 dimension"
                )
            num_rows = found["ids"][number].shape[0]
            if column.shape[0] != num_rows:
                raise ValueError(f"{kind}.{number} has {column.shape[0]} rows, ids.{number} has {num_rows}")
    return found
