"""Loaders and samplers under PyG's names and with PyG's signatures, run by this package's own stages and DataLoader.

For example: `from datapipes.pyg.loader import NeighborLoader`. `loader` has the loaders. `sampler` has the
NeighborSampler, which also works in PyG's own loaders. Needs torch_geometric, the extra "pyg". No other part of
datapipes imports this package.
"""

from datapipes.pyg.frames import column_stats, tensor_frames
from datapipes.pyg.loader.loaders import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.loader.subgraphs import (
    ClusterData,
    ClusterLoader,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    RandomNodeLoader,
    ShaDowKHopSampler,
)
from datapipes.pyg.sampler import NeighborSampler
from datapipes.pyg.walks import MetaPath2Vec, Node2Vec, random_walk

__all__ = [
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "LinkLoader",
    "LinkNeighborLoader",
    "MetaPath2Vec",
    "NeighborLoader",
    "NeighborSampler",
    "Node2Vec",
    "NodeLoader",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
    "column_stats",
    "random_walk",
    "tensor_frames",
]


def __dir__() -> list[str]:
    return [*__all__]
