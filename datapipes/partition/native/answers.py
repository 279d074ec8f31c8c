"""What a part answers: in-edges of its nodes, rows of its features. It knows no network."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from datapipes.base.checks import shown
from datapipes.base.rows import byte_rows, take_rows
from datapipes.base.types import ends_of
from datapipes.graph.graph import FoundEdges, edges_in_rows
from datapipes.partition.native.part import Part
from datapipes.partition.native.requests import (
    DigestRequest,
    Digests,
    Drawn,
    DrawRequest,
    EdgesRequest,
    Rows,
    RowsRequest,
)


def answer_draw(
    part: Part, request: DrawRequest, *, num_threads: int = 1, go_on: Callable[[], None] | None = None
) -> list[Drawn]:
    """Return what each of the request's draws gives.

    Args:
        go_on: called before each draw; may raise what ends the work, such as that the client has gone.
    Raises:
        IndexError: A node is not the part's; the message names the first one, and its owner.
        ValueError: There is no such type, or a fanout is below -1.
    """
    answer = []
    for place, draw in enumerate(request.draws):
        if go_on is not None:
            go_on()
        dst = ends_of(draw.edge_type)[1]
        drawn = part.draw(
            request.ids[dst],
            fanout=draw.fanout,
            key=draw.key,
            replace=request.replace,
            edge_type=draw.edge_type,
            edge_ids=request.edge_ids,
            num_threads=num_threads,
            streams=None if request.streams is None else request.streams[dst],
            times=None if request.times is None else request.times[dst],
            choice=request.choice.at(0, [place]),
        )
        answer.append(Drawn(*drawn))
    return answer


def answer_edges(part: Part, request: EdgesRequest) -> FoundEdges:
    """Return which pairs are edges.

    Raises:
        IndexError: A destination is not the part's, or a source is no node.
        ValueError: There is no such type.
    """
    src, dst = ends_of(request.edge_type)
    relation, rows = part.relation(request.edge_type), part.rows_of(request.destinations, dst)
    return edges_in_rows(relation, rows, request.sources.long(), part.num_nodes_of(src))


def answer_digests(part: Part, request: DigestRequest) -> Digests:
    """Return the digests of each of the request's edge types.

    Raises:
        TypeError, ValueError: There is no such type or attribute, or the part cannot draw by it.
    """
    reads = request.choice.reads
    if reads is None:
        return [None for _ in request.edge_types]
    return [part.chosen("Part.chosen", reads, edge_type).digests() for edge_type in request.edge_types]


def answer_rows(part: Part, request: RowsRequest, *, num_threads: int = 1) -> list[Tensor]:
    """Return the rows of each feature that is asked for.

    Raises:
        IndexError: A node or edge is not the part's.
        KeyError: The part has no such feature.
    """
    return [rows for wanted in request.rows for rows in _rows(part, wanted, num_threads)]


def _rows(part: Part, wanted: Rows, num_threads: int) -> list[Tensor]:
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
