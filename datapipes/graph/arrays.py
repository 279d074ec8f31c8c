"""The arrays of a graph, as converters return them and as storage reads and writes them; their names in digests and
errors, and the digest of a graph, given theirs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.array_digest import array_digest
from datapipes.base.types import EdgeType, NodeType

TOPOLOGY = ("indptr", "indices", "edge_ids")  # kinds of arrays; int32 ids count as int64 ones in their digests


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
        for edge_type, (indptr, indices) in self.relations.items():
            yield "indptr", edge_type, "", indptr
            yield "indices", edge_type, "", indices
            if edge_type in self.edge_ids:
                yield "edge_ids", edge_type, "", self.edge_ids[edge_type]
            for name, values in self.edge_attributes[edge_type].items():
                yield "edge_attributes", edge_type, name, values
        for node_type in self.num_nodes:
            for name, values in self.node_attributes[node_type].items():
                yield "node_attributes", node_type, name, values


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


def graph_digest(
    num_nodes: Mapping[NodeType | None, int], relations: Mapping[EdgeType | None, Sequence[str | None]]
) -> str:
    """Return `Graph.digest` of a graph, 32 hexadecimal digits.

    Args:
        num_nodes: {node type: number}, sorted.
        relations: {edge type: the array_digest of each array of TOPOLOGY, None for one that is not there}, sorted.
    """
    facts = [[*num_nodes.items()], [[edge_type, *digests] for edge_type, digests in relations.items()]]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def array_name(kind: str, type_: Any, name: str | None = None) -> str:
    """Return the name of an array of a kind, as storage has them, of a type; `name` is that of an attribute."""
    text = kind if kind in TOPOLOGY else f"{kind.removesuffix('s').replace('_', ' ')} {name!r}"
    return text if type_ is None else f"{text} of {type_!r}"


def written_digest(kind: str, values: Tensor) -> str:
    """Return the digest that a folder has of an array of this kind."""
    return array_digest(values, as_int64=kind in TOPOLOGY)
