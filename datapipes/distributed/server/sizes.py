"""How many bytes an answer will have, told before it is made."""

from __future__ import annotations

from collections.abc import Callable

import torch

from datapipes.base.types import ends_of
from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.wire.requests import Draw, DrawRequest, RowsRequest
from datapipes.distributed.wire.tensor_buffers import bytes_of
from datapipes.partition.native.part import Part

_INT64_BYTES = 8


def most_draw_bytes(request: DrawRequest, facts: PartitionFacts) -> int | None:
    """Return how many bytes the answer has at most; None if a draw keeps all in-edges: the part counts them."""
    if any(each.fanout < 0 for each in request.draws):
        return None
    return sum(
        _INT64_BYTES * (count + 1) + count * each.fanout * _edge_bytes(request, facts)
        for each in request.draws
        for count in [request.ids[ends_of(each.edge_type)[1]].shape[0]]
    )


def draw_bytes(
    part: Part, request: DrawRequest, facts: PartitionFacts, go_on: Callable[[], None] = lambda: None
) -> int:
    """Return how many bytes the answer has at most, by the degrees of the nodes; so many, if draws are uniform.

    Args:
        go_on: called before each draw is counted; see answer_draw.
    Raises:
        IndexError: A node is not the part's.
        ValueError: There is no such type.
    """
    edge_bytes, total = _edge_bytes(request, facts), 0
    for each in request.draws:
        go_on()
        count = request.ids[ends_of(each.edge_type)[1]].shape[0]
        total += _INT64_BYTES * (count + 1) + edge_bytes * _edges(part, request, each)
    return total


def _edges(part: Part, request: DrawRequest, draw: Draw) -> int:
    dst = ends_of(draw.edge_type)[1]
    indptr, rows = part.relation(draw.edge_type).indptr, part.rows_of(request.ids[dst], dst)
    degrees = indptr[rows + 1] - indptr[rows]
    if draw.fanout < 0:
        return int(degrees.sum())
    if request.replace:
        return int(torch.count_nonzero(degrees)) * draw.fanout
    return int(degrees.clamp(max=draw.fanout).sum())


def _edge_bytes(request: DrawRequest, facts: PartitionFacts) -> int:
    return facts.index_dtype.itemsize + (_INT64_BYTES if request.edge_ids else 0)


def rows_bytes(request: RowsRequest, facts: PartitionFacts) -> int:
    """Return how many bytes the rows have; features that the part does not have count nothing."""
    forms = [
        (each.ids.shape[0], facts.features.get((each.domain, each.type, name)))
        for each in request.rows
        for name in each.names
    ]
    return sum(bytes_of((count, *form.shape), form.dtype) for count, form in forms if form is not None)
