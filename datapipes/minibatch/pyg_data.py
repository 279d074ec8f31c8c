"""A minibatch as PyG's `Data`, in the shape that PyG's own NeighborLoader gives.

In PyG each node has in-edges from one hop only, and `torch_geometric.utils.trim_to_layer` relies on it.
`frontier="new"` samples that way. With `frontier="all"` later hops draw for older nodes again; then each node keeps
only the picks of the hop in which it is first a destination, which are distributed as in PyG.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from datapipes.minibatch.block import Block

if TYPE_CHECKING:
    from torch_geometric.data import Data


def pyg_data(
    *,
    blocks: list[Block] | None,
    input_nodes: Tensor | None,
    seeds: Tensor | None,
    compacted_seeds: Tensor | None,
    labels: Tensor | None,
    node_features: dict[str, Tensor],
    edge_features: list[dict[str, Tensor]] | None,
) -> Data:
    """Return `Data` with n_id, edge_index, num_sampled_nodes, num_sampled_edges, and e_id, x, y, batch_size,
    seed_local_id where known.

    `edge_index` and all rows use the local ids: the seeds are nodes 0 .. num_sampled_nodes[0] - 1. A feature named
    "feat" or "x" becomes `x`; others keep their name. `y` is aligned with the seeds, and `seed_local_id` tells where
    a seed (which may repeat) lies. Edge features become attributes under their name, aligned with `edge_index`.

    Raises:
        ImportError: torch_geometric is not installed.
        ValueError: The minibatch has not been sampled.
    """
    try:
        from torch_geometric.data import Data
    except ImportError as error:
        raise ImportError(
            "to_pyg: needs torch_geometric, which is not installed. pip install 'datapipes[pyg]'."
        ) from error
    if blocks is None or input_nodes is None:
        raise ValueError(
            "to_pyg: found a minibatch without blocks; it must have been sampled. Put a sampler into the chain."
        )
    if not blocks:
        raise ValueError(
            "to_pyg: found a minibatch of no hops; at least one is needed. Sample with one fanout or more."
        )

    hops = list(reversed(blocks))
    edge_indexes, kept_edges, num_sampled_edges = [], [], []
    seen = 0
    for block in hops:
        first = int(block.indptr[seen])  # columns before `seen` were filled by an earlier hop
        edge_indexes.append(block.edge_index[:, first:])
        kept_edges.append(first)
        num_sampled_edges.append(block.num_edges - first)
        seen = block.num_dst
    sizes = [hops[0].num_dst, *(block.num_src for block in hops)]
    data = Data(edge_index=torch.cat(edge_indexes, dim=1))
    data.num_nodes = sizes[-1]
    data.n_id = input_nodes
    data.num_sampled_nodes = [sizes[0], *(after - before for before, after in itertools.pairwise(sizes))]
    data.num_sampled_edges = num_sampled_edges
    edge_ids = [
        block.edge_ids[first:] for block, first in zip(hops, kept_edges, strict=True) if block.edge_ids is not None
    ]
    if len(edge_ids) == len(hops):
        data.e_id = torch.cat(edge_ids)
    if seeds is not None:
        data.batch_size = sizes[0]
        data.seed_local_id = compacted_seeds
    if labels is not None:
        data.y = labels
    features = {"x" if name == "feat" else name: value for name, value in node_features.items()}
    if len(features) < len(node_features):
        raise ValueError("to_pyg: found node features 'feat' and 'x', which both become x; fetch one of them.")
    if edge_features is not None:
        by_hop = list(reversed(edge_features))
        for name in by_hop[0]:
            kept = [given[name][first:] for given, first in zip(by_hop, kept_edges, strict=True)]
            if name in features:
                raise ValueError(
                    f"to_pyg: {name!r} is a node and an edge feature; Data holds one of a name. Rename one."
                )
            features[name] = torch.cat(kept)
    taken = sorted(name for name in features if name in data)
    if taken:
        raise ValueError(f"to_pyg: features {taken} have names of Data's own: {sorted(data.keys())}. Rename them.")
    for name, value in features.items():
        data[name] = value
    return data
