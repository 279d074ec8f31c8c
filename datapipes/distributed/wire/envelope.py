"""The header of every request: kind, versions, and which part of which partition the client means."""

from __future__ import annotations

from typing import Any, NamedTuple

from datapipes.base.checks import shown
from datapipes.base.rng import STREAM_VERSION
from datapipes.distributed.wire.refusals import BadRequest, OtherPartition

PROTOCOL = 1  # of the messages' form and of what they mean
KINDS = ("digest", "draw", "health", "hello", "rows", "statistics")


class Meant(NamedTuple):
    """What the client means to ask; None is not compared, as before the first handshake.

    Attributes:
        part: number of the part.
        partition_id, content_id: see Part.
    """

    part: int | None = None
    partition_id: str | None = None
    content_id: str | None = None


COMMON = ("protocol", "stream", "kind", *Meant._fields)  # what the header of every request has


def request_header(kind: str, meant: Meant, **more: Any) -> dict[str, Any]:
    """Return the header of a request."""
    return {"protocol": PROTOCOL, "stream": STREAM_VERSION, "kind": kind, **meant._asdict(), **more}


def answer_header(kind: str, **more: Any) -> dict[str, Any]:
    """Return the header of the answer to a request of this kind."""
    return {"protocol": PROTOCOL, "stream": STREAM_VERSION, "kind": kind, **more}


def check_versions(where: str, header: dict[str, Any]) -> None:
    """Raise OtherPartition unless both sides speak one protocol and draw the same bits.

    Raises:
        OtherPartition: The message names both versions.
    """
    for name, ours in (("protocol", PROTOCOL), ("stream", STREAM_VERSION)):
        if header.get(name) != ours or type(header[name]) is not int:
            raise OtherPartition(
                f"{where}: the {name} version of the other side is {shown(header.get(name))}, here it is {ours}. "
                "Install the same version of datapipes on both sides."
            )


def check_meant(where: str, header: dict[str, Any], here: Meant) -> None:
    """Raise OtherPartition unless this server is the one that the client means.

    Raises:
        OtherPartition: The message names both parts, or both ids.
        BadRequest: The header does not say what is meant.
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


def kind_of(where: str, header: dict[str, Any]) -> str:
    """Return the kind of a request.

    Raises:
        BadRequest: There is no such kind.
    """
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadRequest(f"{where}: there is no request {shown(kind)}; there are {list(KINDS)}.")
    return kind
