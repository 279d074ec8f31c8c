"""Sharded: an ItemSampler whose minibatches are given out one by one, by index, so that each is made by one worker."""

from __future__ import annotations

from typing import Any

from datapipes.base.array_digest import Hashed
from datapipes.base.rng import RngKey
from datapipes.chain.stage import SeedStage, StreamStage
from datapipes.chain.stage_base import Fingerprint
from datapipes.loader.graphs import Graph
from datapipes.loader.options import LoaderOptions
from datapipes.minibatch import MiniBatch


class Sharded(SeedStage):
    """The minibatches of `sampler`, by index: each process makes only those that it is told to make.

    The bits of a minibatch do not depend on the process that makes it, so no worker has a fixed share. The dispatcher
    gives the next index to a free worker, and the indices of a worker that died to the one in its place.
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

    def _index_of(self, step: int) -> int:
        return self.sampler._index_of(step)

    def make_minibatch(self, rng: RngKey) -> MiniBatch:
        return self.sampler.make_minibatch(rng)

    def fingerprint(self) -> Fingerprint:
        return self.sampler.fingerprint()

    @property
    def _hashed_inputs(self) -> tuple[Hashed, ...]:
        return self.sampler._hashed_inputs

    def __repr__(self) -> str:
        """Return what users know: the stage that they wrote."""
        return repr(self.sampler)

    def describe(self) -> dict[str, Any]:
        return self.sampler.describe()


def shard(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Sharded for every ItemSampler, subclasses and other seed stages included; without workers,
    `graph` itself.

    Raises:
        ValueError: A chain starts with a stage that keeps an order of its own, which workers cannot share.
    """
    if options.num_workers == 0:
        return graph
    for stage in graph.find(StreamStage):
        if not stage.sources:
            raise ValueError(
                f"data_loader: {stage.name} starts this chain and keeps an order of its own, which workers cannot "
                "share. Start it with an ItemSampler, or use num_workers=0."
            )

    def by_index(stage: SeedStage) -> SeedStage:
        return stage if isinstance(stage, Sharded) else Sharded(stage)

    return graph.replace_each(SeedStage, by_index)  # type: ignore[type-abstract]
