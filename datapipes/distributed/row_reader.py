"""RowReader: reads rows of the features of a graph in parts, whatever part they are in."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import as_completed
from typing import Any

from torch import Tensor

from datapipes.base.checks import check_index_tensor
from datapipes.chain.asynchronous import off_loop
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hot_rows import HotRows
from datapipes.distributed.id_places import IdPlaces
from datapipes.distributed.reading import Reading, Wanted
from datapipes.distributed.row_counts import RowCounts
from datapipes.features.feature_store import feature_text

_NAME = "DistFeatureStore"


class RowReader:
    """Reads rows from the local part, from a cache, and from the other parts.

    It can be used by several threads at once, and goes to worker processes without a copy of the cache.
    """

    def __init__(self, graph: DistGraph, hot: HotRows) -> None:
        self.graph, self.hot, self.counts = graph, hot, RowCounts()
        self._places: dict[tuple[str, Any], IdPlaces] = {}

    def wanted(self, domain: str, of: Any, name: str, ids: Any, out: Tensor | None = None) -> Wanted:
        """Return what is read, checked; `of` is a known type, and `out` fits.

        Raises:
            TypeError, ValueError: `ids` are no ids; or the feature is one of edges, and the partition has no edge map.
        """
        self.check_places(domain, of, name)
        text = feature_text(domain, of, name)
        places = self._places.get((domain, of))
        if places is None:  # two threads may both make one, and one of the two stays
            hot = self.hot.tables.get(of) if domain == "node" else None
            places = self._places[domain, of] = IdPlaces(self.graph, domain, of, hot)
        form = self.graph.facts.features[domain, of, name]
        return Wanted(places, name, form, check_index_tensor(text, "ids", ids), text, out)

    def check_places(self, domain: str, of: Any, name: str) -> None:
        """Raise ValueError if nothing says which part has a row of a feature."""
        if domain == "edge" and not self.graph.book.has_edges:
            raise ValueError(
                f"{_NAME}: {feature_text(domain, of, name)} cannot be read, since the partition has no edge map: which "
                "part has an edge is not known. Partition with Partitioner(..., edge_map=True)."
            )

    def read(self, wanted: Sequence[Wanted]) -> list[Tensor]:
        """Return the rows of each, and wait for the other parts in this thread."""
        reading = Reading(self.graph.peers, wanted, self.counts)
        reading.begin()
        try:
            reading.fill_here()
            for future in as_completed(reading.sent):
                reading.put(future)
        finally:
            reading.cancel()
        return reading.outs

    async def read_async(self, wanted: Sequence[Wanted]) -> list[Tensor]:
        """Return the rows of each; the event loop goes on while this part's rows are gathered and others travel."""
        reading = Reading(self.graph.peers, wanted, self.counts)
        await off_loop(reading.begin)
        try:
            await off_loop(reading.fill_here)
            for future in reading.sent:
                if await asyncio.wrap_future(future):  # else its rows were put in place as they came
                    await off_loop(reading.put, future)
        finally:
            reading.cancel()
        return reading.outs

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_places": {}}
