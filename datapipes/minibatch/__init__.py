"""Minibatches, the values that flow between stages."""

from datapipes.minibatch.block import CSC, Block, SampledSubgraph
from datapipes.minibatch.minibatch import MiniBatch
from datapipes.minibatch.sparse_rows import SparseRows

__all__ = [
    "CSC",
    "Block",
    "MiniBatch",
    "SampledSubgraph",
    "SparseRows",
]


def __dir__() -> list[str]:
    return [*__all__]
