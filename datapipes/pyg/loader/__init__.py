"""PyG's loaders over the chain; the other classes of torch_geometric.loader stay PyG's own, and work around these."""

from datapipes.pyg.loader.link_loader import LinkLoader, LinkNeighborLoader
from datapipes.pyg.loader.node_loader import NeighborLoader, NodeLoader

__all__ = [
    "LinkLoader",
    "LinkNeighborLoader",
    "NeighborLoader",
    "NodeLoader",
]


def __dir__() -> list[str]:
    return [*__all__]
