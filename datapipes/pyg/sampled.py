"""Convert a sampled neighborhood of this package to a SamplerOutput or HeteroSamplerOutput of PyG."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.base.rows import new_rows
from datapipes.graph.graph import Graph
from datapipes.graph.hops import Sampled
from datapipes.minibatch.flat import FlatEdges, flattened
from datapipes.minibatch.message import by_type
from datapipes.pyg.torch_geometric_names import HeteroSamplerOutput, SamplerOutput


def sampler_output(sampled: Sampled, graph: Graph, disjoint: bool) -> Any:
    """Return `sampled` as a SamplerOutput or HeteroSamplerOutput, with int64 ids, edge ids, and every type of `graph`.

    `row` and `col` are the rows of one tensor [2, num_edges]. With `disjoint`, `batch` is the tree of each node.
    """
    nodes, edges, has_hops = flattened(sampled.hops[::-1], sampled.nodes, by_type(sampled.local_seeds), {})
    for edge_type in set(graph.edge_types) - edges.keys():  # no hop draws from it
        none = torch.empty(2, 0, dtype=torch.int64)
        edges[edge_type] = FlatEdges(none, none[0], [0] * len(sampled.hops), [])
    node = {node_type: _widened(nodes[node_type].ids) for node_type in graph.node_types}
    ends = {edge_type: edges[edge_type].edge_index.unbind() for edge_type in graph.edge_types}
    row, col = ({edge_type: pair[end] for edge_type, pair in ends.items()} for end in (0, 1))
    edge = {edge_type: edges[edge_type].ids for edge_type in ends}
    fields: list[Any] = [node, row, col, edge, sampled.groups if disjoint else None]
    if has_hops:
        fields += [{key: nodes[key].counts for key in node}, {key: edges[key].counts for key in ends}]
    if graph.is_heterogeneous:
        return HeteroSamplerOutput(*fields)
    return SamplerOutput(*(field[None] if isinstance(field, dict) else field for field in fields))


def _widened(ids: Tensor) -> Tensor:
    """Return `ids` as int64. If they must be converted, the result lies in memory reused from earlier minibatches."""
    return ids if ids.dtype == torch.int64 else new_rows(len(ids), (), torch.int64).copy_(ids)


def seeds_alone(seeds: Any, graph: Graph, num_hops: int, disjoint: bool) -> Any:
    """Return PyG's output for `seeds` whose hops all have the fanout 0: the seeds, and no edges."""
    none = torch.empty(0, dtype=torch.int64)
    if not graph.is_heterogeneous:
        batch = torch.arange(len(seeds)) if disjoint else None
        return SamplerOutput(_widened(seeds), none, none, none, batch, [len(seeds)] + [0] * num_hops, [0] * num_hops)
    nodes: dict[Any, Tensor] = {node_type: _widened(seeds.get(node_type, none)) for node_type in graph.node_types}
    trees = torch.split(torch.arange(sum(map(len, nodes.values()))), [len(ids) for ids in nodes.values()])
    return HeteroSamplerOutput(
        node=nodes,
        row=dict.fromkeys(graph.edge_types, none),
        col=dict.fromkeys(graph.edge_types, none),
        edge=dict.fromkeys(graph.edge_types, none),
        batch=dict(zip(nodes, trees, strict=True)) if disjoint else None,  # trees are counted across the types
        num_sampled_nodes={node_type: [len(ids)] + [0] * num_hops for node_type, ids in nodes.items()},
        num_sampled_edges={edge_type: [0] * num_hops for edge_type in graph.edge_types},
    )


def edge_index_of(row: Tensor, col: Tensor) -> Tensor:
    """Return the edges as int64 [2, num_edges]. If `row` and `col` are the rows of one such tensor, return that tensor.

    That case calls no function of torch: each would release the GIL, and threads that work ahead would take it.
    """
    base = row._base
    if base is not None and base is col._base and base.shape == (2, len(row)) and base.is_contiguous():
        begin = base.storage_offset()
        offsets, is_plain = (row.storage_offset(), col.storage_offset()), row.is_contiguous() and col.is_contiguous()
        if is_plain and offsets == (begin, begin + len(row)) and row.dtype == base.dtype:
            return base
    return torch.stack((row, col))
