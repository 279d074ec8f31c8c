"""PartRows: reads the edges and attributes of one part from the whole graph, a piece at a time.

A part has its own nodes in ascending order of ids, each with its in-edges in their original order. So the positions of
the part's edges among all edges of the type ascend. All writers of a partition read rows through this module. No writer
holds more than one piece, so the graph may be memory-mapped and larger than memory. All reads are checked: a corrupt
graph raises ValueError.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor

from datapipes.base.cached import cached_property
from datapipes.base.checks import shown
from datapipes.base.rows import bits_of, byte_rows, has_adjacent_values, take_rows
from datapipes.base.types import EdgeType, ends_of, of_type
from datapipes.graph.graph import Graph
from datapipes.partition.book import PartitionBook

MOST_EDGES = 2**18  # positions, or rows, in a piece: 2 MiB of int64, and 20 MiB while the piece is made
MOST_BYTES = 2**24  # of the values in a piece; a row of more bytes is a piece of its own


class PartRows:
    """Reads the in-edges of a part's own nodes along one edge type from the whole graph. A row is one node's in-edges.

    Args:
        graph: the whole graph.
        edge_type: the edge type; None in a graph without types.
        ids: int64 [num_rows], the part's own nodes of the destination type, ascending.
        most_edges: how many edges, or rows, a piece has at most.

    Methods that read indptr raise ValueError if indptr descends, or points outside of the indices.
    """

    def __init__(self, graph: Graph, edge_type: EdgeType | None, ids: Tensor, *, most_edges: int = MOST_EDGES) -> None:
        self.ids = ids
        self._relation = graph.relation(edge_type)
        self._num_sources = graph.num_nodes_of(ends_of(edge_type)[0])
        self._of = of_type(edge_type)
        self._most = most_edges

    @cached_property
    def num_edges(self) -> int:
        """How many edges of this type the part has. Computed on first use, in time O(num_rows)."""
        return sum(int(counts.sum()) for _, counts in self._blocks())

    def _blocks(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (starts, counts), int64 each, for some rows at a time.

        starts: where each row's edges begin in the whole graph; counts: how many edges each row has.
        """
        indptr, all_edges = self._relation.indptr, int(self._relation.indices.shape[0])
        for ids in pieces(self.ids, self._most):
            starts, ends = indptr[ids], indptr[ids + 1]
            wrong = (starts < 0) | (ends < starts) | (ends > all_edges)
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0])
                raise ValueError(
                    f"partition: the in-edges{self._of} of node {int(ids[row])} begin at position {int(starts[row])} "
                    f"and end at position {int(ends[row])}; needed is 0 <= begin <= end <= {all_edges}, the number of "
                    "edges. The graph is corrupt: graph.validate() names the first wrong entry; build the graph again."
                )
            yield starts, ends - starts

    def indptr(self) -> Iterator[Tensor]:
        """Yield the indptr of the part's rows in pieces: int64, num_rows + 1 values in all, the first is 0."""
        yield torch.zeros(1, dtype=torch.int64)
        before = 0
        for _, counts in self._blocks():
            offsets = counts.cumsum(0) + before
            yield offsets
            before = int(offsets[-1])

    def positions(self) -> Iterator[Tensor]:
        """Yield the positions of the part's edges among all edges of the type in the whole graph, int64, ascending."""
        for starts, counts in self._blocks():
            before = starts - counts.cumsum(0) + counts
            for begin, positions in _repeated_by_piece(before, counts, self._most):
                yield positions.add_(torch.arange(begin, begin + positions.shape[0]))

    def destinations(self) -> Iterator[Tensor]:
        """Yield the global id of the destination of each edge of the part, int64."""
        for ids, (_, counts) in zip(pieces(self.ids, self._most), self._blocks(), strict=True):
            yield from (nodes for _, nodes in _repeated_by_piece(ids, counts, self._most))

    def indices(self) -> Iterator[Tensor]:
        """Yield the global id of the source of each edge of the part, in the dtype of the graph's indices.

        Raises:
            ValueError: A source is no node of its type.
        """
        for positions in self.positions():
            sources = self._relation.indices[positions]
            if int(sources.min()) < 0 or int(sources.max()) >= self._num_sources:
                place = int(((sources < 0) | (sources >= self._num_sources)).nonzero()[0])
                raise ValueError(
                    f"partition: indices{self._of}[{int(positions[place])}] is {int(sources[place])}, which must be in "
                    f"[0, {self._num_sources}). The graph is corrupt: graph.validate() names the first wrong entry; "
                    "build the graph again."
                )
            yield sources

    def edge_ids(self) -> Iterator[Tensor]:
        """Yield the edge id of each edge of the part, int64.

        Raises:
            ValueError: An id is negative.
        """
        for positions in self.positions():
            if self._relation.edge_ids is None:
                yield positions
                continue
            edge_ids = self._relation.edge_ids[positions]
            if int(edge_ids.min()) < 0:
                place = int((edge_ids < 0).nonzero()[0])
                raise ValueError(
                    f"partition: edge_ids{self._of}[{int(positions[place])}] is {int(edge_ids[place])}, which must be "
                    "0 or more. Rebuild the ids."
                )
            yield edge_ids

    def of_edges(self, values: Tensor) -> Iterator[Tensor]:
        """Yield the rows of an edge attribute for the part's edges.

        `values` has a row for each edge of the whole graph.
        """
        return rows_at(values, self.positions())

    def of_sources(self, values: Tensor) -> Iterator[Tensor]:
        """Yield, for each edge of the part, the row of its source in a node attribute `values` of the source type.

        Raises ValueError as `indices` does.
        """
        return rows_at(values, (sources.long() for sources in self.indices()))


