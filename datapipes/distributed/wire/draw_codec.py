"""A hop as a message: the request of a client, and what the part drew.

Each part is asked in each hop, so only the lists of the header are read by forms: as one record it would take 5 us more
to write, beside 5 to 10, and 6 more to read, beside 16 to 38.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.records import OptionalNodeType, form_of, list_of
from datapipes.base.types import ends_of
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import BadMessage
from datapipes.distributed.wire.envelope import COMMON, Meant, answer_header, columns_of, request_header
from datapipes.distributed.wire.refusals import BadRequest
from datapipes.graph.choice import CHOICE, UNIFORM
from datapipes.partition.native.requests import COLUMNS, Draw, Drawn, DrawRequest

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
    columns = {f"{kind}.{i}": getattr(request, kind)[of] for kind in kinds for i, of in enumerate(request.ids)}
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
            **{kind: dict(zip(types, each, strict=True)) for kind, each in columns.items()},
        )
        if any(each.fanout == 0 for each in request.draws):
            raise ValueError("a fanout is 0, allowed are -1 and whole numbers above 0; leave the edge type out")
        drawn = [each.edge_type or () for each in request.draws]
        if any(one >= after for one, after in pairwise(drawn)):
            raise ValueError(f"the edge types of the draws are {shown(drawn)}; each comes once, in sorted order")
        request.choice.refuse_request(len(drawn), replace=replace, has_streams=request.streams is not None)
        if request.choice.of_times != (request.times is not None):
            raise ValueError("rows have times if they are drawn by time, and only then")
        missing = [each.edge_type for each in request.draws if ends_of(each.edge_type)[1] not in request.ids]
        if missing:
            raise ValueError(f"there are no ids for the draw of {shown(missing[0])}")
    except ValueError as error:
        raise BadRequest(f"{where}: {error}.") from error
    return request


def drawn_to_message(drawn: list[Drawn]) -> Message:
    """Return what was drawn as a message: "indptr.0", "neighbors.0", and "edge_ids.0" if they were asked for, ..."""
    tensors: dict[str, Tensor] = {}
    for number, each in enumerate(drawn):
        tensors |= {f"{name}.{number}": value for name, value in each._asdict().items() if value is not None}
    return Message(answer_header("draw"), tensors)


def drawn_bytes(request: DrawRequest, facts: PartitionFacts, num_edges: Callable[[Draw, int], int]) -> int:
    """Return the bytes of the answer to a request, given the in-edges of each draw for so many nodes."""
    edge_bytes, found = facts.index_dtype.itemsize + (_INT64_BYTES if request.edge_ids else 0), 0
    for draw in request.draws:
        ids = request.ids.get(ends_of(draw.edge_type)[1])
        num_nodes = 0 if ids is None else ids.shape[0]  # a server says what is missing
        found += _INT64_BYTES * (num_nodes + 1) + edge_bytes * num_edges(draw, num_nodes)
    return found


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
    for number, each in enumerate(request.draws):
        src, dst = ends_of(each.edge_type)
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
        found = [f"{values.dtype} {list(values.shape)}" for values, _ in expected]
        raise BadMessage(f"{where}: the edges are {found}, expected were {count} of {expected[0][1]} and int64.")
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
    own = {name: value for name, value in message.header.items() if name not in COMMON}
    given = [own.pop(name) if own.get(name) is not None else None for name in optional]
    if own.keys() != {*names}:
        raise ValueError(f"the header of a request {kind!r} is {shown(sorted(own))}, it must have exactly {[*names]}")
    return [*(own[name] for name in names), *given]
