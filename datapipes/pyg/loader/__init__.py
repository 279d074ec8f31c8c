"""PyG's loaders, run by this package's stages. Other names of torch_geometric.loader are PyG's own classes."""

from typing import Any

from datapipes.pyg.loader.loaders import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.loader.subgraphs import (
    ClusterData,
    ClusterLoader,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    RandomNodeLoader,
    ShaDowKHopSampler,
)
from datapipes.pyg.torch_geometric_names import handed_on, other_names

__all__ = [
    "ClusterData",
    "ClusterLoader",
    "GraphSAINTNodeSampler",
    "GraphSAINTRandomWalkSampler",
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NodeLoader",
    "RandomNodeLoader",
    "ShaDowKHopSampler",
]
__all__ += other_names("torch_geometric.loader", __all__)


def __dir__() -> list[str]:
    return [*__all__]


def __getattr__(name: str) -> Any:
    return handed_on("torch_geometric.loader", name)
