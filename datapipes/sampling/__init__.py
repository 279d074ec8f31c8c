"""Samplers: stages that draw the neighborhood of the seeds."""

from datapipes.sampling.in_subgraph_sampler import InSubgraphSampler
from datapipes.sampling.layer_neighbor_sampler import LayerNeighborSampler
from datapipes.sampling.neighbor_sampler import NeighborSampler
from datapipes.sampling.sampler import Picks, Sampled, Sampler
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler

__all__ = [
    "InSubgraphSampler",
    "LayerNeighborSampler",
    "NeighborSampler",
    "Picks",
    "Sampled",
    "Sampler",
    "TemporalNeighborSampler",
]


def __dir__() -> list[str]:
    return [*__all__]
