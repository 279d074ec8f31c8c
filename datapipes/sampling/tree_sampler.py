"""TreeSampler: what samplers share whose seeds may be in groups with nodes of their own, trees or seeds of one time.

docs/semantics.md, sections 4.5 and 4.6.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor

from datapipes.base.rng import RngKey
from datapipes.minibatch import MiniBatch
from datapipes.sampling.sampler import Sampled, Sampler
from datapipes.sampling.seed_trees import SeedTrees, seed_trees

__all__: list[str] = []


class TreeSampler(Sampler):
    """Base of samplers that can sample a tree for each seed, or seeds at their times; trees also set `batch`.

    Attributes:
        disjoint: whether each seed has a tree of its own.
        has_times: whether the seeds need times.
    """

    disjoint: bool = False
    has_times: bool = False

    @abstractmethod
    def sample(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return the neighborhood of `seeds`; with `trees` each group of them has nodes of its own."""

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        if not (self.disjoint or self.has_times):
            return super().transform(minibatch)
        ids, restored = self.seeds_of(minibatch)
        trees = self.trees_of(minibatch)
        found = restored(self.sample(ids, self.rng_of(minibatch), trees))
        return self.filled(minibatch, found).replace(batch=self._batch(found, trees))

    def trees_of(self, minibatch: MiniBatch) -> SeedTrees:
        """Return the groups of the seeds of a minibatch, which `seeds_of` has checked."""
        return seed_trees(
            self.name, minibatch.seeds, minibatch.timestamps, disjoint=self.disjoint, has_times=self.has_times
        )

    def _batch(self, found: Sampled, trees: SeedTrees) -> Any:
        """Return the row of the seeds whose tree each node belongs to; None without trees."""
        rows = trees.rows
        if not self.disjoint or rows is None:
            return found.groups if self.disjoint else None
        if isinstance(found.groups, dict):
            return {of: torch.index_select(rows, 0, groups) for of, groups in found.groups.items()}
        groups: Tensor = found.groups
        return torch.index_select(rows, 0, groups)
