"""Convert graphs of other libraries to the arrays of a CSCGraph; all converters use one stable sort by destination.

The converters return plain tensors, so this module does not need the CSCGraph class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INDEX_DTYPES, as_tensor, check_int, dtype_name
from datapipes.base.sizes import check_memory
from datapipes.graph.arrays import CSCArrays
from datapipes.graph.checks import MAX_NODES


def from_edge_index(
    edge_index: Any,
    num_nodes: int | None = None,
    node_attributes: Mapping[str, Any] | None = None,
    edge_attributes: Mapping[str, Any] | None = None,
) -> CSCArrays:
    """See CSCGraph.from_edge_index."""
    if isinstance(edge_index, Mapping):
        raise TypeError(
            "from_edge_index: edge_index of a CSCGraph must be a tensor [2, num_edges], got a dict. For edges by type "
            "use dp.HeteroCSCGraph.from_edge_index."
        )
    edges = check_edge_index("edge_index", edge_index)
    if num_nodes is None:
        num_nodes = max(int(edges.max()) + 1, 0) if edges.numel() > 0 else 0
    check_int("from_edge_index", "num_nodes", num_nodes, 0, MAX_NODES)
    least_bytes = 8 * (num_nodes + 1 + edges.shape[1]) + edges.shape[1] * edges.element_size()
    remedy = "Renumber the nodes: an id far above their number costs memory too."
    check_memory(
        "from_edge_index", f"a graph of num_nodes={num_nodes} nodes and {edges.shape[1]} edges", least_bytes, remedy
    )
    src, dst = edges[0].contiguous().numpy(), edges[1].contiguous().numpy()
    indptr, indices, order = (torch.from_numpy(array) for array in _core.coo_to_csc(src, dst, num_nodes))
    return CSCArrays(indptr, indices, order, node_attributes, in_order(edge_attributes, order))


def check_edge_index(name: str, value: Any) -> Tensor:
    """Return an edge_index, called `name` in errors, as int32 or int64 [2, num_edges] in host memory."""
    edges = as_tensor("from_edge_index", name, value)
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise ValueError(
            f"from_edge_index: {name} must have shape [2, num_edges], got {list(edges.shape)}. Transpose it?"
        )
    if edges.dtype not in INDEX_DTYPES:
        raise TypeError(f"from_edge_index: {name} must be int32 or int64, got {dtype_name(edges.dtype)}. Call .long().")
    return edges.cpu()


def in_order(edge_attributes: Mapping[str, Any] | None, order: Tensor, of: str = "") -> dict[str, Tensor]:
    """Return edge attributes, given in the order of the columns, as the sort has moved the edges."""
    moved = {}
    for name, value in (edge_attributes or {}).items():
        tensor = as_tensor("from_edge_index", f"edge attribute {name!r}{of}", value)
        if tensor.ndim == 0 or tensor.shape[0] != order.shape[0]:
            raise ValueError(
                f"from_edge_index: edge attribute {name!r}{of} has shape {list(tensor.shape)}; its first size must be "
                f"{order.shape[0]}, one row for each column of edge_index. Check that it belongs to these edges."
            )
        moved[name] = tensor[order]
    return moved


def from_scipy(matrix: Any) -> CSCArrays:
    """See CSCGraph.from_scipy."""
    if not hasattr(matrix, "tocoo") or len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        found = getattr(matrix, "shape", type(matrix).__name__)
        raise ValueError(f"from_scipy: needs a square scipy sparse matrix, got {found}. Pass the adjacency matrix.")
    coo = matrix.tocoo()  # not tocsc, which would add up parallel edges
    edges = np.stack((coo.row, coo.col)).astype(np.int64)
    return from_edge_index(edges, int(matrix.shape[0]), edge_attributes={"weight": coo.data})


def from_networkx(graph: Any, node_attributes: tuple[str, ...], edge_attributes: tuple[str, ...]) -> CSCArrays:
    """See CSCGraph.from_networkx."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    pairs = list(graph.edges(data=True))
    edges = np.array([(number[u], number[v]) for u, v, _ in pairs], dtype=np.int64).reshape(-1, 2).T
    columns = {name: attribute_column("edge", name, [values for _, _, values in pairs]) for name in edge_attributes}
    if not graph.is_directed():
        loops = edges[0] == edges[1]  # a self-loop is not doubled
        edges = np.concatenate((edges, edges[::-1, ~loops]), axis=1)
        columns = {name: np.concatenate((column, column[~loops])) for name, column in columns.items()}
    nodes = {
        name: attribute_column("node", name, [values for _, values in graph.nodes(data=True)])
        for name in node_attributes
    }
    return from_edge_index(np.ascontiguousarray(edges), len(number), nodes, columns)


def attribute_column(kind: str, name: str, rows: list[dict[str, Any]]) -> Any:
    """Return the values of a networkx attribute as an array."""
    lacking = sum(name not in row for row in rows)
    if lacking:
        raise ValueError(
            f"from_networkx: {lacking} of {len(rows)} {kind}s lack the attribute {name!r}; all must have it. Fill it "
            "in."
        )
    return np.array([row[name] for row in rows])


def from_pyg(data: Any) -> CSCArrays:
    """See CSCGraph.from_pyg."""
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        how = "Use dp.HeteroCSCGraph.from_pyg" if hasattr(data, "node_types") else "Set data.edge_index"
        raise ValueError(f"from_pyg: needs a Data with edge_index, got {type(data).__name__} without one. {how}.")
    node_names = [name for name in data.node_attrs() if isinstance(data[name], torch.Tensor)]
    edge_names = [name for name in data.edge_attrs() if name != "edge_index" and isinstance(data[name], torch.Tensor)]
    return from_edge_index(
        edge_index, data.num_nodes, {name: data[name] for name in node_names}, {name: data[name] for name in edge_names}
    )
