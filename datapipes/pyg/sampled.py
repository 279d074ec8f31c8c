"""A sampled minibatch as PyG's SamplerOutput or HeteroSamplerOutput."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from datapipes.base.rows import new_rows
from datapipes.graph.graph import Graph
from datapipes.minibatch import MiniBatch
from datapipes.minibatch.pyg_data import fill_stores
from datapipes.pyg.upstream import HeteroSamplerOutput, SamplerOutput


@dataclass
class Found:
    """What a sampler found, as blocks, which are smaller to send than the output that is made of them.

    Attributes:
        minibatch: the seeds, the blocks and their nodes; or the output itself, where no hop draws anything.
        batch, metadata: as SamplerOutput has them; PyG sets them.
    """

    minibatch: Any
    batch: Any = None
    metadata: Any = None

    @classmethod
    def of(cls, minibatch: MiniBatch) -> Found:
        """Return what a minibatch holds that is needed for the output."""
        kept = ("seeds", "compacted_seeds", "input_nodes", "blocks", "batch")
        return cls(MiniBatch(**{name: getattr(minibatch, name) for name in kept}), minibatch.batch)

    def output(self, graph: Graph) -> Any:
        """Return the output, as PyG's loaders take it: ids as int64, edge ids, all types of the graph.

        `row` and `col` are the rows of one tensor [2, num_edges].
        """
        if not isinstance(self.minibatch, MiniBatch):
            self.minibatch.batch, self.minibatch.metadata = self.batch, self.metadata
            return self.minibatch
        stores: dict[Any, Any] = defaultdict(_Fields)
        plain = {name: getattr(self.minibatch, name) for name in ("seeds", "compacted_seeds")}
        fill_stores(
            stores.__getitem__,
            blocks=self.minibatch.blocks,
            input_nodes=self.minibatch.input_nodes,
            plain={name: value for name, value in plain.items() if value is not None},
            extra={},
            node_features={},
            edge_features=None,
        )
        if not graph.is_heterogeneous:
            found = stores[None]
            return SamplerOutput(
                node=_widened(found.n_id),
                row=found.edge_index[0],
                col=found.edge_index[1],
                edge=found.e_id,
                batch=self.batch,
                num_sampled_nodes=found.get("num_sampled_nodes"),
                num_sampled_edges=found.get("num_sampled_edges"),
                metadata=self.metadata,
            )
        nodes = {of: stores[of] for of in graph.node_types}
        rows, cols, ids, counts = {}, {}, {}, {}
        has_hops = all("num_sampled_nodes" in found for found in nodes.values())
        for of in graph.edge_types:
            if of in stores:
                (rows[of], cols[of]), ids[of] = stores[of].edge_index, stores[of].e_id
                counts[of] = stores[of].get("num_sampled_edges")
            else:  # no hop draws from it
                rows[of] = cols[of] = ids[of] = torch.empty(0, dtype=torch.int64)
                counts[of] = [0] * self.minibatch.num_layers
        return HeteroSamplerOutput(
            node={of: _widened(found.n_id) for of, found in nodes.items()},
            row=rows,
            col=cols,
            edge=ids,
            batch=self.batch,
            num_sampled_nodes={of: found.num_sampled_nodes for of, found in nodes.items()} if has_hops else None,
            num_sampled_edges=counts if has_hops else None,
            metadata=self.metadata,
        )


class _Fields(dict[str, Any]):
    """The fields of one type, as attributes too."""

    __setattr__ = dict.__setitem__
    __getattr__ = dict.__getitem__
    __delattr__ = dict.__delitem__


def _widened(ids: Tensor) -> Tensor:
    """Return ids as int64, in memory that earlier minibatches have used."""
    return ids if ids.dtype == torch.int64 else new_rows(len(ids), (), torch.int64).copy_(ids)


def seeds_alone(seeds: Any, graph: Graph, num_hops: int, disjoint: bool) -> Found:
    """Return what is found where no hop draws anything: the seeds and no edges."""
    none = torch.empty(0, dtype=torch.int64)
    if not graph.is_heterogeneous:
        counts = [len(seeds)] + [0] * num_hops
        out = SamplerOutput(seeds, none, none, none, num_sampled_nodes=counts, num_sampled_edges=[0] * num_hops)
        return Found(out, torch.arange(len(seeds)) if disjoint else None)
    nodes: dict[Any, Tensor] = {of: seeds.get(of, none) for of in graph.node_types}
    first = dict.fromkeys(nodes, 0)
    number = 0
    for of, ids in nodes.items():  # the rows of all types are counted together, in the order of the types
        first[of], number = number, number + len(ids)
    edges = dict.fromkeys(graph.edge_types, none)
    out = HeteroSamplerOutput(
        node=nodes,
        row={**edges},
        col={**edges},
        edge={**edges},
        num_sampled_nodes={of: [len(ids)] + [0] * num_hops for of, ids in nodes.items()},
        num_sampled_edges={of: [0] * num_hops for of in graph.edge_types},
    )
    trees = {of: torch.arange(first[of], first[of] + len(ids)) for of, ids in nodes.items()}
    return Found(out, trees if disjoint else None)


def edge_index_of(row: Tensor, col: Tensor) -> Tensor:
    """Return int64 [2, num_edges]; the tensor whose rows the two are, if there is one, which copies nothing."""
    whole: Tensor | None = row._base
    if (
        whole is not None
        and whole is col._base
        and whole.shape == (2, len(row))
        and whole.is_contiguous()
        and row.data_ptr() == whole.data_ptr()
        and col.data_ptr() == whole[1].data_ptr()
    ):
        return whole
    return torch.stack((row, col))
