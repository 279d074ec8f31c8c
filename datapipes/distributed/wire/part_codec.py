"""What clients ask of parts, as messages, and the answers: a hop, rows of features, whether pairs are edges, and
digests of what a part draws by (times, weights).

Each part is asked for a hop in each hop, so only the lists of its header are read by forms: as one record it would take
5 us more to write, beside 5 to 10, and 6 more to read, beside 16 to 38.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.records import (
    AnyType,
    OptionalEdgeType,
    OptionalNodeType,
    edge_type_of,
    form_of,
    list_of,
    node_type_of,
    one_of,
    to_json,
    type_to_json,
)
from datapipes.base.types import ends_of
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import (
    COMMON,
    Meant,
    answer_header,
    check_versions,
    columns_of,
    ids_of,
    own_record,
    request_header,
)
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.graph.choice import CHOICE, UNIFORM, Choice
from datapipes.graph.graph import FoundEdges
from datapipes.partition.native.requests import (
    COLUMNS,
    DigestRequest,
    Draw,
    Drawn,
    DrawRequest,
    EdgesRequest,
    Rows,
    RowsRequest,
    TakeRows,
)

# --- hops

_INT64_BYTES = 8
_IDS, _DRAWS = form_of(tuple[OptionalNodeType, ...]), form_of(tuple[Draw, ...])


def draw_to_message(request: DrawRequest, meant: Meant) -> Message:
    """Return a request as a message; the tensors are those of the request, "ids.0" of the first node type.

    Optional fields are omitted when unset.
    """
    kinds = [kind for kind in COLUMNS if getattr(request, kind) is not None]
    header = request_header(
        "draw",
        meant,
        ids=_IDS.write(request.ids),
        draws=_DRAWS.write(request.draws),
        replace=bool(request.replace),
        edge_ids=bool(request.edge_ids),
        **({} if kinds == ["ids"] else {"columns": kinds}),
        **({} if request.choice == UNIFORM else {"choice": CHOICE.write(request.choice)}),
    )
    columns = {f"{kind}.{i}": getattr(request, kind)[type_] for kind in kinds for i, type_ in enumerate(request.ids)}
    return Message(header, columns)


def draw_from_message(where: str, message: Message) -> DrawRequest:
    """Return the request that a message says. Types are compared with the graph by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        ids, draws, replace, edge_ids, kinds, choice = _own_values(
            message, "draw", ("ids", "draws", "replace", "edge_ids"), ("columns", "choice")
        )
        types = _IDS.read("ids", ids)
        if len({*types}) < len(types):
            raise ValueError("a node type has ids twice")
        if type(replace) is not bool or type(edge_ids) is not bool:
            raise ValueError(f"replace and edge_ids are {shown(replace)} and {shown(edge_ids)}, allowed are booleans")
        columns = columns_of(message, _kinds(kinds), len(types))
        request = DrawRequest(
            draws=_DRAWS.read("draws", draws),
            replace=replace,
            edge_ids=edge_ids,
            choice=UNIFORM if choice is None else CHOICE.read("choice", choice),
            **{kind: dict(zip(types, tensors, strict=True)) for kind, tensors in columns.items()},
        )
        if any(draw.fanout == 0 for draw in request.draws):
            raise ValueError("a fanout is 0, allowed are -1 and whole numbers above 0; leave the edge type out")
        drawn = [draw.edge_type or () for draw in request.draws]
        if any(one >= after for one, after in pairwise(drawn)):
            raise ValueError(f"the edge types of the draws are {shown(drawn)}; each comes once, in sorted order")
        request.choice.refuse_request(len(drawn), replace=replace, has_streams=request.streams is not None)
        if request.choice.of_times != (request.times is not None):
            raise ValueError("rows have times if they are drawn by time, and only then")
        missing = [draw.edge_type for draw in request.draws if ends_of(draw.edge_type)[1] not in request.ids]
        if missing:
            raise ValueError(f"there are no ids for the draw of {shown(missing[0])}")
    except ValueError as error:
        raise BadRequest(f"{where}: {error}.") from error
    return request


def drawn_to_message(drawn: list[Drawn]) -> Message:
    """Return what was drawn as a message: "indptr.0", "neighbors.0", and "edge_ids.0" if they were asked for, ..."""
    tensors: dict[str, Tensor] = {}
    for number, draw in enumerate(drawn):
        tensors |= {f"{name}.{number}": value for name, value in draw._asdict().items() if value is not None}
    return Message(answer_header("draw"), tensors)


def drawn_bytes(request: DrawRequest, facts: PartitionFacts, num_edges: Callable[[Draw, int], int]) -> int:
    """Return the bytes of the answer to a request, given the in-edges of each draw for so many nodes."""
    edge_bytes, num_bytes = facts.index_dtype.itemsize + (_INT64_BYTES if request.edge_ids else 0), 0
    for draw in request.draws:
        ids = request.ids.get(ends_of(draw.edge_type)[1])
        num_nodes = 0 if ids is None else ids.shape[0]  # a server says what is missing
        num_bytes += _INT64_BYTES * (num_nodes + 1) + edge_bytes * num_edges(draw, num_nodes)
    return num_bytes


