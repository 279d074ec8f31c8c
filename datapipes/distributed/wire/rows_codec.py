"""Rows of features as a message: the request of a client, and the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.records import AnyType, edge_type_of, node_type_of, one_of, to_json, type_to_json
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import Meant, answer_header, check_versions, ids_of, own_record, request_header
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.partition.native.requests import Rows, RowsRequest, TakeRows


class _Wanted(NamedTuple):
    """What the header says of one of the rows."""

    domain: Annotated[str, one_of("node", "edge")]
    type: AnyType
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Header:
    rows: tuple[_Wanted, ...]

    def __post_init__(self) -> None:
        for domain, of, _ in self.rows:
            if of is not None and isinstance(of, tuple) != (domain == "edge"):
                (node_type_of if domain == "node" else edge_type_of)(type_to_json(of))  # says what is wrong


Forms = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def rows_to_message(request: RowsRequest, meant: Meant) -> Message:
    """Return a request as a message; the tensors are those of the request, "ids.0" of the first of its rows."""
    wanted = _Header(tuple(_Wanted(*each[:3]) for each in request.rows))
    tensors = {f"ids.{number}": each.ids for number, each in enumerate(request.rows)}
    return Message(request_header("rows", meant, **to_json(wanted)), tensors)


def rows_from_message(where: str, message: Message) -> RowsRequest:
    """Return the request that a message says. Types and names are compared with the part by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        wanted = own_record(message, "rows", _Header).rows
        columns = ids_of(message, len(wanted))
        return RowsRequest(tuple(Rows(*each, ids) for each, ids in zip(wanted, columns, strict=True)))
    except ValueError as error:
        raise BadRequest(f"{where}: {error}.") from error


def row_bytes(rows: Rows, facts: PartitionFacts) -> int:
    """Return the bytes of a row of all names; features that the part does not have count nothing."""
    forms = [facts.features.get((rows.domain, rows.type, name)) for name in rows.names]
    return sum(form.num_bytes for form in forms if form is not None)


def answered_rows_bytes(request: RowsRequest, facts: PartitionFacts) -> int:
    """Return the bytes of the answer to a request."""
    return sum(row_bytes(rows, facts) * rows.ids.shape[0] for rows in request.rows)


def answered_rows_to_message(rows: list[Tensor]) -> Message:
    """Return the answer as a message: "0" is the first tensor, ..."""
    return Message(answer_header("rows"), {str(number): each for number, each in enumerate(rows)})


def answered_rows_from_message(
    where: str, message: Message, request: RowsRequest, facts: PartitionFacts
) -> list[Tensor]:
    """Return the answer to a request; the errors are those of `check_answered_rows`."""
    forms = {name: (each.dtype, tuple(each.shape)) for name, each in message.tensors.items()}
    check_answered_rows(where, forms, request, facts)
    return [*message.tensors.values()]


class RowsSink:
    """Passes the rows of an answer on as they arrive, once the answer has the form that the request and the facts
    promise.
    """

    def __init__(self, where: str, request: RowsRequest, facts: PartitionFacts, take: TakeRows) -> None:
        self._where, self._request, self._facts, self._take = where, request, facts, take

    def begin(self, header: dict[str, Any], forms: Forms) -> None:
        check_versions(self._where, header)
        check_answered_rows(self._where, forms, self._request, self._facts)

    def take(self, name: str, first: int, rows: Tensor) -> None:
        self._take(int(name), first, rows)


def check_answered_rows(where: str, forms: Forms, request: RowsRequest, facts: PartitionFacts) -> None:
    """Compare the tensors of an answer, {name: (dtype, shape)}, with the request.

    Raises:
        BadMessage: It does not answer the request: other columns, dtypes or shapes than the facts say.
        KeyError: The facts have no such feature.
    """
    wanted = [(each, name) for each in request.rows for name in each.names]
    if [*forms] != [str(number) for number in range(len(wanted))]:
        raise BadMessage(f"{where}: the answer has {shown([*forms])}, expected were {len(wanted)} tensors from '0' on.")
    for (dtype, found), (each, name) in zip(forms.values(), wanted, strict=True):
        form = facts.features[each.domain, each.type, name]
        shape = (each.ids.shape[0], *form.shape)
        if dtype != form.dtype or found != shape:
            raise BadMessage(
                f"{where}: the rows of {shown(name)} are {dtype} {list(found)}, expected were {form.dtype} "
                f"{list(shape)}."
            )
