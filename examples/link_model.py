"""The model of examples/link_prediction.py: vectors of nodes from their neighborhood, and a score of pairs of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import datapipes as dp

PLAIN = ("node", "to", "node")  # the one edge type of a graph without types, in the model


@dataclass(frozen=True)
class Settings:
    """Settings of training; none was chosen on a test set.

    Attributes:
        decoder: "product", or "mlp", a small network over the product.
        length: that of the vectors between two layers, of a width of 1; 0 leaves them as they are.
        averaging: how much of the running mean of the weights, which is evaluated, stays at a step; 0 is none of it.
        precision: of products of matrices, see torch.set_float32_matmul_precision; "medium" takes less time where the
            processor multiplies bfloat16.
    """

    width: int = 128
    fanouts: tuple[int, ...] = (10, 10)
    batch_size: int = 2048
    epochs: int = 10
    learning_rate: float = 5e-3
    dropout: float = 0.3
    decoder: str = "product"
    length: float = 0.0
    averaging: float = 0.0
    precision: str = "highest"


class LinkModel(nn.Module):
    """Vectors of nodes by layers over their in-edges, and a score of pairs.

    A layer adds a map of the node itself and one of the mean of its neighbors, each times the vector of its relation;
    all relations weigh the same (GraphSAGE, Hamilton et al., 2017; composition of Vashishth et al., 2020). The score of
    a pair is the sum of source times relation times destination (DistMult, Yang et al., 2015), or a small network over
    source times destination.
    """

    def __init__(self, graph: Any, features: dict[str, Tensor], settings: Settings) -> None:
        super().__init__()
        width, self.dropout = settings.width, settings.dropout
        self.length = settings.length * width**0.5
        self.types = [of or "node" for of in graph.node_types]
        self.relations = {of or PLAIN: number for number, of in enumerate(graph.edge_types)}
        self.inputs = nn.ModuleDict()
        for of, count in zip(self.types, (graph.num_nodes_of(of) for of in graph.node_types), strict=True):
            self.inputs[of] = _input(features.get(of), count, width)
        self.layers = nn.ModuleList(nn.Linear(2 * width, width) for _ in settings.fanouts)
        self.of_relation = nn.Parameter(torch.ones(len(settings.fanouts) + 1, len(self.relations), width))
        self.mlp = (
            nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(width, 1))
            if settings.decoder == "mlp"
            else None
        )

    def forward(self, minibatch: dp.MiniBatch, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the vectors of the nodes of each type that the last layer knows: the seeds come first."""
        nodes = minibatch.input_nodes if isinstance(minibatch.input_nodes, dict) else {"node": minibatch.input_nodes}
        h = {of: _rows(self.inputs[of], features.get(of), ids) for of, ids in nodes.items()}
        for number, (layer, hop) in enumerate(zip(self.layers, minibatch.blocks, strict=True)):
            blocks = hop if isinstance(hop, dict) else {PLAIN: hop}
            means = self.means(h, blocks, self.of_relation[number])
            h = {of: layer(torch.cat((h[of][: len(mean)], mean), 1)) for of, mean in means.items()}
            if number + 1 < len(self.layers):
                h = {of: F.dropout(self.scaled(each.relu()), self.dropout, self.training) for of, each in h.items()}
        return h

    def scaled(self, rows: Tensor) -> Tensor:
        return F.normalize(rows, dim=1) * self.length if self.length > 0 else rows

    def means(self, h: dict[str, Tensor], blocks: dict[Any, dp.Block], of_relation: Tensor) -> dict[str, Tensor]:
        """Return the mean over relations of the mean of the neighbors of each destination."""
        found = {}
        for of in self.types:
            into = {key: block for key, block in blocks.items() if key[2] == of}
            if not into:
                found[of] = torch.zeros_like(h[of])
                continue
            count = max(block.num_dst for block in into.values())
            if len(into) == 1:
                ((key, block),) = into.items()
                found[of] = mean_of_neighbors(block, h[key[0]] * of_relation[self.relations[key]])
                continue
            sums, relations = torch.zeros(count, h[of].shape[1]), torch.zeros(count)
            for src in self.types:
                some = {key: block for key, block in into.items() if key[0] == src and block.num_edges > 0}
                if some:
                    edges = torch.cat([block.edge_index for block in some.values()], 1)
                    numbers = torch.tensor([self.relations[key] for key in some])
                    kinds = numbers.repeat_interleave(torch.tensor([block.num_edges for block in some.values()]))
                    degrees = torch.cat([block.indptr.diff() for block in some.values()])
                    shares = (1 / degrees).repeat_interleave(degrees)
                    messages = F.embedding(edges[0], h[src]) * F.embedding(kinds, of_relation) * shares[:, None]
                    sums = sums.index_add(0, edges[1], messages)
                    relations = relations.index_add(0, edges[1], shares)
            found[of] = sums / relations.clamp(min=1)[:, None]
        return found

    def score(self, sources: Tensor, destinations: Tensor, relations: Tensor) -> Tensor:
        """Return the scores of pairs of vectors [..., width], of relations by number."""
        if self.mlp is not None:
            return self.mlp(sources * destinations).squeeze(-1)
        return (sources * F.embedding(relations, self.of_relation[-1]) * destinations).sum(-1)


def mean_of_neighbors(block: dp.Block, rows: Tensor) -> Tensor:
    """Return the mean of the rows of the sources of each destination, 0 where it has none."""
    num_dst, num_src = block.num_dst, block.num_src
    if 16 * block.num_edges < num_dst * num_src:
        return F.embedding_bag(block.indices.long(), rows, block.indptr, mode="mean", include_last_offset=True)
    # So many pairs are edges that a product of matrices takes half the time.
    sources, destinations = block.edge_index
    counts = torch.zeros(num_dst * num_src).index_add_(0, destinations * num_src + sources, torch.ones(block.num_edges))
    return counts.view(num_dst, num_src) @ rows[:num_src] / block.indptr.diff().clamp(min=1)[:, None]


def _input(rows: Tensor | None, count: int, width: int) -> nn.Module:
    if rows is None:
        vectors = nn.Embedding(count, width)
        nn.init.xavier_uniform_(vectors.weight)
        return vectors
    if rows.dtype.is_floating_point:
        return nn.Linear(rows.shape[1], width)
    return nn.EmbeddingBag(int(rows.max()) + 1, width, padding_idx=int(rows.max()), mode="sum")


def _rows(module: nn.Module, features: Tensor | None, ids: Tensor) -> Tensor:
    return (
        module(ids.long())
        if features is None
        else module(features if features.dtype.is_floating_point else features.long())
    )
