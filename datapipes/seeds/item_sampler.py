"""ItemSampler: the stage at the start of a chain, which cuts an item set into minibatches.

An epoch has one global order of the items (docs/semantics.md, section 2). It is cut into minibatches, so minibatch g is
the same in every process. The item at each position is computed by itself, so a process pays only for its own
minibatches; except in small shuffled sets and in orders by weight, which are computed once an epoch.
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
from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.rng import RngKey, check_seed
from datapipes.base.sizes import check_memory
from datapipes.base.types import check_edge_type, check_node_type, of_type
from datapipes.chain.stage import SeedStage
from datapipes.chain.stage_base import Fingerprint
from datapipes.minibatch import MiniBatch
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_set import ItemSet, as_fields
from datapipes.seeds.weights import Weights

__all__ = ["ItemSampler"]

SHUFFLED_WHOLE = 2**16  # up to this many items, the order of an epoch is computed at once and kept
BYTES_OF_ORDER = 17  # of an item, that an order by weight takes while it is computed


class ItemSampler(SeedStage):
    """Start a chain: make minibatches of `batch_size` items each, with their seeds, labels and other fields.

    Args:
        item_set: an ItemSet, not empty; or a HeteroItemSet with at least one item of each type.
        batch_size: items per minibatch, 1 or more; the last minibatch may be shorter.
        shuffle: visit the items in a new random order each epoch, a permutation keyed by seed and epoch.
        drop_last: leave out the last minibatch if it is shorter.
        seed: int in [0, 2**64), the one source of all random choices in the chain. No global generator is read or
            changed.
        weights: a float for each item, [n], with types {type: weights}; or the name of a field of the items that holds
            them. Items are drawn in proportion to their weights; an item of weight 0 is never drawn. The weights are
            read when the stage is built, and kept as sums (9 bytes an item, which workers share). A change in place
            after that is an error.
        replacement: draw each item of an epoch among all items, whether it was drawn before or not: by weight, or each
            equally likely. With `weights` and without replacement, an epoch is an order in which each next item is
            drawn by weight among those that are left; each process computes it once an epoch, and keeps it (8 bytes an
            item). Both are random already, so shuffle=True is refused with them.
        num_items: how many items an epoch has. By default as many as there are; without replacement, as many as have a
            weight above 0. Without replacement it may be fewer: an epoch is then the beginning of its order.
    """

    def __init__(
        self,
        item_set: ItemSet | HeteroItemSet,
        batch_size: int,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        seed: int = 0,
        weights: Tensor | Mapping[Any, Tensor] | str | None = None,
        replacement: bool = False,
        num_items: int | None = None,
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
        self.replacement = check_bool(self.name, "replacement", replacement)
        self.weights = None if weights is None else self._checked_weights(weights)
        if self.weights is not None and type(self).__module__.startswith("datapipes."):
            self._arguments[1]["weights"] = self.weights  # copies of the stage share the sums
        self.num_items = self._checked_number(num_items)
        if self._num_cut == 0:
            raise ValueError(
                f"{self.name}: drop_last=True leaves nothing of {self.num_items} items at batch_size {batch_size}; at "
                "least one whole minibatch is needed. Lower batch_size, or leave drop_last out."
            )
        self._order: tuple[int, NDArray[np.int64]] | None = None

    def _checked_weights(self, weights: Any) -> Weights:
        item_sets: Mapping[Any, ItemSet] = getattr(self.item_set, "item_sets", {None: self.item_set})
        counts = {type_: len(items) for type_, items in item_sets.items()}
        if isinstance(weights, Weights):  # of the stage from which this one was copied
            weights.refuse_change()
            if weights.counts != counts:
                raise ValueError(
                    f"{self.name}: weights are those of another stage, of {sum(weights.counts.values())} items; here "
                    f"there are {len(self.item_set)}. Give weights of these items."
                )
            return weights
        if isinstance(weights, str):
            for type_, items in item_sets.items():
                if weights not in items._tensors:
                    raise ValueError(
                        f"{self.name}: weights is {weights!r}, but the tensors of the items{of_type(type_)} are "
                        f"{sorted(items._tensors)}. Name one of these, or pass the weights themselves."
                    )
            fields = {type_: items._tensors[weights] for type_, items in item_sets.items()}
            return Weights(self.name, f"weights {weights!r}", "item", fields, counts, weights)
        if isinstance(weights, Mapping) != isinstance(self.item_set, HeteroItemSet):
            wanted, has = ("a tensor", "no types") if None in counts else ("a dict {type: weights}", "types")
            raise TypeError(
                f"{self.name}: weights is a {type(weights).__name__}, but the items have {has}. Pass {wanted}, or the "
                "name of a field of the items."
            )
        if not isinstance(weights, Mapping):
            return Weights(self.name, "weights", "item", {None: weights}, counts)
        checked = check_edge_type if isinstance(next(iter(counts)), tuple) else check_node_type
        by_type = {checked(f"{self.name}: weights", key): values for key, values in weights.items()}
        if by_type.keys() != counts.keys():
            raise ValueError(
                f"{self.name}: weights has the types {shown(sorted(by_type))}, the items have {shown([*counts])}. Give "
                "weights of each type of the items; an item of weight 0 is never drawn."
            )
        return Weights(self.name, "weights", "item", {type_: by_type[type_] for type_ in counts}, counts)

    def _checked_number(self, num_items: Any) -> int:
        """Return how many items an epoch has; raise ValueError if the arguments contradict each other."""
        if self.shuffle and (self.weights is not None or self.replacement):
            what = "replacement=True" if self.weights is None else "weights"
            raise ValueError(
                f"{self.name}: shuffle=True is given with {what}, by which the items are in a random order already. "
                "Leave shuffle out."
            )
        if num_items is None:
            return self._most_items
        number = check_int(self.name, "num_items", num_items, 1)
        if not self.replacement and number > self._most_items:
            kind = "items" if self.weights is None else "items with a weight above 0"
            raise ValueError(
                f"{self.name}: num_items={shown(number)} is more than the {self._most_items} {kind}, each of which an "
                "epoch has once without replacement. Lower num_items, or pass replacement=True."
            )
        return number

    @property
    def _most_items(self) -> int:
        """How many items an epoch has if `num_items` is not given."""
        return len(self.item_set) if self.weights is None or self.replacement else self.weights.num_drawable

    @property
    def _is_random(self) -> bool:
        """Whether the order of the items depends on the seed."""
        return self.shuffle or self.replacement or self.weights is not None

    drop_uneven: bool = False

    @property
    def _num_cut(self) -> int:
        """How many minibatches the items of an epoch are cut into."""
        whole, rest = divmod(self.num_items, self.batch_size)
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
        count = min(self.batch_size, self.num_items - first)
        fields = as_fields(self.item_set.take(self._positions(rng, first, count)))
        return MiniBatch(epoch=rng.epoch, index=rng.index, **fields)

    def _positions(self, rng: RngKey, first: int, count: int) -> Tensor:
        if not self._is_random:
            return torch.arange(first, first + count)
        size, sums = len(self.item_set), None if self.weights is None else self.weights.sums()
        key = RngKey(rng.seed, rng.epoch, self._order_number(), rng.stage).hop_key()
        if self.replacement:
            return torch.from_numpy(_core.draw_items(key, size, sums, first, count))
        if sums is None and size > SHUFFLED_WHOLE:
            return torch.from_numpy(_core.permutation_at(size, key, first, count))
        order = self._order
        if order is None or order[0] != key:
            if sums is None:
                places = _core.permutation_at(size, key, 0, size)
            else:
                what = f"the order of {size} items by weight"
                check_memory(self.name, what, BYTES_OF_ORDER * size, "Draw with replacement=True.")
                places = _core.order_items(key, size, sums, self.num_items)
            order = self._order = (key, places)
        return torch.from_numpy(order[1][first : first + count].copy())

    def _draws_by(self) -> dict[str, Any]:
        """Return the arguments by which items are drawn, for states and `explain()`: those that are in use."""
        used = {"num_items": self.num_items} if self.num_items != self._most_items else {}
        return {**used, "replacement": True} if self.replacement else used

    def fingerprint(self) -> Fingerprint:
        by_weight = {} if self.weights is None else {"weights_digest": self.weights.digest()}
        return {
            "items": len(self.item_set),
            "item_digest": self.item_set.digest(),
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "drop_uneven": self.drop_uneven,
            **by_weight,
            **self._draws_by(),
        }

    @property
    def _hashed_inputs(self) -> tuple[Hashed, ...]:
        return (self.item_set,)

    def describe(self) -> dict[str, Any]:
        by_weight = {} if self.weights is None else {"weights": self.weights}
        return {
            "items": len(self.item_set),
            "batch_size": self.batch_size,
            "shuffle": self.shuffle,
            "drop_last": self.drop_last,
            "seed": self.rng_seed,
            **by_weight,
            **self._draws_by(),
        }
