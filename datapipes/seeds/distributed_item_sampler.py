"""DistributedItemSampler: the minibatches of one rank of a training job.

All ranks cut the same global order. At step i, rank r takes minibatch g = i * world_size + r. Together the ranks make
the same minibatches as one process alone.
"""

from __future__ import annotations

from typing import Any

import torch.distributed

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = ["DistributedItemSampler"]


class DistributedItemSampler(ItemSampler):
    """Start this rank's share of the minibatches; every rank gets the same number.

    Args:
        rank, world_size: the number of this process, and how many processes there are; pass both or neither. Default:
            those of the default process group of torch.distributed, which must then be initialised.
        drop_uneven: leave out the last round if it has no new minibatch for some rank. Otherwise these ranks get
            minibatches from the start of the order again, under a new index.
        The other arguments are those of ItemSampler.
    """

    def __init__(
        self,
        item_set: ItemSet | HeteroItemSet,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = False,
        drop_last: bool = False,
        drop_uneven: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(item_set, batch_size, shuffle=shuffle, drop_last=drop_last, seed=seed)
        if (rank is None) != (world_size is None):
            raise ValueError(
                f"{self.name}: got rank={shown(rank)} and world_size={shown(world_size)}; pass both, or neither."
            )
        if rank is None or world_size is None:
            if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
                raise ValueError(
                    f"{self.name}: no rank and world_size given, and torch.distributed has no process group to ask. "
                    "Pass both, or call torch.distributed.init_process_group first."
                )
            rank, world_size = torch.distributed.get_rank(), torch.distributed.get_world_size()
            self._arguments[1].update(rank=rank, world_size=world_size)  # a rebuilt or pickled copy stays on this rank
        self.world_size = check_int(self.name, "world_size", world_size, 1)
        self.rank = check_int(self.name, "rank", rank, 0, self.world_size - 1)
        self.drop_uneven = check_bool(self.name, "drop_uneven", drop_uneven)
        if self.num_steps == 0:
            raise ValueError(
                f"{self.name}: drop_uneven=True leaves nothing of {self.num_batches} minibatches for "
                f"{self.world_size} ranks; one round is needed. Lower batch_size or keep the last round."
            )

    @property
    def num_steps(self) -> int:
        whole, rest = divmod(self.num_batches, self.world_size)
        return whole if self.drop_uneven or rest == 0 else whole + 1

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "rank": self.rank, "world_size": self.world_size, "drop_uneven": self.drop_uneven}
