"""The arrays of a graph, as converters return them and as storage reads and writes them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor


class GraphArrays(NamedTuple):
    """The arguments of a HeteroCSCGraph, unchecked; those of a CSCGraph with None for the one type of each."""

    relations: Mapping[Any, tuple[Tensor, Tensor]]
    num_nodes: Mapping[Any, int]
    edge_ids: Mapping[Any, Tensor]
    node_attributes: Mapping[Any, Any]
    edge_attributes: Mapping[Any, Any]
    digests: Mapping[str, str] = {}  # by `array_name`: those that the folder has

    def each(self) -> Iterator[tuple[str, Any, str, Tensor]]:
        """Yield kind, type, name ("" if the kind has one only) and values of each array, once all are checked."""
        for of, (indptr, indices) in self.relations.items():
            yield "indptr", of, "", indptr
            yield "indices", of, "", indices
            if of in self.edge_ids:
                yield "edge_ids", of, "", self.edge_ids[of]
            for name, values in self.edge_attributes[of].items():
                yield "edge_attributes", of, name, values
        for of in self.num_nodes:
            for name, values in self.node_attributes[of].items():
                yield "node_attributes", of, name, values


@dataclass(frozen=True, slots=True)
class TypedRelation:
    """The edges of one type; see `Relation`."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    edge_attributes: dict[str, Tensor]

    @property
    def num_edges(self) -> int:
        """Number of edges; each parallel edge counts."""
        return int(self.indices.shape[0])


def as_index_dtype(indices: Tensor, dtype: torch.dtype) -> Tensor:
    """Return neighbors as int32 or int64; they themselves if they have the dtype already."""
    if dtype == indices.dtype:
        return indices
    # Converted by NumPy, which asks for huge pages; torch does not.
    return torch.from_numpy(indices.numpy().astype(np.int32 if dtype == torch.int32 else np.int64))


def max_edge_id(edge_ids: Tensor | None, num_edges: int) -> int:
    """Return the largest edge id, -1 without edges; without ids the last position."""
    if edge_ids is None or num_edges == 0:
        return num_edges - 1
    return int(edge_ids.max())
