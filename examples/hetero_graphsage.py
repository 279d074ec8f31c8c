"""GraphSAGE on blocks of a heterogeneous graph, in plain torch: graphsage.py with a map for each relation.

A layer adds a linear map of a node's own vector, one map for each node type, and for each relation that ends in the
node a linear map of the mean over its in-edges (R-GCN, Schlichtkrull et al., 2018, with the means of GraphSAGE).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from urllib.parse import quote

import torch
from graphsage import offsets_of
from torch import Tensor, nn
from torch.nn import functional as F

import datapipes as dp

EdgeType = tuple[str, str, str]
Blocks = Mapping[EdgeType, dp.Block]


class TypeVector(nn.Module):
    """One learned vector for all nodes of a type without features: only their neighbors tell them apart."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.zeros(width))

    def forward(self, nodes: Tensor) -> Tensor:
        return self.vector.expand(len(nodes), -1)


class NodeVectors(nn.Embedding):
    """A learned vector for each node of a type; it tells the model nothing of nodes that training never reaches."""

    def __init__(self, num_nodes: int, width: int) -> None:
        super().__init__(num_nodes, width)
        nn.init.normal_(self.weight, std=0.1)


class HeteroSAGELayer(nn.Module):
    """One layer over a node's own vector and, for each relation, the mean of the neighbors' vectors.

    It computes nodes of the types in `ends`. Most nodes have in-edges of few relations; the maps of the others are not
    computed for them.
    """

    def __init__(
        self,
        width: int,
        out_width: int,
        node_types: Iterable[str],
        ends: Collection[str],
        edge_types: Iterable[EdgeType],
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleDict({_key(node_type): nn.LayerNorm(width) for node_type in node_types})
        self.own = nn.ModuleDict({_key(node_type): nn.Linear(width, out_width) for node_type in ends})
        self.maps = nn.ModuleDict(
            {_key(*each): nn.Linear(width, out_width, bias=False) for each in edge_types if each[2] in ends}
        )

    def forward(self, blocks: Blocks, h: Mapping[str, Tensor], num_out: Mapping[str, int], dropout: float) -> dict:
        """Return [num_out[type], out_width] for each type in `num_out`; `h` has [num_src, width] for each type."""
        normed = {
            node_type: F.dropout(F.relu(self.norms[_key(node_type)](rows)), dropout, self.training)
            for node_type, rows in h.items()
        }
        out = {node_type: self.own[_key(node_type)](normed[node_type][:count]) for node_type, count in num_out.items()}
        for node_type, rows in normed.items():
            drawn = {each: block for each, block in blocks.items() if each[0] == node_type and block.num_edges}
            for each, (places, means) in means_of_neighbors(drawn, rows).items():
                out[each[2]] = out[each[2]].index_add(0, places, self.maps[_key(*each)](means))
        return out


class HeteroGraphSAGE(nn.Module):
    """An encoder of each node type, then one HeteroSAGELayer for each hop.

    Args:
        encoders: by node type, a module from the features of the nodes to [n, width].
        widths: the input width of each layer, then the number of scores: one entry more than hops.
        edge_types: those that are drawn from.
        target: the node type of the seeds.
    """

    def __init__(
        self,
        encoders: Mapping[str, nn.Module],
        widths: Sequence[int],
        edge_types: Sequence[EdgeType],
        target: str,
        dropout: float,
    ) -> None:
        super().__init__()
        self.encoders = nn.ModuleDict({_key(node_type): encoder for node_type, encoder in encoders.items()})
        self.layers = nn.ModuleList()
        for layer, (width, out_width) in enumerate(pairwise(widths)):
            ends = [target] if layer == len(widths) - 2 else list(encoders)  # the last layer computes the seeds alone
            self.layers.append(HeteroSAGELayer(width, out_width, list(encoders), ends, edge_types))
        self.target, self.dropout = target, dropout

    def forward(self, hops: Sequence[Blocks], features: Mapping[str, Tensor]) -> Tensor:
        """Return scores [num_dst of the target's blocks in the last hop, num_classes]."""
        h = {node_type: self.encoders[_key(node_type)](rows) for node_type, rows in features.items()}
        for place, (layer, blocks) in enumerate(zip(self.layers, hops, strict=True)):
            num_out = {dst: block.num_dst for (_, _, dst), block in blocks.items()}
            if place + 1 == len(hops):
                num_out = {self.target: num_out[self.target]}
            else:  # types in which no relation ends have sources but no destinations
                num_out |= {src: block.num_src for (src, _, _), block in hops[place + 1].items()}
            h = layer(blocks, h, num_out, self.dropout)
        return h[self.target]


def means_of_neighbors(blocks: Blocks, h: Tensor) -> dict[EdgeType, tuple[Tensor, Tensor]]:
    """Return by relation the destinations with in-edges, int64 [n], and the mean of `h` over the in-edges of each.

    The means are [n, width]. All relations have one source type, whose vectors are `h`, and share one embedding bag,
    since each bag costs a gradient as large as `h`.
    """
    if not blocks:
        return {}
    counts = [block.indptr.diff() for block in blocks.values()]
    places = [count.nonzero().squeeze(1) for count in counts]
    means = F.embedding_bag(
        torch.cat([block.indices.long() for block in blocks.values()]),
        h,
        offsets_of(torch.cat([count[count > 0] for count in counts])),
        mode="mean",
        include_last_offset=True,
    )
    pairs = zip(places, means.split([len(each) for each in places]), strict=True)
    return dict(zip(blocks, pairs, strict=True))


def _key(*parts: str) -> str:
    """Return a type as a key of a ModuleDict, which may hold no dot and no name of a method."""
    return "type " + ":".join(quote(part, safe="").replace(".", "%2E") for part in parts)
