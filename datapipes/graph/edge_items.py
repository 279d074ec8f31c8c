"""The edges of a graph as items: pairs and edge ids, the seeds of links.

Edges are listed in the order of the graph: by destination, then by their place among its in-edges.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor, shown
from datapipes.base.types import by_edge_type, ends_of, type_in, type_text
from datapipes.seeds import HeteroItemSet, ItemSet

__all__: list[str] = []

NAMES = ("seeds", "edge_ids")


def edge_items(
    relations: Mapping[Any, Any], nodes: Mapping[Any, Tensor | None], edge_type: Any, ids: Any
) -> ItemSet | HeteroItemSet:
    """Return the edges of some relations as an item set; see ItemSet.of_edges.

    Args:
        relations: {edge type: Relation}, of None without types.
        nodes: {node type: the node of each row}, None where it is the number of the row.
    """
    where = "ItemSet.of_edges"
    if edge_type is not None:
        edge_type = type_in(where, "edge", edge_type, relations)
    if None in relations:
        pairs, own = items_of(where, relations[None], nodes[None], ids)
        if pairs.shape[0] == 0:
            raise ValueError(f"{where}: found no edges; at least 1 is needed. Take another graph, or other edge_ids.")
        return ItemSet((pairs, own), names=NAMES)
    chosen = [*relations] if edge_type is None else [edge_type]
    if ids is not None and not isinstance(ids, Mapping):
        if edge_type is None:
            raise TypeError(
                f"{where}: edge_ids must be {{edge type: ids}} here, since the graph has types and edge_type is None, "
                f"got {type(ids).__name__}. Name the edge_type."
            )
        ids = {edge_type: ids}
    if ids is not None:
        ids = {type_in(where, "edge", of, relations): each for of, each in by_edge_type(where, ids).items()}
        chosen = [of for of in chosen if of in ids]
        if edge_type is not None and [*ids] != chosen:
            raise ValueError(
                f"{where}: edge_ids is of {shown([*map(type_text, ids)])}, but edge_type is {type_text(edge_type)!r}. "
                "Give the ids of this type alone, or leave edge_type out."
            )
    found = {}
    for of in chosen:
        each = items_of(where, relations[of], nodes[ends_of(of)[1]], None if ids is None else ids[of])
        if each[0].shape[0] > 0:
            found[of] = ItemSet(each, names=NAMES)
    if not found:
        raise ValueError(
            f"{where}: found no edges of {shown([*map(type_text, chosen)])}; at least 1 is needed. Name another type."
        )
    return HeteroItemSet(found)


def items_of(where: str, relation: Any, nodes: Tensor | None, ids: Any) -> tuple[Tensor, Tensor]:
    """Return pairs and ids of all edges, or of those with some ids, in their order."""
    indices = relation.indices
    if ids is None:
        destinations = destinations_of(relation, nodes)
        own = torch.arange(len(indices)) if relation.edge_ids is None else relation.edge_ids
        return torch.stack((indices, destinations.to(indices.dtype)), 1), own
    given = check_index_tensor(where, "edge_ids", ids).long()
    places = given
    if relation.edge_ids is not None:
        order = relation.edge_ids.argsort()
        found = torch.searchsorted(relation.edge_ids[order], given).clamp(max=max(len(order) - 1, 0))
        places = order[found] if len(order) > 0 else given
    outside = (places < 0) | (places >= len(indices))
    if relation.edge_ids is not None and not bool(outside.any()):
        outside = relation.edge_ids[places] != given
    if bool(outside.any()):
        raise IndexError(
            f"{where}: found the edge id {int(given[outside][0])}, which no edge here has. Take edge ids of this "
            "graph; over a DistGraph, of the local part."
        )
    rows = torch.searchsorted(relation.indptr, places, right=True) - 1
    destinations = rows if nodes is None else nodes[rows]
    return torch.stack((indices[places], destinations.to(indices.dtype)), 1), given


def destinations_of(relation: Any, nodes: Tensor | None) -> Tensor:
    rows = torch.arange(len(relation.indptr) - 1) if nodes is None else nodes
    return rows.repeat_interleave(relation.indptr.diff(), output_size=len(relation.indices))
