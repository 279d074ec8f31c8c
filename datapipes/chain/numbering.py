"""The numbers of a chain's stages: made once, by StageGraph, and handed to all who name a stage or need its random key.

A stage has a label, for people ("2 fetch_feature"), and, if it may draw, an ordinal, for the random key
(docs/semantics.md, section 1.1). A Numbering knows stages by identity and holds none of them, so a thread that keeps
one keeps no stage alive.
"""

from __future__ import annotations

from typing import NamedTuple

from datapipes.base.rng import RngKey


class Numbers(NamedTuple):
    """What one stage is called.

    Attributes:
        name: its functional name.
        place: its position among the stages that make, change or move minibatches; None for a carrier.
        ordinal: its position among the stages that may draw; None for the others.
    """

    name: str
    place: int | None
    ordinal: int | None


class Numbering:
    """The numbers of all stages of one graph.

    Args:
        numbers: by `id(stage)`.
        rng_seed: the seed of the first ItemSampler; None without one.
    """

    def __init__(self, numbers: dict[int, Numbers], rng_seed: int | None) -> None:
        self._numbers = numbers
        self._rng_seed = rng_seed

    def ordinal(self, stage: object) -> int | None:
        """Return the stage's number in the random key; None for a stage that does not draw."""
        return self._numbers[id(stage)].ordinal

    def name(self, stage: object) -> str:
        """Return the stage's functional name."""
        return self._numbers[id(stage)].name

    def label(self, stage: object) -> str:
        """Return the name under which the stage's calls are counted: "2 fetch_feature", or "prefetch" for a carrier."""
        name, place, _ = self._numbers[id(stage)]
        return name if place is None else f"{place} {name}"

    def where(self, stage: object) -> str:
        """Return how errors name the stage: "stage 2 (fetch_feature)"."""
        name, place, _ = self._numbers[id(stage)]
        return f"stage {name}" if place is None else f"stage {place} ({name})"

    def labels(self) -> list[str]:
        """Return the labels of all stages that have a place, in the order of their places."""
        return [f"{place} {name}" for name, place, _ in self._numbers.values() if place is not None]

    def key(self, stage: object, epoch: int, index: int) -> RngKey | None:
        """Return the stage's random key at a minibatch; None for a stage that does not draw, and without a seed."""
        ordinal = self.ordinal(stage)
        if ordinal is None or self._rng_seed is None:
            return None
        return RngKey(self._rng_seed, epoch, index, ordinal)
