"""GraphSAGE on blocks, in plain torch: the model that the examples train.

Each layer adds two linear maps: one of a node's own vector, one of the mean over its in-edges (Hamilton et al., 2017).
Without `own_map` it is one map of the mean over the node itself and its in-edges, their "GCN" aggregator.
If edges have a "direction" (in the embedded data: depends on, is needed by), each direction has its own mean and map.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import datapipes as dp


class WordEncoder(nn.Module):
    """The sum of the vectors of a node's words: a linear map of the bag of words, computed without the dense bag.

    `words` is int [n, max_words], padded with `num_words`. During training a word is left out with probability
    `dropout`.
    """

    def __init__(self, num_words: int, width: int, dropout: float) -> None:
        super().__init__()
        self.num_words, self.dropout = num_words, dropout
        self.vectors = nn.EmbeddingBag(num_words, width, mode="sum", include_last_offset=True)
        nn.init.normal_(self.vectors.weight, std=0.1)
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, words: Tensor) -> Tensor:
        kept = words < self.num_words
        if self.training:
            kept &= torch.rand(words.shape) >= self.dropout
        return self.vectors(words[kept].long(), offsets_of(kept.sum(1))) + self.bias


class RowEncoder(nn.Sequential):
    """A linear map of rows of numbers [n, ...] of any dtype.

    Its output is normed, and it has no bias: beside rows of small numbers a bias, or the epsilon of a layer norm, is
    all that would show. Then the scale of the rows does not matter.
    """

    def __init__(self, row_width: int, width: int, dropout: float) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(dropout), nn.Linear(row_width, width, bias=False))

    def forward(self, rows: Tensor) -> Tensor:
        encoded = super().forward(rows.float())
        return F.layer_norm(encoded, encoded.shape[1:], eps=1e-12)


class SAGELayer(nn.Module):
    """One layer over a node's own vector and, for each direction of the edges, the mean of the neighbors' vectors.

    Without `own_map` a node's own vector counts as one more neighbor.
    """

    def __init__(self, width: int, out_width: int, num_directions: int, own_map: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, out_width) if own_map else None
        self.neighbors = nn.ModuleList(nn.Linear(width, out_width, bias=not own_map) for _ in range(num_directions))

    def forward(self, block: dp.Block, h: Tensor, direction: Tensor | None) -> Tensor:
        """Return [num_dst, out_width]; `direction` is uint8 [num_edges], one bit per direction of an edge."""
        if direction is None:
            ways = [torch.ones_like(block.indices, dtype=torch.bool)]
        else:
            ways = [(direction >> bit & 1).bool() for bit in range(len(self.neighbors))]
        means = means_of_neighbors(block, h, ways, with_own=self.own is None)
        of_neighbors = [linear(mean) for linear, mean in zip(self.neighbors, means, strict=True)]
        return sum(of_neighbors) if self.own is None else sum(of_neighbors, self.own(h[: block.num_dst]))


class GraphSAGE(nn.Module):
    """An encoder of the features, then one SAGELayer for each block.

    Args:
        encoder: features [n, ...] -> [n, width].
        widths: the input width of each layer, then the number of scores: one entry more than blocks.
        num_directions: 1, or the number of bits in the edge feature "direction".
        own_map: whether a layer has a map of the node's own vector.
    """

    def __init__(
        self, encoder: nn.Module, widths: Sequence[int], num_directions: int, dropout: float, own_map: bool
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = nn.ModuleList(SAGELayer(a, b, num_directions, own_map) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, blocks: Sequence[dp.Block], features: Tensor, directions: Sequence[Tensor | None]) -> Tensor:
        """Return scores [num_dst of the last block, num_classes]."""
        h = self.encoder(features)
        for layer, block, direction in zip(self.layers, blocks, directions, strict=True):
            h = F.dropout(F.relu(layer.norm(h)), self.dropout, self.training)
            h = layer(block, h, direction)
        return h


def means_of_neighbors(
    block: dp.Block, h: Tensor, ways: Sequence[Tensor], *, with_own: bool = False
) -> Sequence[Tensor]:
    """Return one tensor [num_dst, width] for each of `ways`, bool [num_edges]: the mean of `h` over the in-edges in it,
    0 without in-edges. `with_own` counts the node itself too.

    An embedding bag adds up the rows without making one copy of a row per edge. All ways share one bag, since each bag
    costs a gradient as large as `h`.
    """
    indices = block.indices.long()
    indptr = offsets_of(torch.cat([offsets_of(kept)[block.indptr].diff() for kept in ways]))
    summed = F.embedding_bag(
        torch.cat([indices[kept] for kept in ways]), h, indptr, mode="sum", include_last_offset=True
    )
    counts = indptr.diff().unsqueeze(1)
    if with_own:
        return ((summed + h[: block.num_dst].repeat(len(ways), 1)) / (counts + 1)).chunk(len(ways))
    return (summed / counts.clamp(min=1)).chunk(len(ways))


def offsets_of(counts: Tensor) -> Tensor:
    """Return int64 [n + 1]: 0, then the running sums of `counts`."""
    return F.pad(counts.long().cumsum(0), (1, 0))
