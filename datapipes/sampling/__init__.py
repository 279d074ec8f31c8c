"""Samplers: stages that draw the neighborhood of the seeds."""

from datapipes.sampling.historical_negative_sampler import HistoricalNegativeSampler
from datapipes.sampling.in_batch_negative_sampler import InBatchNegativeSampler
from datapipes.sampling.in_subgraph_sampler import InSubgraphSampler
from datapipes.sampling.induced_subgraph_sampler import InducedSubgraphSampler, SubgraphNorms, measure_norms
from datapipes.sampling.layer_neighbor_sampler import LayerNeighborSampler
from datapipes.sampling.negative_sampler import NegativeSampler
from datapipes.sampling.neighbor_sampler import NeighborSampler
from datapipes.sampling.padder import Padder, measure_sizes
from datapipes.sampling.pinsage_sampler import PinSageSampler
from datapipes.sampling.ppr_sampler import PprSampler
from datapipes.sampling.random_walk_sampler import RandomWalkSampler
from datapipes.sampling.sampler import Picks, Sampled, Sampler
from datapipes.sampling.seed_edge_excluder import SeedEdgeExcluder, add_reverse_edges, exclude_seed_edges
from datapipes.sampling.shadow_sampler import ShadowSampler
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler
from datapipes.sampling.uniform_negative_sampler import UniformNegativeSampler

__all__ = [
    "HistoricalNegativeSampler",
    "InBatchNegativeSampler",
    "InSubgraphSampler",
    "InducedSubgraphSampler",
    "LayerNeighborSampler",
    "NegativeSampler",
    "NeighborSampler",
    "Padder",
    "Picks",
    "PinSageSampler",
    "PprSampler",
    "RandomWalkSampler",
    "Sampled",
    "Sampler",
    "SeedEdgeExcluder",
    "ShadowSampler",
    "SubgraphNorms",
    "TemporalNeighborSampler",
    "UniformNegativeSampler",
    "add_reverse_edges",
    "exclude_seed_edges",
    "measure_norms",
    "measure_sizes",
]


def __dir__() -> list[str]:
    return [*__all__]
