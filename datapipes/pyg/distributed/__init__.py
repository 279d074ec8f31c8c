"""The names of torch_geometric.distributed, with PyG's arguments and batches, run by this package's partition servers.

For example: `from datapipes.pyg.distributed import DistNeighborLoader`. docs/migrate/pyg-distributed.md has the
differences.
"""

from typing import Any

from datapipes.pyg.distributed.dist_loader import DistLoader
from datapipes.pyg.distributed.dist_neighbor_loader import DistLinkNeighborLoader, DistNeighborLoader
from datapipes.pyg.distributed.dist_neighbor_sampler import DistNeighborSampler
from datapipes.pyg.distributed.rpc import (
    ConcurrentEventLoop,
    DistContext,
    DistEdgeHeteroSamplerInput,
    DistRole,
    init_rpc,
    shutdown_rpc,
)
from datapipes.pyg.distributed.sampler_of_ranks import LocalFeatureStore, LocalGraphStore, LocalTensorAttr, Partitioner
from datapipes.pyg.torch_geometric_names import handed_on, other_names

__all__ = [
    "ConcurrentEventLoop",
    "DistContext",
    "DistEdgeHeteroSamplerInput",
    "DistLinkNeighborLoader",
    "DistLoader",
    "DistNeighborLoader",
    "DistNeighborSampler",
    "DistRole",
    "LocalFeatureStore",
    "LocalGraphStore",
    "LocalTensorAttr",
    "Partitioner",
    "init_rpc",
    "shutdown_rpc",
]
__all__ += other_names("torch_geometric.distributed", __all__)


def __dir__() -> list[str]:
    return [*__all__]


def __getattr__(name: str) -> Any:
    return handed_on("torch_geometric.distributed", name)
