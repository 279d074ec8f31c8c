"""CSCGraph: a homogeneous graph, stored by destination.

The in-edges of node v are `indices[indptr[v]:indptr[v + 1]]`; their order is part of the graph. The constructor checks
shapes, dtypes and the ends of `indptr` in O(1) reads, so a memory-mapped graph opens at once. `validate()` reads the
whole graph. Kernels check every offset and id they read, so an inconsistent graph raises an error and never crashes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_index_tensor, dtype_name, shown
from datapipes.base.codec import probe_digest
from datapipes.base.other_names import OtherNames
from datapipes.graph import convert, storage
from datapipes.graph.arrays import CSCArrays

if TYPE_CHECKING:
    import networkx
    import scipy.sparse
    import torch_geometric.data

__all__ = ["CSCGraph"]

_Arrays = tuple[NDArray[np.int64], NDArray[Any], "NDArray[np.int64] | None"]


class CSCGraph(OtherNames):
    """A homogeneous graph as compressed sparse columns; tensors or NumPy arrays, viewed without a copy.

    Args:
        indptr: int64 (or int32, converted) [num_nodes + 1], from 0 up to num_edges, not descending.
        indices: int32 or int64 [num_edges], the source of each in-edge. Sampled ids have this dtype.
        node_attributes: {name: [num_nodes, ...]}.
        edge_attributes: {name: [num_edges, ...]}, aligned with `indices`.
        edge_ids: int64 [num_edges] or None; the id of the edge at each position, by default the position. Edge
            features are looked up by this id.
    Raises:
        TypeError, ValueError: Shapes, dtypes or the ends of indptr do not fit; the message says what is allowed.
    """

    def __init__(
        self,
        indptr: Tensor | NDArray[Any],
        indices: Tensor | NDArray[Any],
        *,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
        edge_ids: Tensor | NDArray[Any] | None = None,
    ) -> None:
        self.indptr = check_index_tensor("CSCGraph", "indptr", indptr).long()
        self.indices = check_index_tensor("CSCGraph", "indices", indices)
        if self.indptr.numel() == 0:
            raise ValueError(
                "CSCGraph: indptr is empty; it needs num_nodes + 1 entries, the first of them 0. A graph without "
                "nodes has [0]."
            )
        first, last = int(self.indptr[0]), int(self.indptr[-1])
        if first != 0 or last != self.num_edges:
            raise ValueError(
                f"CSCGraph: indptr goes from {first} to {last}; it must go from 0 to the number of indices, "
                f"{self.num_edges}. Rebuild the offsets, or use CSCGraph.from_edge_index."
            )
        self.node_attributes = _check_attributes("node", node_attributes, self.num_nodes)
        self.edge_attributes = _check_attributes("edge", edge_attributes, self.num_edges)
        self.edge_ids = None if edge_ids is None else _check_edge_ids(edge_ids, self.num_edges)
        self._arrays: _Arrays | None = None
        self._digest: str | None = None

    @property
    def num_nodes(self) -> int:
        """Number of nodes."""
        return int(self.indptr.shape[0]) - 1

    @property
    def num_edges(self) -> int:
        """Number of edges; each parallel edge counts."""
        return int(self.indices.shape[0])

    def arrays(self) -> _Arrays:
        """Return (indptr, indices, edge_ids or None) as NumPy views for the kernels."""
        if self._arrays is None:
            edge_ids = None if self.edge_ids is None else self.edge_ids.numpy()
            self._arrays = (self.indptr.numpy(), self.indices.numpy(), edge_ids)
        return self._arrays

    def validate(self) -> CSCGraph:
        """Check the whole graph and return it.

        Raises:
            ValueError: indptr descends, a neighbor is no node, or an edge id is negative. The message names the first
                wrong entry.
        """
        indptr, indices, edge_ids = self.arrays()
        _core.validate_csc(indptr, indices)
        if edge_ids is not None and edge_ids.size > 0 and edge_ids.min() < 0:
            place = int(edge_ids.argmin())
            raise ValueError(
                f"graph: edge_ids[{place}] is {edge_ids[place]}, which must be 0 or more. Rebuild the ids."
            )
        return self

    def with_index_dtype(self, dtype: torch.dtype) -> CSCGraph:
        """Return the graph with `indices` as int32 (half the memory and traffic) or int64; other arrays are shared.

        Raises:
            ValueError: The node ids do not fit into int32.
        """
        if dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"graph: index dtype must be torch.int32 or torch.int64, got {shown(dtype)}. Pass one of them."
            )
        if dtype == torch.int32 and self.num_nodes > 2**31 - 1:
            raise ValueError(
                f"graph: {self.num_nodes} nodes do not fit into int32, which holds {2**31 - 1}. Keep torch.int64."
            )
        indices = self.indices
        if dtype != indices.dtype:  # converted by NumPy, which asks for huge pages; torch does not
            indices = torch.from_numpy(indices.numpy().astype(np.int32 if dtype == torch.int32 else np.int64))
        return CSCGraph(
            self.indptr,
            indices,
            node_attributes=self.node_attributes,
            edge_attributes=self.edge_attributes,
            edge_ids=self.edge_ids,
        )

    def digest(self) -> str:
        """Return a digest of the topology (codec.probe_digest); computed once."""
        if self._digest is None:
            self._digest = probe_digest((self.indptr, self.indices, self.edge_ids), as_int64=True)
        return self._digest

    @cached_property
    def max_edge_id(self) -> int:
        """Largest edge id, -1 without edges. Computed once; O(num_edges) if the graph has edge_ids, else O(1)."""
        if self.edge_ids is None or self.num_edges == 0:
            return self.num_edges - 1
        return int(self.edge_ids.max())

    # --- converters and storage, implemented in convert.py and storage.py

    @classmethod
    def from_edge_index(
        cls,
        edge_index: Tensor | NDArray[Any],
        num_nodes: int | None = None,
        *,
        node_attributes: Mapping[str, Any] | None = None,
        edge_attributes: Mapping[str, Any] | None = None,
    ) -> CSCGraph:
        """Return the graph of `edge_index`, int32 or int64 [2, num_edges]: row 0 the sources, row 1 the destinations.

        The sort is stable: in-edges of a node keep the order of their columns. The id of an edge is its column, so edge
        features in the order of `edge_index` can be used as they are. `edge_attributes` are given in that order too and
        moved to CSC order. `num_nodes` defaults to the largest id plus 1.
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
        cls, graph: networkx.Graph, *, node_attributes: tuple[str, ...] = (), edge_attributes: tuple[str, ...] = ()
    ) -> CSCGraph:
        """Return the graph of a networkx graph.

        Nodes are numbered in the order of `graph.nodes`. An undirected edge becomes one edge in each direction.

        Args:
            node_attributes, edge_attributes: names of numeric attributes to copy; every node (edge) must have them.
        """
        return cls._of(convert.from_networkx(graph, node_attributes, edge_attributes))

    @classmethod
    def from_pyg(cls, data: torch_geometric.data.Data) -> CSCGraph:
        """Return the graph of a PyG `Data`; its node-level and edge-level tensors become attributes."""
        return cls._of(convert.from_pyg(data))

    def save(self, path: str | Path) -> None:
        """Write the graph to the folder `path`: .npy files, and graph.json that names them.

        Raises:
            FileExistsError: The folder holds a graph already.
        """
        arrays = CSCArrays(self.indptr, self.indices, self.edge_ids, self.node_attributes, self.edge_attributes)
        storage.save(arrays, Path(path))

    @classmethod
    def open(cls, path: str | Path, mmap: bool = True) -> CSCGraph:
        """Return the graph that `save` wrote to the folder `path`.

        With `mmap` the arrays stay on disk and processes share their pages. Mapped files must keep their size while
        they are in use: a read past the end of a truncated file kills the process (SIGBUS), and no library can turn
        that into an error. Write a new folder instead of changing one, or use mmap=False.

        Raises:
            FileNotFoundError: There is no graph at `path`.
            ValueError: A file is truncated, corrupt, no regular file, or does not fit the others; the message names it.
            MemoryError: The arrays exceed the memory that is left (without `mmap`).
            OSError: No descriptor is left. With `mmap` each array keeps one.
        """
        arrays, promised = storage.load(Path(path), mmap)
        try:
            graph = cls._of(arrays)
            if (graph.num_nodes, graph.num_edges) != promised:
                raise ValueError(f"{shown(graph)} in the files")
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"CSCGraph.open: the arrays in {path} do not fit {storage.HEADER}: {error}. Save it again."
            ) from error
        return graph

    @classmethod
    def _of(cls, arrays: CSCArrays) -> CSCGraph:
        return cls(
            arrays.indptr,
            arrays.indices,
            node_attributes=arrays.node_attributes,
            edge_attributes=arrays.edge_attributes,
            edge_ids=arrays.edge_ids,
        )

    def __repr__(self) -> str:
        attributes = "".join(
            f", {kind}_attributes={sorted(given)}"
            for kind, given in (("node", self.node_attributes), ("edge", self.edge_attributes))
            if given
        )
        return f"CSCGraph({self.num_nodes} nodes, {self.num_edges} edges, {dtype_name(self.indices.dtype)}{attributes})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_arrays": None}


