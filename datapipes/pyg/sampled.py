"""A sampled minibatch as PyG's SamplerOutput or HeteroSamplerOutput."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from datapipes.graph.graph import Graph
from datapipes.minibatch import MiniBatch
from datapipes.pyg.upstream import HeteroSamplerOutput, SamplerOutput


def sampler_output(minibatch: MiniBatch, graph: Graph) -> Any:
    """Return what a sampler found, as PyG's loaders take it: ids as int64, edge ids, all types of the graph.

    `row` and `col` are the rows of one tensor [2, num_edges].
    """
    data: Any = minibatch.to_pyg()
    num_hops = minibatch.num_layers
    if not graph.is_heterogeneous:
        return SamplerOutput(
            node=data.n_id.long(),
            row=data.edge_index[0],
            col=data.edge_index[1],
            edge=data.e_id,
            batch=data.get("batch"),
            num_sampled_nodes=data.get("num_sampled_nodes"),
            num_sampled_edges=data.get("num_sampled_edges"),
        )
    nodes = {of: data[of] for of in data.node_types}
    edges = {of: data[of] for of in data.edge_types}
    rows, cols, ids, counts = {}, {}, {}, {}
    has_hops = all("num_sampled_nodes" in store for store in nodes.values())
    for of in graph.edge_types:
        if of in edges:
            (rows[of], cols[of]), ids[of] = edges[of].edge_index, edges[of].e_id
            counts[of] = edges[of].get("num_sampled_edges")
        else:  # no hop draws from it
            rows[of] = cols[of] = ids[of] = torch.empty(0, dtype=torch.int64)
            counts[of] = [0] * num_hops
    return HeteroSamplerOutput(
        node={of: store.n_id.long() for of, store in nodes.items()},
        row=rows,
        col=cols,
        edge=ids,
        batch={of: store.batch for of, store in nodes.items()} if minibatch.batch is not None else None,
        num_sampled_nodes={of: store.num_sampled_nodes for of, store in nodes.items()} if has_hops else None,
        num_sampled_edges=counts if has_hops else None,
    )


def seeds_alone(seeds: Any, graph: Graph, num_hops: int, disjoint: bool) -> Any:
    """Return the output where no hop draws anything: the seeds and no edges."""
    none = torch.empty(0, dtype=torch.int64)
    if not graph.is_heterogeneous:
        batch = torch.arange(len(seeds)) if disjoint else None
        return SamplerOutput(seeds, none, none, none, batch, [len(seeds)] + [0] * num_hops, [0] * num_hops)
    nodes: dict[Any, Tensor] = {of: seeds.get(of, none) for of in graph.node_types}
    first = dict.fromkeys(nodes, 0)
    number = 0
    for of, ids in nodes.items():  # the rows of all types are counted together, in the order of the types
        first[of], number = number, number + len(ids)
    edges = dict.fromkeys(graph.edge_types, none)
    return HeteroSamplerOutput(
        node=nodes,
        row={**edges},
        col={**edges},
        edge={**edges},
        batch={of: torch.arange(first[of], first[of] + len(ids)) for of, ids in nodes.items()} if disjoint else None,
        num_sampled_nodes={of: [len(ids)] + [0] * num_hops for of, ids in nodes.items()},
        num_sampled_edges={of: [0] * num_hops for of in graph.edge_types},
    )


def edge_index_of(row: Tensor, col: Tensor) -> Tensor:
    """Return int64 [2, num_edges]; the tensor whose rows the two are, if there is one, which copies nothing."""
    whole: Any = row._base
    if (
        whole is not None
        and whole is col._base
        and whole.shape == (2, len(row))
        and whole.is_contiguous()
        and row.data_ptr() == whole.data_ptr()
        and col.data_ptr() == whole[1].data_ptr()
    ):
        return whole  # type: ignore[no-any-return]
    return torch.stack((row, col))
