"""OwnRows: the row of each id among the ids that a part owns; FindsRows: a part, as far as it finds rows by id."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_index_tensor
from datapipes.base.threads import num_threads
from datapipes.base.types import EdgeType, NodeType, of_type
from datapipes.partition.book import PartitionBook

_MOST_IDS_A_ROW = 64  # where ids lie further apart, an index of all of them would be larger than the sorted ids
AT_ONCE = 2**20  # ids looked at at a time


class OwnRows:
    """Finds rows by id. It is made once for a part and then only read, by any number of threads.

    Contiguous ids need no memory; ascending ones 0.17 bytes for each id up to the largest; others 4 or 8 more for each
    row; ids that lie far apart 16 bytes a row.

    Args:
        ids: int64 [n], 0 or more, the id of each row; if an id is there twice, its row is the first of them.
        num_ids: ids are below it; by default found.
        ascending: that the ids ascend strictly; by default found.
    Attributes:
        first: the id of row 0, if the ids are contiguous; then no index is needed.
        rank: gives positions among the sorted, distinct ids.
        order: the row at each such position; None if it is the position.
    """

    def __init__(self, ids: Tensor, *, num_ids: int | None = None, ascending: bool | None = None) -> None:
        self.num_rows = int(ids.shape[0])
        self.first: int | None = None
        self.rank: _core.IdRank | None = None
        self.order: Tensor | None = None
        self._sorted: Tensor | None = None  # in place of a rank
        ascends = _ascends(ids) if ascending is None else ascending
        if self.num_rows == 0 or (ascends and int(ids[-1]) - int(ids[0]) == self.num_rows - 1):
            self.first = int(ids[0]) if self.num_rows > 0 else 0
            return
        low, end = (0, num_ids) if num_ids is not None else (int(ids.min()), int(ids.max()) + 1)
        if num_ids is None and (low < 0 or end > _MOST_IDS_A_ROW * self.num_rows):
            ascending_ids, order = ids.sort(stable=True)
            is_first = torch.cat([torch.ones(1, dtype=torch.bool), ascending_ids[1:] != ascending_ids[:-1]])
            self._sorted, self.order = ascending_ids[is_first], order[is_first]
            return
        self.rank = _core.IdRank(ids.numpy(), end, any_order=not ascends)
        if not ascends:
            self.order = self._rows_by_id(ids)

    def _rows_by_id(self, ids: Tensor) -> Tensor:
        assert self.rank is not None
        order = torch.empty(self.rank.num_rows, dtype=torch.int32 if self.num_rows < 2**31 else torch.int64)
        for begin in range((self.num_rows - 1) // AT_ONCE * AT_ONCE, -1, -AT_ONCE):  # so that the first one stays
            some = ids[begin : begin + AT_ONCE].numpy()
            places = self.rank.rows(some, num_threads=num_threads())[::-1]
            order.numpy()[places] = torch.arange(begin, begin + len(some)).numpy()[::-1]
        return order

    @property
    def num_ids(self) -> int:
        """How many different ids there are."""
        if self.rank is not None:
            return self.rank.num_rows
        return self.num_rows if self._sorted is None else int(self._sorted.shape[0])

    def rows(self, ids: Tensor) -> Tensor:
        """Return the row of each id, int64 [n], -1 where it is not there; `ids` is int32 or int64 [n]."""
        if self.first is not None:
            rows = ids.long() - self.first
            return rows.where((rows >= 0) & (rows < self.num_rows), -1)
        if self.rank is not None:
            places = torch.from_numpy(self.rank.rows(ids.numpy(), num_threads=num_threads()))
        else:
            assert self._sorted is not None
            wanted = ids.long()
            places = torch.searchsorted(self._sorted, wanted).clamp(max=self._sorted.shape[0] - 1)
            places = places.where(self._sorted[places] == wanted, -1)
        return self.in_order(places)

    def in_order(self, places: Tensor) -> Tensor:
        """Return the row at each position among the sorted ids; -1 stays -1."""
        if self.order is None:
            return places
        return self.order[places].long().where(places >= 0, -1)


def _ascends(ids: Tensor) -> bool:
    """Return whether ids ascend strictly; stops early, and takes no memory that grows with them."""
    for begin in range(0, ids.shape[0], AT_ONCE):
        some = ids[begin : begin + AT_ONCE + 1]
        if bool((some[1:] <= some[:-1]).any()):
            return False
    return True


def order_of(rows: Tensor, keys: list[Tensor]) -> Tensor | None:
    """Return what sorts by `rows`, then by each key in turn, equal ones as they are; None if they are sorted."""
    ties = torch.ones(max(len(rows) - 1, 0), dtype=torch.bool)
    descends = ~ties
    for key in (rows, *keys):
        descends |= ties & (key[1:] < key[:-1])
        ties &= key[1:] == key[:-1]
    if not bool(descends.any()):
        return None
    order = torch.arange(len(rows))
    for key in (*reversed(keys), rows):
        order = order[torch.argsort(key[order], stable=True)]
    return order


class FindsRows:
    """A part, as far as it finds the rows of its nodes and edges by id; see Part."""

    part: int
    book: PartitionBook
    node_ids: Callable[..., Tensor]
    num_nodes_of: Callable[..., int]
    relation: Callable[..., Any]
    _node_type: Callable[..., Any]
    _edge_type: Callable[..., Any]

    def __init__(self) -> None:
        self._own: dict[tuple[str, Any], OwnRows] = {}  # by "node" or "edge" and type; made when they are asked for
        self._making = threading.Lock()  # a server's threads share what is made

    def rows_of(self, ids: Tensor, node_type: NodeType | None = None) -> Tensor:
        """Return the row of each node among the part's own, int64 [n]: `node_ids(type)[rows]` are the ids.

        O(1) for each id. The first call makes a bit for each node of the whole graph, 0.17 bytes for each, unless the
        own ids are contiguous.

        Args:
            ids: int32 or int64 [n], global ids; any order, repeats allowed.
        Raises:
            IndexError: A node is not this part's; the message names the first one, and the part that owns it.
            ValueError: There is no such type.
        """
        ids = check_index_tensor("Part.rows_of", "ids", ids)
        rows = self.own_nodes(node_type).rows(ids)
        if bool((missing := rows < 0).any()):
            raise self._not_owned(int(ids[missing][0]), node_type)
        return rows

    def edge_rows_of(self, edge_ids: Tensor, edge_type: EdgeType | str | None = None) -> Tensor:
        """Return the row of each edge among the part's own, int64 [n]: `relation(type).edge_ids[rows]` are the ids.

        O(1) for each id. The first call makes an index, in O(own edges); OwnRows says what it takes.

        Args:
            edge_ids: int32 or int64 [n], edge ids of the whole graph; any order, repeats allowed.
        Raises:
            IndexError: An edge is not this part's; the message names the first one.
            ValueError: There is no such type.
        """
        edge_ids = check_index_tensor("Part.edge_rows_of", "edge_ids", edge_ids)
        rows = self.own_edges(edge_type).rows(edge_ids)
        if bool((missing := rows < 0).any()):
            raise IndexError(
                f"Part.edge_rows_of: edge {int(edge_ids[missing][0])} is not in part {self.part}. Ask the part that "
                "owns its destination."
            )
        return rows

    def own_nodes(self, node_type: NodeType | None = None) -> OwnRows:
        """Return what finds the row of a node; ValueError if there is no such type."""
        kind = self._node_type(node_type)
        return self._own_rows(
            ("node", kind), lambda: OwnRows(self.node_ids(kind), num_ids=self.num_nodes_of(kind), ascending=True)
        )

    def own_edges(self, edge_type: EdgeType | str | None = None) -> OwnRows:
        """Return what finds the row of an edge by its id; ValueError if there is no such type."""
        kind = self._edge_type(edge_type)
        return self._own_rows(("edge", kind), lambda: OwnRows(self.relation(kind).edge_ids))

    def _own_rows(self, key: tuple[str, Any], make: Callable[[], OwnRows]) -> OwnRows:
        if (rows := self._own.get(key)) is None:
            with self._making:
                if (rows := self._own.get(key)) is None:
                    rows = self._own[key] = make()
        return rows

    def _not_owned(self, node: int, node_type: NodeType | None) -> IndexError:
        of, count = of_type(node_type), self.num_nodes_of(node_type)
        if not 0 <= node < count:
            return IndexError(
                f"Part.rows_of: node {node}{of} is outside the graph; ids must be in [0, {count}). Check the ids."
            )
        owner = int(self.book.nodes(node_type).part_of(torch.tensor([node])))
        return IndexError(f"Part.rows_of: node {node}{of} is not in part {self.part}. Ask part {owner}, which owns it.")
