"""DataLoader, its rewrite passes, and the stages that carry minibatches."""

from datapipes.loader.data_loader import DataLoader
from datapipes.loader.from_node import FromNode
from datapipes.loader.prefetcher import Prefetcher

__all__ = [
    "DataLoader",
    "FromNode",
    "Prefetcher",
]


def __dir__() -> list[str]:
    return [*__all__]