def rows_of_nodes(values: Tensor, ids: Tensor) -> Iterator[Tensor]:
    """Yield the rows of the nodes `ids`, int64, of a node attribute `values`, [num_nodes, ...], in pieces."""
    return rows_at(values, pieces(ids, MOST_EDGES))


def rows_at(values: Tensor, places: Iterable[Tensor]) -> Iterator[Tensor]:
    """Yield the rows of `values` at the indices in `places` (int64 tensors), in pieces of at most `MOST_BYTES` bytes.

    The pieces are contiguous, and in host memory.
    """
    row_bytes = values[:1].numel() * values.element_size()
    most = max(1, MOST_BYTES // max(1, row_bytes))
    is_plain = values.device.type == "cpu" and not (values.is_conj() or values.is_neg())
    table = byte_rows(values) if is_plain and has_adjacent_values(values) else None
    for some in places:
        for rows in pieces(some, most):
            if table is not None:
                yield take_rows(values, table, rows)
            else:
                yield bits_of(values)[rows.to(values.device)].cpu().contiguous().view(values.dtype)


def refuse_other_book(graph: Graph, book: PartitionBook) -> None:
    """Raise ValueError unless `graph` and `book` have equal numbers of nodes of each type, and of edges.

    Edges are only compared if the book has an edge map.
    """
    nodes = {node_type: graph.num_nodes_of(node_type) for node_type in graph.node_types}
    of_book = {node_type: book.nodes(node_type).num_ids for node_type in book.node_types}
    edges = {edge_type: graph.num_edges_of(edge_type) for edge_type in graph.edge_types if book.has_edges}
    edges_of_book = {edge_type: book.edges(edge_type).num_ids for edge_type in edges}
    for noun, stated, counts in (("nodes", of_book, nodes), ("edges", edges_of_book, edges)):
        if stated != counts:
            raise ValueError(
                f"partition: the book has the {noun} {shown(stated)}, the graph {shown(counts)}; they must be equal. "
                "Use the book of this graph."
            )


def pieces(rows: Tensor, most: int) -> Iterator[Tensor]:
    """Yield the rows of a tensor, in pieces of up to `most` rows, none of them empty."""
    return (rows[begin : begin + most] for begin in range(0, rows.shape[0], most))


def _repeated_by_piece(values: Tensor, counts: Tensor, most: int) -> Iterator[tuple[int, Tensor]]:
    """Repeat each of `values` as often as its count says, and yield (begin, piece) for pieces of up to `most` values.

    begin: the index of the piece's first value in the whole result.
    """
    ends = counts.cumsum(0)
    # A row may have more edges than a piece, so a piece may begin and end within a row.
    for begin in range(0, int(ends[-1]), most):
        end = min(begin + most, int(ends[-1]))
        first = int(torch.searchsorted(ends, begin, right=True))
        rows = slice(first, int(torch.searchsorted(ends, end - 1, right=True)) + 1)
        held = ends[rows].clamp(max=end) - (ends[rows] - counts[rows]).clamp(min=begin)
        # torch.repeat_interleave would make an index of all values first.
        yield begin, torch.from_numpy(np.repeat(values[rows].numpy(), held.numpy()))
