"""Build the graph to sample from the data that PyG's loaders take: Data, HeteroData, a pair of stores, or our graphs.

The graph has edges, weights and times; other attributes stay in the data, from which batches are sliced. Edge ids are
the columns of `edge_index` or the ids of the graph store, so sampled ids index the data as they are.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import INT32_MAX, check_edge_index, check_index_tensor, check_within, shown, tensor_of
from datapipes.base.log import users_frame
from datapipes.base.sizes import check_memory
from datapipes.base.types import ends_of, known_edge_type, of_type, type_text
from datapipes.graph.convert import (
    RENUMBER,
    check_rows,
    check_store_rows,
    columns_of,
    num_edges_of,
    sorted_by_destination,
)
from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.minibatch.block import Block, edges_of
from datapipes.pyg.torch_geometric_names import Data, FeatureStore, GraphStore, HeteroData, num_nodes_in_stores

_WHERE = "NeighborSampler"
_Relation = tuple[Tensor, Tensor, Tensor | None]  # indptr, indices, edge ids


class TimedGraph(NamedTuple):
    """A graph, and the times of its nodes or edges.

    Attributes:
        graph: a CSCGraph or HeteroCSCGraph with weights and times among its attributes; or a DistGraph.
        node_time: {node type: int64 [num_nodes]}; the type is None without types; {} if nodes have no times.
        has_edge_time: whether edges have times.
    """

    graph: Any
    node_time: dict[Any, Tensor]
    has_edge_time: bool


def graph_of(data: Any, time_attr: str | None, weight_attr: Any, is_sorted: bool) -> TimedGraph:
    """Build the graph to sample from `data`. In the graph, the edge weights have the name `weight_name(weight_attr)`.

    Raises:
        TypeError, ValueError, IndexError: `data` has another class, or its edges, weights or times do not fit.
    """
    if isinstance(weight_attr, Mapping):
        data, weight_attr = _with_one_name(data, weight_attr), weight_name(weight_attr)
    if isinstance(data, (CSCGraph, HeteroCSCGraph)):
        of_nodes = {node_type: data.node_attributes_of(node_type) for node_type in data.node_types}
        of_edges = {edge_type: data.relation(edge_type).edge_attributes for edge_type in data.edge_types}
        node_times, edge_times = _times(time_attr, of_nodes, of_edges)
        return TimedGraph(data, node_times, bool(edge_times))
    if isinstance(data, (Data, HeteroData)):
        return _of_data(data, time_attr, weight_attr, is_sorted)
    refuse_other_data(_WHERE, data)
    features, store = data
    return _of_stores(features, store, time_attr, weight_attr)


def refuse_other_data(where: str, data: Any) -> None:
    """Raise ValueError unless `data` is a Data, a HeteroData or a pair of stores. Callers handle a CSCGraph before."""
    is_pair = isinstance(data, (list, tuple)) and len(data) == 2
    is_stores = is_pair and isinstance(data[0], FeatureStore) and isinstance(data[1], GraphStore)
    if not is_stores and not isinstance(data, (Data, HeteroData)):
        raise ValueError(
            f"{where}: data must be a Data, a HeteroData, a pair (FeatureStore, GraphStore), a CSCGraph or a "
            f"HeteroCSCGraph, got {type(data).__name__}. A DistGraph is sampled by a chain: dp.distributed."
        )


def refuse_wrong_names(time_attr: Any, weight_attr: Any) -> None:
    """Raise TypeError for a `time_attr` or `weight_attr` that is no name."""
    if time_attr is not None and not isinstance(time_attr, str):
        raise TypeError(f"{_WHERE}: time_attr must be a name, a str, got {shown(time_attr)}. Pass one.")
    if weight_attr is not None and not isinstance(weight_attr, (str, Mapping)):
        raise TypeError(
            f"{_WHERE}: weight_attr must be a name, a str, or {{edge type: name}}, got {shown(weight_attr)}. Pass one."
        )


def weight_name(weight_attr: Any) -> str | None:
    """Return the weights' name in the graph to sample: `weight_attr`, or "weight" if that is {edge type: name}."""
    return "weight" if isinstance(weight_attr, Mapping) else weight_attr


