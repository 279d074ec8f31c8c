"""Minibatches for graph neural networks: a chain of small stages, reproducible to the bit.

The public names. Start with README.md; docs/semantics.md says what a minibatch is.
"""

import importlib
from typing import TYPE_CHECKING

from datapipes.base.errors import (
    ChannelClosed,
    ChannelDamaged,
    DatapipesDeprecationWarning,
    EndOfEpoch,
    LoaderTimeoutError,
    PeerDied,
    QueueTimeoutError,
    RemoteError,
    ServerUnavailable,
)
from datapipes.base.rng import STREAM_VERSION
from datapipes.chain.functional import expect_stages, register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.channel.mp_channel import MpChannel
from datapipes.channel.shm_channel import ShmChannel
from datapipes.compat.other_names import missing_public_name
from datapipes.device.copy_to import CopyTo
from datapipes.features.age_adder import AgeAdder
from datapipes.features.cached_feature import CPUCachedFeature, count_accesses
from datapipes.features.disk_feature import DiskFeature
from datapipes.features.feature import Feature
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.features.feature_store import FeatureStore
from datapipes.features.gpu_cached_feature import GPUCachedFeature
from datapipes.features.sparse_feature import SparseFeature
from datapipes.features.tensor_feature import TensorFeature
from datapipes.graph.csc_graph import CSCGraph
from datapipes.graph.hetero_csc_graph import HeteroCSCGraph
from datapipes.graph.link_split import LinkSplit, random_link_split, time_link_split
from datapipes.loader.data_loader import DataLoader
from datapipes.loader.from_node import FromNode
from datapipes.loader.prefetcher import Prefetcher
from datapipes.minibatch.block import Block, SampledSubgraph
from datapipes.minibatch.minibatch import MiniBatch
from datapipes.minibatch.sparse_rows import SparseRows
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
from datapipes.sampling.seed_edge_excluder import SeedEdgeExcluder, add_reverse_edges, exclude_seed_edges
from datapipes.sampling.shadow_sampler import ShadowSampler
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler
from datapipes.sampling.uniform_negative_sampler import UniformNegativeSampler
from datapipes.seeds.distributed_item_sampler import DistributedItemSampler
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

if TYPE_CHECKING:
    from datapipes import datasets, distributed, stages

__version__ = "0.1.0"

__all__ = [
    "STREAM_VERSION",
    "AgeAdder",
    "Block",
    "CPUCachedFeature",
    "CSCGraph",
    "ChannelClosed",
    "ChannelDamaged",
    "CopyTo",
    "DataLoader",
    "DatapipesDeprecationWarning",
    "DiskFeature",
    "DistributedItemSampler",
    "EndOfEpoch",
    "Feature",
    "FeatureFetcher",
    "FeatureStore",
    "FromNode",
    "GPUCachedFeature",
    "HeteroCSCGraph",
    "HeteroItemSet",
    "HistoricalNegativeSampler",
    "InBatchNegativeSampler",
    "InSubgraphSampler",
    "InducedSubgraphSampler",
    "ItemSampler",
    "ItemSet",
    "LayerNeighborSampler",
    "LinkSplit",
    "LoaderTimeoutError",
    "MiniBatch",
    "MiniBatchTransformer",
    "MpChannel",
    "NegativeSampler",
    "NeighborSampler",
    "Padder",
    "PeerDied",
    "PinSageSampler",
    "PprSampler",
    "Prefetcher",
    "QueueTimeoutError",
    "RandomWalkSampler",
    "RemoteError",
    "SampledSubgraph",
    "SeedEdgeExcluder",
    "ServerUnavailable",
    "ShadowSampler",
    "ShmChannel",
    "SparseFeature",
    "SparseRows",
    "Stage",
    "SubgraphNorms",
    "TemporalNeighborSampler",
    "TensorFeature",
    "UniformNegativeSampler",
    "add_reverse_edges",
    "count_accesses",
    "datasets",
    "distributed",
    "exclude_seed_edges",
    "measure_norms",
    "measure_sizes",
    "random_link_split",
    "register_stage",
    "stages",
    "time_link_split",
]

expect_stages(
    "datapipes.distributed",
    "dist_sample_in_subgraph",
    "dist_sample_layer_neighbor",
    "dist_sample_neighbor",
    "dist_temporal_sample_neighbor",
)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name in ("datasets", "distributed", "stages"):
            return importlib.import_module(f"datapipes.{name}")
        builders = importlib.import_module("datapipes.stages").__all__
        raise missing_public_name(name, ours=f"dp.stages.{name}" if name in builders else None)
