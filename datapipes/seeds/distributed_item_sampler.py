"""DistributedItemSampler: the minibatches of one rank of a training job.

At step i, rank r takes minibatch g = i * world_size + r, and g is in the key of every random choice, so no two ranks
draw alike. Either all ranks cut the same global order; together they then make the same minibatches as one process
alone. Or each rank cuts an item set of its own.
"""

from __future__ import annotations

from typing import Any

import torch.distributed

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.chain.stage_base import Fingerprint
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import HeteroItemSet, ItemSet

__all__ = ["DistributedItemSampler"]


class DistributedItemSampler(ItemSampler):
    """Start this rank's share of the minibatches; every rank gets the same number, except with `local_items`.

    Args:
        rank, world_size: the number of this process, and how many processes there are; pass both or neither. Default:
            those of the default process group of torch.distributed, which must then be initialised.
        drop_uneven: leave out the last round if it has no new minibatch for some rank. Otherwise these ranks get
            minibatches from the start of the order again, under a new index.
        local_items: whether `item_set` is this rank's alone, such as the training nodes of its part, and the others
            have others. Step i of rank r is minibatch i * world_size + r, and each rank shuffles in an order of its
            own. The state names rank, world size and items, so each rank saves and loads its own; another number of
            ranks cannot go on with it.
        num_steps: minibatches of an epoch on each rank, with `local_items` only; by default as many as the items of
            this rank give. A rank that has fewer begins its order again, under new indices; one that has more leaves
            the rest out, of another order in each epoch if it shuffles.
        The other arguments are those of ItemSampler.

    Ranks with items of their own know nothing of each other, so their epochs differ in length unless all are given the
    same `num_steps`. DistributedDataParallel needs equal lengths: agree on one and build the sampler with it,

        steps = torch.tensor(-(-len(items) // batch_size))
        torch.distributed.all_reduce(steps, torch.distributed.ReduceOp.MIN)  # or MAX, to visit all items
        dp.DistributedItemSampler(items, batch_size, local_items=True, num_steps=int(steps))

    or train inside `torch.distributed.algorithms.Join`.

    Raises:
        ValueError: No rank is given and there is no process group; drop_uneven=True leaves nothing, or is given with
            local_items=True, where the lengths of the other ranks are not known; num_steps is given without
            local_items=True; or what ItemSampler refuses, such as an empty item set.
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
        local_items: bool = False,
        seed: int = 0,
        num_steps: int | None = None,
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
        self.local_items = check_bool(self.name, "local_items", local_items)
        if self.local_items and self.drop_uneven:
            raise ValueError(
                f"{self.name}: drop_uneven=True is given with local_items=True, where the lengths of the other ranks "
                "are not known; only num_steps makes them even. Give all ranks the same num_steps instead."
            )
        if num_steps is not None and not self.local_items:
            raise ValueError(
                f"{self.name}: num_steps={shown(num_steps)} is given without local_items=True; ranks that share an "
                "item set have equally many steps. Leave it out."
            )
        self._num_steps = None if num_steps is None else check_int(self.name, "num_steps", num_steps, 1)
        if self.num_steps == 0:
            raise ValueError(
                f"{self.name}: drop_uneven=True leaves nothing of {self.num_batches} minibatches for "
                f"{self.world_size} ranks; one round is needed. Lower batch_size or keep the last round."
            )

    @property
    def num_batches(self) -> int:
        """Number of minibatches in an epoch over all ranks, padding left out; with `local_items`, as if each rank had
        as many as this one.
        """
        return self.num_steps * self.world_size if self.local_items else self._num_cut

    @property
    def num_steps(self) -> int:
        if self.local_items:
            return self._num_cut if self._num_steps is None else self._num_steps
        whole, rest = divmod(self._num_cut, self.world_size)
        return whole if self.drop_uneven or rest == 0 else whole + 1

    def _place_of(self, index: int) -> int:
        if not self.local_items:
            return super()._place_of(index)
        step, rank = divmod(index, self.world_size)
        if rank != self.rank:
            raise ValueError(
                f"{self.name}: minibatch {index} is of rank {rank} of {self.world_size}, and this is rank {self.rank}, "
                "which has only its own items (local_items=True). Make it on that rank."
            )
        return step % self._num_cut

    def _order_number(self) -> int:
        # Equal orders would bring items of like places together in a step of all ranks, such as those of one class.
        return self.rank if self.local_items else 0

    def fingerprint(self) -> Fingerprint:
        if not self.local_items:
            return super().fingerprint()
        own = {"local_items": True, "rank": self.rank, "world_size": self.world_size, "num_steps": self.num_steps}
        return {**super().fingerprint(), **own}

    def describe(self) -> dict[str, Any]:
        shares = {"local_items": True, "num_steps": self.num_steps} if self.local_items else {}
        own = {"rank": self.rank, "world_size": self.world_size, "drop_uneven": self.drop_uneven}
        return {**super().describe(), **own, **shares}