def _with_one_name(data: Any, weight_attr: Mapping[Any, Any]) -> Any:
    """Return `data` as a HeteroData whose weights all have the name "weight"; `weight_attr` has the names in `data`."""
    name = weight_name(weight_attr)
    if not isinstance(data, (HeteroData, HeteroCSCGraph)) or not weight_attr:
        raise ValueError(
            f"{_WHERE}: weight_attr is the dict {shown(weight_attr)}, and data is a {type(data).__name__}; a dict must "
            "name at least one edge type, of a HeteroData. Pass the name of the attribute."
        )
    data = copy.copy(data_of(data))
    weights = {}
    for key, attribute in weight_attr.items():
        edge_type = known_edge_type(f"{_WHERE}, weight_attr", key, data.edge_types)
        store = data[edge_type]
        if not isinstance(attribute, str) or attribute not in store:
            raise ValueError(
                f"{_WHERE}: weight_attr of {type_text(edge_type)} is {shown(attribute)}, but these edges have "
                f"{sorted(store.keys())}. Name one of them."
            )
        weights[edge_type] = store[attribute]
    for edge_type in data.edge_types:
        data[edge_type].pop(name, None)
        if edge_type in weights:
            data[edge_type][name] = weights[edge_type]
    return data


def data_of(graph: Any) -> Any:
    """Return a CSC graph as Data or HeteroData, edges in the order of their ids; return other data as it is."""
    if not isinstance(graph, (CSCGraph, HeteroCSCGraph)):
        return graph
    data: Any = HeteroData() if graph.is_heterogeneous else Data()
    for node_type in graph.node_types:
        store = data if node_type is None else data[node_type]
        store.num_nodes = graph.num_nodes_of(node_type)
        for name, values in graph.node_attributes_of(node_type).items():
            store[name] = values
    for edge_type in graph.edge_types:
        relation, store = graph.relation(edge_type), data if edge_type is None else data[edge_type]
        num_src = graph.num_nodes_of(ends_of(edge_type)[0])
        columns = edges_of([Block(relation.indptr, relation.indices, num_src)], with_ids=False)[0]
        place: Any = slice(None)
        if relation.edge_ids is not None:
            place = torch.argsort(relation.edge_ids)
            if not torch.equal(relation.edge_ids[place], torch.arange(len(place))):
                raise ValueError(
                    f"{_WHERE}: the edge ids{of_type(edge_type)} are not 0 to {len(place) - 1}, each once, so they "
                    "cannot be columns of an edge_index. Build the graph without edge_ids, or use a chain."
                )
        store.edge_index = columns[:, place]
        for name, values in relation.edge_attributes.items():
            store[name] = values[place]
    return data


def _of_data(data: Any, time_attr: str | None, weight_attr: str | None, is_sorted: bool) -> TimedGraph:
    has_types = isinstance(data, HeteroData)
    nodes = {node_type: data[node_type] for node_type in data.node_types} if has_types else {None: data}
    edges = {edge_type: data[edge_type] for edge_type in data.edge_types} if has_types else {None: data}
    columns = dict.fromkeys(edges)
    for edge_type, store in edges.items():
        if store.get("edge_index") is not None:
            columns[edge_type] = columns_of(_WHERE, store.edge_index, of_type(edge_type))
    counts = _with_inferred({node_type: store.num_nodes for node_type, store in nodes.items()}, columns)
    num_edges = {edge_type: num_edges_of(store) for edge_type, store in edges.items()}
    of_nodes: Any = nodes
    of_edges: Any = edges
    if not has_types:
        of_nodes = {None: {name: data[name] for name in data.node_attrs()}}
        of_edges = {None: {name: data[name] for name in data.edge_attrs()}}
        if weight_attr is not None and weight_attr in data:  # as in PyG, the name alone decides
            of_edges[None][weight_attr] = data[weight_attr]
        if time_attr in data and time_attr not in of_nodes[None] and time_attr not in of_edges[None]:
            raise ValueError(
                f"{_WHERE}: {time_attr} has the shape {list(np.shape(data[time_attr]))}; there are {counts[None]} "
                f"nodes and {num_edges[None]} edges. Give a time for each of the nodes, or of the edges."
            )
    node_times, edge_times = _times(time_attr, of_nodes, of_edges, counts, num_edges)
    relations = {}
    for edge_type, store in edges.items():
        src, dst = ends_of(edge_type)
        sizes, since = (counts[src], counts[dst]), (node_times.get(src), edge_times.get(edge_type))
        relations[edge_type] = _relation(edge_type, store, columns[edge_type], *sizes, is_sorted, *since)
    weights: dict[Any, Tensor] = {}
    if weight_attr is not None:
        weights = _numbers(weight_attr, of_edges, num_edges, "edge")
        if not weights:
            names = {name for values in of_edges.values() for name in values} - {"edge_index", "adj_t", "adj"}
            raise ValueError(
                f"{_WHERE}: weight_attr is {weight_attr!r}, but no edges have it; they have {shown(sorted(names))}. "
                "Set it."
            )
        for edge_type, (_, indices, _) in relations.items():  # edge types without weights are drawn uniformly
            weights.setdefault(edge_type, torch.ones(len(indices)))
    return _made(counts, relations, node_times, {time_attr: edge_times, weight_attr: weights})


