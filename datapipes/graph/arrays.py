"""The arrays of a graph, in the classes that pass them between converters, storage and graphs.

Also the names of arrays in digests and errors, and the digest of a graph, made from the digests of its arrays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import array_digest
from datapipes.base.threads import num_threads
from datapipes.base.types import EdgeType, NodeType
from datapipes.processes.sharing import zeros_for_workers

TOPOLOGY = ("indptr", "indices", "edge_ids")  # kinds of arrays; their digests are the same for int32 and int64


class GraphArrays(NamedTuple):
    """All arrays of a graph, not checked yet: the arguments of HeteroCSCGraph.

    For a CSCGraph, None is the only node type and the only edge type.
    """

    relations: Mapping[Any, tuple[Tensor, Tensor]]
    num_nodes: Mapping[Any, int]
    edge_ids: Mapping[Any, Tensor]
    node_attributes: Mapping[Any, Any]
    edge_attributes: Mapping[Any, Any]
    digests: Mapping[str, str] = {}  # {`array_name`: digest} of arrays from a folder that has their digest

    @classmethod
    def of(
        cls, num_nodes: Mapping[Any, int], edge_types: Collection[Any], arrays: Mapping[tuple[str, Any, str], Tensor]
    ) -> GraphArrays:
        """Return the GraphArrays of `arrays`, {(kind, type, name): values}. `each` yields these items again."""
        nodes: dict[Any, dict[str, Tensor]] = {node_type: {} for node_type in num_nodes}
        edges: dict[Any, dict[str, Tensor]] = {edge_type: {} for edge_type in edge_types}
        for (kind, type_, name), values in arrays.items():
            if kind not in TOPOLOGY:
                (nodes if kind == "node_attributes" else edges)[type_][name] = values
        relations = {kind: (arrays["indptr", kind, ""], arrays["indices", kind, ""]) for kind in edge_types}
        ids = {type_: values for (kind, type_, _), values in arrays.items() if kind == "edge_ids"}
        return cls(relations, num_nodes, ids, nodes, edges)

    def each(self) -> Iterator[tuple[str, Any, str, Tensor]]:
        """Yield (kind, type, name, values) of each array; the name is "" unless the array is an attribute.

        Call it only on arrays of a checked graph: unchecked arguments may lack the entries of some types.
        """
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
    """The edges of one type of a HeteroCSCGraph. `Relation` in graph.py explains the fields."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    edge_attributes: dict[str, Tensor]

    @property
    def num_edges(self) -> int:
        """Number of edges; parallel edges count separately."""
        return int(self.indices.shape[0])


class GraphRows(NamedTuple):
    """The in-edges of all nodes of a graph along one edge type, with attributes; what a policy for drawing reads."""

    indptr: Tensor
    indices: Tensor
    edge_attributes: Mapping[str, Tensor]
    of_sources: Mapping[str, Tensor]
    num_source_values: int

    @property
    def node_ids(self) -> None:
        return None

    def source_attribute(self, name: str) -> Tensor | None:
        return self.of_sources.get(name)

    def times_of_sources(self, name: str, out: Tensor | None = None) -> Tensor:
        if out is None:
            (out,) = zeros_for_workers([((self.indices.shape[0],), torch.int64)])
        _core.fill_source_times(
            self.indices.numpy(), self.of_sources[name].numpy(), out.numpy(), num_threads=num_threads()
        )
        return out


class ByType(NamedTuple):
    """A graph as dicts by type: {node type: number of nodes}, {edge type: Relation}, {node type: {name: values}}."""

    num_nodes: Mapping[Any, int]
    relations: Mapping[Any, Any]
    node_attributes: Mapping[Any, dict[str, Tensor]]


def as_index_dtype(indices: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert `indices` to `dtype`, int32 or int64. If they have this dtype already, return the same tensor."""
    if dtype == indices.dtype:
        return indices
    # Converted by NumPy, which asks for huge pages; torch does not.
    return torch.from_numpy(indices.numpy().astype(np.int32 if dtype == torch.int32 else np.int64))


def graph_digest(
    num_nodes: Mapping[NodeType | None, int], relations: Mapping[EdgeType | None, Sequence[str | None]]
) -> str:
    """Return the digest of a graph's topology, 32 hexadecimal digits, from the digests of its arrays.

    Args:
        num_nodes: {node type: number}, sorted.
        relations: {edge type: the array_digest of indptr, indices and edge_ids, None for a missing array}, sorted.
    """
    facts = [[*num_nodes.items()], [[edge_type, *digests] for edge_type, digests in relations.items()]]
    return hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()


def array_name(kind: str, type_: Any, name: str | None = None) -> str:
    """Return how errors and digests name an array, such as "node attribute 'x' of 'paper'".

    Args:
        kind: as in graph.json: "indptr", "indices", "edge_ids", "node_attributes" or "edge_attributes".
        type_: the node type or edge type; None without types.
        name: the name of the attribute, if the array is an attribute.
    """
    text = kind if kind in TOPOLOGY else f"{kind.removesuffix('s').replace('_', ' ')} {name!r}"
    return text if type_ is None else f"{text} of {type_!r}"


def written_digest(kind: str, values: Tensor) -> str:
    """Return the digest of `values` that a saved graph stores; for ids, int32 and int64 give the same digest."""
    return array_digest(values, as_int64=kind in TOPOLOGY)
