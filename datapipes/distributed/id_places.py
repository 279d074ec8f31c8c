"""Where the rows of ids lie: in the part of this process, in its cache, or in other parts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.threads import num_threads
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hot_rows import HotTable
from datapipes.partition.id_maps import IdMap
from datapipes.partition.native.own_rows import OwnRows

_NO_ROWS = OwnRows(torch.empty(0, dtype=torch.int64))


class Found(NamedTuple):
    """Some of the ids that were split.

    Attributes:
        places: int64 [n], their positions among all, ascending.
        rows: [n], their rows in a table, or the ids themselves where the rows are in another part.
    """

    places: Tensor
    rows: Tensor


class Split(NamedTuple):
    """Ids by where their rows lie; each is in exactly one of the three.

    Attributes:
        own: rows of the local part's attributes.
        hot: rows of the cache.
        away: {part: ids}, parts ascending, none of them without ids.
    """

    own: Found
    hot: Found
    away: dict[int, Found]


class IdPlaces:
    """Where the rows of one type of nodes or edges lie.

    Args:
        domain: "node" or "edge".
        of: a node type or edge type, or None.
        hot: what the cache holds of the type.
    Attributes:
        own_tables: {name: the local part's rows}.
    """

    def __init__(self, graph: DistGraph, domain: str, of: Any, hot: HotTable | None) -> None:
        self.domain, self.of, self.hot = domain, of, hot
        owners: IdMap = graph.book.nodes(of) if domain == "node" else graph.book.edges(of)
        self._owners = _core.PartMap(owners.stored().numpy(), owners.num_parts, owners.num_ids)
        part = graph.local_part
        self._part, self._own = -1, _NO_ROWS
        self.own_tables: Mapping[str, Tensor] = {}
        if part is not None and domain == "node":
            self._part, self._own, self.own_tables = part.part, part.own_nodes(of), part.node_attributes_of(of)
        elif part is not None:
            self._part, self._own, self.own_tables = part.part, part.own_edges(of), part.relation(of).edge_attributes

    def split(self, text: str, ids: Tensor) -> Split:
        """Return where the rows of ids lie, int32 or int64 [n]. O(n).

        Raises:
            IndexError: An id is outside the graph; the message begins with `text` and names the first such id.
            ValueError: The book is damaged.
        """
        places, rows, bounds = _core.split_ids(
            text,
            self._owners,
            ids.numpy(),
            part=self._part,
            rank=self._own.rank,
            first=self._own.first or 0,
            hot=None if self.hot is None else self.hot.rank,
            num_threads=num_threads(),
        )
        all_places, all_rows = torch.from_numpy(places), torch.from_numpy(rows)

        def group(number: int) -> Found:
            some = slice(bounds[number], bounds[number + 1])
            return Found(all_places[some], all_rows[some])

        own = group(0)
        if self._own.rank is None and self._own.first is None:
            own = Found(own.places, self._own.rows(own.rows))
        elif self._own.order is not None:
            own = Found(own.places, self._own.in_order(own.rows.long()))
        away = {part: group(2 + part) for part in range(len(bounds) - 3) if bounds[2 + part] < bounds[3 + part]}
        return Split(own, group(1), away)
