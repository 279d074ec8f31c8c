"""Digests of what a part draws by (times, weights) as messages: the request of a client, and the digests."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

from datapipes.base.checks import shown
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.choice_json import choice_of, choice_to_json
from datapipes.distributed.wire.envelope import Meant, answer_header, request_header
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.distributed.wire.request_parts import ids_of, own_values
from datapipes.distributed.wire.types_json import edge_type_of, list_of, type_to_json
from datapipes.partition.native.requests import DigestRequest

_DIGEST = re.compile(r"[a-z0-9_]{1,20}:[0-9a-f]{32}")


def digest_to_message(request: DigestRequest, meant: Meant) -> Message:
    """Return a request as a message."""
    edge_types = [type_to_json(each) for each in request.edge_types]
    return Message(request_header("digest", meant, edge_types=edge_types, choice=choice_to_json(request.choice)), {})


def digest_from_message(where: str, message: Message) -> DigestRequest:
    """Return the request that a message says. Types are compared with the graph by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        edge_types, choice = own_values(message, "digest", ("edge_types", "choice"))
        ids_of(message, 0)
        wanted = [edge_type_of(each) for each in list_of("edge_types", edge_types)]
        if any((one or ()) >= (after or ()) for one, after in pairwise(wanted)):
            raise ValueError(f"edge_types are {shown(wanted)}; each comes once, in sorted order")
        return DigestRequest(tuple(wanted), choice_of(choice))
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
