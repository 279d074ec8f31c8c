"""Partitioned graphs: partitions, their stores, servers and clients.

`datapipes.pyg.distributed` offers PyG's distributed classes on top of these.
"""

from typing import TYPE_CHECKING

from datapipes.compat.other_names import missing_public_name
from datapipes.distributed.addresses import Resolver
from datapipes.distributed.chain_description import build_chain, describe_chain
from datapipes.distributed.dist_feature_store import DistFeatureStore
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.dist_samplers import (
    DistInSubgraphSampler,
    DistLayerNeighborSampler,
    DistNeighborSampler,
    DistTemporalNeighborSampler,
)
from datapipes.distributed.namebook import publish_address
from datapipes.distributed.partition_client import PartitionClient, connect
from datapipes.distributed.remote_receiving_channel import RemoteReceivingChannel
from datapipes.distributed.remote_source import RemoteSource
from datapipes.distributed.sampler_pool import SamplerPool
from datapipes.distributed.sampler_receiver import SamplerReceiver
from datapipes.distributed.sampler_sender import SamplerSender
from datapipes.distributed.server.limits import ServerLimits
from datapipes.distributed.server.partition_server import PartitionServer
from datapipes.distributed.tls import TLSConfig
from datapipes.partition.book import PartitionBook
from datapipes.partition.methods.metis_parts import MetisError
from datapipes.partition.native.native_book import open_book
from datapipes.partition.native.part import Part
from datapipes.partition.partition_report import PartitionReport
from datapipes.partition.partitioner import Partitioner, find_parts
from datapipes.partition.stores.feature_lookup import FeatureClient
from datapipes.partition.stores.local_feature_store import LocalFeatureStore
from datapipes.partition.stores.local_graph_store import LocalGraphStore

__all__ = [
    "DistFeatureStore",
    "DistGraph",
    "DistInSubgraphSampler",
    "DistLayerNeighborSampler",
    "DistNeighborSampler",
    "DistTemporalNeighborSampler",
    "FeatureClient",
    "LocalFeatureStore",
    "LocalGraphStore",
    "MetisError",
    "Part",
    "PartitionBook",
    "PartitionClient",
    "PartitionReport",
    "PartitionServer",
    "Partitioner",
    "RemoteReceivingChannel",
    "RemoteSource",
    "Resolver",
    "SamplerPool",
    "SamplerReceiver",
    "SamplerSender",
    "ServerLimits",
    "TLSConfig",
    "build_chain",
    "connect",
    "describe_chain",
    "find_parts",
    "open_book",
    "publish_address",
]


def __dir__() -> list[str]:
    return [*__all__]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> None:
        raise missing_public_name(name, "datapipes.distributed")
