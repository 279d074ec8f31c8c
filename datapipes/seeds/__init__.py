"""What minibatches are built for: item sets and the stages that cut them into batches."""

from datapipes.seeds.distributed_item_sampler import DistributedItemSampler
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = ["DistributedItemSampler", "ItemSampler", "ItemSet"]
