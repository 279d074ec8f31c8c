"""LocalGraph: a graph whose arrays lie in this machine's memory; the base of CSCGraph and HeteroCSCGraph."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from datapipes.device.pinnable import Pinnable, without_pin
from datapipes.graph.graph import Graph


class LocalGraph(Pinnable, Graph):
    """A graph whose arrays can be page-locked: those of its edges, and all attributes."""

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
