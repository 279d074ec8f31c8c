"""HeteroCSCGraph: a graph with types of nodes and edges; each edge type is stored by destination, as in a CSCGraph.

The in-edges of node v along (src, rel, dst) are `indices[indptr[v]:indptr[v + 1]]` of that relation: v is a node of
`dst`, the entries are nodes of `src`. Nodes are numbered from 0 within their type. As in CSCGraph, the constructor
reads O(1) values of each relation; `validate()` reads the whole graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name
from datapipes.base.types import EdgeType, by_edge_type, known_node_type
from datapipes.graph import convert
from datapipes.graph import from_networkx as networkx_graphs
from datapipes.graph.arrays import ByType, GraphArrays, TypedRelation
from datapipes.graph.checks import (
    check_attributes,
    check_index_dtype,
    check_mapping,
    check_num_nodes,
    check_relation,
    of_known_edge_types,
    refuse_mixed_dtypes,
)
from datapipes.graph.local_graph import LocalGraph
from datapipes.graph.storage import HETERO_FORMAT
from datapipes.processes.sharing import Together

if TYPE_CHECKING:
    import networkx
    import torch_geometric.data

__all__ = ["HeteroCSCGraph"]

_NAME = "HeteroCSCGraph"
MOST_EDGE_TYPES = 2**16  # the limit of the random key

ByEdgeType = Mapping[EdgeType, Any] | Mapping[str, Any]  # the text "src:rel:dst" is accepted too


class HeteroCSCGraph(LocalGraph):
    """A heterogeneous graph as compressed sparse columns by edge type. Tensors and NumPy arrays are not copied.

    An edge type is a tuple (src, rel, dst) of three texts; the middle one names the relation. Wherever this class takes
    a tuple, it takes the text "src:rel:dst" too, if the text splits in one way only. Several edge types may join the
    same node types, and src may equal dst.

    Worker processes get a copy of all arrays, hundreds for a hundred relations, in one shared memory. All workers and
    loaders share this copy, and it is freed after the last of them has ended; until then it takes memory besides the
    arrays of this process. A graph that was opened from files with `mmap` needs no copy.

    Args:
        relations: {(src, rel, dst): (indptr, indices)}; at most 65,536 edge types.
            indptr: int64 (or int32, converted) [num_nodes[dst] + 1], from 0 up to the number of edges, not descending.
            indices: int32 or int64 [num_edges], the node of src at the other end of each in-edge. All relations and
            sampled ids have one dtype, so no node type may have more nodes than this dtype holds.
        num_nodes: {node type: number}, for both ends of every edge type. It may name types without edges, too.
        node_attributes: {node type: {name: [num_nodes, ...]}}.
        edge_attributes: {edge type: {name: [num_edges, ...]}}, aligned with `indices`.
        edge_ids: {edge type: int64 [num_edges]}, the id of the edge at each position; by default the position. Each
            edge type has ids of its own. Edge features are looked up by these ids.
    Raises:
        TypeError, ValueError: Shapes, dtypes, the ends of indptr or the types do not fit; the message says what is
            allowed, and names the nearest type if a type is unknown.

    Attributes:
        node_attributes: {node type: {name: tensor}}; each node type has an entry.
        edge_attributes: {edge type: {name: tensor}}; each edge type has an entry.
    """

    _saved_as = HETERO_FORMAT

    def __init__(
        self,
        relations: Mapping[EdgeType, tuple[Any, Any]] | Mapping[str, tuple[Any, Any]],
        num_nodes: Mapping[str, int],
        *,
        node_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        edge_attributes: ByEdgeType | None = None,
        edge_ids: ByEdgeType | None = None,
    ) -> None:
        self._num_nodes = check_num_nodes(num_nodes)
        form = "{edge type: (indptr, indices)}"
        by_type = by_edge_type(_NAME, check_mapping(_NAME, "relations", relations, form, optional=False))
        if len(by_type) > MOST_EDGE_TYPES:
            raise ValueError(
                f"{_NAME}: {len(by_type)} edge types; at most {MOST_EDGE_TYPES} are allowed. Merge some, and put their "
                "names into an edge attribute."
            )
        ids = of_known_edge_types("edge_ids", edge_ids, by_type, "{edge type: ids}")
        attributes = of_known_edge_types("edge_attributes", edge_attributes, by_type, "{edge type: {name: values}}")
        self._relations = {
            edge_type: check_relation(edge_type, arrays, self._num_nodes, ids.get(edge_type), attributes.get(edge_type))
            for edge_type, arrays in by_type.items()
        }
        refuse_mixed_dtypes(self._relations)
        self.node_attributes: dict[str, dict[str, Tensor]] = {}
        check_index_dtype(self.index_dtype, max(self._num_nodes.values(), default=0))
        of_nodes = check_mapping(_NAME, "node_attributes", node_attributes, "{node type: {name: values}}")
        for node_type in of_nodes:
            known_node_type(f"{_NAME}, node_attributes", node_type, self._num_nodes)
        for node_type, count in self._num_nodes.items():
            attributes_of_type = check_attributes(_NAME, "node", of_nodes.get(node_type), count, node_type)
            self.node_attributes[node_type] = attributes_of_type

    @property
    def num_nodes(self) -> dict[str, int]:
        """The number of nodes of each node type."""
        return dict(self._num_nodes)

    @property
    def num_edges(self) -> dict[EdgeType, int]:
        """The number of edges of each edge type; parallel edges count separately."""
        return {edge_type: relation.num_edges for edge_type, relation in self._relations.items()}

    @property
    def edge_attributes(self) -> dict[EdgeType, dict[str, Tensor]]:
        """{edge type: {name: [num_edges, ...]}}, aligned with `indices`; each edge type has an entry."""
        return {edge_type: relation.edge_attributes for edge_type, relation in self._relations.items()}

    # --- building, implemented in ingest/build.py and convert.py

    @classmethod
    def build(
        cls,
        edges: ByEdgeType,
        folder: str | Path,
        num_nodes: Mapping[str, int],
        *,
        node_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        edge_attributes: ByEdgeType | None = None,
        index_dtype: torch.dtype | str = "auto",
        edge_ids: bool = False,
        max_memory: int | str = "4GB",
    ) -> HeteroCSCGraph:
        """Write the graph of {edge type: edges} to `folder`, in bounded memory, and return it, memory-mapped.

        The graph equals that of `from_edge_index`, to the bit. The edges of each type and the other arguments are as in
        CSCGraph.build; attributes are {type: {name: values}}.

        Raises:
            ValueError: `num_nodes` lacks a type; see also CSCGraph.build.
        """
        from datapipes.ingest.build import Wanted, build_graph  # an annex

        where, form = f"{_NAME}.build", "{edge type: edges}"
        by_type = by_edge_type(where, check_mapping(where, "edges", edges, form, optional=False))
        counts = check_num_nodes(num_nodes)
        for edge_type in by_type:
            for end in (edge_type[0], edge_type[2]):
                known_node_type(f"{where}, num_nodes for {edge_type}", end, counts)
        of_edges = of_known_edge_types("edge_attributes", edge_attributes, by_type, "{edge type: {name: values}}")
        of_nodes = check_mapping(where, "node_attributes", node_attributes, "{node type: {name: values}}")
        for node_type in of_nodes:
            known_node_type(f"{where}, node_attributes", node_type, counts)
        wanted = Wanted(by_type, counts, of_edges, of_nodes, index_dtype, edge_ids, max_memory)
        build_graph(HETERO_FORMAT, folder, wanted)
        return cls.open(folder)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: ByEdgeType,
        num_nodes: Mapping[str, int] | None = None,
        *,
        node_attributes: Mapping[str, Mapping[str, Any]] | None = None,
        edge_attributes: ByEdgeType | None = None,
    ) -> HeteroCSCGraph:
        """Return the graph of {edge type: edge_index}, int32 or int64 [2, num_edges]: sources, then destinations.

        The sort is stable: in-edges of a node keep the order of their columns. The id of an edge is its column in the
        edge_index of its type, so edge features in that order can be used as they are. `edge_attributes` are given in
        that order too and moved to CSC order.

        `num_nodes` must name both ends of every edge type. With None, a type has as many nodes as its largest id in any
        edge type plus 1. A node with a larger id, which has no edge, is then no node of the graph: as a seed it raises
        IndexError. So give the numbers if some nodes may have no edge.

        Raises:
            IndexError: An end of an edge is no node of its type; the message names the first.
            ValueError: `num_nodes` lacks a type of an edge type; the message names the nearest.
        """
        return cls._of(convert.hetero_from_edge_index(edge_index, num_nodes, node_attributes, edge_attributes))

    @classmethod
    def from_scipy(cls, matrices: ByEdgeType) -> HeteroCSCGraph:
        """Return the graph of {edge type: sparse matrix}, which need not be square.

        An entry at (u, v) of the matrix of (src, rel, dst) is an edge from node u of src to node v of dst; its value is
        the edge attribute "weight".

        Raises:
            ValueError: A value is no sparse matrix, or two matrices have different numbers of nodes of one type.
        """
        return cls._of(convert.hetero_from_scipy(matrices))

    @classmethod
    def from_networkx(
        cls,
        graph: networkx.Graph,
        *,
        node_type: str,
        edge_type: str,
        node_attributes: Mapping[str, Iterable[str]] | None = None,
        edge_attributes: ByEdgeType | None = None,
    ) -> HeteroCSCGraph:
        """Return the graph of a networkx graph whose nodes and edges name their types; multigraphs too.

        Nodes are numbered within their type, in the order of `graph.nodes`. An undirected edge becomes one edge in each
        direction: between types a and b, one of the type (a, rel, b) and one of the type (b, rel, a).

        Args:
            node_type: name of the attribute that holds the type of a node, a text.
            edge_type: name of the attribute that holds the relation of an edge, a text. With the types of its ends
                it makes the edge type (src, rel, dst).
            node_attributes: {node type: names of numeric attributes to copy}; every node of the type must have them.
            edge_attributes: {edge type: names of numeric attributes to copy}; every edge of the type must have them.
        """
        return cls._of(
            networkx_graphs.hetero_from_networkx(
                graph, node_type, edge_type, node_attributes or {}, edge_attributes or {}
            )
        )

    @classmethod
    def from_pyg(cls, data: torch_geometric.data.HeteroData) -> HeteroCSCGraph:
        """Return the graph of a PyG `HeteroData`; its node-level and edge-level tensors become attributes.

        A node type without any tensor or `num_nodes` has as many nodes as the largest id of its edges plus 1. The
        errors are the same as in CSCGraph.from_pyg.
        """
        return cls._of(convert.hetero_from_pyg(data))

    @classmethod
    def _of(cls, arrays: GraphArrays) -> HeteroCSCGraph:
        return cls(
            arrays.relations,
            arrays.num_nodes,
            node_attributes=arrays.node_attributes,
            edge_attributes=arrays.edge_attributes,
            edge_ids=arrays.edge_ids,
        )

    def _by_type(self) -> ByType:
        return ByType(self._num_nodes, self._relations, self.node_attributes)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state with all tensors together, so that workers get them in one shared memory."""
        arrays = {(kind, type_, name): values for kind, type_, name, values in self._arrays().each()}
        replaced = {"_relations": [*self._relations], "node_attributes": [*arrays]}
        return {**super().__getstate__(), **replaced, "tensors": Together([*arrays.values()])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        tensors = state.pop("tensors")
        self.__dict__.update(state)
        by_place = dict(zip(state["node_attributes"], tensors, strict=True))
        arrays = GraphArrays.of(self._num_nodes, state["_relations"], by_place)
        self._relations = {
            kind: TypedRelation(*ends, arrays.edge_ids.get(kind), arrays.edge_attributes[kind])
            for kind, ends in arrays.relations.items()
        }
        self.node_attributes = {**arrays.node_attributes}

    def __repr__(self) -> str:
        return (
            f"{_NAME}({len(self._num_nodes)} node types, {len(self._relations)} edge types, "
            f"{sum(self._num_nodes.values())} nodes, {sum(self.num_edges.values())} edges, "
            f"{dtype_name(self.index_dtype)})"
        )
