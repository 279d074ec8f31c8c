"""GraphSAGE on blocks, in plain torch: the model that the examples train.

Each layer adds a linear map of a node's own vector to one of the mean over its in-edges (Hamilton et al., 2017).
Where edges have a "direction" (in the embedded data: depends on, is needed by) each direction has a mean and a map
of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import datapipes as dp


class WordEncoder(nn.Module):
    """The sum of the vectors of a node's words: a linear map of the bag of words that never makes the bag.

    `words` is int [n, max_words], filled up with `num_words`. While training, a word is left out with probability
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
    """A linear map of rows of numbers, of any dtype, [n, ...]."""

    def __init__(self, row_width: int, width: int, dropout: float) -> None:
        super().__init__(nn.Flatten(), nn.Dropout(dropout), nn.Linear(row_width, width))

    def forward(self, rows: Tensor) -> Tensor:
        return super().forward(rows.float())


class SAGELayer(nn.Module):
    """One layer: own vector and, for each direction of the edges, the mean of the neighbors' vectors."""

    def __init__(self, width: int, out_width: int, num_directions: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.own = nn.Linear(width, out_width)
        self.neighbors = nn.ModuleList(nn.Linear(width, out_width, bias=False) for _ in range(num_directions))

    def forward(self, block: dp.Block, h: Tensor, direction: Tensor | None) -> Tensor:
        """Return [num_dst, out_width]; `direction` is uint8 [num_edges], a bit for each direction that an edge has."""
        result = self.own(h[: block.num_dst])
        for bit, linear in enumerate(self.neighbors):
            kept = None if direction is None else (direction >> bit & 1).bool()
            result = result + linear(mean_of_neighbors(block, h, kept))
        return result


class GraphSAGE(nn.Module):
    """An encoder of the features, then one SAGELayer for each block.

    Args:
        encoder: features [n, ...] -> [n, width].
        widths: of the input of each layer and of the scores: one more than there are blocks.
        num_directions: 1, or the number of bits in the edge feature "direction".
    """

    def __init__(self, encoder: nn.Module, widths: Sequence[int], num_directions: int, dropout: float) -> None:
        super().__init__()
        self.encoder = encoder
        self.layers = nn.ModuleList(SAGELayer(a, b, num_directions) for a, b in pairwise(widths))
        self.dropout = dropout

    def forward(self, blocks: Sequence[dp.Block], features: Tensor, directions: Sequence[Tensor | None]) -> Tensor:
        """Return scores [num_dst of the last block, num_classes]."""
        h = self.encoder(features)
        for layer, block, direction in zip(self.layers, blocks, directions, strict=True):
            h = F.dropout(F.relu(layer.norm(h)), self.dropout, self.training)
            h = layer(block, h, direction)
        return h


def mean_of_neighbors(block: dp.Block, h: Tensor, kept: Tensor | None = None) -> Tensor:
    """Return [num_dst, width]: the mean of `h` over the (kept) in-edges of each destination, 0 where there are none.

    An embedding bag adds the rows up without a copy of one row for each edge.
    """
    indptr, indices = block.indptr, block.indices.long()
    if kept is not None:
        indptr, indices = offsets_of(kept)[indptr], indices[kept]
    summed = F.embedding_bag(indices, h, indptr, mode="sum", include_last_offset=True)
    return summed / indptr.diff().clamp(min=1).unsqueeze(1)


def offsets_of(counts: Tensor) -> Tensor:
    """Return int64 [n + 1]: 0 and the running sums of `counts`."""
    return F.pad(counts.long().cumsum(0), (1, 0))
