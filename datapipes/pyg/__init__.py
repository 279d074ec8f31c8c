"""PyG's names with PyG's signatures, over the chain: `from datapipes.pyg.loader import NeighborLoader`.

`loader` has the loaders, `sampler` the sampler that they and PyG's own loaders draw by. Needs torch_geometric, the
extra "pyg". Nothing else of the package imports this one.
"""

from datapipes.pyg.loader.loaders import LinkLoader, LinkNeighborLoader, NeighborLoader, NodeLoader
from datapipes.pyg.sampler import NeighborSampler

__all__ = [
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NeighborSampler",
    "NodeLoader",
]


def __dir__() -> list[str]:
    return [*__all__]
