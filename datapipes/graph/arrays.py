"""The arrays of a graph, as converters return them and as storage reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.types import EdgeType


class CSCArrays(NamedTuple):
    """The arguments of CSCGraph, unchecked."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    node_attributes: Mapping[str, Any] | None
    edge_attributes: Mapping[str, Any] | None
    digests: Mapping[str, str] = {}  # by `array_name`: those that the folder has


class HeteroArrays(NamedTuple):
    """The arguments of HeteroCSCGraph, unchecked."""

    relations: Mapping[EdgeType, tuple[Tensor, Tensor]]
    num_nodes: Mapping[str, int]
    edge_ids: Mapping[EdgeType, Tensor]
    node_attributes: Mapping[str, Mapping[str, Any]]
    edge_attributes: Mapping[EdgeType, Mapping[str, Any]]
    digests: Mapping[str, str] = {}  # as those of CSCArrays


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
