"""What the requests share: their own entries of the header, and columns of ids."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from datapipes.base.checks import INDEX_DTYPES, shown
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.envelope import COMMON
from datapipes.distributed.wire.types_json import fields_of


def own_values(message: Message, kind: str, names: tuple[str, ...]) -> list[Any]:
    """Return the values of these names, which must be all that the header has beyond those of every request.

    Raises:
        ValueError: One is missing, or there are others.
    """
    own = {name: value for name, value in message.header.items() if name not in COMMON}
    return fields_of(f"the header of a request {kind!r}", own, names)


def ids_of(message: Message, count: int) -> list[Tensor]:
    """Return so many columns of ids, int32 or int64 [n] each, which must be all columns.

    Raises:
        ValueError: There are others.
    """
    wanted = [f"ids.{number}" for number in range(count)]
    if [*message.tensors] != wanted:
        raise ValueError(f"the columns are {shown([*message.tensors])}, expected were {shown(wanted)}")
    for name, ids in message.tensors.items():
        if ids.dtype not in INDEX_DTYPES or ids.ndim != 1:
            raise ValueError(f"{name} is {ids.dtype} {list(ids.shape)}, allowed are int32 and int64 of 1 dimension")
    return [*message.tensors.values()]