def _check_attributes(kind: str, attributes: Mapping[str, Any] | None, count: int) -> dict[str, Tensor]:
    checked = {}
    if attributes is not None and not isinstance(attributes, Mapping):
        raise TypeError(
            f"CSCGraph: {kind}_attributes must be a dict {{name: values}}, got {type(attributes).__name__}. Pass one."
        )
    for name, value in (attributes or {}).items():
        if not isinstance(name, str):
            raise TypeError(f"CSCGraph: names of {kind} attributes must be str, got {shown(name)}. Pass a str.")
        tensor = as_tensor("CSCGraph", f"{kind} attribute {name!r}", value)
        if tensor.ndim == 0 or tensor.shape[0] != count:
            raise ValueError(
                f"CSCGraph: {kind} attribute {name!r} has shape {list(tensor.shape)}; its first size must be {count}, "
                f"one row for each {kind}. Check that it belongs to this graph."
            )
        checked[name] = tensor
    return checked


def _check_edge_ids(edge_ids: Tensor | NDArray[Any], num_edges: int) -> Tensor:
    ids = check_index_tensor("CSCGraph", "edge_ids", edge_ids).long()
    if ids.shape[0] != num_edges:
        raise ValueError(
            f"CSCGraph: {ids.shape[0]} edge_ids for {num_edges} edges; give one for each, or None for the positions."
        )
    return ids
