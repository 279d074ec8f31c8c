"""A sampled minibatch as PyG's SamplerOutput or HeteroSamplerOutput."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from datapipes.base.rows import new_rows
from datapipes.graph.graph import Graph
from datapipes.graph.hops import Sampled
from datapipes.minibatch.pyg_data import fill_stores
from datapipes.pyg.torch_geometric_names import HeteroSamplerOutput, SamplerOutput


def sampler_output(sampled: Sampled, graph: Graph, disjoint: bool) -> Any:
    """Return what a sampler found, as PyG's loaders take it: ids as int64, edge ids, all types of the graph.

    `row` and `col` are the rows of one tensor [2, num_edges].
    """
    stores: dict[Any, Any] = defaultdict(_Fields)
    fill_stores(
        stores.__getitem__,
        blocks=sampled.hops[::-1],
        input_nodes=sampled.nodes,
        plain={"compacted_seeds": sampled.local_seeds},
        extra={},
        node_features={},
        edge_features=None,
    )
    if not graph.is_heterogeneous:
        fields = stores[None]
        return SamplerOutput(
            node=_widened(fields.n_id),
            row=fields.edge_index[0],
            col=fields.edge_index[1],
            edge=fields.e_id,
            batch=sampled.groups if disjoint else None,
            num_sampled_nodes=fields.get("num_sampled_nodes"),
            num_sampled_edges=fields.get("num_sampled_edges"),
        )
    nodes = {node_type: stores[node_type] for node_type in graph.node_types}
    rows, cols, ids, counts = {}, {}, {}, {}
    has_hops = all("num_sampled_nodes" in fields for fields in nodes.values())
    for edge_type in graph.edge_types:
        if edge_type in stores:
            fields = stores[edge_type]
            (rows[edge_type], cols[edge_type]), ids[edge_type] = fields.edge_index, fields.e_id
            counts[edge_type] = fields.get("num_sampled_edges")
        else:  # no hop draws from it
            rows[edge_type] = cols[edge_type] = ids[edge_type] = torch.empty(0, dtype=torch.int64)
            counts[edge_type] = [0] * len(sampled.hops)
    return HeteroSamplerOutput(
        node={node_type: _widened(fields.n_id) for node_type, fields in nodes.items()},
        row=rows,
        col=cols,
        edge=ids,
        batch=sampled.groups if disjoint else None,
        num_sampled_nodes={key: fields.num_sampled_nodes for key, fields in nodes.items()} if has_hops else None,
        num_sampled_edges=counts if has_hops else None,
    )


class _Fields(dict[str, Any]):
    """The fields of one type, as attributes too."""

    __setattr__ = dict.__setitem__
    __getattr__ = dict.__getitem__
    __delattr__ = dict.__delitem__


def _widened(ids: Tensor) -> Tensor:
    """Return ids as int64, in memory that earlier minibatches have used."""
    return ids if ids.dtype == torch.int64 else new_rows(len(ids), (), torch.int64).copy_(ids)


def seeds_alone(seeds: Any, graph: Graph, num_hops: int, disjoint: bool) -> Any:
    """Return the output where no hop draws anything: the seeds and no edges."""
    none = torch.empty(0, dtype=torch.int64)
    if not graph.is_heterogeneous:
        batch = torch.arange(len(seeds)) if disjoint else None
        return SamplerOutput(seeds, none, none, none, batch, [len(seeds)] + [0] * num_hops, [0] * num_hops)
    nodes: dict[Any, Tensor] = {node_type: seeds.get(node_type, none) for node_type in graph.node_types}
    trees = torch.split(torch.arange(sum(map(len, nodes.values()))), [len(ids) for ids in nodes.values()])
    return HeteroSamplerOutput(
        node=nodes,
        row=dict.fromkeys(graph.edge_types, none),
        col=dict.fromkeys(graph.edge_types, none),
        edge=dict.fromkeys(graph.edge_types, none),
        batch=dict(zip(nodes, trees, strict=True)) if disjoint else None,  # counted over the types in their order
        num_sampled_nodes={node_type: [len(ids)] + [0] * num_hops for node_type, ids in nodes.items()},
        num_sampled_edges={edge_type: [0] * num_hops for edge_type in graph.edge_types},
    )


def edge_index_of(row: Tensor, col: Tensor) -> Tensor:
    """Return int64 [2, num_edges]; of two rows of one tensor that tensor, which copies nothing.

    No function of torch is called for it: each lets go of the GIL, and threads that work ahead would take it.
    """
    base = row._base
    if base is not None and base is col._base and base.shape == (2, len(row)) and base.is_contiguous():
        begin = base.storage_offset()
        offsets, is_plain = (row.storage_offset(), col.storage_offset()), row.is_contiguous() and col.is_contiguous()
        if is_plain and offsets == (begin, begin + len(row)) and row.dtype == base.dtype:
            return base
    return torch.stack((row, col))
