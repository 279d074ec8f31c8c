"""What flows between stages."""

from datapipes.minibatch.block import CSC, Block, SampledSubgraph
from datapipes.minibatch.minibatch import MiniBatch

__all__ = [
    "CSC",
    "Block",
    "MiniBatch",
    "SampledSubgraph",
]


def __dir__() -> list[str]:
    return [*__all__]
