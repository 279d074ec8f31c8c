"""Minibatches for graph neural networks: a chain of small stages, reproducible to the bit.

The public names. Start with README.md; docs/semantics.md says what a minibatch is.
"""

from datapipes import datasets
from datapipes.base.rng import STREAM_VERSION, RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, SeedStage, Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.channel import (
    ChannelBase,
    ChannelClosed,
    EndOfEpoch,
    MpChannel,
    PeerDied,
    QueueTimeoutError,
    RemoteError,
    ShmChannel,
)
from datapipes.device import CopyTo
from datapipes.features import Feature, FeatureFetcher, FeatureStore, TensorFeature
from datapipes.graph import CSCGraph
from datapipes.loader import DataLoader, FromNode, Prefetcher
from datapipes.minibatch import CSC, Block, MiniBatch, SampledSubgraph
from datapipes.sampling import NeighborSampler, Picks, Sampled, Sampler
from datapipes.seeds import DistributedItemSampler, ItemSampler, ItemSet

__version__ = "0.1.0"

__all__ = [
    "CSC",
    "STREAM_VERSION",
    "Block",
    "CSCGraph",
    "ChannelBase",
    "ChannelClosed",
    "CopyTo",
    "DataLoader",
    "DistributedItemSampler",
    "EndOfEpoch",
    "Feature",
    "FeatureFetcher",
    "FeatureStore",
    "FromNode",
    "ItemSampler",
    "ItemSet",
    "MiniBatch",
    "MiniBatchTransformer",
    "MpChannel",
    "NeighborSampler",
    "PeerDied",
    "Picks",
    "Prefetcher",
    "QueueTimeoutError",
    "RemoteError",
    "RngKey",
    "Sampled",
    "SampledSubgraph",
    "Sampler",
    "SeedStage",
    "ShmChannel",
    "Stage",
    "StageGraph",
    "StreamStage",
    "TensorFeature",
    "datasets",
    "register_stage",
]
