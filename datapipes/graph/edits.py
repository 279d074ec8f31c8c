"""Change the edges of a graph, with types or without: turn them round, add their reverses, add or remove self-loops.

Each function lists the edges of the changed types, and sorts them by destination with the converters' sort. That sort
is stable, so the in-edges of a node keep the order of the list. Edges are listed in the order of the graph: by
destination, then by position among the in-edges of the destination. In the new graph the id of an edge is its position,
and the edge attribute "original_id" has its former id. If the graph has this attribute already, the values are kept, so
after several changes they are still ids of the first graph. An edge type whose edges are not changed keeps its ids.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import check_bool, shown
from datapipes.base.types import (
    EdgeType,
    by_edge_type,
    check_edge_type,
    ends_of,
    known_edge_type,
    listed_edge_types,
    type_text,
)
from datapipes.graph.arrays import GraphArrays
from datapipes.graph.checks import check_mapping
from datapipes.graph.convert import sorted_by_destination

ORIGINAL_ID = "original_id"


class _Edges(NamedTuple):
    """The edges of a type, as a list in any order.

    Attributes:
        ends: [2, num_edges], sources in row 0, destinations in row 1.
        attributes: {name: [num_edges, ...]}.
    """

    ends: Tensor
    attributes: dict[str, Tensor]

    def at(self, places: Tensor) -> _Edges:
        """Return a list with only the edges at `places`: positions in this list, or a mask of this list."""
        return _Edges(self.ends[:, places], {name: rows[places] for name, rows in self.attributes.items()})

    def reversed(self) -> _Edges:
        return self._replace(ends=self.ends.flip(0))

    def then(self, others: _Edges) -> _Edges:
        """Return a list with these edges and then those of `others`, which have the same attributes."""
        attributes = {name: torch.cat((rows, others.attributes[name])) for name, rows in self.attributes.items()}
        return _Edges(torch.cat((self.ends, others.ends), dim=1), attributes)

    @property
    def are_loops(self) -> Tensor:
        return self.ends[0] == self.ends[1]


def to_undirected(arrays: GraphArrays, reverse_names: Any, merge: bool) -> GraphArrays:
    """Return the arrays of the graph that LocalGraph.to_undirected builds from the graph with the arrays `arrays`."""
    check_bool("to_undirected", "merge", merge)
    edges: dict[Any, _Edges] = {}
    for edge_type, back in _reverses("to_undirected", arrays, reverse_names).items():
        listed = _listed(arrays, edge_type)
        if back == edge_type:
            edges[edge_type] = listed.then(listed.at(~listed.are_loops).reversed())
            continue
        edges[back] = listed.reversed()
        if merge:
            edges[edge_type] = listed
    if merge:
        edges = {edge_type: _joined(listed, arrays.num_nodes, edge_type) for edge_type, listed in edges.items()}
    return _with_edges("to_undirected", arrays, edges)


def turned_round(arrays: GraphArrays) -> GraphArrays:
    """Return the arrays of the graph that LocalGraph.reversed builds from the graph with the arrays `arrays`."""
    edges = {}
    for edge_type in arrays.relations:
        back = edge_type if edge_type is None else (edge_type[2], edge_type[1], edge_type[0])
        edges[back] = _listed(arrays, edge_type).reversed()
    return _with_edges("reversed", arrays._replace(relations={}, edge_attributes={}, edge_ids={}), edges)


def add_self_loops(arrays: GraphArrays, edge_types: Collection[Any] | None, fill_value: Any) -> GraphArrays:
    """Return the arrays of the graph that LocalGraph.add_self_loops builds from the graph with the arrays `arrays`."""
    where = "add_self_loops"
    chosen = _of_one_node_type(where, arrays, edge_types)
    if not chosen:
        among = sorted(arrays.relations) if edge_types is None else edge_types
        raise ValueError(
            f"{where}: found no edge type from a node type to itself in {shown(among)}; at least 1 is needed. Name one "
            "that the graph has, or add one to the graph."
        )
    edges = {edge_type: _listed(arrays, edge_type) for edge_type in chosen}
    if isinstance(fill_value, Mapping):
        names = {name for listed in edges.values() for name in listed.attributes} - {ORIGINAL_ID}
        if {*fill_value} != names:
            raise ValueError(
                f"{where}: fill_value has values for {shown(sorted(fill_value, key=str))}; the edge attributes are "
                f"{sorted(names)}. Give one value for each edge attribute, and no others."
            )
    for edge_type, listed in edges.items():
        have = torch.zeros(arrays.num_nodes[ends_of(edge_type)[0]], dtype=torch.bool)
        have[listed.ends[0, listed.are_loops]] = True
        nodes = (~have).nonzero().flatten().to(listed.ends.dtype)
        filled = {name: _filled(where, name, rows, len(nodes), fill_value) for name, rows in listed.attributes.items()}
        edges[edge_type] = listed.then(_Edges(nodes.expand(2, -1), filled))
    return _with_edges(where, arrays, edges)


def remove_self_loops(arrays: GraphArrays, edge_types: Collection[Any] | None) -> GraphArrays:
    """Return the arrays of the graph that LocalGraph.remove_self_loops builds from the graph with these `arrays`."""
    chosen = _of_one_node_type("remove_self_loops", arrays, edge_types)
    edges = {edge_type: _listed(arrays, edge_type) for edge_type in chosen}
    kept = {edge_type: listed.at(~listed.are_loops) for edge_type, listed in edges.items()}
    return _with_edges("remove_self_loops", arrays, kept)


def with_edges_kept(arrays: GraphArrays, kept: Mapping[Any, Tensor]) -> GraphArrays:
    """Remove the edges that are False in `kept`, {edge type: bool [num_edges]}, and return the arrays of the rest.

    The remaining edges keep their ids.
    """
    relations, attributes, ids = {**arrays.relations}, {**arrays.edge_attributes}, {**arrays.edge_ids}
    for edge_type, keep in kept.items():
        indptr, indices = arrays.relations[edge_type]
        before = torch.cat((torch.zeros(1, dtype=torch.int64), keep.cumsum(0)))
        relations[edge_type] = before[indptr], indices[keep]
        attributes[edge_type] = {name: rows[keep] for name, rows in arrays.edge_attributes[edge_type].items()}
        ids[edge_type] = keep.nonzero().flatten() if edge_type not in ids else ids[edge_type][keep]
    return arrays._replace(relations=relations, edge_attributes=attributes, edge_ids=ids)


def _listed(arrays: GraphArrays, edge_type: EdgeType | None) -> _Edges:
    indptr, indices = arrays.relations[edge_type]
    dst = np.repeat(np.arange(len(indptr) - 1, dtype=indices.numpy().dtype), np.diff(indptr.numpy()))
    ids = arrays.edge_ids[edge_type] if edge_type in arrays.edge_ids else torch.arange(len(indices))
    attributes = {ORIGINAL_ID: ids, **arrays.edge_attributes[edge_type]}
    return _Edges(torch.stack((indices, torch.from_numpy(dst))), attributes)


def _with_edges(where: str, arrays: GraphArrays, edges: Mapping[Any, _Edges]) -> GraphArrays:
    """Return `arrays` with new edges for the types in `edges`, which replace the old edges of these types.

    The types may be new. The id of each new edge is its position.
    """
    relations, attributes = {**arrays.relations}, {**arrays.edge_attributes}
    for edge_type, listed in edges.items():
        src, dst = ends_of(edge_type)
        indptr, indices, order = _sorted(where, listed.ends, arrays.num_nodes[src], arrays.num_nodes[dst])
        relations[edge_type] = indptr, indices
        attributes[edge_type] = {name: rows[order] for name, rows in listed.attributes.items()}
    ids = {edge_type: rows for edge_type, rows in arrays.edge_ids.items() if edge_type not in edges}
    return arrays._replace(relations=relations, edge_attributes=attributes, edge_ids=ids)


def _sorted(where: str, ends: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    return sorted_by_destination(ends, num_src, num_dst, where=where, remedy="Use a machine with more memory.")


def _joined(edges: _Edges, num_nodes: Mapping[Any, int], edge_type: EdgeType | None) -> _Edges:
    """Of parallel edges (equal source and destination) keep the first only; the order of the list stays."""
    num_src, num_dst = (num_nodes[end] for end in ends_of(edge_type))
    _, _, by_src = _sorted("to_undirected", edges.ends.flip(0), num_dst, num_src)
    _, _, by_dst = _sorted("to_undirected", edges.ends[:, by_src], num_src, num_dst)
    order = by_src[by_dst]
    ends = edges.ends[:, order]
    is_first = torch.ones(len(order), dtype=torch.bool)
    is_first[1:] = (ends[:, 1:] != ends[:, :-1]).any(0)
    return edges.at(order[is_first].sort().values)


def _reverses(where: str, arrays: GraphArrays, reverse_names: Any) -> dict[Any, Any]:
    """Return {edge type: the edge type that its reverses get}, without the types that get no reverses.

    Args:
        reverse_names: {edge type: relation of its reverses, or None}; see LocalGraph.to_undirected.
    """
    form = "{edge type: name of its reverse}"
    given_names: Mapping[Any, Any] = check_mapping(where, "reverse_names", reverse_names, form)
    if None in arrays.relations:
        if given_names:
            raise ValueError(f"{where}: the graph has no types, so it takes no reverse_names. Leave them out.")
        return {None: None}
    by_type = by_edge_type(where, given_names)
    names = {known_edge_type(where, key, arrays.relations): name for key, name in by_type.items()}
    backs: dict[EdgeType, EdgeType] = {}
    for edge_type in arrays.relations:
        src, relation, dst = edge_type
        if edge_type not in names and src != dst:
            raise ValueError(
                f"{where}: found no name for the reverse of {type_text(edge_type)}, which joins two node types; each "
                f"such edge type needs one. Pass reverse_names={{{edge_type}: 'rev_{relation}'}}, or None in the place "
                "of the name to leave it as it is."
            )
        name = names.get(edge_type, relation)
        if name is None:
            continue
        back = check_edge_type(where, (dst, name, src))
        if back != edge_type and (back in arrays.relations or back in backs.values()):
            raise ValueError(
                f"{where}: the reverse of {type_text(edge_type)} is named {shown(name)}, and {type_text(back)} is "
                "there already; the reverses need an edge type of their own. Choose another name, or None to leave "
                f"{type_text(edge_type)} as it is."
            )
        backs[edge_type] = back
    return backs


def _of_one_node_type(where: str, arrays: GraphArrays, edge_types: Collection[Any] | None) -> list[Any]:
    """Return the given `edge_types`, checked to go from a node type to itself; for None, all such edge types."""
    have_loops = [edge_type for edge_type in arrays.relations if len({*ends_of(edge_type)}) == 1]
    if edge_types is None:
        return have_loops
    chosen = listed_edge_types(where, edge_types, arrays.relations) if len(edge_types) > 0 else []
    for edge_type in chosen:
        if edge_type not in have_loops:
            raise ValueError(
                f"{where}: {type_text(edge_type)} joins two node types, so it has no self-loops; edge types that can "
                f"have self-loops are {shown(have_loops)}. Leave {type_text(edge_type)} out."
            )
    return chosen


def _filled(where: str, name: str, rows: Tensor, count: int, fill_value: Any) -> Tensor:
    value = -1 if name == ORIGINAL_ID else fill_value[name] if isinstance(fill_value, Mapping) else fill_value
    try:
        return torch.full((count, *rows.shape[1:]), value, dtype=rows.dtype)
    except (TypeError, RuntimeError) as error:
        raise ValueError(
            f"{where}: fill_value {shown(value)} does not fit the edge attribute {name!r}, which is {rows.dtype}. "
            "Pass a number that fits, or {name: number}."
        ) from error
