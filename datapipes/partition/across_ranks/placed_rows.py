"""PlacedRows: sends the rows that a rank has to the ranks that own them, a window at a time.

Each row has an owner, which is a rank, and a place: its position among all rows of that owner. A window is a range of
places. A rank keeps the indices of its rows in ascending order of (owner, place). In this order the rows of one window
are contiguous, so each round sends one slice to each owner. An owner never holds more than a window of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.rows import put_rows
from datapipes.partition.across_ranks.exchange import Exchange
from datapipes.partition.part_to_write import PartColumn
from datapipes.partition.row_chunks import rows_at

SENT_BYTES = 2**24  # the most that a rank sends in one window; 2^26 took more memory and no less time
LEAST_BYTES = 2**20  # for each owner in a window, whatever the number of ranks
_PLACE_BYTES = 4


class Column(NamedTuple):
    """The values of one attribute for the rows that this rank has.

    `rows(indices)`, int64 [n], returns values [n, ...].
    """

    dtype: torch.dtype
    shape: tuple[int, ...]  # of a row
    rows: Callable[[Tensor], Tensor]

    @property
    def row_bytes(self) -> int:
        """The number of bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


def column_of(values: Tensor) -> Column:
    """Return a Column over the tensor `values`: row i is values[i]."""

    def rows(numbers: Tensor) -> Tensor:
        some = [*rows_at(values, [numbers])]
        return some[0] if len(some) == 1 else torch.cat([values[:0], *some])

    return Column(values.dtype, tuple(values.shape[1:]), rows)


class PlacedRows:
    """For each row that this rank has: its owner and its place.

    The owner is the rank to which the row is sent. The place is the row's position among all rows of this owner.

    Args:
        order: int64 [n], the indices of the rows by ascending (owner, place).
        places: int64 [n], the place of row order[i].
        bounds: [ranks + 1], where the rows of each owner begin in `order`.
        counts: how many rows each owner gets from all ranks. Each place from 0 to this number - 1 has one row.
    """

    def __init__(
        self, ranks: Exchange, order: Tensor, places: Tensor, bounds: Sequence[int], counts: Sequence[int]
    ) -> None:
        self.ranks, self.order, self.places = ranks, order, places
        self.bounds, self.counts = [*bounds], [*counts]

    @property
    def num_own(self) -> int:
        """How many rows this rank owns, wherever they are before they are sent."""
        return self.counts[self.ranks.rank]

    def pieces(self, column: Column) -> Iterator[Tensor]:
        """Send this rank's values to their owners; yield the rows that this rank owns, by ascending place, in pieces.

        The place of a row is its position among all rows of its owner. All ranks must call this together, and iterate
        to the end.
        """
        for _, count, messages in self._windows(column):
            if count > 0:
                yield _rows_from(messages, count, column.dtype, column.shape)

    def column(self, column: Column) -> PartColumn:
        """Return a PartColumn, which the writers of parts read, over the rows of `column` that this rank owns.

        Reading its values calls `pieces`, so all ranks must read it together.
        """
        return PartColumn(column.dtype, (self.num_own, *column.shape), partial(self.pieces, column))

    def times_there(self) -> Iterator[tuple[int, Tensor, list[Tensor]]]:
        """Count how many rows of all ranks go to each place (position) that this rank owns.

        More or fewer than one is an error.

        Yield (first, counts, places) for each window, a range of places that is exchanged at a time. first: the first
        place of the window; counts: int64, how many rows go to each place of the window; places: for each rank, the
        places of the rows that it sent, less `first`.
        """
        nothing = Column(torch.uint8, (0,), lambda numbers: torch.empty((numbers.shape[0], 0), dtype=torch.uint8))
        for first, count, messages in self._windows(nothing):
            places = [_split(message, 0)[0] for message in messages]
            yield first, torch.bincount(torch.cat(places), minlength=count), places

    def _windows(self, column: Column) -> Iterator[tuple[int, int, list[Tensor]]]:
        """Send the rows of `column` to their owners, a window at a time; yield (first, count, messages) for each.

        A window is a range of places, the positions of rows among all rows of an owner.

        first: the first place of the window; count: how many of its places this rank owns; messages: uint8, one from
        each rank. A message has the places of its rows, less `first`, as int32, and then the bytes of the rows.
        """
        most = window(self.ranks.size, column.row_bytes + _PLACE_BYTES)
        for first in range(0, max(self.counts), most):
            messages = [self._message(owner, first, first + most, column) for owner in range(self.ranks.size)]
            yield first, min(max(self.num_own - first, 0), most), self.ranks.to_each(messages)

    def _message(self, owner: int, first: int, last: int, column: Column) -> Tensor:
        begin, end = self.bounds[owner], self.bounds[owner + 1]
        ends = torch.tensor([first, last])
        low, high = (torch.searchsorted(self.places[begin:end], ends) + begin).tolist()
        places = (self.places[low:high] - first).int()
        return torch.cat([places.view(torch.uint8), as_bytes(column.rows(self.order[low:high]))])