def _of_stores(features: Any, graph: Any, time_attr: str | None, weight_attr: str | None) -> TimedGraph:
    if weight_attr is not None:
        raise NotImplementedError(
            f"{_WHERE}: weight_attr is {weight_attr!r}, but a pair of stores has no weights of edges. Sample a Data."
        )
    attrs, edge_attrs = features.get_all_tensor_attrs(), graph.get_all_edge_attrs()
    edge_types = dict.fromkeys(attr.edge_type for attr in edge_attrs)
    if edge_types.keys() == {None}:
        if edge_attrs[0].size is None:
            raise ValueError(f"{_WHERE}: the graph store does not tell the size of its edges. Pass size=, or the Data.")
        counts: dict[Any, int] = {None: max(edge_attrs[0].size)}
    else:
        named = [attr.group_name for attr in attrs if isinstance(attr.group_name, str)]
        ends = [end for edge_type in edge_types for end in ends_of(edge_type)]
        node_types = dict.fromkeys([*named, *ends])
        counts = {node_type: num_nodes_in_stores(features, graph, node_type) for node_type in node_types}
    relations = {}
    for edge_type in edge_types:
        src, dst = ends_of(edge_type)
        layouts = {attr.layout.value: attr for attr in edge_attrs if attr.edge_type == edge_type}
        relations[edge_type] = _of_layouts(edge_type, graph, layouts, counts[src], counts[dst])
    num_edges = {edge_type: len(indices) for edge_type, (_, indices, _) in relations.items()}
    _check_groups(features, graph, counts, {attr.edge_type: attr for attr in edge_attrs})
    check_store_rows(_WHERE, features, counts, num_edges)
    timed = [copy.copy(attr) for attr in attrs if attr.attr_name == time_attr] if time_attr is not None else []
    for attr in timed:
        attr.index = None  # the whole tensor
    of_nodes: dict[Any, Any] = {}
    of_edges: dict[Any, Any] = {}
    for attr, values in zip(timed, features.multi_get_tensor(timed), strict=True):
        group = attr.group_name
        # Without types only the name decides: in PyG "time" means times of nodes.
        if group in edge_types and (group is not None or time_attr != "time"):
            of_edges[group] = {time_attr: values}
        elif group in counts:
            of_nodes[group] = {time_attr: values}
    node_times, edge_times = _times(time_attr, of_nodes, of_edges, counts, num_edges)
    return _made(counts, relations, node_times, {time_attr: edge_times})


def _of_layouts(edge_type: Any, graph: Any, layouts: Mapping[str, Any], num_src: int, num_dst: int) -> _Relation:
    """Return the in-edges of `edge_type` in the graph store. Edge ids are positions in the layout that PyG would read.

    `graph.csc()` is not used: it writes outside its memory if a destination exceeds the number of nodes.
    """
    attr = next(layouts[layout] for layout in ("csc", "coo", "csr") if layout in layouts)
    edges, name = graph.get_edge_index(attr), f"edge_index{of_type(edge_type)}"
    if attr.layout.value != "coo":
        row, col = (check_index_tensor(_WHERE, name, ids.cpu().contiguous()) for ids in edges)
        if attr.layout.value == "csc":
            return col, _narrow(row, max(num_src, num_dst)), None
        edges = torch.repeat_interleave(row.diff()), col
    columns = check_edge_index(_WHERE, name, edges)
    return _relation(edge_type, {}, columns, num_src, num_dst, attr.is_sorted)


