"""RowsRequest: asks a part for rows of features of nodes or edges that it owns. The client can store each row while the
rest of the answer still arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.records import AnyType, edge_type_of, node_type_of, one_of, to_json, type_to_json
from datapipes.base.rows import byte_rows, take_rows
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.request import MOST_IDS, Forms, GoOn, Request
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import Sink, TakeBytes
from datapipes.distributed.wire.envelope import Meant, check_versions, ids_of, own_record, request_header
from datapipes.partition.native.part import Part

ANSWER_BYTES = 64 * 2**20  # of the rows of one request, about

# Takes rows of an answer as they arrive. Arguments: index of the tensor in the answer; index of the first row in the
# tensor; the bytes of the rows, uint8 [n, bytes of a row], valid only during the call. Rows may come again if the
# request is repeated. Several threads make the calls.
TakeRows = Callable[[int, int, Tensor], None]


class Rows(NamedTuple):
    """Which rows to read: the rows of some features of one type, all at the same ids.

    Attributes:
        domain: "node" or "edge".
        type: a node type or edge type; None in a graph without types.
        names: names of the features.
        ids: int32 or int64 [n]: nodes that the part owns, or ids of edges into nodes that it owns. Repeats are allowed.
    """

    domain: str
    type: Any
    names: tuple[str, ...]
    ids: Tensor

    def row_bytes(self, facts: PartitionFacts) -> int:
        """Return how many bytes the rows of one id have: a row of each feature in `names`. A feature that the part
        lacks counts as 0 bytes.
        """
        forms = [facts.features.get((self.domain, self.type, name)) for name in self.names]
        return sum(form.num_bytes for form in forms if form is not None)


class _Wanted(NamedTuple):
    """The fields of a Rows that are in the header of a message; the ids are a column."""

    domain: Annotated[str, one_of("node", "edge")]
    type: AnyType
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Header:
    rows: tuple[_Wanted, ...]

    def __post_init__(self) -> None:
        for domain, type_, _ in self.rows:
            if type_ is not None and isinstance(type_, tuple) != (domain == "edge"):
                (node_type_of if domain == "node" else edge_type_of)(type_to_json(type_))  # raises the fitting error


@dataclass(frozen=True)
class RowsRequest(Request[list[Tensor]]):
    """Ask a part for rows of several features and types at once. The answer is a list of tensors [n, ...], one for each
    feature: first the features of `rows[0]` in the order of its names, then those of `rows[1]`, and so on.

    Attributes:
        take: function that gets the rows while they arrive; the answer is then []. None: the rows are in the answer.
            The function is not sent to the server.
    """

    kind, things = "rows", "rows"
    rows: tuple[Rows, ...]
    take: TakeRows | None = field(default=None, compare=False, repr=False)

    def answered_by(self, part: Part, *, num_threads: int = 1, go_on: GoOn | None = None) -> list[Tensor]:
        return [tensor for rows in self.rows for tensor in _rows_of(part, rows, num_threads)]

    def num_bytes(self, facts: PartitionFacts, most: int) -> int:
        return self._num_bytes(facts)

    def _num_bytes(self, facts: PartitionFacts) -> int:
        return sum(rows.row_bytes(facts) * rows.ids.shape[0] for rows in self.rows)

    # --- its pieces: of one Rows each, cut by bytes and by MOST_IDS

    @property
    def num_ids(self) -> int:
        return sum(rows.ids.shape[0] for rows in self.rows)

    def pieces(self, facts: PartitionFacts) -> list[RowsRequest]:
        return self._cut_at(facts, ANSWER_BYTES)

    def halves(self, facts: PartitionFacts) -> list[RowsRequest]:
        return self._cut_at(facts, max(self._num_bytes(facts) // 2, 1))

    def _cut_at(self, facts: PartitionFacts, most_bytes: int) -> list[RowsRequest]:
        """Cut this request into requests whose answers have up to `most_bytes` each, and return these in order. If a
        single row has more bytes, it gets a request of its own.
        """
        if self._num_bytes(facts) <= most_bytes and self.num_ids <= MOST_IDS:
            return [self]
        pieces, before = list[RowsRequest](), 0
        for rows in self.rows:
            most = max(min(most_bytes // max(rows.row_bytes(facts), 1), MOST_IDS), 1)
            for first in range(0, max(rows.ids.shape[0], 1), most):
                piece = rows._replace(ids=rows.ids[first : first + most])
                pieces.append(RowsRequest((piece,), self._taking(before, first)))
            before += len(rows.names)
        return pieces

    def _taking(self, before: int, begin: int) -> TakeRows | None:
        """Return a function that passes the rows of one piece of this request on to `take`. The function adds offsets
        to the rows' positions: the answer to the piece begins at tensor `before` and row `begin` of the whole answer.
        Return None if `take` is None.
        """
        take = self.take
        return None if take is None else lambda number, first, rows: take(before + number, begin + first, rows)

    def joined(self, pieces: Sequence[RowsRequest], answers: Sequence[list[Tensor]]) -> list[Tensor]:
        if self.take is not None:
            return []
        left, tensors = iter(zip(pieces, answers, strict=True)), list[Tensor]()
        for rows in self.rows:
            cut = [next(left)]
            while sum(piece.num_ids for piece, _ in cut) < rows.ids.shape[0]:
                cut.append(next(left))
            for column in zip(*(answer for _, answer in cut), strict=True):
                tensors.append(column[0] if len(cut) == 1 else torch.cat(column))
        return tensors

    # --- as a message: "ids.0" are the ids of the first of `rows`; in the answer "0" is the first tensor

    def to_message(self, meant: Meant) -> Message:
        header = to_json(_Header(tuple(_Wanted(*rows[:3]) for rows in self.rows)))
        columns = {f"ids.{number}": rows.ids for number, rows in enumerate(self.rows)}
        return Message(request_header(self.kind, meant, **header), columns)

    @classmethod
    def _read(cls, message: Message) -> RowsRequest:
        wanted = own_record(message, cls.kind, _Header).rows
        columns = ids_of(message, len(wanted))
        return RowsRequest(tuple(Rows(*fields, ids) for fields, ids in zip(wanted, columns, strict=True)))

    @staticmethod
    def answer_columns(answer: list[Tensor]) -> dict[str, Tensor]:
        return {str(number): tensor for number, tensor in enumerate(answer)}

    def answer_forms(self, facts: PartitionFacts) -> Forms:
        forms = [
            (facts.features[rows.domain, rows.type, name], rows.ids.shape[0])
            for rows in self.rows
            for name in rows.names
        ]
        return {str(number): (form.dtype, (count, *form.shape)) for number, (form, count) in enumerate(forms)}

    def called(self, name: str) -> str:
        return f"the rows of {shown([name for rows in self.rows for name in rows.names][int(name)])}"

    def answer_from_message(self, where: str, message: Message, facts: PartitionFacts) -> list[Tensor]:
        return [] if self.take is not None else super().answer_from_message(where, message, facts)

    def answer_of(self, where: str, columns: dict[str, Tensor]) -> list[Tensor]:
        return [*columns.values()]

    def sink(self, where: str, facts: PartitionFacts) -> Sink | None:
        take_rows = self.take
        if take_rows is None:
            return None

        def begin(header: dict[str, Any], forms: Forms) -> TakeBytes:
            check_versions(where, header)
            self.check_forms(where, forms, facts)
            return lambda name, first, rows: take_rows(int(name), first, rows)

        return begin


def _rows_of(part: Part, wanted: Rows, num_threads: int) -> list[Tensor]:
    if wanted.domain == "node":
        attributes = part.node_attributes_of(wanted.type)
        rows = part.rows_of(wanted.ids, wanted.type)
    else:
        attributes = part.relation(wanted.type).edge_attributes
        rows = part.edge_rows_of(wanted.ids, wanted.type)
    missing = [name for name in wanted.names if name not in attributes]
    if missing:
        there = f"the part has {shown(sorted(attributes))}. Name one of these." if attributes else "the part has none."
        raise KeyError(f"no {wanted.domain} feature {shown(missing[0])} of the type {shown(wanted.type)}; {there}")
    return [take_rows(attributes[name], byte_rows(attributes[name]), rows, num_threads) for name in wanted.names]
