"""The entries that every request has in its header: kind, versions, and the part and partition that the client means.
Also functions that read the other entries of a request, and its columns of ids.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name, shown
from datapipes.base.records import Record, from_json
from datapipes.base.rng import STREAM_VERSION
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.refusals import BadRequest, OtherPartition

PROTOCOL = 2  # version of the layout and meaning of messages
_INT64 = (torch.int64,)
_DTYPES = {
    "ids": (torch.int32, torch.int64),
    "streams": (torch.uint32,),
    "times": _INT64,
    "windows": _INT64,
}  # of columns


class Meant(NamedTuple):
    """The part and the partition for which a client's request is meant. A server of another part or partition refuses
    the request. A field that is None is not compared; before the first handshake a client does not know all ids.

    Attributes:
        part: id of the part.
        partition_id, content_id: the ids of the partition and of its data, see Part.
    """

    part: int | None = None
    partition_id: str | None = None
    content_id: str | None = None


COMMON = ("protocol", "stream", "kind", *Meant._fields)  # in the header of every request


def request_header(kind: str, meant: Meant, **more: Any) -> dict[str, Any]:
    """Return the header of a request: the entries that every request has, and `more`, the entries of this request
    alone.
    """
    return {"protocol": PROTOCOL, "stream": STREAM_VERSION, "kind": kind, **meant._asdict(), **more}


def answer_header(kind: str, **more: Any) -> dict[str, Any]:
    """Return the header of the answer to a request of this kind: the versions, the kind, and the entries `more`."""
    return {"protocol": PROTOCOL, "stream": STREAM_VERSION, "kind": kind, **more}


def check_versions(where: str, header: dict[str, Any]) -> None:
    """Check by a received header that the other side has the same versions of the protocol and of the random streams.

    Raises:
        OtherPartition: A version differs; the message names both.
    """
    for name, ours in (("protocol", PROTOCOL), ("stream", STREAM_VERSION)):
        if header.get(name) != ours or type(header[name]) is not int:
            raise OtherPartition(
                f"{where}: the {name} version of the other side is {shown(header.get(name))}, here it is {ours}. "
                "Install the same version of datapipes on both sides."
            )


def check_meant(where: str, header: dict[str, Any], here: Meant) -> None:
    """Check by a request's header that the client means `here`, the part and partition of this server.

    Raises:
        OtherPartition: The client means another part or partition; the message names both.
        BadRequest: The header lacks an entry of Meant.
    """
    for name, ours in here._asdict().items():
        if name not in header:
            raise BadRequest(f"{where}: the header has no {name}.")
        theirs = header[name]
        if theirs is not None and (theirs != ours or type(theirs) is not type(ours)):
            raise OtherPartition(
                f"{where}: this server has the {name} {shown(ours)}, the client means {shown(theirs)}. Compare the "
                "client's addresses and folder with the folder that the server was started on."
            )


def own_values(message: Message) -> dict[str, Any]:
    """Return {name: JSON value} of the header of a request, without the entries that every request has."""
    return {name: value for name, value in message.header.items() if name not in COMMON}


def own_record(message: Message, kind: str, record: type[Record]) -> Record:
    """Read the header entries of a request, without those that every request has, as an instance of the class `record`.

    Raises:
        ValueError: The values do not fit the record.
    """
    return from_json(record, f"the header of a request {kind!r}", own_values(message))


def ids_of(message: Message, count: int) -> list[Tensor]:
    """Return the columns of ids of a request, each a tensor int32 or int64 [n]. There must be `count` of them, and no
    other tensors.

    Raises:
        ValueError: There are other columns, or a column has another dtype or shape.
    """
    return columns_of(message, ("ids",), count)["ids"]


def columns_of(message: Message, kinds: tuple[str, ...], count: int) -> dict[str, list[Tensor]]:
    """Return the columns of a request as {kind: list of tensors}. There must be `count` columns of each of `kinds`, and
    no other tensors.

    Args:
        kinds: "ids", which may be followed by "streams", "times" and "windows".
    Raises:
        ValueError: There are other columns, or a column has another dtype or length.
    """
    wanted = [f"{kind}.{number}" for kind in kinds for number in range(count)]
    if [*message.tensors] != wanted:
        raise ValueError(f"the columns are {shown([*message.tensors])}, expected were {shown(wanted)}")
    by_kind = {kind: [message.tensors[f"{kind}.{number}"] for number in range(count)] for kind in kinds}
    for kind, columns in by_kind.items():
        for number, column in enumerate(columns):
            if column.dtype not in _DTYPES[kind] or column.ndim != 1:
                allowed = " or ".join(dtype_name(dtype) for dtype in _DTYPES[kind])
                raise ValueError(
                    f"{kind}.{number} is {dtype_name(column.dtype)} {[*column.shape]}; {allowed} [n] is needed"
                )
            num_rows = by_kind["ids"][number].shape[0]
            if column.shape[0] != num_rows:
                raise ValueError(f"{kind}.{number} has {column.shape[0]} rows, ids.{number} has {num_rows}")
    return by_kind
