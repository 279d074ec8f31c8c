"""ChoiceSampler: the base of this package's sampling stages. The stages differ in their Choice, the rule by which the
in-edges of a node are drawn.

The sampling itself is that of Neighborhoods (neighborhoods.py), from which ChoiceSampler derives too.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from datapipes import _core
from datapipes.base.checks import check_int
from datapipes.base.rng import RngKey
from datapipes.base.types import ends_of
from datapipes.chain.asynchronous import hides_own, off_loop
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import StageBase
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.graph.local_graph import LocalGraph
from datapipes.minibatch import MiniBatch
from datapipes.minibatch.message import by_type
from datapipes.minibatch.padding import Sizes, Slot
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.neighborhoods import Neighborhoods
from datapipes.sampling.sampler import Sampler

__all__: list[str] = []

CONCURRENCY = 8  # minibatches in flight at once over a graph in parts, unless the user says otherwise


class ChoiceSampler(Neighborhoods, Sampler):
    """Base of samplers that draw in-edges by a Choice (uniform, by weight, by time ...), over a graph in memory or a
    graph in parts.

    Args:
        options: further arguments of Neighborhoods.
    Attributes:
        concurrency: minibatches in flight at once, over a graph in parts.
    """

    _samples_parts = True
    concurrency = CONCURRENCY

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        choice: Choice,
        *,
        return_edge_ids: bool,
        concurrency: int | None = None,
        **options: Any,
    ) -> None:
        Sampler.__init__(self, source, graph, fanouts, return_edge_ids=return_edge_ids)
        set_concurrency(self, concurrency, ChoiceSampler, "sample", "transform")
        options |= {"return_edge_ids": return_edge_ids, "negative_end": self._negative_end}
        Neighborhoods.__init__(self, self.name, graph, self.fanouts, self.edge_types, choice, **options)

    async def sample_async(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Run `sample`, or the `sample` of a subclass, without blocking the event loop; return its result."""
        if type(self).sample is ChoiceSampler.sample:
            return await super().sample_async(seeds, rng, trees)
        more = () if trees is None else (trees,)  # a subclass's own `sample` may take no trees
        if self.graph._in_parts:
            return await off_loop(self.sample, seeds, rng, *more)
        return self.sample(seeds, rng, *more)

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        ids, restored = self.seeds_of(minibatch)
        trees = self._trees(minibatch)
        more = () if trees is None else (trees,)
        return self._filled_of(minibatch, restored(self.sample(ids, self.rng_of(minibatch), *more)), trees)

    def _made_for(self, reader: StageBase) -> Callable[[MiniBatch], MiniBatch] | None:
        """Return a `transform` for a Padder behind this stage: if a minibatch fits into a bucket, all of it but the
        seeds has the sizes of the bucket, and its `bucket` is -1 minus the number. This saves the copy that padding
        costs otherwise. None: the buckets have other layers, hops or types, or the minibatches of this stage are not
        made in one call of the core.
        """
        buckets: list[Sizes] = reader._pads_to
        methods = ("transform", "transform_async", "sample", "sample_async", "filled")
        is_own = any(getattr(type(self), name) is not getattr(ChoiceSampler, name) for name in methods)
        if is_own or self.__dict__.keys() & {*methods} or self._form is not None:
            return None
        if type(self.graph).hops is not LocalGraph.hops:
            return None
        sources = {ends_of(edge_type)[0] for edge_type in self.plan.edge_types}
        layers = {
            node_type: [Slot("nodes", layer, node_type) for layer in range(self.num_hops * (node_type in sources) + 1)]
            for node_type in self.node_types
        }
        hops = [[Slot("edges", hop, edge_type) for edge_type in self.plan.edge_types] for hop in range(self.num_hops)]
        seeds = [slot for slot in buckets[0] if slot.kind == "seeds"]
        if buckets[0].keys() != {*seeds, *itertools.chain(*layers.values(), *hops)}:
            return None
        plan = copy.copy(self.plan)
        plan.padding = _core.Padding(
            [
                (
                    [bucket[slot] for slot in seeds],
                    [[bucket[slot] for slot in slots] for slots in layers.values()],
                    [[bucket[slot] for slot in slots] for slots in hops],
                )
                for bucket in buckets
            ]
        )
        return functools.partial(self._padded, plan, [slot.type_ for slot in seeds])

    def _padded(self, plan: HopPlan, seed_types: list[Any], minibatch: MiniBatch) -> MiniBatch:
        seeds = by_type(minibatch.seeds)
        if seeds.keys() != {*seed_types}:  # the Padder refuses it
            return self.transform(minibatch)
        ids, restored = self.seeds_of(minibatch)
        trees = self._trees(minibatch)
        graph: Any = self.graph
        num_seeds = [len(seeds[type_]) for type_ in seed_types]
        sampled = graph.hops(plan, ids, *plan.keyed(self.rng_of(minibatch)), trees, num_seeds)
        made = self._filled_of(minibatch, restored(sampled), trees)
        if sampled.bucket is not None:
            made.bucket = -1 - sampled.bucket
        return made

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Return the result of `transform`; over a graph in parts, do not block the event loop."""
        ids, restored = self.seeds_of(minibatch)
        trees = self._trees(minibatch)
        sampled = restored(await self.sample_async(ids, self.rng_of(minibatch), trees))
        return self._filled_of(minibatch, sampled, trees)

    def _trees(self, minibatch: MiniBatch) -> SeedTrees | None:
        windows = minibatch.extra.get(self.choice.window_field or "")
        return self.trees_of(minibatch.seeds, minibatch.timestamps, windows)

    def _filled_of(self, minibatch: MiniBatch, sampled: Sampled, trees: SeedTrees | None) -> MiniBatch:
        filled, batch = self.filled(minibatch, sampled), self._batch_of(sampled, trees)
        return filled if batch is None else filled.replace(batch=batch)

    def describe(self) -> dict[str, Any]:
        options = {
            **super().describe(),
            "replace": self.replace or None,
            **self._describe_choice(),
            "frontier": self.frontier,
            "disjoint": self.disjoint or None,
            "subgraph_type": None if self._form is None else self.subgraph_type,
            "reverse_etypes_mapping": self.reverse_etypes_mapping,
            "concurrency": self.concurrency if self.asynchronous else None,
        }
        return {name: value for name, value in options.items() if value is not None}

    def _describe_choice(self) -> dict[str, Any]:
        """Return the entries of `describe` that belong to the choice, the rule of drawing. `describe` leaves out values
        that are None.
        """
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        self.graph._refuse_changes(self.plan)  # a worker would build the stage over the present values
        return super().__reduce__()


def set_concurrency(stage: Any, concurrency: Any, base: type[StageBase], *names: str) -> None:
    """Set `asynchronous` and `concurrency` (minibatches in flight at once) of a stage that samples `stage.graph`.

    Args:
        concurrency: the user's argument; None: the attribute of the stage's class.
        base, names: see hides_own.
    """
    overrides = type(stage).transform_async is not base.transform_async  # type: ignore[attr-defined]
    stage.asynchronous = overrides or (stage.graph._in_parts and not hides_own(stage, base, *names))
    if overrides and concurrency is None:
        return  # the subclass's attribute is used
    number = check_int(stage.name, "concurrency", type(stage).concurrency if concurrency is None else concurrency, 1)
    stage.concurrency = number if stage.asynchronous else 1
    if stage.asynchronous:
        return
    if concurrency is not None and not stage.graph._in_parts:
        raise ValueError(
            f"{stage.name}: concurrency is {number}, but the graph is whole; only over a graph in parts minibatches "
            "wait for answers. Leave it out; num_workers of a DataLoader makes several minibatches at once."
        )
    if stage.graph._in_parts and number not in (1, CONCURRENCY):  # CONCURRENCY: the `dist_` names pass it by default
        raise ValueError(
            f"{stage.name}: concurrency is {number}, but {type(stage).__name__} has a sample or transform method of "
            "its own, which is called for one minibatch at a time. Leave it out, or define transform_async too."
        )
