"""Convert heterogeneous graphs of other libraries to the arrays of a HeteroCSCGraph; see convert.py.

The edges of each type are sorted by themselves, so the order of the edge types given does not matter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_int, shown
from datapipes.base.sizes import check_memory
from datapipes.base.types import EdgeType, by_edge_type, check_edge_type, check_node_type, known_edge_type
from datapipes.graph.arrays import HeteroArrays
from datapipes.graph.checks import MAX_NODES, check_mapping
from datapipes.graph.convert import attribute_column, check_edge_index, in_order

_WHERE = "from_edge_index"


def from_edge_index(
    edge_index: Any,
    num_nodes: Mapping[str, int] | None = None,
    node_attributes: Mapping[str, Mapping[str, Any]] | None = None,
    edge_attributes: Mapping[Any, Mapping[str, Any]] | None = None,
) -> HeteroArrays:
    """See HeteroCSCGraph.from_edge_index."""
    form = "{edge type: edge_index}"
    given = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_index", edge_index, form, optional=False))
    edges = {key: check_edge_index(f"edge_index of {key}", value) for key, value in given.items()}
    counts = _num_nodes(edges, check_mapping(_WHERE, "num_nodes", num_nodes, "{node type: number}"))
    form = "{edge type: {name: values}}"
    attributes = by_edge_type(_WHERE, check_mapping(_WHERE, "edge_attributes", edge_attributes, form))
    for key, values in attributes.items():
        known_edge_type(f"{_WHERE}, edge_attributes", key, edges)
        check_mapping(_WHERE, f"edge_attributes of {key}", values, "{name: values}")
    relations, ids, moved = {}, {}, {}
    for key, columns in edges.items():
        _check_ends(key, columns, counts)
        indptr, indices, order = _sorted_by_destination(columns, counts[key[0]], counts[key[2]])
        relations[key], ids[key] = (indptr, indices), order
        moved[key] = in_order(attributes.get(key), order, f" of {key}")
    return HeteroArrays(relations, counts, ids, node_attributes or {}, moved)


def _num_nodes(edges: Mapping[EdgeType, Tensor], given: Mapping[str, int]) -> dict[str, int]:
    """Return the number of nodes of each type: as given, otherwise the largest id in any edge type plus 1."""
    counts = {
        check_node_type(f"{_WHERE}, num_nodes", kind): check_int(_WHERE, f"num_nodes[{kind!r}]", count, 0, MAX_NODES)
        for kind, count in given.items()
    }
    for (src, _, dst), columns in edges.items():
        for kind, row in ((src, columns[0]), (dst, columns[1])):
            if kind not in given:
                counts[kind] = max(counts.get(kind, 0), int(row.max()) + 1 if row.numel() > 0 else 0)
    size = sum(
        8 * (counts[key[2]] + 1 + columns.shape[1]) + columns.shape[1] * columns.element_size()
        for key, columns in edges.items()
    )
    remedy = "Renumber the nodes: an id far above their number costs memory too."
    check_memory(_WHERE, f"a graph of {shown(counts)} nodes", size, remedy)
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


def _sorted_by_destination(columns: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return (indptr [num_dst + 1], indices, order); all ends have been checked."""
    src, dst = columns[0].contiguous().numpy(), columns[1].contiguous().numpy()
    if num_src <= num_dst:
        indptr, indices, order = _core.coo_to_csc(src, dst, num_dst)
    else:  # the kernel would refuse the sources, so it sorts the destinations alone
        indptr, _, order = _core.coo_to_csc(dst, dst, num_dst)
        indices = src[order]
    return torch.from_numpy(indptr), torch.from_numpy(indices), torch.from_numpy(order)


def from_pyg(data: Any) -> HeteroArrays:
    """See HeteroCSCGraph.from_pyg."""
    if not hasattr(data, "edge_types") or not hasattr(data, "node_types"):
        raise ValueError(
            f"from_pyg: needs a HeteroData, got {type(data).__name__}. Use CSCGraph.from_pyg for a Data without types."
        )
    counts = {kind: data[kind].num_nodes for kind in data.node_types}
    nodes = {kind: _tensors(data[kind], data[kind].node_attrs()) for kind in data.node_types}
    columns, edges = {}, {}
    for key in data.edge_types:
        store = data[key]
        if getattr(store, "edge_index", None) is None:
            raise ValueError(
                f"from_pyg: {key} has no edge_index, which each edge type needs. Set data[{key}].edge_index."
            )
        columns[key] = store.edge_index
        edges[key] = _tensors(store, [name for name in store.edge_attrs() if name != "edge_index"])
    known = {kind: int(count) for kind, count in counts.items() if count is not None}
    return from_edge_index(columns, known, nodes, edges)


def _tensors(store: Any, names: list[str]) -> dict[str, Tensor]:
    return {name: store[name] for name in names if isinstance(store[name], Tensor)}


def from_networkx(
    graph: Any,
    node_type: str,
    edge_type: str,
    node_attributes: Mapping[str, tuple[str, ...]],
    edge_attributes: Mapping[Any, tuple[str, ...]],
) -> HeteroArrays:
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
    return from_edge_index(
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


def _columns(what: str, wanted: Mapping[Any, tuple[str, ...]], rows: Mapping[Any, list[Any]]) -> dict[Any, Any]:
    return {
        key: {name: attribute_column(what, name, rows.get(key, [])) for name in names} for key, names in wanted.items()
    }
