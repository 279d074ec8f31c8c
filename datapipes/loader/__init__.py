"""DataLoader, the passes that rewrite its chain into a plan, and the stages that run other stages in threads and
processes.
"""

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