def window(num_ranks: int, row_bytes: int) -> int:
    """Return the number of places in a window: how many rows of `row_bytes` bytes each owner receives at a time."""
    return max(max(SENT_BYTES // num_ranks, LEAST_BYTES) // row_bytes, 1)


def _rows_from(messages: Sequence[Tensor], count: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Put the rows in `messages` together; return a tensor [count, *shape].

    A message has the places of its rows, which are their indices in the result, and then the rows. All messages
    together must have one row for each place from 0 to count - 1.
    """
    row_bytes = math.prod(shape) * dtype.itemsize
    table = torch.empty((count, row_bytes), dtype=torch.uint8)
    for message in messages:
        places, rows = _split(message, row_bytes)
        put_rows(table, places, rows)
    return (table.view(dtype) if table.numel() > 0 else torch.empty(0, dtype=dtype)).reshape(count, *shape)


def as_bytes(rows: Tensor) -> Tensor:
    """Return the bytes of `rows`, one row after the other, as uint8 [n]."""
    if rows.numel() == 0:
        return torch.empty(0, dtype=torch.uint8)
    return rows.contiguous().reshape(-1).view(torch.uint8)


def placed_by_id(ranks: Exchange, ids: Tensor, offsets: Sequence[int]) -> PlacedRows:
    """Return the PlacedRows of rows with the ids `ids`, int64 [n]: rank r owns the ids in [offsets[r], offsets[r + 1]).

    The place of a row, its position among the rows of its owner, is its id less offsets[r]. Time O(n log n); memory: 16
    bytes a row.
    """
    places, order = ids.sort()
    bounds = torch.searchsorted(places, torch.tensor(offsets)).tolist()
    for owner, first in enumerate(offsets[:-1]):
        places[bounds[owner] : bounds[owner + 1]] -= first
    return PlacedRows(ranks, order, places, bounds, np.diff(offsets).tolist())


def placed_by_destination(ranks: Exchange, destinations: Tensor, offsets: Sequence[int]) -> tuple[PlacedRows, Tensor]:
    """Decide which rank owns each edge of this rank, and where: each owner gets its edges in the order of a CSC.

    The owner of an edge is the rank that owns its destination. The order is by destination, then by the rank that has
    the edge, then by position on that rank.

    Time O(n log n); memory: 16 bytes an edge, and 8 for each node that this rank owns.

    Args:
        destinations: int64 [n], in [0, offsets[-1]).
        offsets: rank r owns the nodes in [offsets[r], offsets[r + 1]), and their in-edges.
    Returns:
        (rows, indptr): the PlacedRows of the edges, and the indptr of the nodes that this rank owns, int64 [own nodes +
        1], from 0.
    """
    places, order = destinations.sort(stable=True)  # still destinations: the loop below replaces them by places
    bounds: list[int] = torch.searchsorted(places, torch.tensor(offsets)).tolist()
    next_edges, most = bounds[:-1], window(ranks.size, 16)
    indptr, num_edges = [torch.zeros(1, dtype=torch.int64)], 0
    for first in range(0, max(np.diff(offsets).tolist()), most):
        edges_into = []  # for each owner: (distinct nodes in the window, ascending; number of edges into each)
        for owner in range(ranks.size):
            some, first_node = places[next_edges[owner] : bounds[owner + 1]], offsets[owner] + first
            end = int(torch.searchsorted(some, first_node + most))
            rows, num_into = torch.unique_consecutive(some[:end], return_counts=True)
            edges_into.append((rows - first_node, num_into))
        counts = ranks.to_each([as_bytes(torch.stack(into)) for into in edges_into])
        degrees, starts = _starts(counts, min(max(offsets[ranks.rank + 1] - offsets[ranks.rank] - first, 0), most))
        answers = ranks.to_each([as_bytes(start + num_edges) for start in starts])
        indptr.append(num_edges + degrees.cumsum(0))
        num_edges = int(indptr[-1][-1]) if degrees.shape[0] > 0 else num_edges
        for owner, ((_, num_into), answer) in enumerate(zip(edges_into, answers, strict=True)):
            end = next_edges[owner] + int(num_into.sum())
            places[next_edges[owner] : end] = _ranges(answer.clone().view(torch.int64), num_into)
            next_edges[owner] = end
    return PlacedRows(ranks, order, places, bounds, ranks.gather(num_edges)), torch.cat(indptr)


def _starts(messages: list[Tensor], count: int) -> tuple[Tensor, list[Tensor]]:
    """Merge the edge counts that all ranks have sent for one window of nodes; return (degrees, starts).

    Args:
        messages: one from each rank: int64 [2, m] as bytes, the nodes (from 0 in the window) and the number of edges
            into each.
        count: the number of nodes in the window.
    Returns:
        degrees: int64 [count], the number of edges into each node.
        starts: for each rank, int64 [m], the position of the rank's first edge into each node of its message. Positions
        count the edges of the window from 0.
    """
    of_ranks = [message.clone().view(torch.int64).view(2, -1) for message in messages]
    degrees = torch.zeros(count, dtype=torch.int64)
    for rows, counts in of_ranks:
        degrees[rows] += counts
    next_places = degrees.cumsum(0) - degrees
    starts = []
    for rows, counts in of_ranks:
        starts.append(next_places[rows])
        next_places[rows] += counts
    return degrees, starts


def _ranges(starts: Tensor, counts: Tensor) -> Tensor:
    """Return the integers of all ranges [starts[i], starts[i] + counts[i]), one range after the other, as int64."""
    before = starts - (counts.cumsum(0) - counts)
    repeated = torch.from_numpy(np.repeat(before.numpy(), counts.numpy()))
    return repeated.add_(torch.arange(repeated.shape[0]))


def _split(message: Tensor, row_bytes: int) -> tuple[Tensor, Tensor]:
    """Split a message of `_windows` into (places, rows): int64 [n], where the rows go, and uint8 [n, row_bytes]."""
    count = message.shape[0] // (_PLACE_BYTES + row_bytes)
    places = message[: _PLACE_BYTES * count].clone().view(torch.int32)  # a copy, since a view may not be aligned
    return places.long(), message[_PLACE_BYTES * count :].view(count, row_bytes)
