"""Convert graphs of other libraries to the arrays of a graph; all converters use one stable sort by destination.

Graphs with types have one edge_index for each edge type. Each is sorted separately, so the order of the edge types does
not matter. The converters return plain tensors, so this module does not need the classes of graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_edge_index, check_int, check_within, shown
from datapipes.base.progress import working
from datapipes.base.sizes import check_memory
from datapipes.base.types import (
    EdgeType,
    by_edge_type,
    check_node_type,
    ends_of,
    known_edge_type,
    known_node_type,
    of_type,
)
from datapipes.graph.arrays import GraphArrays
from datapipes.graph.checks import MAX_NODES, check_mapping

_WHERE = "from_edge_index"
RENUMBER = (
    "Renumber the ids, since each id below the largest takes 8 bytes: torch.unique(edge_index, return_inverse=True)."
)
_SPLIT_FROM = 2**20  # for as many edges or more, the sort needs half a byte more an edge, and 8 bytes per 512 nodes


def from_edge_index(
    edge_index: Any,
    num_nodes: int | None = None,
    node_attributes: Mapping[str, Any] | None = None,
    edge_attributes: Mapping[str, Any] | None = None,
) -> GraphArrays:
    """Return the arrays of the graph that CSCGraph.from_edge_index builds; see there for the arguments."""
    if isinstance(edge_index, Mapping):
        raise TypeError(
            "from_edge_index: edge_index of a CSCGraph must be a tensor [2, num_edges], got a dict. For edges by type "
            "use dp.HeteroCSCGraph.from_edge_index."
        )
    edges = check_edge_index(_WHERE, "edge_index", edge_index).cpu()
    if num_nodes is None:
        num_nodes = max(int(edges.max()) + 1, 0) if edges.numel() > 0 else 0
    check_int(_WHERE, "num_nodes", num_nodes, 0, MAX_NODES)
    return _arrays({None: edges}, {None: num_nodes}, {None: node_attributes}, {None: edge_attributes or {}})


def _arrays(
    edges: Mapping[Any, Tensor],
    num_nodes: Mapping[Any, int],
    node_attributes: Mapping[Any, Any],
    edge_attributes: Mapping[Any, Mapping[str, Any]],
) -> GraphArrays:
    """Sort the edges of each type by destination, move the edge attributes with them, and return the arrays of a graph.

    Args:
        edges: {edge type: ids of the ends [2, num_edges]}.
        num_nodes: {node type: number}.
        node_attributes: {node type: {name: values}}.
        edge_attributes: {edge type: {name: values, in the order of the columns of the edges}}.
    """
    relations, ids, moved = {}, {}, {}
    for key, columns in edges.items():
        (src, dst), where = ends_of(key), _WHERE if key is None else f"{_WHERE}, {key}"
        attributes = edge_attributes.get(key, {})
        num_bytes = sum(getattr(value, "nbytes", 0) for value in attributes.values())
        sizes = num_nodes[src], num_nodes[dst]
        indptr, indices, ids[key] = sorted_by_destination(columns, *sizes, where=where, more_bytes=num_bytes)
        relations[key] = indptr, indices
        moved[key] = {name: _in_order(name, value, ids[key], key) for name, value in attributes.items()}
    return GraphArrays(relations, num_nodes, ids, node_attributes, moved)


def _in_order(name: str, values: Any, order: Tensor, edge_type: EdgeType | None) -> Tensor:
    """Reorder the values of an edge attribute from the columns of edge_index to CSC order.

    Edge i in CSC order is column `order[i]`. `name` and `edge_type` are for errors.
    """
    tensor = as_tensor(_WHERE, f"edge attribute {name!r}{of_type(edge_type)}", values)
    if tensor.ndim == 0 or tensor.shape[0] != order.shape[0]:
        raise ValueError(
            f"{_WHERE}: edge attribute {name!r}{of_type(edge_type)} has shape {list(tensor.shape)}; its first size "
            f"must be {order.shape[0]}, one row for each column of edge_index. Check that it belongs to these edges."
        )
    return tensor[order]


def sorted_by_destination(
    columns: Tensor, num_src: int, num_dst: int, *, where: str, more_bytes: int = 0, remedy: str = RENUMBER
) -> tuple[Tensor, Tensor, Tensor]:
    """Sort edges by destination, stably, and return them in CSC order as (indptr, indices, order).

    `indptr` is int64 [num_dst + 1]. `indices` [num_edges] has the sources, in the dtype of `columns`. `order` is int64
    [num_edges]: order[i] is the column of edge i.

    Args:
        columns: [2, num_edges], sources in row 0, destinations in row 1.
        num_src, num_dst: number of nodes of the source type and of the destination type.
        where: the caller, for errors.
        more_bytes: bytes of memory that the caller will need in addition.
        remedy: the end of the MemoryError, which says what to do.
    Raises:
        IndexError: An end of an edge is no node.
        MemoryError: The graph does not fit into the memory that is left.
    """
    num_edges, id_bytes = columns.shape[1], columns.element_size()
    num_bytes = 8 * (num_dst + 1) + num_edges * (8 + id_bytes) + more_bytes
    if num_edges >= _SPLIT_FROM:
        num_bytes += num_edges // 2 + num_dst // 64
    if not columns[0].is_contiguous():
        num_bytes += 2 * num_edges * id_bytes  # copies
    graph = f"a graph of {num_dst} nodes and {num_edges} edges"
    check_memory(where, graph, num_bytes, remedy)
    src, dst = columns[0].contiguous().numpy(), columns[1].contiguous().numpy()
    try:
        with working(f"sort {len(src):,} edges"):
            indptr, indices, order = _core.coo_to_csc(src, dst, num_dst, num_sources=num_src)
    except MemoryError as error:  # other processes took memory meanwhile, or the address space is fragmented
        raise MemoryError(f"{where}: {graph} needs {num_bytes} bytes, which are not left. {remedy}") from error
    return torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(order)


def from_scipy(matrix: Any) -> GraphArrays:
    """Return the arrays of the graph that CSCGraph.from_scipy builds from `matrix`."""
    if not hasattr(matrix, "tocoo") or len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        shape = getattr(matrix, "shape", type(matrix).__name__)
        raise ValueError(f"from_scipy: needs a square scipy sparse matrix, got {shape}. Pass the adjacency matrix.")
    coo = matrix.tocoo()  # not tocsc, which would add up parallel edges
    edges = np.stack((coo.row, coo.col)).astype(np.int64)
    return from_edge_index(edges, int(matrix.shape[0]), edge_attributes={"weight": coo.data})


def from_pyg(data: Any) -> GraphArrays:
    """Return the arrays of the graph that CSCGraph.from_pyg builds from `data`."""
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        how = "Use dp.HeteroCSCGraph.from_pyg" if hasattr(data, "node_types") else "Set data.edge_index"
        raise ValueError(f"from_pyg: needs a Data with edge_index, got {type(data).__name__} without one. {how}.")
    edge_index = columns_of("from_pyg", edge_index)
    refuse_wrong_rows("from_pyg", data)
    return from_edge_index(edge_index, data.num_nodes, _tensors(data, data.node_attrs()), _edge_tensors(data))


def columns_of(where: str, edge_index: Any, suffix: str = "") -> Tensor:
    """Check `edge_index`, from a Data or one edge type of a HeteroData, and return it as a tensor [2, num_edges].

    Raise TypeError for a list: PyG cannot count the edges of a list, so it would take no tensor for an edge attribute.
    """
    if isinstance(edge_index, (list, tuple)):
        raise TypeError(
            f"{where}: edge_index{suffix} must be a tensor or an array, got {type(edge_index).__name__}. Set it to "
            "torch.as_tensor of the list."
        )
    return check_edge_index(where, f"edge_index{suffix}", edge_index)


def refuse_wrong_rows(where: str, data: Any) -> None:
    """Raise ValueError unless x, edge_attr and edge_weight of a Data or HeteroData have a row for each node or edge.

    If the number of rows is wrong, PyG raises no error: it treats the tensor as an attribute of the whole graph.
    """
    for stores, names in ((data.node_stores, ("x",)), (data.edge_stores, ("edge_attr", "edge_weight"))):
        for store in stores:
            for name in names:
                values = store.get(name)
                if isinstance(values, (Tensor, np.ndarray)):
                    count = store.num_nodes if name == "x" else num_edges_of(store)
                    check_rows(where, name, store._key, values, count, "node" if name == "x" else "edge")


def check_store_rows(where: str, features: Any, counts: Mapping[Any, int], num_edges: Mapping[Any, int]) -> None:
    """Raise ValueError unless the tensors of a PyG feature store have a row for each node or edge of their type.

    Without types only x, edge_attr and edge_weight are checked; other tensors may belong to the whole graph.

    Args:
        counts, num_edges: {node type: number of nodes}, {edge type: number of edges}.
    """
    for attr in features.get_all_tensor_attrs():
        type_, name = (None if None in counts else attr.group_name), attr.attr_name
        is_edge = type_ in num_edges if type_ is not None else name in ("edge_attr", "edge_weight")
        if (type_ is None and not is_edge and name != "x") or (type_ not in counts and type_ not in num_edges):
            continue
        size = features.get_tensor_size(attr)
        if size is not None:
            kind = "edge" if is_edge else "node"
            check_rows(where, name, type_, np.broadcast_to(0, size), (num_edges if is_edge else counts)[type_], kind)


def num_edges_of(store: Any) -> int:
    """Return the number of edges of a PyG store, from its edge_index if there is one.

    The store's own `num_edges` may count the rows of edge_attr, if that was set before edge_index.
    """
    edge_index = store.get("edge_index")
    return int(store.num_edges if edge_index is None else edge_index.shape[-1])


def check_rows(where: str, name: str, type_: Any, values: Any, count: int | None, kind: str) -> None:
    """Raise ValueError unless `values`, the attribute `name` of the type `type_`, has `count` rows.

    `kind`, "node" or "edge", says in the error what the rows belong to.
    """
    rows = np.shape(values)[:1]
    if rows != (count,):
        raise ValueError(
            f"{where}: {name}{of_type(type_)} has {rows[0] if rows else 'no'} rows for {count} {kind}s. Give one row "
            f"for each {kind}."
        )


# --- with types


def hetero_from_edge_index(
    edge_index: Any,
    num_nodes: Mapping[str, int] | None = None,
    node_attributes: Mapping[str, Mapping[str, Any]] | None = None,
    edge_attributes: Mapping[Any, Mapping[str, Any]] | None = None,
    *,
    infer_others: bool = False,
) -> GraphArrays:
    """Return the arrays of the graph that HeteroCSCGraph.from_edge_index builds; see there for the arguments.

    With `infer_others`, a node type that is not in `num_nodes` has as many nodes as its largest id in the edges plus 1.
    """
    form = "{edge type: edge_index}"
    by_type = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_index", edge_index, form, optional=False))
    edges = {key: check_edge_index(_WHERE, f"edge_index of {key}", value).cpu() for key, value in by_type.items()}
    numbers = check_mapping(_WHERE, "num_nodes", num_nodes, "{node type: number}")
    counts = _num_nodes(edges, numbers, num_nodes is None or infer_others)
    form = "{edge type: {name: values}}"
    attributes = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_attributes", edge_attributes, form))
    for key, values in attributes.items():
        known_edge_type(f"{_WHERE}, edge_attributes", key, edges)
        check_mapping(_WHERE, f"edge_attributes of {key}", values, "{name: values}")
    for key, columns in edges.items():
        for kind, ends in zip(ends_of(key), columns, strict=True):
            remedy = f"Raise num_nodes[{kind!r}], or drop the edge."
            check_within(_WHERE, f"nodes of {kind!r} in edge_index of {key}", ends, counts[kind], remedy)
    return _arrays(edges, counts, node_attributes or {}, attributes)


def _num_nodes(edges: Mapping[EdgeType, Tensor], num_nodes: Mapping[str, int], infer: bool) -> dict[Any, int]:
    """Check `num_nodes`, {node type: number}, and return it with an entry for each type of the edges.

    With `infer`, the entry of a type that is missing is its largest id plus 1; without, a missing type is an error.
    """
    counts = {
        check_node_type(f"{_WHERE}, num_nodes", kind): check_int(_WHERE, f"num_nodes[{kind!r}]", count, 0, MAX_NODES)
        for kind, count in num_nodes.items()
    }
    for key, columns in edges.items():
        for kind, row in ((key[0], columns[0]), (key[2], columns[1])):
            if not infer:
                known_node_type(f"{_WHERE}, num_nodes for {key}", kind, num_nodes)
            elif kind not in num_nodes:
                counts[kind] = max(counts.get(kind, 0), int(row.max()) + 1 if row.numel() > 0 else 0)
    return counts


def hetero_from_pyg(data: Any) -> GraphArrays:
    """Return the arrays of the graph that HeteroCSCGraph.from_pyg builds from `data`."""
    if not hasattr(data, "edge_types") or not hasattr(data, "node_types"):
        raise ValueError(
            f"from_pyg: needs a HeteroData, got {type(data).__name__}. Use CSCGraph.from_pyg for a Data without types."
        )
    refuse_wrong_rows("from_pyg", data)
    counts = {kind: data[kind].num_nodes for kind in data.node_types}
    nodes = {kind: _tensors(data[kind], data[kind].node_attrs()) for kind in data.node_types}
    columns, edges = {}, {}
    for key in data.edge_types:
        store = data[key]
        if getattr(store, "edge_index", None) is None:
            raise ValueError(
                f"from_pyg: {key} has no edge_index, which each edge type needs. Set data[{key}].edge_index."
            )
        columns[key] = columns_of("from_pyg", store.edge_index, f" of {key}")
        edges[key] = _edge_tensors(store)
    num_nodes = {kind: int(count) for kind, count in counts.items() if count is not None}
    return hetero_from_edge_index(columns, num_nodes, nodes, edges, infer_others=True)


def _tensors(store: Any, names: list[str]) -> dict[str, Tensor]:
    return {name: store[name] for name in names if isinstance(store[name], Tensor)}


def _edge_tensors(store: Any) -> dict[str, Tensor]:
    return _tensors(store, [name for name in store.edge_attrs() if name != "edge_index"])


def hetero_from_scipy(matrices: Mapping[Any, Any]) -> GraphArrays:
    """Return the arrays of the graph that HeteroCSCGraph.from_scipy builds; see there for the arguments."""
    where, counts = "from_scipy", dict[str, int]()
    edges, weights = {}, {}
    by_type = by_edge_type(where, check_mapping(where, "matrices", matrices, "{edge type: matrix}", optional=False))
    for edge_type, matrix in by_type.items():
        if not hasattr(matrix, "tocoo") or len(matrix.shape) != 2:
            raise ValueError(f"{where}: {edge_type} must be a scipy sparse matrix, got {shown(matrix)}. Pass one.")
        for node_type, count in zip(ends_of(edge_type), matrix.shape, strict=True):
            if counts.setdefault(str(node_type), int(count)) != count:
                raise ValueError(
                    f"{where}: {edge_type} has {count} nodes of the type {node_type!r}, another matrix has "
                    f"{counts[str(node_type)]}. Give each type one number of nodes."
                )
        coo = matrix.tocoo()
        edges[edge_type] = np.stack((coo.row, coo.col)).astype(np.int64)
        weights[edge_type] = {"weight": coo.data}
    return hetero_from_edge_index(edges, counts, None, weights)
