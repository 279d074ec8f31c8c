"""CSCGraph: a homogeneous graph, stored by destination.

The in-edges of node v are `indices[indptr[v]:indptr[v + 1]]`; their order is part of the graph. The constructor checks
shapes, dtypes and the ends of `indptr` in O(1) reads, so a memory-mapped graph opens at once. `validate()` reads the
whole graph. Kernels check every offset and id they read, so an inconsistent graph raises an error and never crashes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.checks import check_int, dtype_name
from datapipes.graph import convert
from datapipes.graph import from_networkx as networkx_graphs
from datapipes.graph.arrays import ByType, GraphArrays
from datapipes.graph.checks import MAX_NODES, check_attributes, check_csc, check_edge_ids
from datapipes.graph.local_graph import LocalGraph
from datapipes.graph.storage import FORMAT

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    import torch_geometric.data

__all__ = ["CSCGraph"]

_Arrays = tuple[NDArray[np.int64], NDArray[Any], "NDArray[np.int64] | None"]


class CSCGraph(LocalGraph):
    """A homogeneous graph as compressed sparse columns. Tensors and NumPy arrays are not copied.

    Args:
        indptr: int64 (or int32, converted) [num_nodes + 1], from 0 up to num_edges, not descending.
        indices: int32 or int64 [num_edges], the source of each in-edge. Sampled ids have this dtype.
        node_attributes: {name: [num_nodes, ...]}.
        edge_attributes: {name: [num_edges, ...]}, aligned with `indices`.
        edge_ids: int64 [num_edges], the id of the edge at each position; None: the id is the position. Edge features
            are looked up by this id.
    Raises:
        TypeError, ValueError: Shapes, dtypes or the ends of indptr do not fit; the message says what is allowed.
    """

    _saved_as = FORMAT

    def __init__(
        self,
        indptr: Tensor | NDArray[Any],
        indices: Tensor | NDArray[Any],
        *,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
        edge_ids: Tensor | NDArray[Any] | None = None,
    ) -> None:
        self.indptr, self.indices = check_csc("CSCGraph", indptr, indices)
        self.node_attributes = check_attributes("CSCGraph", "node", node_attributes, self.num_nodes)
        self.edge_attributes = check_attributes("CSCGraph", "edge", edge_attributes, self.num_edges)
        self.edge_ids = check_edge_ids("CSCGraph", edge_ids, self.num_edges)

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges; parallel edges count separately."""
        return int(self.indices.shape[0])

    def _by_type(self) -> ByType:
        return ByType({None: self.num_nodes}, {None: self}, {None: self.node_attributes})

    def arrays(self) -> _Arrays:
        """Return (indptr, indices, edge_ids or None) as NumPy views for the kernels."""
        edge_ids = None if self.edge_ids is None else self.edge_ids.numpy()
        return self.indptr.numpy(), self.indices.numpy(), edge_ids

    @property
    def max_edge_id(self) -> int:
        """Largest edge id, -1 without edges. Computed once: in O(num_edges) if the graph has edge_ids, else in O(1)."""
        return self.max_edge_id_of(None)

    # --- building, implemented in ingest/build.py and convert.py

    @classmethod
    def build(
        cls,
        edges: Any,
        folder: str | Path,
        num_nodes: int,
        *,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
        index_dtype: torch.dtype | str = "auto",
        edge_ids: bool = False,
        max_memory: int | str = "4GB",
    ) -> CSCGraph:
        """Write the graph of `edges` to `folder`, in bounded memory, and return it, memory-mapped.

        The graph equals that of `from_edge_index`, to the bit: the sort is stable. To continue a killed build, call
        `build` again with the same arguments. If `folder` already has the complete graph of the same files, that graph
        is opened. The build needs free disk space of about twice the bytes of the graph.

        Args:
            edges: the sources and destinations. An array [2, num_edges], sources first, or [num_edges, 2], or the path
                of a .npy file of either. Or a pair (sources, destinations) of arrays or of paths of .npy files.
                Or a file of pairs with the suffix .int32 or .int64. Or a Parquet or CSV file with the columns "src" and
                "dst", or with only two columns; a first line with letters is a header, and without a header
                the first two columns are used. Or a folder of files of one of these kinds, read in the order of names.
                Or the URI of Parquet or CSV files or of their folder, as "gs://bucket/edges/".
                Or an iterable of chunks [2, n] or ([2, n], {name: values}), or a callable that returns one.
            folder: a new or empty folder, or the folder of the same graph.
            node_attributes: {name: values [num_nodes, ...], or the path of a .npy file}.
            edge_attributes: {name: values [num_edges, ...], the path of a .npy file, or the name of a column of the
                table}, in the order of `edges`; the values are moved with the edges.
            index_dtype: dtype of `indices`, torch.int32, torch.int64 or the name; "auto" means int32 if the ids fit.
            edge_ids: True: the id of an edge is its position in `edges`; takes 8 bytes an edge. False: the id is the
                position in the graph, and edge features in the order of `edges` must be given as `edge_attributes`.
            max_memory: bytes that the build may take beyond the present memory of the process: "4GB", or an int.
        Raises:
            IndexError: An end of an edge is no node.
            ValueError, TypeError: `edges` is none of the above, or differs from the edges of a killed build; a file was
                truncated, or changed at its URI while it was read.
            FileExistsError: The folder has other contents.
            BlockingIOError: Another process is writing to the folder.
            OSError: The disk is full, or a file cannot be read. The files of the build are then removed.
            ModuleNotFoundError: The package that reads tables, or the package that reads URIs, is not installed.
        """
        from datapipes.ingest.build import Wanted, build_graph  # an annex

        count = check_int("CSCGraph.build", "num_nodes", num_nodes, 0, MAX_NODES)
        attributes = {None: edge_attributes or {}}, {None: node_attributes or {}}
        build_graph(
            FORMAT, folder, Wanted({None: edges}, {None: count}, *attributes, index_dtype, edge_ids, max_memory)
        )
        return cls.open(folder)

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor | NDArray[Any] | Sequence[Any],
        num_nodes: int | None = None,
        *,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
    ) -> CSCGraph:
        """Return the graph of `edge_index`, int32 or int64 [2, num_edges]: row 0 the sources, row 1 the destinations.

        The sort is stable: in-edges of a node keep the order of their columns. The id of an edge is its column, so edge
        features in the order of `edge_index` can be used as they are. `edge_attributes` are given in that order too and
        moved to CSC order. `num_nodes` defaults to the largest id plus 1. Nested lists of ints, and a pair (sources,
        destinations), are copied.

        Raises:
            TypeError: `edge_index` is neither int32 nor int64.
            ValueError: `edge_index` has another shape, or attributes do not have one row for each node or edge.
        """
        return cls._of(convert.from_edge_index(edge_index, num_nodes, node_attributes, edge_attributes))

    @classmethod
    def from_scipy(cls, matrix: scipy.sparse.spmatrix | scipy.sparse.sparray) -> CSCGraph:
        """Return the graph of a square sparse matrix.

        An entry at (u, v) is an edge from u to v; its value is the edge attribute "weight".
        """
        return cls._of(convert.from_scipy(matrix))

    @classmethod
    def from_networkx(
        cls, graph: networkx.Graph, *, node_attributes: Iterable[str] = (), edge_attributes: Iterable[str] = ()
    ) -> CSCGraph:
        """Return the graph of a networkx graph.

        Nodes are numbered in the order of `graph.nodes`. An undirected edge becomes one edge in each direction.

        Args:
            node_attributes, edge_attributes: a list of names of numeric attributes to copy; every node (edge) must have
                them.
        """
        return cls._of(networkx_graphs.from_networkx(graph, node_attributes, edge_attributes))

    @classmethod
    def from_pyg(cls, data: torch_geometric.data.Data) -> CSCGraph:
        """Return the graph of a PyG `Data`; its node-level and edge-level tensors become attributes.

        Raises:
            TypeError: `edge_index` is a list, or is neither int32 nor int64.
            ValueError: The shape of `edge_index` is not [2, num_edges]; or `x`, `edge_attr` or `edge_weight` does not
                have one row for each node or edge.
        """
        return cls._of(convert.from_pyg(data))

    @classmethod
    def _of(cls, arrays: GraphArrays) -> CSCGraph:
        indptr, indices = arrays.relations[None]
        return cls(
            indptr,
            indices,
            node_attributes=arrays.node_attributes[None],
            edge_attributes=arrays.edge_attributes[None],
            edge_ids=arrays.edge_ids.get(None),
        )

    def __repr__(self) -> str:
        attributes = "".join(
            f", {kind}_attributes={sorted(values)}"
            for kind, values in (("node", self.node_attributes), ("edge", self.edge_attributes))
            if values
        )
        return f"CSCGraph({self.num_nodes} nodes, {self.num_edges} edges, {dtype_name(self.indices.dtype)}{attributes})"
