"""The part of each edge by its edge id, made from the book of the nodes."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from datapipes.base.types import EdgeType, of_type
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.graph.graph import Relation
from datapipes.partition.book import PartitionBook
from datapipes.partition.id_maps import smallest_dtype

ROWS = 2**16  # nodes whose edges are written at a time
IDS = 2**20  # edge ids looked at at a time


def with_edge_map(book: PartitionBook, graph: CSCGraph | HeteroCSCGraph) -> PartitionBook:
    """Return the book with the part of each edge, that of its destination. O(num_edges), one or two bytes an edge.

    Raises:
        ValueError: The edge ids of a type are not 0 to num_edges - 1, each once.
    """
    edges = {edge_type: _parts_of_edges(book, graph.relation(edge_type), edge_type) for edge_type in graph.edge_types}
    return PartitionBook(book.num_parts, {key: book.nodes(key) for key in book.node_types}, edges)


def _parts_of_edges(book: PartitionBook, relation: Relation, edge_type: EdgeType | None) -> Tensor:
    owners = book.nodes(None if edge_type is None else edge_type[2])
    if wrong := wrong_edge_ids(relation, edge_type):
        raise ValueError(f"Partitioner: {wrong}. Leave the edge map out: layouts=('native',), edge_map=False.")
    parts = torch.empty(relation.indices.shape[0], dtype=smallest_dtype(book.num_parts))
    for first in range(0, owners.num_ids, ROWS):
        last = min(first + ROWS, owners.num_ids)
        begin, end = int(relation.indptr[first]), int(relation.indptr[last])
        of_rows = owners.part_of(torch.arange(first, last)).to(parts.dtype)
        degrees = relation.indptr[first : last + 1].diff()
        of_edges = torch.from_numpy(np.repeat(of_rows.numpy(), degrees.numpy()))  # torch's would make indices first
        if relation.edge_ids is None:
            parts[begin:end] = of_edges
        else:
            parts[relation.edge_ids[begin:end]] = of_edges
    return parts


def wrong_edge_ids(relation: Relation, edge_type: EdgeType | None) -> str | None:
    """Return None if the edge ids are 0 to num_edges - 1, each once; else what was found. One byte an edge."""
    ids, count = relation.edge_ids, int(relation.indices.shape[0])
    if ids is None:
        return None
    seen, wrong = torch.zeros(count, dtype=torch.bool), "an id that is there twice"
    for begin in range(0, count, IDS):
        some = ids[begin : begin + IDS]
        outside = (some < 0) | (some >= count)
        if bool(outside.any()):
            wrong = f"the id {int(some[int(outside.nonzero()[0])])}"
            break
        seen[some] = True
    if bool(seen.all()):
        return None
    return f"found {wrong} among the edge ids{of_type(edge_type)}; an edge map needs each of 0 to {count - 1} once"
