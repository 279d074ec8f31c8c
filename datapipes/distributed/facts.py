"""PartitionFacts: what all parts of a partition agree on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes.base.types import EdgeType, NodeType
from datapipes.partition.native.part import Part


class RowForm(NamedTuple):
    """What a row of a feature is."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Bytes of a row."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class PartitionFacts:
    """What all parts of a partition agree on. Two servers with equal facts give the same bits.

    Attributes:
        num_parts: number of parts.
        num_nodes: {node type: number in the whole graph}, sorted; {None: number} without types.
        num_edges: {edge type: number in the whole graph}, sorted; {None: number} without types.
        index_dtype: torch.int32 or torch.int64, the dtype of neighbors.
        fingerprint: digest of the whole graph.
        partition_id: 16 hexadecimal digits, see Part.
        content_id: 16 hexadecimal digits, see Part.
        features: {("node" or "edge", type or None, name): form of a row}: the attributes that were partitioned.
        node_time_attr: the node attribute whose values are stored with the edges, those of the sources; or None.
    """

    num_parts: int
    num_nodes: Mapping[NodeType | None, int]
    num_edges: Mapping[EdgeType | None, int]
    index_dtype: torch.dtype
    fingerprint: str
    partition_id: str
    content_id: str
    features: Mapping[tuple[str, Any, str], RowForm]
    node_time_attr: str | None = None

    @classmethod
    def of(cls, part: Part) -> PartitionFacts:
        """Return the facts that a part knows."""
        features: dict[tuple[str, Any, str], RowForm] = {}
        for node_type in part.node_types:
            features.update(_forms("node", node_type, part.node_attributes_of(node_type)))
        for edge_type in part.edge_types:
            features.update(_forms("edge", edge_type, part.relation(edge_type).edge_attributes))
        return cls(
            part.num_parts,
            {of: part.num_nodes_of(of) for of in part.node_types},
            {of: part.num_edges_of(of) for of in part.edge_types},
            part.index_dtype,
            part.fingerprint,
            part.partition_id,
            part.content_id,
            features,
            part.node_time_attr,
        )


def _forms(domain: str, of: Any, attributes: Mapping[str, Tensor]) -> dict[tuple[str, Any, str], RowForm]:
    return {(domain, of, name): RowForm(rows.dtype, tuple(rows.shape[1:])) for name, rows in attributes.items()}
