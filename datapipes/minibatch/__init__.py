"""What flows between stages."""

from datapipes.minibatch.minibatch import CSC, Block, MiniBatch, SampledSubgraph

__all__ = ["CSC", "Block", "MiniBatch", "SampledSubgraph"]
