"""Requests cut so that answers stay small enough to send, and their answers put together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from datapipes.distributed.facts import PartitionFacts
from datapipes.distributed.wire.draw_codec import most_drawn_bytes
from datapipes.distributed.wire.rows_codec import answered_rows_bytes, row_bytes
from datapipes.graph.graph import FoundEdges
from datapipes.partition.native.requests import Drawn, DrawRequest, EdgesRequest, Rows, RowsRequest, TakeRows

ANSWER_BYTES = 64 * 2**20  # of the rows that one request asks for, about
MOST_IDS = 2**20  # that one request has
MOST_BYTES = 2**31  # of one answer; a server sends less


class Piece(NamedTuple):
    """A part of a RowsRequest.

    Attributes:
        entries: of which of the request's `rows` each of this one's is.
        firsts: at which of its ids each begins.
        request: what it asks.
    """

    entries: tuple[int, ...]
    firsts: tuple[int, ...]
    request: RowsRequest

    def taking(self, whole: RowsRequest, take: TakeRows) -> TakeRows:
        """Return what takes the rows of this piece's answer, for `take` of the whole request."""
        before = [0, *itertools.accumulate(len(rows.names) for rows in whole.rows)]
        places = [
            (before[entry] + number, first)
            for entry, first in zip(self.entries, self.firsts, strict=True)
            for number in range(len(whole.rows[entry].names))
        ]

        def shifted(number: int, first: int, rows: Tensor) -> None:
            of_whole, begin = places[number]
            take(of_whole, begin + first, rows)

        return shifted


def cut_rows(request: RowsRequest, facts: PartitionFacts, most_bytes: int = ANSWER_BYTES) -> list[Piece]:
    """Return the pieces of a request, in its order; at least one. A row larger than `most_bytes` is asked for alone."""
    pieces: list[list[tuple[int, int, Rows]]] = [[]]
    room, ids_left = most_bytes, MOST_IDS
    for number, rows in enumerate(request.rows):
        width, done, count = row_bytes(rows, facts), 0, rows.ids.shape[0]
        while True:
            fitting = min(room // width, ids_left) if width > 0 else ids_left
            if fitting == 0 and not pieces[-1]:
                fitting = 1
            taken = min(fitting, count - done)
            if taken > 0 or count == 0:
                pieces[-1].append((number, done, rows._replace(ids=rows.ids[done : done + taken])))
            done, room, ids_left = done + taken, room - taken * width, ids_left - taken
            if done == count:
                break
            pieces.append([])
            room, ids_left = most_bytes, MOST_IDS
    found = []
    for piece in pieces:
        entries, firsts = tuple(number for number, _, _ in piece), tuple(first for _, first, _ in piece)
        found.append(Piece(entries, firsts, RowsRequest(tuple(rows for _, _, rows in piece))))
    return found


def halves_of_rows(request: RowsRequest, facts: PartitionFacts) -> list[Piece]:
    """Return pieces of a request, each with half of the bytes or less; one if it cannot be cut."""
    return cut_rows(request, facts, max(answered_rows_bytes(request, facts) // 2, 1))


def join_rows(request: RowsRequest, pieces: Sequence[Piece], answers: Sequence[list[Tensor]]) -> list[Tensor]:
    """Return the answer to a request of which each piece was answered."""
    found: list[list[list[Tensor]]] = [[[] for _ in rows.names] for rows in request.rows]
    for piece, answer in zip(pieces, answers, strict=True):
        tensors = iter(answer)
        for number in piece.entries:
            for of_name in found[number]:
                of_name.append(next(tensors))
    return [each[0] if len(each) == 1 else torch.cat(each) for of_entry in found for each in of_entry]


def most_bytes_of_draw(request: DrawRequest, facts: PartitionFacts) -> int:
    """Return how many bytes the answer to a request may have; with all in-edges, what a server sends at most."""
    found = most_drawn_bytes(request, facts)
    return MOST_BYTES if found is None else min(found, MOST_BYTES)


def cut_draw(request: DrawRequest, most_ids: int = MOST_IDS) -> list[DrawRequest]:
    """Return requests for the same draws of at most so many nodes each, in order; at least one."""
    total = sum(ids.shape[0] for ids in request.ids.values())
    return [request.rows(begin, begin + most_ids) for begin in range(0, max(total, 1), most_ids)]


def halves(request: DrawRequest) -> list[DrawRequest]:
    """Return two requests for the same draws, each of half of the nodes; one if there is one node or none."""
    total = sum(ids.shape[0] for ids in request.ids.values())
    return cut_draw(request, max(-(-total // 2), 1))


def cut_edges(request: EdgesRequest, most_pairs: int = MOST_IDS) -> list[EdgesRequest]:
    """Return requests for the same pairs, at most so many each, in order; at least one."""
    ends = zip(*(torch.split(each, most_pairs) for each in (request.destinations, request.sources)), strict=True)
    return [EdgesRequest(request.edge_type, *each) for each in ends]


def join_edges(answers: Sequence[FoundEdges]) -> FoundEdges:
    """Return the answer to a request that was cut; the answers are in order."""
    return answers[0] if len(answers) == 1 else FoundEdges(*map(torch.cat, zip(*answers, strict=True)))


def join_draws(answers: Sequence[list[Drawn]]) -> list[Drawn]:
    """Return the answer to a request that was cut; the answers are in order."""
    return answers[0] if len(answers) == 1 else [_joined(each) for each in zip(*answers, strict=True)]


def _joined(pieces: Sequence[Drawn]) -> Drawn:
    indptr, count = [pieces[0].indptr[:1]], 0
    for piece in pieces:
        indptr.append(piece.indptr[1:] + count)
        count += piece.neighbors.shape[0]
    ids = [piece.edge_ids for piece in pieces if piece.edge_ids is not None]
    return Drawn(torch.cat(indptr), torch.cat([each.neighbors for each in pieces]), torch.cat(ids) if ids else None)
