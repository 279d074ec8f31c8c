"""Where the rows of ids lie: in the part of this process, in its cache, or in other parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hot_rows import HotTable
from datapipes.partition.id_maps import IdMap


@dataclass(frozen=True)
class Split:
    """The places of some ids, by where their rows lie. Each place is in exactly one of the three.

    Attributes:
        own: (places, rows) int64 [n] each: rows of the local part's attributes.
        hot: (places, rows) int64 [n] each: rows of the cache.
        away: {part: (places, ids)}, parts ascending, none of them without ids.
    """

    own: tuple[Tensor, Tensor]
    hot: tuple[Tensor, Tensor]
    away: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)


class IdPlaces:
    """Where the rows of one type of nodes or edges lie.

    Args:
        domain: "node" or "edge".
        of: a node type or edge type, or None.
        hot: what the cache holds of the type.
    """

    def __init__(self, graph: DistGraph, domain: str, of: Any, hot: HotTable | None) -> None:
        self.domain, self.of, self.hot = domain, of, hot
        self._owners: IdMap = graph.book.nodes(of) if domain == "node" else graph.book.edges(of)
        self._part = graph.local_part

    @property
    def own_tables(self) -> Mapping[str, Tensor]:
        """The rows of each feature in the local part."""
        if self._part is None:
            return {}
        if self.domain == "node":
            return self._part.node_attributes_of(self.of)
        return self._part.relation(self.of).edge_attributes

    def split(self, name: str, ids: Tensor) -> Split:
        """Return where the rows of ids lie, int32 or int64 [n].

        Raises:
            IndexError: An id is outside the graph; the message names `name` and the first such id.
        """
        outside = (ids < 0) | (ids >= self._owners.num_ids)
        if bool(outside.any()):
            raise IndexError(
                f"{name}: the id {int(ids[int(outside.nonzero()[0])])} is outside the graph; ids must be in [0, "
                f"{self._owners.num_ids}). Check the ids."
            )
        parts = self._owners.part_of(ids)
        here = -1 if self._part is None else self._part.part
        own = (parts == here).nonzero().flatten()
        is_away = parts != here
        hot = own[:0], own[:0]
        if self.hot is not None:
            rows = self.hot.rows_of(ids)
            found = (is_away & (rows >= 0)).nonzero().flatten()
            is_away &= rows < 0
            hot = found, rows[found]
        away = {}
        for part in sorted({*parts[is_away].tolist()}):
            places = (is_away & (parts == part)).nonzero().flatten()
            away[part] = places, ids[places]
        return Split((own, self._own_rows(ids[own])), hot, away)

    def _own_rows(self, ids: Tensor) -> Tensor:
        if self._part is None:
            return torch.empty(0, dtype=torch.int64)
        return self._part.rows_of(ids, self.of) if self.domain == "node" else self._part.edge_rows_of(ids, self.of)

    def __repr__(self) -> str:
        return f"IdPlaces({self.domain} {shown(self.of)})"