def most_drawn_bytes(request: DrawRequest, facts: PartitionFacts) -> int | None:
    """Return the bytes that the answer has at most; None if a draw keeps all in-edges, which the part counts."""
    if any(draw.fanout < 0 for draw in request.draws):
        return None
    return drawn_bytes(request, facts, lambda draw, num_nodes: num_nodes * draw.fanout)


def drawn_from_message(where: str, message: Message, request: DrawRequest, facts: PartitionFacts) -> list[Drawn]:
    """Return the answer to a request.

    Raises:
        BadMessage: It does not answer the request: other columns, dtypes or lengths, an indptr that decreases, a
            neighbor outside the graph.
    """
    names = ("indptr", "neighbors", "edge_ids") if request.edge_ids else ("indptr", "neighbors")
    wanted = [f"{name}.{number}" for number in range(len(request.draws)) for name in names]
    if [*message.tensors] != wanted:
        raise BadMessage(f"{where}: the answer has {shown([*message.tensors])}, expected was {shown(wanted)}.")
    answer = []
    for number, draw in enumerate(request.draws):
        src, dst = ends_of(draw.edge_type)
        drawn = Drawn(*(message.tensors.get(f"{name}.{number}") for name in Drawn._fields))  # type: ignore[arg-type]
        _check_drawn(f"{where}: draw {number}", drawn, request.ids[dst].shape[0], facts.num_nodes[src], facts)
        answer.append(drawn)
    return answer


def _check_drawn(where: str, drawn: Drawn, num_rows: int, num_sources: int, facts: PartitionFacts) -> None:
    indptr, neighbors, edge_ids = drawn
    if indptr.dtype != torch.int64 or indptr.shape != (num_rows + 1,):
        raise BadMessage(
            f"{where}: indptr is {indptr.dtype} {list(indptr.shape)}, expected was int64 [{num_rows + 1}]."
        )
    if int(indptr[0]) != 0 or not bool((indptr[1:] >= indptr[:-1]).all()):
        raise BadMessage(f"{where}: indptr does not begin at 0, or decreases.")
    count = int(indptr[-1])
    expected = [(neighbors, facts.index_dtype), *([] if edge_ids is None else [(edge_ids, torch.int64)])]
    if any(values.dtype != dtype or values.shape != (count,) for values, dtype in expected):
        forms = [f"{values.dtype} {list(values.shape)}" for values, _ in expected]
        raise BadMessage(f"{where}: the edges are {forms}, expected were {count} of {expected[0][1]} and int64.")
    for name, values, most in (("neighbor", neighbors, num_sources), ("edge id", edge_ids, 2**63 - 1)):
        if values is not None and count > 0 and not 0 <= int(values.min()) <= int(values.max()) < most:
            raise BadMessage(f"{where}: found {name}s outside [0, {most}).")


def _kinds(value: object) -> tuple[str, ...]:
    """Return the kinds of columns that a request has."""
    if value is None:
        return ("ids",)
    kinds = list_of("columns", value)
    if len(kinds) < 2 or kinds != [kind for kind in COLUMNS if kind in kinds]:
        raise ValueError(f"columns is {shown(kinds)}, allowed are two or more of {shown(COLUMNS)}, in this order")
    return tuple(kinds)


def _own_values(message: Message, kind: str, names: tuple[str, ...], optional: tuple[str, ...] = ()) -> list[Any]:
    """Return the values of these names, which must be all that the header has beyond those of every request.

    Args:
        optional: more names, each with a value or None where the header does not have it; the value is never null.
    Raises:
        ValueError: One is missing, or there are others.
    """
    values = {name: value for name, value in message.header.items() if name not in COMMON}
    more = [values.pop(name) if values.get(name) is not None else None for name in optional]
    if values.keys() != {*names}:
        there = shown(sorted(values))
        raise ValueError(f"the header of a request {kind!r} is {there}, it must have exactly {[*names]}")
    return [*(values[name] for name in names), *more]


# --- rows of features


class _Wanted(NamedTuple):
    """What the header says of one of the rows."""

    domain: Annotated[str, one_of("node", "edge")]
    type: AnyType
    names: tuple[str, ...]


@dataclass(frozen=True)
class _RowsHeader:
    rows: tuple[_Wanted, ...]

    def __post_init__(self) -> None:
        for domain, type_, _ in self.rows:
            if type_ is not None and isinstance(type_, tuple) != (domain == "edge"):
                (node_type_of if domain == "node" else edge_type_of)(type_to_json(type_))  # says what is wrong


Forms = dict[str, tuple[torch.dtype, tuple[int, ...]]]


def rows_to_message(request: RowsRequest, meant: Meant) -> Message:
    """Return a request as a message; the tensors are those of the request, "ids.0" of the first of its rows."""
    wanted = _RowsHeader(tuple(_Wanted(*rows[:3]) for rows in request.rows))
    tensors = {f"ids.{number}": rows.ids for number, rows in enumerate(request.rows)}
    return Message(request_header("rows", meant, **to_json(wanted)), tensors)


