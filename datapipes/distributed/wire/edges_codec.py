"""Whether pairs of nodes are edges, as a message: the request of a client, and what the part found."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from datapipes.base.checks import shown
from datapipes.base.records import OptionalEdgeType, to_json
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import Meant, answer_header, ids_of, own_record, request_header
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.graph.graph import FoundEdges
from datapipes.partition.native.requests import EdgesRequest

BYTES_PER_PAIR = 16  # of an answer


@dataclass(frozen=True)
class _Header:
    edge_type: OptionalEdgeType


def edges_to_message(request: EdgesRequest, meant: Meant) -> Message:
    """Return a request as a message: "ids.0" are the destinations, "ids.1" the sources."""
    header = request_header("edges", meant, **to_json(_Header(request.edge_type)))
    return Message(header, {"ids.0": request.destinations, "ids.1": request.sources})


def edges_from_message(where: str, message: Message) -> EdgesRequest:
    """Return the request that a message says. Types and ids are compared with the part by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        edge_type = own_record(message, "edges", _Header).edge_type
        destinations, sources = ids_of(message, 2)
        if destinations.shape != sources.shape:
            raise ValueError(f"there are {sources.shape[0]} sources for {destinations.shape[0]} destinations")
        return EdgesRequest(edge_type, destinations, sources)
    except ValueError as error:
        raise BadRequest(f"{where}: {error}.") from error


def found_edges_to_message(found: FoundEdges) -> Message:
    """Return the answer as a message."""
    return Message(answer_header("edges"), found._asdict())


def found_edges_from_message(where: str, message: Message, request: EdgesRequest) -> FoundEdges:
    """Return the answer to a request.

    Raises:
        BadMessage: It does not answer the request.
    """
    if [*message.tensors] != [*FoundEdges._fields]:
        raise BadMessage(f"{where}: the answer has {shown([*message.tensors])}, expected was {[*FoundEdges._fields]}.")
    found = FoundEdges(**message.tensors)
    for name, values in message.tensors.items():
        if values.dtype != torch.int64 or values.shape != request.sources.shape:
            raise BadMessage(
                f"{where}: {name} is {values.dtype} {list(values.shape)}, expected was int64 "
                f"{list(request.sources.shape)}."
            )
    if bool((found.counts < 0).any()) or bool(((found.counts > 0) != (found.first_ids >= 0)).any()):
        raise BadMessage(f"{where}: the counts and the first edge ids of the answer contradict each other.")
    return found
