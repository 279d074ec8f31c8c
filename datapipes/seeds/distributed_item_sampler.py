"""DistributedItemSampler: the minibatches of one rank of a training job.

At step i, rank r takes minibatch g = i * world_size + r. Every random choice is keyed by g, so no two ranks draw alike.
By default all ranks have the same item set and the same order of its items; together they then make the same
minibatches as one process alone. With `local_items`, each rank has an item set of its own.

Ranks with the same item set compare it and their arguments through the store of their process group. No rank waits for
another there, since rank 0 may evaluate alone. So the first rank writes its digest and arguments into the store. A
later rank that differs raises at once, and the first rank raises when its epoch begins.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed
from torch import Tensor

from datapipes.base.checks import check_bool, check_int, shown
from datapipes.base.log import users_frame
from datapipes.chain.stage_base import Fingerprint
from datapipes.processes.ranks import Ranks, first_told, group_timeout_s, noted
from datapipes.seeds.hetero_item_set import HeteroItemSet
from datapipes.seeds.item_sampler import ItemSampler
from datapipes.seeds.item_set import ItemSet

__all__ = ["DistributedItemSampler"]

_MOST_LINES = 8  # lines of the program that tell samplers apart


class DistributedItemSampler(ItemSampler):
    """Start a chain with the minibatches of one rank of a training job; all ranks get equally many.

    Give all ranks the same, whole item set, unless you pass `local_items=True`. In a process group, the ranks compare
    their item sets and arguments, and refuse a difference. Of several samplers that one line of the program builds,
    only the first is compared. Without a group nothing is compared, as `explain()` says.

    Args:
        rank, world_size: the rank of this process, and how many processes there are; pass both or neither. By default
            both are taken from the default process group of torch.distributed, which must then be initialised.
        drop_uneven: leave out the last step if some rank would get no new minibatch in it. Otherwise such a rank gets a
            minibatch from the start of the order again, under a new index. With `local_items`, all ranks get as many
            minibatches as the rank with the fewest has (True), or as the rank with the most has (False).
        local_items: whether each rank has an item set of its own, such as the training nodes of its part. Step i of
            rank r is minibatch i * world_size + r, and each rank shuffles in an order of its own. The state of a loader
            then holds rank, world size, steps and items. So each rank saves and loads its own state, and the number of
            ranks must stay.
        num_steps: (only with `local_items`) how many minibatches an epoch has on each rank; equal on all ranks. By
            default the ranks agree on `num_steps` while they build the sampler, through the store of the default
            process group. All ranks must build the sampler then, and they wait for each other up to that group's
            `timeout`. A rank with fewer minibatches begins its order again, under new indices. A rank with more
            minibatches leaves out the rest of its order; with shuffle the rest differs by epoch. Once the ranks have
            agreed, the sampler behaves as if `num_steps` had been given.
        other arguments: as for ItemSampler.

    Raises:
        ValueError: No rank is given and there is no process group; drop_uneven=True leaves nothing; num_steps is given
            without local_items=True, or with drop_uneven=True; local_items=True with several ranks has neither
            num_steps nor a process group of these ranks; ranks without local_items have different item sets or
            arguments; or ItemSampler refuses an argument, such as an empty item set.
        RankError: Another rank could not build its sampler, or did not come in time. It is a ValueError, and names the
            rank.
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
        weights: Tensor | Mapping[Any, Tensor] | str | None = None,
        replacement: bool = False,
        num_items: int | None = None,
    ) -> None:
        if (rank is None) != (world_size is None):
            raise ValueError(
                f"{self.name}: got rank={shown(rank)} and world_size={shown(world_size)}; pass both, or neither."
            )
        group = torch.distributed if torch.distributed.is_available() and torch.distributed.is_initialized() else None
        if rank is None or world_size is None:
            if group is None:
                raise ValueError(
                    f"{self.name}: no rank and world_size given, and torch.distributed has no process group to ask. "
                    "Pass both, or call torch.distributed.init_process_group first."
                )
            rank, world_size = group.get_rank(), group.get_world_size()
            self._arguments[1].update(rank=rank, world_size=world_size)  # a rebuilt or pickled copy stays on this rank
        self.world_size = check_int(self.name, "world_size", world_size, 1)
        self.rank = check_int(self.name, "rank", rank, 0, self.world_size - 1)
        check_bool(self.name, "drop_uneven", drop_uneven)
        self.local_items = check_bool(self.name, "local_items", local_items)
        if num_steps is not None and (drop_uneven or not self.local_items):
            why = "without local_items=True, and ranks that share an item set have equally many steps"
            if self.local_items:
                why = "with drop_uneven=True, which asks the ranks to agree on a number"
            raise ValueError(f"{self.name}: num_steps={shown(num_steps)} is given {why}. Leave num_steps out.")
        self._num_steps = None if num_steps is None else check_int(self.name, "num_steps", num_steps, 1)
        is_group = group is not None and (group.get_rank(), group.get_world_size()) == (self.rank, self.world_size)
        cut: dict[str, Any] = {"shuffle": shuffle, "drop_last": drop_last, "seed": seed}
        cut |= {"weights": weights, "replacement": replacement, "num_items": num_items}
        if self.local_items and self._num_steps is None and self.world_size > 1:
            if not is_group:
                raise ValueError(self._cannot_agree(group))
            with Ranks(self.name, group_timeout_s(), failed="could not build its sampler") as ranks:
                super().__init__(item_set, batch_size, **cut)  # inside: an error here ends the other ranks too
                self._num_steps = ranks.agreed(self._num_cut, min if drop_uneven else max)
            drop_uneven = False  # states and copies need only num_steps
            self._arguments[1].update(num_steps=self._num_steps, drop_uneven=False)
        else:
            super().__init__(item_set, batch_size, **cut)
        self.drop_uneven = drop_uneven
        self._topic: str | None = None  # topic under which a rank that differs reports
        self._unchecked = ""
        if not self.local_items and self.world_size > 1:
            self._unchecked = self._compare() if is_group else "no process group of these ranks"
        if self.num_steps == 0:
            raise ValueError(
                f"{self.name}: drop_uneven=True leaves nothing of {self.num_batches} minibatches for "
                f"{self.world_size} ranks; one round is needed. Lower batch_size, or leave drop_uneven out."
            )

    def _compare(self) -> str:
        """Compare this sampler with those of the other ranks, and raise ValueError if it differs.

        Return a text that says why it was not compared. "": it was, or it is a copy of one that was.

        Samplers of different ranks are compared if the same line of the program builds them, called from the same
        lines. Only the first of each rank is compared, since a rank may build further samplers alone. A copy of a
        sampler, in this process or a fork, equals a sampler that was compared.
        """
        line, text = _line(), json.dumps(self._facts())
        notes = {text, f"rank {self.rank} at {line}"}
        if text in noted():
            return ""
        if not notes.isdisjoint(noted()):
            return "only the first sampler of a line of the program is"
        first = first_told(line, text)
        if first is None:
            return "the store of the process group has not answered"
        self._topic = f"{line} differs"
        if json.loads(first) != {**self._facts(), "rank": json.loads(first)["rank"]}:
            first_told(self._topic, text)
            raise self._differs(first)
        noted().update(notes)
        return ""

    def _facts(self) -> dict[str, Any]:
        """Return what `_compare` compares, as a dict: the rank, and entries that must be equal on all ranks."""
        return {"rank": self.rank, **self.fingerprint(), "seed": self.rng_seed if self._is_random else None}

    def _refuse_start(self) -> None:
        """Raise ValueError if a later rank has reported that it differs from this rank. Called when an epoch begins."""
        other = None if self._topic is None else first_told(self._topic, "")
        if other:
            raise self._differs(other)
        self._topic = None

    def _differs(self, text: str) -> ValueError:
        """Return the error for another rank that differs from this one; `text` is the JSON of that rank's `_facts`."""
        other, here = json.loads(text), self._facts()
        differences = ", ".join(
            f"{name}={here[name]} on rank {self.rank} and {other[name]} on rank {other['rank']}"
            for name in here
            if name != "rank" and here[name] != other[name]
        )
        return ValueError(
            f"{self.name}: ranks that share an item set must have the same items and arguments, found {differences}. "
            "Give every rank the whole item set and the same arguments, since the sampler takes the share of a rank "
            "itself; or say local_items=True if each rank has its own items."
        )

    def _cannot_agree(self, group: Any) -> str:
        has = "no process group" if group is None else f"rank {group.get_rank()} of {group.get_world_size()}"
        return (
            f"{self.name}: local_items=True is given for rank {self.rank} of {self.world_size}, and torch.distributed "
            f"has {has}, so these ranks cannot agree on the number of steps; with unequal numbers "
            "DistributedDataParallel waits without end. Pass the same num_steps on all ranks, or call "
            "torch.distributed.init_process_group in all of them first."
        )

    @property
    def num_batches(self) -> int:
        """How many minibatches an epoch has, over all ranks.

        With `local_items`, this counts minibatches that a rank makes twice to have as many steps as the others.
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
                f"{self.name}: minibatch {index} belongs to rank {rank} of {self.world_size}; this is rank {self.rank} "
                f"and has only its own items (local_items=True). Make it on rank {rank}."
            )
        return step % self._num_cut

    def _order_number(self) -> int:
        # With one order for all ranks, a step would join the items at the same position of every rank, such as items of
        # one class.
        return self.rank if self.local_items else 0

    def fingerprint(self) -> Fingerprint:
        if not self.local_items:
            return super().fingerprint()
        share = {"local_items": True, "rank": self.rank, "world_size": self.world_size, "num_steps": self.num_steps}
        return {**super().fingerprint(), **share}

    def describe(self) -> dict[str, Any]:
        how: dict[str, Any] = {"drop_uneven": self.drop_uneven}
        if self.local_items:
            how = {"local_items": True, "num_steps": self.num_steps}
        if self._unchecked:
            how["same_items"] = f"not compared: {self._unchecked}"
        return {**super().describe(), "rank": self.rank, "world_size": self.world_size, **how}


def _line() -> str:
    """Return the line of the user's program that builds a sampler, and the lines that called it, as one text."""
    frame: FrameType | None = users_frame()[1]
    lines: list[str] = []
    while frame is not None and len(lines) < _MOST_LINES:
        lines.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)
