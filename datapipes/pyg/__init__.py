"""PyG's names with PyG's signatures, over the chain: `from datapipes.pyg.loader import NeighborLoader`.

`loader` has the loaders; `sampler` has the sampler, for these loaders and for PyG's own. Needs torch_geometric, the
extra "pyg". No other part of datapipes imports this package.
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
