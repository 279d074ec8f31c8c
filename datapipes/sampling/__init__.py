"""Samplers: stages that draw the neighborhood of the seeds."""

from datapipes.sampling.neighbor_sampler import NeighborSampler

__all__ = ["NeighborSampler"]
