"""Sharded: an ItemSampler whose minibatches are given out one by one, by index, so that each is made by one worker."""

from __future__ import annotations

from typing import Any

from datapipes.base.rng import RngKey
from datapipes.chain.stage import SeedStage
from datapipes.chain.stage_base import Fingerprint
from datapipes.minibatch import MiniBatch


class Sharded(SeedStage):
    """The minibatches of `sampler`, those that this process is told to make: it materialises no others.

    Which process makes a minibatch does not change its bits, so there is no fixed share: the dispatcher gives the next
    index to a worker that is free, and what a worker had when it died to the one that takes its place.
    """

    def __init__(self, sampler: SeedStage) -> None:
        super().__init__()
        self.sampler = sampler
        self.rng_seed = sampler.rng_seed
        self.rank = sampler.rank
        self.world_size = sampler.world_size

    @property
    def name(self) -> str:
        return self.sampler.name

    @property
    def num_steps(self) -> int:
        return self.sampler.num_steps

    @property
    def num_batches(self) -> int:
        return self.sampler.num_batches

    def index_of(self, step: int) -> int:
        return self.sampler.index_of(step)

    def make_minibatch(self, rng: RngKey) -> MiniBatch:
        return self.sampler.make_minibatch(rng)

    def fingerprint(self) -> Fingerprint:
        return self.sampler.fingerprint()

    def describe(self) -> dict[str, Any]:
        return {**self.sampler.describe(), "sharded": "by index"}
