"""ChoiceSampler: the base of this package's samplers. They differ in the Choice by which in-edges are drawn.

The graph runs the hops: a whole one in one call of the C++ core, one in parts by asking its parts, hop by hop. What
is drawn for a node depends on the random key and its in-edges alone, so both give the same bits. docs/semantics.md,
section 4.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_int
from datapipes.base.codec import join_key
from datapipes.base.rng import RngKey
from datapipes.chain.asynchronous import hides_own, off_loop
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.choice import Choice
from datapipes.graph.graph import Graph
from datapipes.graph.hops import HopPlan, Sampled, SeedTrees
from datapipes.graph.reverses import checked_mapping, refuse_mapping, reverses_of
from datapipes.minibatch import MiniBatch
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampler
from datapipes.sampling.seed_ids import seed_trees
from datapipes.sampling.subgraph_form import FORMS, SubgraphForm

__all__: list[str] = []

CONCURRENCY = 8  # minibatches in flight at once over a graph in parts, unless the user says otherwise


class ChoiceSampler(Sampler):
    """Base of samplers that draw by a Choice, over a whole graph or one in parts.

    Seeds may form groups that share no nodes: one for each seed (`disjoint=True`, which also sets `batch`), or one for
    each distinct time.

    Attributes:
        choice: how in-edges are drawn.
        replace, frontier, disjoint, subgraph_type, reverse_etypes_mapping: as NeighborSampler has them.
        concurrency: minibatches in flight at once, over a graph in parts.
        plan: what `graph.hops` needs beside the seeds.
    """

    _samples_parts = True
    concurrency = CONCURRENCY
    _fingerprinted: tuple[str, ...] = ("replace", "frontier")  # in every fingerprint; trees where there are some

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        choice: Choice,
        *,
        return_edge_ids: bool,
        replace: bool = False,
        frontier: str = "all",
        disjoint: bool = False,
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(source, graph, fanouts, return_edge_ids=return_edge_ids)
        self.choice = choice
        self.replace = check_bool(self.name, "replace", replace)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))
        self.disjoint = check_bool(self.name, "disjoint", disjoint)
        overrides = type(self).transform_async is not ChoiceSampler.transform_async
        self.asynchronous = overrides or (graph._in_parts and not hides_own(self, ChoiceSampler, "sample", "transform"))
        if concurrency is not None or not overrides:  # else the attribute of the subclass counts
            self.concurrency = self._checked_concurrency(concurrency)
        by_hop = [  # hop 0 first
            [fanout[edge_type] if isinstance(fanout, dict) else fanout for edge_type in self.edge_types]
            for fanout in reversed(self.fanouts)
        ]
        options = {"replace": self.replace, "only_new": frontier == "new", "edge_ids": self.return_edge_ids}
        self.plan = HopPlan(self.name, graph, self.edge_types, by_hop, choice, **options)
        self.subgraph_type = check_choice(self.name, "subgraph_type", subgraph_type, FORMS)
        self.reverse_etypes_mapping = reverse_etypes_mapping
        self._form: SubgraphForm | None = None
        if subgraph_type == "directional":
            refuse_mapping(self.name, reverse_etypes_mapping, "subgraph_type is 'directional'")
        else:
            self._form = SubgraphForm(subgraph_type, self.plan, self._reverses())
            self.edge_types = self._form.edge_types

    def _reverses(self) -> dict[Any, Any] | None:
        """Return the edge type of the reverses of each that is sampled; None where the form has no reverses."""
        if self.subgraph_type == "induced":
            refuse_mapping(self.name, self.reverse_etypes_mapping, "subgraph_type is 'induced', which adds no reverses")
            return None
        mapping = checked_mapping(self.name, self.reverse_etypes_mapping, self.graph.edge_types)
        backs: dict[Any, Any] = reverses_of(self.name, self.plan.edge_types, mapping)
        return backs

    def sample(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return the neighborhood of `seeds`; with `trees` each group of them has nodes of its own.

        Raises:
            ValueError: The seeds need times and have none; or values of the graph that it draws by were changed.
        """
        sampled = self.graph.hops(self.plan, seeds, *self.plan.keyed(rng), trees)
        if self._form is None:
            return sampled
        question = self._form.question(sampled, rng, trees)
        return self._form.made(sampled, None if question is None else self.graph.hops(*question))

    async def sample_async(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return what `sample` does, a subclass's own too; over a graph in parts the event loop goes on meanwhile."""
        graph: Any = self.graph
        more = () if trees is None else (trees,)  # a subclass's own `sample` may know none
        if not graph._in_parts:
            return self.sample(seeds, rng, *more)
        if type(self).sample is not ChoiceSampler.sample:
            return await off_loop(self.sample, seeds, rng, *more)
        sampled: Sampled = await graph.hops_async(self.plan, seeds, *self.plan.keyed(rng), trees)
        if self._form is None:
            return sampled
        question = self._form.question(sampled, rng, trees)
        among = None if question is None else await graph.hops_async(*question)
        return await off_loop(self._form.made, sampled, among)

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        ids, restored = self.seeds_of(minibatch)
        trees = self._trees_of(minibatch.seeds, minibatch.timestamps)
        more = () if trees is None else (trees,)
        return self._filled_of(minibatch, restored(self.sample(ids, self.rng_of(minibatch), *more)), trees)

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Return what `transform` does, over a graph in parts."""
        ids, restored = self.seeds_of(minibatch)
        trees = self._trees_of(minibatch.seeds, minibatch.timestamps)
        sampled = restored(await self.sample_async(ids, self.rng_of(minibatch), trees))
        return self._filled_of(minibatch, sampled, trees)

    def _trees_of(self, seeds: Any, timestamps: Any) -> SeedTrees | None:
        """Return the groups of the seeds of a minibatch, which `seeds_of` has checked; None if all are in one."""
        has_times = self.choice.of_times
        if not (self.disjoint or has_times):
            return None
        return seed_trees(
            self.name, seeds, timestamps, disjoint=self.disjoint, has_times=has_times, negative_end=self._negative_end
        )

    def fingerprint(self) -> Fingerprint:
        drawn = {name: getattr(self, name) for name in self._fingerprinted}
        if self.disjoint:
            drawn["disjoint"] = True
        if self._form is not None:
            drawn["subgraph_type"] = self.subgraph_type
        if self._form is not None and self._form.reverses is not None and self.graph.is_heterogeneous:
            drawn["reverses"] = {join_key(one): join_key(back) for one, back in self._form.reverses.items()}
        return {**super().fingerprint(), **drawn, **self.choice.fingerprint(self.graph._choice_digests(self.plan))}

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
        """Return what `describe` says of the choice; None is left out."""
        return {}

    def __reduce__(self) -> tuple[Any, ...]:
        self.graph._refuse_changes(self.plan)  # a worker would build the stage over the values as they are now
        return super().__reduce__()

    def _checked_concurrency(self, concurrency: Any) -> int:
        number = check_int(self.name, "concurrency", type(self).concurrency if concurrency is None else concurrency, 1)
        if self.asynchronous:
            return number
        if concurrency is not None and not self.graph._in_parts:
            raise ValueError(
                f"{self.name}: concurrency is {number}, but the graph is whole; only over a graph in parts minibatches "
                "wait for answers. Leave it out; num_workers of a DataLoader makes several minibatches at once."
            )
        if self.graph._in_parts and number not in (1, CONCURRENCY):  # the default of the `dist_` names
            raise ValueError(
                f"{self.name}: concurrency is {number}, but {type(self).__name__} has a sample or transform method of "
                "its own, which is called for one minibatch at a time. Leave it out, or define transform_async too."
            )
        return 1

    def _filled_of(self, minibatch: MiniBatch, sampled: Sampled, trees: SeedTrees | None) -> MiniBatch:
        filled = self.filled(minibatch, sampled)
        return filled.replace(batch=_batch(sampled.groups, trees.rows)) if self.disjoint and trees else filled


def _batch(groups: Any, rows: Tensor | None) -> Any:
    """Return the row of the seeds whose tree each node belongs to, given the row of each group."""
    if rows is None:
        return groups
    if isinstance(groups, dict):
        return {node_type: torch.index_select(rows, 0, numbers) for node_type, numbers in groups.items()}
    return torch.index_select(rows, 0, groups)