def _check_groups(features: Any, graph: Any, counts: Mapping[Any, int], edge_attrs: Mapping[Any, Any]) -> None:
    """Raise ValueError if the stores have one part of a partitioned graph; warn of tensors that no batch gets."""
    groups = dict.fromkeys(attr.group_name for attr in features.get_all_tensor_attrs())
    lost = [group for group in groups if None not in counts and group not in counts and group not in edge_attrs]
    if lost:
        warnings.warn(
            f"{_WHERE}: the feature store has tensors of {shown(lost)}, which the graph store does not have, so no "
            f"batch holds them; types are {shown([*counts, *edge_attrs])}. Put them under one of these.",
            stacklevel=users_frame()[0],
        )
    if not hasattr(features, "get_global_id") or not hasattr(graph, "get_edge_id"):
        return
    for group in groups:
        ids = features.get_global_id(group)
        key = None if group == (None, None) else group
        expected = graph.get_edge_id(edge_attrs[key]) if isinstance(group, tuple) else torch.arange(counts.get(key, 0))
        if ids is not None and expected is not None and not torch.equal(ids.long(), expected.long()):
            raise ValueError(
                f"{_WHERE}: the feature store has only a part of the rows{of_type(key)}, since their global ids differ "
                "from their row numbers. A part is sampled by datapipes.pyg.distributed.DistNeighborLoader."
            )


def _made(
    counts: Mapping[Any, int],
    relations: Mapping[Any, _Relation],
    node_times: Mapping[Any, Tensor],
    of_edges: Mapping[str | None, Mapping[Any, Tensor]],
) -> TimedGraph:
    """Build the TimedGraph. `of_edges` is {attribute: {edge type: values in the order of edge ids}}, times first."""
    time_attr, edge_times = next(iter(of_edges.items()))
    ids = {edge_type: order for edge_type, (_, _, order) in relations.items() if order is not None}
    node_times = {node_type: times.cpu() for node_type, times in node_times.items()}
    nodes: dict[Any, Any] = {node_type: {time_attr: times} for node_type, times in node_times.items()}
    edges: dict[Any, Any] = {edge_type: {} for edge_type in relations}
    for name, by_type in of_edges.items():
        for edge_type, values in by_type.items():
            edges[edge_type][name] = (values[ids[edge_type]] if edge_type in ids else values).cpu()
    graph: CSCGraph | HeteroCSCGraph
    if None in counts:
        indptr, indices, order = relations[None]
        graph = CSCGraph(indptr, indices, node_attributes=nodes.get(None), edge_attributes=edges[None], edge_ids=order)
    else:
        arrays = {edge_type: (indptr, indices) for edge_type, (indptr, indices, _) in relations.items()}
        graph = HeteroCSCGraph(arrays, counts, node_attributes=nodes, edge_attributes=edges, edge_ids=ids)
    return TimedGraph(graph, node_times, bool(edge_times))


