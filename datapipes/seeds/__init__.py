"""Item sets, which hold the seeds of a task, and the stages that cut them into minibatches."""

from datapipes.seeds.distributed_item_sampler import DistributedItemSampler
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = [
    "DistributedItemSampler",
    "HeteroItemSet",
    "ItemSampler",
    "ItemSet",
]


def __dir__() -> list[str]:
    return [*__all__]
