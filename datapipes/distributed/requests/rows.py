"""RowsRequest: rows of features, asked of the owners of the nodes or edges; they may be put in place as they arrive."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

ANSWER_BYTES = 64 * 2**20  # of the rows that one request asks for, about

# Takes rows of an answer as they arrive: the number of the tensor in the answer, its first row, and the bytes of the
# rows, uint8 [n, bytes of a row], which are valid during the call only. Rows may come more than once, if the request is
# asked again; the calls come from several threads.
TakeRows = Callable[[int, int, Tensor], None]


class Rows(NamedTuple):
    """Rows of some features of one type, at the same ids.

    Attributes:
        domain: "node" or "edge".
        type: a node type or edge type, or None.
        names: of the features.
        ids: int32 or int64 [n]: nodes that the part owns, or edge ids of edges into such nodes; repeats are allowed.
    """

    domain: str
    type: Any
    names: tuple[str, ...]
    ids: Tensor

    def row_bytes(self, facts: PartitionFacts) -> int:
        """Return the bytes of a row of all names; features that the part does not have count nothing."""
        forms = [facts.features.get((self.domain, self.type, name)) for name in self.names]
        return sum(form.num_bytes for form in forms if form is not None)


class _Wanted(NamedTuple):
    """What the header says of one of the rows."""

    domain: Annotated[str, one_of("node", "edge")]
    type: AnyType
    names: tuple[str, ...]


@dataclass(frozen=True)
class _Header:
    rows: tuple[_Wanted, ...]

    def __post_init__(self) -> None:
        for domain, type_, _ in self.rows:
            if type_ is not None and isinstance(type_, tuple) != (domain == "edge"):
                (node_type_of if domain == "node" else edge_type_of)(type_to_json(type_))  # says what is wrong


@dataclass(frozen=True)
class RowsRequest(Request[list[Tensor]]):
    """Rows of several features and types at once. The answer is a list of tensors [n, ...]: of the first of `rows`
    each name, then of the second, and so on.

    Attributes:
        take: takes the rows as they arrive; then the answer is []. It does not travel.
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

    # --- its pieces: by bytes, and no more than MOST_IDS ids

    @property
    def num_ids(self) -> int:
        return sum(rows.ids.shape[0] for rows in self.rows)

    def pieces(self, facts: PartitionFacts) -> list[RowsRequest]:
        return self._cut_at(facts, ANSWER_BYTES)

    def halves(self, facts: PartitionFacts) -> list[RowsRequest]:
        return self._cut_at(facts, max(self._num_bytes(facts) // 2, 1))

    def _cut_at(self, facts: PartitionFacts, most_bytes: int) -> list[RowsRequest]:
        """Return requests for answers of so many bytes, in order. A row larger than that is asked for alone."""
        if self._num_bytes(facts) <= most_bytes and self.num_ids <= MOST_IDS:
            return [self]
        pieces: list[list[Rows]] = [[]]
        room, ids_left = most_bytes, MOST_IDS
        for rows in self.rows:
            width, done, count = rows.row_bytes(facts), 0, rows.ids.shape[0]
            while True:
                fitting = min(room // width, ids_left) if width > 0 else ids_left
                if fitting == 0 and not pieces[-1]:
                    fitting = 1
                taken = min(fitting, count - done)
                if taken > 0 or count == 0:
                    pieces[-1].append(rows._replace(ids=rows.ids[done : done + taken]))
                done, room, ids_left = done + taken, room - taken * width, ids_left - taken
                if done == count:
                    break
                pieces.append([])
                room, ids_left = most_bytes, MOST_IDS
        cut = [RowsRequest(tuple(piece)) for piece in pieces]
        if self.take is None:
            return cut
        return [replace(piece, take=self._taking(places)) for piece, places in zip(cut, self._places(cut), strict=True)]

    def _places(self, pieces: Sequence[RowsRequest]) -> list[list[tuple[int, int]]]:
        """Return for each of the rows of each piece: the number of the rows here that it is cut from, its first id."""
        places: list[list[tuple[int, int]]] = []
        number = done = 0
        for piece in pieces:
            places.append([])
            for rows in piece.rows:
                places[-1].append((number, done))
                done += rows.ids.shape[0]
                if done == self.rows[number].ids.shape[0]:
                    number, done = number + 1, 0
        return places

    def _taking(self, places: Sequence[tuple[int, int]]) -> TakeRows:
        """Return what takes the rows of a piece's answer."""
        take, before = self.take, [0, *itertools.accumulate(len(rows.names) for rows in self.rows)]
        tensors = [(before[number] + i, first) for number, first in places for i in range(len(self.rows[number].names))]
        assert take is not None

        def shifted(number: int, first: int, rows: Tensor) -> None:
            tensor, begin = tensors[number]
            take(tensor, begin + first, rows)

        return shifted

    def joined(self, pieces: Sequence[RowsRequest], answers: Sequence[list[Tensor]]) -> list[Tensor]:
        if self.take is not None:
            return []
        by_name: list[list[list[Tensor]]] = [[[] for _ in rows.names] for rows in self.rows]
        for places, answer in zip(self._places(pieces), answers, strict=True):
            tensors = iter(answer)
            for number, _ in places:
                for cut in by_name[number]:
                    cut.append(next(tensors))
        return [cut[0] if len(cut) == 1 else torch.cat(cut) for of_rows in by_name for cut in of_rows]

    # --- how it travels: "ids.0" are those of the first of `rows`; in the answer "0" is the first tensor

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
        raise KeyError(
            f"no {wanted.domain} feature {shown(missing[0])} of the type {shown(wanted.type)}; the part has "
            f"{shown(sorted(attributes))}. Name one of these."
        )
    return [take_rows(attributes[name], byte_rows(attributes[name]), rows, num_threads) for name in wanted.names]
