"""LayeredSampler: what the samplers by LABOR share, over a whole graph and over parts: options, keys, what names them.

docs/semantics.md, section 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from datapipes.base.checks import check_bool, check_choice, check_int
from datapipes.base.rng import RngKey
from datapipes.chain.stage_base import Fingerprint
from datapipes.sampling.sampler import Sampler

__all__: list[str] = []

MAX_DEPENDENCY = 2**31 - 1

Keys = list[list[int]]


class LayerKeys(NamedTuple):
    """The hop keys of a minibatch: of each hop, hop 0 first, and of each edge type that is sampled.

    Attributes:
        keys: of the generation of the minibatch.
        until_next: sources whose offset is so large or larger are in the generation after it.
        next_keys, offset_keys: of that generation, and of batch 0; empty where each minibatch is a generation.
    """

    keys: Keys
    until_next: int
    next_keys: Keys
    offset_keys: Keys


class LayeredSampler(Sampler):
    """Base of the samplers by LABOR.

    Attributes:
        layer_dependency, batch_dependency, frontier: as LayerNeighborSampler has them.
    """

    def _set_options(self, *, layer_dependency: bool, batch_dependency: int, frontier: str) -> None:
        """Check the options and keep them.

        Raises:
            TypeError, ValueError: One is not allowed.
        """
        self.layer_dependency = check_bool(self.name, "layer_dependency", layer_dependency)
        self.batch_dependency = check_int(self.name, "batch_dependency", batch_dependency, 1, MAX_DEPENDENCY)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))
        ordinals = {of: number for number, of in enumerate(self.graph.node_types)}
        self._source_types = [ordinals[None if of is None else of[0]] for of in self.edge_types]

    def _layer_keys(self, rng: RngKey) -> LayerKeys:
        generation, place = divmod(rng.index, self.batch_dependency)
        lasting = self.batch_dependency > 1
        return LayerKeys(
            self._keys(rng, generation),
            self.batch_dependency - place,
            self._keys(rng, generation + 1) if lasting else [],
            self._keys(rng, 0) if lasting else [],
        )

    def _keys(self, rng: RngKey, generation: int) -> Keys:
        """Return the hop keys of a generation, of the source type of each edge type that is sampled."""
        of = replace(rng, index=generation)
        hops: Sequence[int] = range(self.num_hops)
        return [[of.hop_key(0 if self.layer_dependency else hop, kind) for kind in self._source_types] for hop in hops]

    def fingerprint(self) -> Fingerprint:
        dependencies = {"layer_dependency": self.layer_dependency, "batch_dependency": self.batch_dependency}
        return {**super().fingerprint(), **dependencies, "frontier": self.frontier}

    def describe(self) -> dict[str, Any]:
        layers = {"layer_dependency": True} if self.layer_dependency else {}
        batches = {"batch_dependency": self.batch_dependency} if self.batch_dependency > 1 else {}
        return {**super().describe(), **layers, **batches, "frontier": self.frontier}