def _relation(
    edge_type: Any,
    store: Any,
    columns: Tensor | None,
    num_src: int,
    num_dst: int,
    is_sorted: bool,
    src_times: Tensor | None = None,
    edge_times: Tensor | None = None,
) -> _Relation:
    """Return the edges of a PyG `store`, sorted by destination; within a destination by time, if times are given."""
    for name, method in (("adj", "csc"), ("adj_t", "csr")):
        if name in store:
            if not hasattr(store[name], method):
                raise TypeError(
                    f"{_WHERE}: {name} must be a torch_sparse.SparseTensor, got {type(store[name]).__name__}. Set "
                    "edge_index in its place."
                )
            indptr, indices, _ = getattr(store[name], method)()
            return indptr.cpu(), _narrow(indices.cpu(), num_src), None
    if columns is None:
        check_memory(_WHERE, f"a graph of {num_dst} nodes", 8 * (num_dst + 1), RENUMBER)
        return torch.zeros(num_dst + 1, dtype=torch.int64), torch.empty(0, dtype=torch.int32), None
    columns = _narrow(columns.cpu(), max(num_src, num_dst))
    for row, count in ((0, num_src), (1, num_dst)):
        name = f"row {row} of edge_index{of_type(edge_type)}"
        check_within(_WHERE, name, columns[row], count, "Raise num_nodes, or drop the edge.")
    if not is_sorted and src_times is None and edge_times is None:
        return sorted_by_destination(columns, num_src, num_dst, where=_WHERE)
    if not is_sorted:
        times: Any = edge_times if src_times is None else src_times.cpu()[columns[0].long()]
        by_time = torch.argsort(times.cpu(), stable=True)
        indptr, indices, order = sorted_by_destination(columns[:, by_time], num_src, num_dst, where=_WHERE)
        return indptr, indices, by_time[order]
    if bool((columns[1].diff() < 0).any()):
        raise ValueError(
            f"{_WHERE}: is_sorted is True, but the destinations edge_index[1] do not ascend. Leave is_sorted out, or "
            "sort by torch_geometric.utils.sort_edge_index(edge_index, sort_by_row=False)."
        )
    check_memory(_WHERE, f"a graph of {num_dst} nodes", 16 * (num_dst + 1), RENUMBER)  # degrees and offsets
    indptr = torch.zeros(num_dst + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(columns[1], minlength=num_dst), 0, out=indptr[1:])
    return indptr, columns[0].contiguous(), None


def _narrow(ids: Tensor, num_nodes: int) -> Tensor:
    """Return `ids` as int32, which halves the memory to read. If an id is wrong, or some node needs int64: as int64."""
    fits = num_nodes <= INT32_MAX and (ids.numel() == 0 or (int(ids.min()) >= 0 and int(ids.max()) <= INT32_MAX))
    return ids.int() if fits else ids.long()


def _with_inferred(counts: Mapping[Any, int | None], edges: Mapping[Any, Tensor | None]) -> dict[Any, int]:
    """Return `counts` with each None replaced by the largest id of this node type in `edges`, plus 1."""
    inferred: dict[Any, int] = {node_type: 0 for node_type, count in counts.items() if count is None}
    for edge_type, columns in edges.items():
        for row, end in enumerate(ends_of(edge_type)):
            if counts.get(end) is None:
                most = int(columns[row].max()) + 1 if columns is not None and columns.numel() > 0 else 0
                inferred[end] = max(inferred.get(end, 0), most)
    return {**{node_type: count for node_type, count in counts.items() if count is not None}, **inferred}


def _times(
    time_attr: str | None,
    of_nodes: Mapping[Any, Mapping[str, Any]],
    of_edges: Mapping[Any, Mapping[str, Any]],
    num_nodes: Mapping[Any, int] | None = None,
    num_edges: Mapping[Any, int] | None = None,
) -> tuple[dict[Any, Tensor], dict[Any, Tensor]]:
    """Return ({node type: times}, {edge type: times}). One of the two is {}; without `time_attr`, both are {}."""
    if time_attr is None:
        return {}, {}
    on_nodes, on_edges = (any(time_attr in values for values in by_type.values()) for by_type in (of_nodes, of_edges))
    if on_nodes == on_edges:
        have = "both nodes and edges have it" if on_nodes else "neither nodes nor edges have it"
        raise ValueError(f"{_WHERE}: time_attr is {time_attr!r}, but {have}; just one of the two must. Name another.")
    return _numbers(time_attr, of_nodes, num_nodes, "node"), _numbers(time_attr, of_edges, num_edges, "edge")


def _numbers(
    name: str, by_type: Mapping[Any, Mapping[str, Any]], counts: Mapping[Any, int] | None, kind: str
) -> dict[Any, Tensor]:
    """Return {type: values [n]} of attribute `name`, without types that lack it. If given, counts[type] must be n."""
    numbers = {}
    for key, values in by_type.items():
        if name not in values:
            continue
        numbers[key] = rows = tensor_of(_WHERE, f"{name}{of_type(key)}", values[name])
        if rows.ndim != 1:
            raise ValueError(
                f"{_WHERE}: {name}{of_type(key)} must have shape [n], one number each, got {list(rows.shape)}. Flatten "
                "it, or name another attribute."
            )
        if counts is not None:
            check_rows(_WHERE, name, key, rows, counts[key], kind)
    return numbers