def rows_from_message(where: str, message: Message) -> RowsRequest:
    """Return the request that a message says. Types and names are compared with the part by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        wanted = own_record(message, "rows", _RowsHeader).rows
        columns = ids_of(message, len(wanted))
        return RowsRequest(tuple(Rows(*fields, ids) for fields, ids in zip(wanted, columns, strict=True)))
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
    return Message(answer_header("rows"), {str(number): tensor for number, tensor in enumerate(rows)})


def answered_rows_from_message(
    where: str, message: Message, request: RowsRequest, facts: PartitionFacts
) -> list[Tensor]:
    """Return the answer to a request; the errors are those of `check_answered_rows`."""
    forms = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in message.tensors.items()}
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
    wanted = [(rows, name) for rows in request.rows for name in rows.names]
    if [*forms] != [str(number) for number in range(len(wanted))]:
        raise BadMessage(f"{where}: the answer has {shown([*forms])}, expected were {len(wanted)} tensors from '0' on.")
    for (dtype, answered), (rows, name) in zip(forms.values(), wanted, strict=True):
        form = facts.features[rows.domain, rows.type, name]
        shape = (rows.ids.shape[0], *form.shape)
        if dtype != form.dtype or answered != shape:
            raise BadMessage(
                f"{where}: the rows of {shown(name)} are {dtype} {list(answered)}, expected were {form.dtype} "
                f"{list(shape)}."
            )


# --- whether pairs are edges

BYTES_PER_PAIR = 16  # of an answer


@dataclass(frozen=True)
class _EdgesHeader:
    edge_type: OptionalEdgeType


def edges_to_message(request: EdgesRequest, meant: Meant) -> Message:
    """Return a request as a message: "ids.0" are the destinations, "ids.1" the sources."""
    header = request_header("edges", meant, **to_json(_EdgesHeader(request.edge_type)))
    return Message(header, {"ids.0": request.destinations, "ids.1": request.sources})


def edges_from_message(where: str, message: Message) -> EdgesRequest:
    """Return the request that a message says. Types and ids are compared with the part by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        edge_type = own_record(message, "edges", _EdgesHeader).edge_type
        destinations, sources = ids_of(message, 2)
        if destinations.shape != sources.shape:
            raise ValueError(f"there are {sources.shape[0]} sources for {destinations.shape[0]} destinations")
        return EdgesRequest(edge_type, destinations, sources)
    except ValueError as error:
        raise BadRequest(f"{where}: {error}.") from error


def found_edges_to_message(edges: FoundEdges) -> Message:
    """Return the answer as a message."""
    return Message(answer_header("edges"), edges._asdict())


def found_edges_from_message(where: str, message: Message, request: EdgesRequest) -> FoundEdges:
    """Return the answer to a request.

    Raises:
        BadMessage: It does not answer the request.
    """
    if [*message.tensors] != [*FoundEdges._fields]:
        raise BadMessage(f"{where}: the answer has {shown([*message.tensors])}, expected was {[*FoundEdges._fields]}.")
    edges = FoundEdges(**message.tensors)
    for name, values in message.tensors.items():
        if values.dtype != torch.int64 or values.shape != request.sources.shape:
            raise BadMessage(
                f"{where}: {name} is {values.dtype} {list(values.shape)}, expected was int64 "
                f"{list(request.sources.shape)}."
            )
    if bool((edges.counts < 0).any()) or bool(((edges.counts > 0) != (edges.first_ids >= 0)).any()):
        raise BadMessage(f"{where}: the counts and the first edge ids of the answer contradict each other.")
    return edges


# --- digests

_DIGEST = re.compile(r"[a-z0-9_]{1,20}:[0-9a-f]{32}")


@dataclass(frozen=True)
class _DigestHeader:
    edge_types: tuple[OptionalEdgeType, ...]
    choice: Annotated[Choice, CHOICE]

    def __post_init__(self) -> None:
        if any((one or ()) >= (after or ()) for one, after in pairwise(self.edge_types)):
            raise ValueError(f"edge_types are {shown(self.edge_types)}; each comes once, in sorted order")


def digest_to_message(request: DigestRequest, meant: Meant) -> Message:
    """Return a request as a message."""
    return Message(request_header("digest", meant, **to_json(_DigestHeader(request.edge_types, request.choice))), {})


def digest_from_message(where: str, message: Message) -> DigestRequest:
    """Return the request that a message says. Types are compared with the graph by whoever answers.

    Raises:
        BadRequest: It says none.
    """
    try:
        header = own_record(message, "digest", _DigestHeader)
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
    digests = message.header.get("digests")
    if not isinstance(digests, list) or len(digests) != len(request.edge_types) or not all(map(_is_answer, digests)):
        raise BadMessage(f"{where}: the digests are {shown(digests)}; expected was one entry for each edge type.")
    return digests


def _is_answer(value: Any) -> bool:
    if value is None:
        return True
    is_list = isinstance(value, list) and 1 <= len(value) <= 2
    return is_list and all(isinstance(digest, str) and _DIGEST.fullmatch(digest) for digest in value)
