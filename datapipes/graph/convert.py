"""Convert graphs of other libraries to the arrays of a graph; all converters use one stable sort by destination.

A graph with types becomes one edge_index for each edge type. The edges of each type are sorted by themselves, so the
order of the edge types given does not matter. The converters return plain tensors, so this module does not need the
classes of graphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_edge_index, check_int, check_names, shown
from datapipes.base.progress import working
from datapipes.base.sizes import check_memory
from datapipes.base.types import (
    EdgeType,
    by_edge_type,
    check_edge_type,
    check_node_type,
    known_edge_type,
    known_node_type,
    of_type,
    type_text,
)
from datapipes.graph.arrays import GraphArrays
from datapipes.graph.checks import MAX_NODES, check_mapping

_WHERE = "from_edge_index"
RENUMBER = (
    "Renumber the ids, since each one below the largest takes 8 bytes: torch.unique(edge_index, return_inverse=True)."
)
_SPLIT_FROM = 2**20  # edges from which the sort takes half a byte an edge, and 8 bytes for 512 nodes, on top


def from_edge_index(
    edge_index: Any,
    num_nodes: int | None = None,
    node_attributes: Mapping[str, Any] | None = None,
    edge_attributes: Mapping[str, Any] | None = None,
) -> GraphArrays:
    """See CSCGraph.from_edge_index."""
    if isinstance(edge_index, Mapping):
        raise TypeError(
            "from_edge_index: edge_index of a CSCGraph must be a tensor [2, num_edges], got a dict. For edges by type "
            "use dp.HeteroCSCGraph.from_edge_index."
        )
    edges = check_edge_index(_WHERE, "edge_index", edge_index).cpu()
    if num_nodes is None:
        num_nodes = max(int(edges.max()) + 1, 0) if edges.numel() > 0 else 0
    check_int(_WHERE, "num_nodes", num_nodes, 0, MAX_NODES)
    indptr, indices, order = sorted_by_destination(
        edges, num_nodes, num_nodes, where=_WHERE, more_bytes=_bytes_of(edge_attributes)
    )
    of_edges = _in_order(edge_attributes, order)
    return GraphArrays(
        {None: (indptr, indices)}, {None: num_nodes}, {None: order}, {None: node_attributes}, {None: of_edges}
    )


def _in_order(edge_attributes: Mapping[str, Any] | None, order: Tensor, of: str = "") -> dict[str, Tensor]:
    """Return edge attributes, given in the order of the columns, as the sort has moved the edges."""
    moved = {}
    for name, value in (edge_attributes or {}).items():
        tensor = as_tensor(_WHERE, f"edge attribute {name!r}{of}", value)
        if tensor.ndim == 0 or tensor.shape[0] != order.shape[0]:
            raise ValueError(
                f"{_WHERE}: edge attribute {name!r}{of} has shape {list(tensor.shape)}; its first size must be "
                f"{order.shape[0]}, one row for each column of edge_index. Check that it belongs to these edges."
            )
        moved[name] = tensor[order]
    return moved


def _bytes_of(attributes: Mapping[str, Any] | None) -> int:
    return sum(getattr(value, "nbytes", 0) for value in (attributes or {}).values())


def sorted_by_destination(
    columns: Tensor, num_src: int, num_dst: int, *, where: str, more_bytes: int = 0, remedy: str = RENUMBER
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (indptr [num_dst + 1], indices, order).

    Args:
        where: for messages.
        more_bytes: that the caller takes afterwards.
        remedy: what to do where it does not fit.
    Raises:
        MemoryError: It does not fit into the memory that is left.
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
    except MemoryError as error:  # others took it meanwhile, or the address space is in pieces
        raise MemoryError(f"{where}: {graph} needs {num_bytes} bytes, which are not left. {remedy}") from error
    return torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(order)


def from_scipy(matrix: Any) -> GraphArrays:
    """See CSCGraph.from_scipy."""
    if not hasattr(matrix, "tocoo") or len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        found = getattr(matrix, "shape", type(matrix).__name__)
        raise ValueError(f"from_scipy: needs a square scipy sparse matrix, got {found}. Pass the adjacency matrix.")
    coo = matrix.tocoo()  # not tocsc, which would add up parallel edges
    edges = np.stack((coo.row, coo.col)).astype(np.int64)
    return from_edge_index(edges, int(matrix.shape[0]), edge_attributes={"weight": coo.data})


def from_networkx(graph: Any, node_attributes: Iterable[str], edge_attributes: Iterable[str]) -> GraphArrays:
    """See CSCGraph.from_networkx."""
    node_attributes = check_names("from_networkx", "node_attributes", node_attributes)
    edge_attributes = check_names("from_networkx", "edge_attributes", edge_attributes)
    number = {node: i for i, node in enumerate(graph.nodes)}
    pairs = list(graph.edges(data=True))
    edges = np.array([(number[u], number[v]) for u, v, _ in pairs], dtype=np.int64).reshape(-1, 2).T
    columns = {name: _attribute_column("edge", name, [values for _, _, values in pairs]) for name in edge_attributes}
    if not graph.is_directed():
        loops = edges[0] == edges[1]  # a self-loop is not doubled
        edges = np.concatenate((edges, edges[::-1, ~loops]), axis=1)
        columns = {name: np.concatenate((column, column[~loops])) for name, column in columns.items()}
    nodes = {
        name: _attribute_column("node", name, [values for _, values in graph.nodes(data=True)])
        for name in node_attributes
    }
    return from_edge_index(np.ascontiguousarray(edges), len(number), nodes, columns)


def _attribute_column(kind: str, name: str, rows: list[dict[str, Any]]) -> Any:
    """Return the values of a networkx attribute as an array."""
    lacking = sum(name not in row for row in rows)
    if lacking:
        raise ValueError(
            f"from_networkx: {lacking} of {len(rows)} {kind}s lack the attribute {name!r}; all must have it. Fill it "
            "in."
        )
    return np.array([row[name] for row in rows])


def from_pyg(data: Any) -> GraphArrays:
    """See CSCGraph.from_pyg."""
    edge_index = getattr(data, "edge_index", None)
    if edge_index is None:
        how = "Use dp.HeteroCSCGraph.from_pyg" if hasattr(data, "node_types") else "Set data.edge_index"
        raise ValueError(f"from_pyg: needs a Data with edge_index, got {type(data).__name__} without one. {how}.")
    edge_index = columns_of("from_pyg", edge_index)
    refuse_wrong_rows("from_pyg", data)
    return from_edge_index(edge_index, data.num_nodes, _tensors(data, data.node_attrs()), _edge_tensors(data))


def columns_of(where: str, edge_index: Any, of: str = "") -> Tensor:
    """Return the edge_index of a Data, or of an edge type of a HeteroData, as check_edge_index does.

    A list is refused: PyG does not count the edges of a list, so it takes nothing for an attribute of edges.
    """
    if isinstance(edge_index, (list, tuple)):
        raise TypeError(
            f"{where}: edge_index{of} must be a tensor or an array, got {type(edge_index).__name__}. Set it to "
            "torch.as_tensor of the list."
        )
    return check_edge_index(where, f"edge_index{of}", edge_index)


def refuse_wrong_rows(where: str, data: Any) -> None:
    """Refuse features of a Data or HeteroData that lack a row for each node, or each edge: x, edge_attr, edge_weight.

    PyG takes them for attributes of the whole graph.
    """
    for stores, names in ((data.node_stores, ("x",)), (data.edge_stores, ("edge_attr", "edge_weight"))):
        for store in stores:
            for name in names:
                values = store.get(name)
                if isinstance(values, (Tensor, np.ndarray)):
                    count = store.num_nodes if name == "x" else num_edges_of(store)
                    check_rows(where, name, store._key, values, count, "node" if name == "x" else "edge")


def check_store_rows(where: str, features: Any, counts: Mapping[Any, int], num_edges: Mapping[Any, int]) -> None:
    """Refuse tensors of a feature store of PyG that lack a row for each node of their type, or each edge.

    Without types the name tells whose they are, if it is x, edge_attr or edge_weight; others may be of the graph.
    """
    for attr in features.get_all_tensor_attrs():
        of, name = (None if None in counts else attr.group_name), attr.attr_name
        is_edge = of in num_edges if of is not None else name in ("edge_attr", "edge_weight")
        if (of is None and not is_edge and name != "x") or (of not in counts and of not in num_edges):
            continue
        size = features.get_tensor_size(attr)
        if size is not None:
            kind = "edge" if is_edge else "node"
            check_rows(where, name, of, np.broadcast_to(0, size), (num_edges if is_edge else counts)[of], kind)


def num_edges_of(store: Any) -> int:
    """Return the number of edges of a store of PyG, which counts the rows of edge_attr if that was set first."""
    edge_index = store.get("edge_index")
    return int(store.num_edges if edge_index is None else edge_index.shape[-1])


def check_rows(where: str, name: str, of: Any, values: Any, count: int | None, kind: str) -> None:
    """Refuse values of nodes, or of edges, that are more or fewer than these; `kind` is "node" or "edge"."""
    rows = np.shape(values)[:1]
    if rows != (count,):
        raise ValueError(
            f"{where}: {name}{of_type(of)} has {rows[0] if rows else 'no'} rows for {count} {kind}s. Give one row for "
            f"each {kind}."
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
    """See HeteroCSCGraph.from_edge_index. With `infer_others` the edges tell of types that `num_nodes` lacks."""
    form = "{edge type: edge_index}"
    given = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_index", edge_index, form, optional=False))
    edges = {key: check_edge_index(_WHERE, f"edge_index of {key}", value).cpu() for key, value in given.items()}
    numbers = check_mapping(_WHERE, "num_nodes", num_nodes, "{node type: number}")
    counts = _num_nodes(edges, numbers, num_nodes is None or infer_others)
    form = "{edge type: {name: values}}"
    attributes = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_attributes", edge_attributes, form))
    for key, values in attributes.items():
        known_edge_type(f"{_WHERE}, edge_attributes", key, edges)
        check_mapping(_WHERE, f"edge_attributes of {key}", values, "{name: values}")
    relations, ids, moved = {}, {}, {}
    for key, columns in edges.items():
        _check_ends(key, columns, counts)
        indptr, indices, order = sorted_by_destination(
            *(columns, counts[key[0]], counts[key[2]]),
            where=f"{_WHERE}, {key}",
            more_bytes=_bytes_of(attributes.get(key)),
        )
        relations[key], ids[key] = (indptr, indices), order
        moved[key] = _in_order(attributes.get(key), order, f" of {key}")
    return GraphArrays(relations, counts, ids, node_attributes or {}, moved)


def _num_nodes(edges: Mapping[EdgeType, Tensor], given: Mapping[str, int], infer: bool) -> dict[str, int]:
    """Return the number of nodes of each type as given; of others, with `infer`, the largest id of any edge plus 1."""
    counts = {
        check_node_type(f"{_WHERE}, num_nodes", kind): check_int(_WHERE, f"num_nodes[{kind!r}]", count, 0, MAX_NODES)
        for kind, count in given.items()
    }
    for key, columns in edges.items():
        for kind, row in ((key[0], columns[0]), (key[2], columns[1])):
            if not infer:
                known_node_type(f"{_WHERE}, num_nodes for {key}", kind, given)
            elif kind not in given:
                counts[kind] = max(counts.get(kind, 0), int(row.max()) + 1 if row.numel() > 0 else 0)
    return counts


def _check_ends(key: EdgeType, columns: Tensor, counts: Mapping[str, int]) -> None:
    """Refuse an edge whose source or destination is no node of its type."""
    for row, kind in ((0, key[0]), (1, key[2])):
        ends, count = columns[row], counts[kind]
        if ends.numel() == 0 or (int(ends.min()) >= 0 and int(ends.max()) < count):
            continue
        column = int(((ends < 0) | (ends >= count)).nonzero()[0])
        raise IndexError(
            f"{_WHERE}: edge_index of {key} has {int(ends[column])} at [{row}, {column}], which must be in "
            f"[0, {count}), the nodes of {kind!r}. Raise num_nodes or drop the edge."
        )


def hetero_from_pyg(data: Any) -> GraphArrays:
    """See HeteroCSCGraph.from_pyg."""
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
    known = {kind: int(count) for kind, count in counts.items() if count is not None}
    return hetero_from_edge_index(columns, known, nodes, edges, infer_others=True)


def _tensors(store: Any, names: list[str]) -> dict[str, Tensor]:
    return {name: store[name] for name in names if isinstance(store[name], Tensor)}


def _edge_tensors(store: Any) -> dict[str, Tensor]:
    return _tensors(store, [name for name in store.edge_attrs() if name != "edge_index"])


def hetero_from_networkx(
    graph: Any,
    node_type: str,
    edge_type: str,
    node_attributes: Mapping[str, Iterable[str]],
    edge_attributes: Mapping[Any, Iterable[str]],
) -> GraphArrays:
    """See HeteroCSCGraph.from_networkx."""
    nodes: dict[str, list[dict[str, Any]]] = {}  # of each type, in the order of graph.nodes: the attributes
    place: dict[Any, tuple[str, int]] = {}
    for node, values in graph.nodes(data=True):
        kind = check_node_type("from_networkx", _type_in(values, node_type, "node", node))
        rows = nodes.setdefault(kind, [])
        place[node] = kind, len(rows)
        rows.append(values)
    edges: dict[EdgeType, list[tuple[int, int, dict[str, Any]]]] = {}
    for reverse in (False,) if graph.is_directed() else (False, True):
        for u, v, values in graph.edges(data=True):
            if reverse and u == v:
                continue  # a self-loop is not doubled
            (src, i), (dst, j) = (place[v], place[u]) if reverse else (place[u], place[v])
            relation = _type_in(values, edge_type, "edge", (u, v))
            edges.setdefault(check_edge_type("from_networkx", (src, relation, dst)), []).append((i, j, values))
    columns = {
        key: np.array([(i, j) for i, j, _ in rows], dtype=np.int64).reshape(-1, 2).T.copy()
        for key, rows in edges.items()
    }
    of_edges = by_edge_type("from_networkx", edge_attributes)
    for key in of_edges:
        known_edge_type("from_networkx, edge_attributes", key, edges)
    return hetero_from_edge_index(
        columns,
        {kind: len(rows) for kind, rows in nodes.items()},
        _columns("node", node_attributes, nodes),
        _columns("edge", of_edges, {key: [values for _, _, values in rows] for key, rows in edges.items()}),
    )


def _type_in(values: Mapping[str, Any], name: str, what: str, which: Any) -> Any:
    if name not in values:
        raise ValueError(
            f"from_networkx: the {what} {shown(which)} lacks the attribute {name!r}, which names its type; all {what}s "
            f"must have it. Set it, or pass the name of the attribute that does as {what}_type."
        )
    return values[name]


def _columns(what: str, wanted: Mapping[Any, Iterable[str]], rows: Mapping[Any, list[Any]]) -> dict[Any, Any]:
    return {
        key: {
            name: _attribute_column(what, name, rows.get(key, []))
            for name in check_names("from_networkx", f"{what}_attributes of {type_text(key)}", names)
        }
        for key, names in wanted.items()
    }
