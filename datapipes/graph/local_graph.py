"""LocalGraph: a graph whose arrays lie in this machine's memory; the base of CSCGraph and HeteroCSCGraph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor

from datapipes.device.pinnable import Pinnable, without_pin
from datapipes.graph.edge_times import EdgeTimes, KeptTimes, edge_times
from datapipes.graph.graph import Graph
from datapipes.graph.row_weights import KeptWeights, Rows, RowWeights


class LocalGraph(Pinnable, Graph):
    """A graph whose arrays can be page-locked: those of its edges, and all attributes."""

    _weights: KeptWeights | None = None  # those that samplers have asked for
    _times: KeptTimes | None = None  # likewise

    def row_weights(self, where: str, prob_name: str, edge_type: Any = None) -> RowWeights:
        """Return the weights that an edge attribute gives, as weighted sampling reads them: running sums by row.

        Made once, O(num_edges), and again when the attribute has another tensor or was changed in place. They take 9
        bytes an edge, and 8 a node if some weight is 0. Worker processes share them as they share the graph.

        Args:
            where: who asks, for errors.
            prob_name: the attribute, [num_edges] of bool, float16, bfloat16, float32 or float64; each 0 or more.
            edge_type: one of `edge_types`.
        Raises:
            TypeError, ValueError: There is no such attribute, or it holds no weights; the message names the first wrong
                one, and its place.
            MemoryError: The sums exceed the memory that is left.
        """
        if self._weights is None:
            self._weights = KeptWeights()
        relation = self.relation(edge_type)
        rows = Rows(relation.indptr, relation.edge_attributes, int(relation.indices.shape[0]))
        return self._weights.get(where, prob_name, edge_type, rows)

    def edge_times(
        self, where: str, edge_types: Sequence[Any], *, edge_time_attr: str | None, node_time_attr: str | None
    ) -> dict[Any, EdgeTimes | None]:
        """Return the times of the in-edges of each edge type, None where neither edges nor source nodes have some.

        Made once, O(num_edges), and again when an attribute is another tensor than before, or was changed in place.
        Worker processes share them as they share the graph.

        Args:
            where: who asks, for errors.
            edge_types: of those of the graph.
            edge_time_attr, node_time_attr: the attributes that hold times, int64, one for each edge or node; or None.
        Raises:
            TypeError: Times are not int64.
            ValueError: They have another shape, or lie on a device; or none of the edge types has the attribute.
            MemoryError: They exceed the memory that is left.
        """
        if self._times is None:
            self._times = KeptTimes()
        return edge_times(
            where, self, edge_types, edge_time_attr=edge_time_attr, node_time_attr=node_time_attr, kept=self._times
        )

    def _pinned_tensors(self) -> Iterator[Tensor]:
        for edge_type in self.edge_types:
            relation = self.relation(edge_type)
            yield from (relation.indptr, relation.indices)
            if relation.edge_ids is not None:
                yield relation.edge_ids
            yield from relation.edge_attributes.values()
        for node_type in self.node_types:
            yield from self.node_attributes_of(node_type).values()

    def __getstate__(self) -> dict[str, Any]:
        return without_pin(super().__getstate__())
