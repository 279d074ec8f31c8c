"""Numbering: the names and numbers of a chain's stages in random keys, counts and errors.

A stage has a label, for people ("2 fetch_feature"), and, if it may draw, an ordinal, for the random key
(docs/semantics.md, section 1.1). A Numbering knows stages by identity and holds none of them, so a thread that keeps a
Numbering keeps no stage alive.
"""

from __future__ import annotations

from typing import NamedTuple

from datapipes.base.rng import RngKey

WAITING = "waiting for "  # the names under which waits are counted begin so


class Numbers(NamedTuple):
    """The names and numbers of one stage.

    Attributes:
        name: its functional name.
        label: the name under which its calls are counted: "2 fetch_feature", or "prefetch" for a carrier. The 2
            is the stage's position among the stages that make, change or move minibatches.
        where: how errors name the stage: "stage 2 (fetch_feature)".
        ordinal: the stage's position among the stages that may draw; None if it may not draw.
        works: whether the stage makes, changes or moves minibatches, and so has a position; False for a carrier.
    """

    name: str
    label: str
    where: str
    ordinal: int | None
    works: bool

    @property
    def waiting(self) -> str:
        """The name under which the time is counted that a reader waits for this stage's minibatches."""
        return f"{WAITING}{self.label}"


class Numbering:
    """The Numbers of all stages of one graph.

    Args:
        numbers: {id(stage): its Numbers}.
        rng_seed: the seed of the first ItemSampler; None: there is no ItemSampler.
    """

    def __init__(self, numbers: dict[int, Numbers], rng_seed: int | None) -> None:
        self._numbers = numbers
        self._rng_seed = rng_seed

    def of(self, stage: object) -> Numbers:
        """Return the names and numbers of a stage."""
        return self._numbers[id(stage)]

    def labels(self) -> list[str]:
        """Return the labels of all stages except carriers, in the order of the stages."""
        return [numbers.label for numbers in self._numbers.values() if numbers.works]

    def key(self, ordinal: int, epoch: int, index: int) -> RngKey | None:
        """Return the random key of a stage for the minibatch of (epoch, index). None: the chain has no ItemSampler,
        which gives the seed.

        Args:
            ordinal: the stage's position among the stages that may draw.
        """
        return None if self._rng_seed is None else RngKey(self._rng_seed, epoch, index, ordinal)
