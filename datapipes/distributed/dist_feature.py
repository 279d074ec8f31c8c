"""DistFeature: one feature of a DistFeatureStore."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.distributed.row_reader import RowReader
from datapipes.features.feature import Feature
from datapipes.features.feature_store import feature_text
from datapipes.features.given_rows import check_out


class DistFeature(Feature):
    """One feature of a graph in parts; the store's `read_many` reads several with fewer requests.

    Attributes:
        domain: "node" or "edge".
        of: a node type or edge type, or None.
        name: its name.
    """

    def __init__(self, reader: RowReader, domain: str, of: Any, name: str) -> None:
        self._reader, self.domain, self.of, self.name = reader, domain, of, name
        self._form = reader.graph.facts.features[domain, of, name]

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, see Feature.read; each part that has some of them is asked once.

        Args:
            out: memory for the rows, which is filled and returned: [n, *shape] of the same dtype, contiguous, in host
                memory. It may be half filled if there is an error.
        """
        wanted = self._reader.wanted(self.domain, self.of, self.name, ids, out)
        if out is not None:
            check_out(wanted.text, out, wanted.ids.shape[0], self.shape, self.dtype)
        return self._reader.read([wanted])[0]

    @property
    def count(self) -> int:
        """Number of rows: nodes, or edge ids, of the whole graph.

        Raises:
            ValueError: It is a feature of edges, and the partition has no edge map.
        """
        graph = self._reader.graph
        if self.domain == "node":
            return graph.facts.num_nodes[self.of]
        self._reader.check_places(self.domain, self.of, self.name)
        return graph.book.edges(self.of).num_ids

    @property
    def shape(self) -> tuple[int, ...]:
        return self._form.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._form.dtype

    def __repr__(self) -> str:
        form = f"{self._form.dtype} {[*self.shape]}"
        return f"DistFeature({feature_text(self.domain, self.of, self.name)}, rows of {form})"
