"""Digests of what a part draws by (times, weights) as messages: the request of a client, and the digests."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any

from datapipes.base.checks import shown
from datapipes.base.records import OptionalEdgeType, to_json
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import Meant, answer_header, ids_of, own_record, request_header
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.graph.choice import CHOICE, Choice
from datapipes.partition.native.requests import DigestRequest

_DIGEST = re.compile(r"[a-z0-9_]{1,20}:[0-9a-f]{32}")


@dataclass(frozen=True)
class _Header:
    edge_types: tuple[OptionalEdgeType, ...]
    choice: Annotated[Choice, CHOICE]

    def __post_init__(self) -> None:
        if any((one or ()) >= (after or ()) for one, after in pairwise(self.edge_types)):
            raise ValueError(f"edge_types are {shown(self.edge_types)}; each comes once, in sorted order")


def digest_to_message(request: DigestRequest, meant: Meant) -> Message:
    """Return a request as a message."""
    return Message(request_header("digest", meant, **to_json(_Header(request.edge_types, request.choice))), {})


def digest_from_message(where: str, message: Message) -> DigestRequest:
    """Return the request that a message says. Types are compared with the graph by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        header = own_record(message, "digest", _Header)
        ids_of(message, 0)
        return DigestRequest(header.edge_types, header.choice)
    except ValueError as error:
        raise BadRequest(f"{where}: {error}.") from error


def digests_to_message(digests: list[list[str] | None]) -> Message:
    """Return the answer as a message."""
    return Message(answer_header("digest", digests=digests), {})


def digests_from_message(where: str, message: Message, request: DigestRequest) -> list[list[str] | None]:
    """Return the answer to a request.

    Raises:
        BadMessage: It does not answer the request.
    """
    found = message.header.get("digests")
    if not isinstance(found, list) or len(found) != len(request.edge_types) or not all(map(_is_answer, found)):
        raise BadMessage(f"{where}: the digests are {shown(found)}; expected was one entry for each edge type.")
    return found


def _is_answer(value: Any) -> bool:
    if value is None:
        return True
    is_list = isinstance(value, list) and 1 <= len(value) <= 2
    return is_list and all(isinstance(each, str) and _DIGEST.fullmatch(each) for each in value)
