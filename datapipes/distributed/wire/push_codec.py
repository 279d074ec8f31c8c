"""What a sender tells a receiver, as messages: that it is there, then minibatches and signals, numbered from 0 on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from torch import Tensor

from datapipes.base.checks import one_line, shown
from datapipes.base.records import Count, one_of, plain, to_json
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.chain_codec import Token
from datapipes.distributed.wire.envelope import Meant, own_record, request_header
from datapipes.distributed.wire.refusals import BadRequest

MOST_NAME = 300
_NAME = plain(
    f"texts of up to {MOST_NAME} characters", lambda value: isinstance(value, str) and len(value) <= MOST_NAME
)
MINIBATCH, SIGNAL, LEAVE = "minibatch", "signal", "leave"


@dataclass(frozen=True)
class JoinRequest:
    """To be one of the senders; again on each new connection.

    Attributes:
        sender: what nobody else knows.
        number: of the next push.
        name: for people.
        fingerprint: of the graph that is sampled from; None if it is not told.
    """

    sender: Token
    number: Count
    name: Annotated[str, _NAME]
    fingerprint: str | None


@dataclass(frozen=True)
class PushRequest:
    """The next thing of a sender: a minibatch, whose tensors are those of the message; that its epoch has ended; or
    that it ends.
    """

    sender: Token
    number: Count
    what: Annotated[str, one_of(MINIBATCH, SIGNAL, LEAVE)]


KINDS: dict[str, type[JoinRequest] | type[PushRequest]] = {"join": JoinRequest, "push": PushRequest}
_KIND_OF = {record: kind for kind, record in KINDS.items()}


def push_to_message(request: JoinRequest | PushRequest, tensors: Mapping[str, Tensor] | None = None) -> Message:
    """Return a request as a message."""
    return Message(request_header(_KIND_OF[type(request)], Meant(), **to_json(request)), dict(tensors or {}))


def push_from_header(where: str, header: dict[str, Any]) -> JoinRequest | PushRequest:
    """Return the request of which a message has this header.

    Raises:
        BadRequest: It is none.
    """
    kind = header.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise BadRequest(f"{where}: there is no request {shown(kind)}; there are {[*KINDS]}.")
    try:
        request: JoinRequest | PushRequest = own_record(Message(header, {}), kind, KINDS[kind])
    except ValueError as error:
        raise BadRequest(f"{where}: {one_line(str(error))}.") from error
    return request
