"""ItemSampler: the stage at the start of a chain, which cuts an item set into minibatches.

An epoch has one global order of the items (docs/semantics.md, section 2). It is cut into minibatches, so minibatch g is
the same in every process. In a large set, the item at each shuffled position is computed by itself, so a process pays
only for its own minibatches.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import Hashed
from datapipes.base.checks import check_bool, check_int
from datapipes.base.rng import RngKey, check_seed
from datapipes.chain.stage import SeedStage
from datapipes.chain.stage_base import Fingerprint
from datapipes.minibatch import MiniBatch
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_set import ItemSet, as_fields

__all__ = ["ItemSampler"]

SHUFFLED_WHOLE = 2**16  # up to this many items, the order of an epoch is computed at once and kept


class ItemSampler(SeedStage):
    """Start a chain: make minibatches of `batch_size` items each, with their seeds, labels and other fields.

    Args:
        item_set: an ItemSet, not empty; or a HeteroItemSet with at least one item of each type.
        batch_size: items per minibatch, 1 or more; the last minibatch may be shorter.
        shuffle: visit the items in a new random order each epoch, a permutation keyed by seed and epoch.
        drop_last: leave out the last minibatch if it is shorter.
        seed: int in [0, 2**64), the one source of all random choices in the chain. No global generator is read or
            changed.
    """

    def __init__(
        self,
        item_set: ItemSet | HeteroItemSet,
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if not isinstance(item_set, (ItemSet, HeteroItemSet)):
            how = "dp.HeteroItemSet({type: dp.ItemSet(...)})" if isinstance(item_set, Mapping) else "dp.ItemSet(...)"
            raise TypeError(
                f"{self.name}: item_set must be an ItemSet or a HeteroItemSet, got {type(item_set).__name__}. Wrap it: "
                f"{how}."
            )
        item_set._refuse_empty(self.name)
        self.item_set = item_set
        self.batch_size = check_int(self.name, "batch_size", batch_size, 1)
        self.shuffle = check_bool(self.name, "shuffle", shuffle)
        self.drop_last = check_bool(self.name, "drop_last", drop_last)
        self.rng_seed = self.seed = check_seed(self.name, seed)
        if self._num_cut == 0:
            raise ValueError(
                f"{self.name}: drop_last=True leaves nothing of {len(item_set)} items at batch_size {batch_size}; at "
                "least one whole minibatch is needed. Lower batch_size, or leave drop_last out."
            )
        self._order: tuple[int, NDArray[np.int64]] | None = None

    drop_uneven: bool = False

    @property
    def _num_cut(self) -> int:
        """How many minibatches the item set is cut into."""
        whole, rest = divmod(len(self.item_set), self.batch_size)
        return whole if self.drop_last or rest == 0 else whole + 1

    @property
    def num_batches(self) -> int:
        return self._num_cut

    @property
    def num_steps(self) -> int:
        return self._num_cut

    def _place_of(self, index: int) -> int:
        """Return which minibatch of the item set, counted from 0, has the index `index` in the epoch over all ranks."""
        return index % self._num_cut

    def _order_number(self) -> int:
        """Return a number that is part of the random key by which items are shuffled.

        Another number gives another order.
        """
        return 0

    def make_minibatch(self, rng: RngKey) -> MiniBatch:
        first = self._place_of(rng.index) * self.batch_size
        count = min(self.batch_size, len(self.item_set) - first)
        fields = as_fields(self.item_set.take(self._positions(rng, first, count)))
        return MiniBatch(epoch=rng.epoch, index=rng.index, **fields)

    def _positions(self, rng: RngKey, first: int, count: int) -> Tensor:
        num_items = len(self.item_set)
        if not self.shuffle:
            return torch.arange(first, first + count)
        key = RngKey(rng.seed, rng.epoch, self._order_number(), rng.stage).hop_key()
        if num_items > SHUFFLED_WHOLE:
            return torch.from_numpy(_core.permutation_at(num_items, key, first, count))
        order = self._order
        if order is None or order[0] != key:
            order = self._order = (key, _core.permutation_at(num_items, key, 0, num_items))
        return torch.from_numpy(order[1][first : first + count].copy())

    def fingerprint(self) -> Fingerprint:
        return {
            "items": len(self.item_set),
            "item_digest": self.item_set.digest(),
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "drop_uneven": self.drop_uneven,
        }

    @property
    def _hashed_inputs(self) -> tuple[Hashed, ...]:
        return (self.item_set,)

    def describe(self) -> dict[str, Any]:
        return {
            "items": len(self.item_set),
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "seed": self.rng_seed,
        }
