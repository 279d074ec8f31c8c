"""PartsSampler: what the samplers over a graph in parts share: the hops of a minibatch, asked of the parts.

Each hop asks the parts that own its nodes, all at once, and merges the answers in the order of the nodes. What a row
draws depends on the random key and the row alone, so it does not matter who draws it. docs/semantics.md, section 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from torch import Tensor

from datapipes.base.checks import check_int
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.base.types import EdgeType
from datapipes.chain.asynchronous import off_loop
from datapipes.chain.stage import Stage
from datapipes.distributed.digests_over_parts import noting_part
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hops_over_parts import Ask, CoreGraph, HopDraw, HopsOverParts
from datapipes.distributed.server.answers import answer_draw
from datapipes.distributed.wire.requests import Drawn
from datapipes.minibatch import MiniBatch
from datapipes.partition.native.choices import Choice
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled
from datapipes.sampling.seed_trees import SeedTrees, seed_trees
from datapipes.sampling.tree_sampler import TreeSampler

__all__: list[str] = []


class PartsSampler(TreeSampler):
    """Base of the samplers over a graph in parts.

    A saved state names the sampler of the whole graph, so it goes on over any number of parts, and on one machine.

    Attributes:
        dist_graph: the graph in parts.
        concurrency: minibatches in flight at once.
        replace, frontier: see NeighborSampler.
        choice: how in-edges are drawn, if not uniformly.
    """

    samples_parts = True
    replace: bool = False
    frontier: str = "all"
    choice: Choice | None = None

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int,
        return_edge_ids: bool,
    ) -> None:
        super().__init__(source, dist_graph, fanouts, return_edge_ids=return_edge_ids)
        self.dist_graph = dist_graph
        self.concurrency = check_int(self.name, "concurrency", concurrency, 1)
        self._core_graph = CoreGraph(self.name, dist_graph)
        self._ordinals = {of: number for number, of in enumerate(dist_graph.edge_types)}
        self._fanouts = [  # hop 0 first, as for the kernel of the whole graph
            [fanout[of] if isinstance(fanout, dict) else fanout for of in self.edge_types]
            for fanout in reversed(self.fanouts)
        ]

    @property
    def state_name(self) -> str:
        return self.name.removeprefix("dist_")

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Return the minibatch with its neighborhood."""
        ids, restored = self.seeds_of(minibatch)
        trees = self.trees_of(minibatch) if self.disjoint or self.has_times else None
        found = restored(await self._sample_async(ids, self.rng_of(minibatch), trees))
        filled = self.filled(minibatch, found)
        return filled if trees is None else filled.replace(batch=self._batch(found, trees))

    def sample(self, seeds: Any, rng: RngKey, trees: SeedTrees | None = None) -> Sampled:
        """Return the neighborhood of `seeds`, waiting for the parts; `transform` calls it. See TreeSampler.sample."""
        hops = self._hops(rng, trees)
        asked: list[Ask] | None = hops.start(seeds if self._has_types else {None: seeds})
        while asked is not None:
            asked = hops.advance(self._answers(asked))
        return hops.sampled()

    async def node_sample(self, seeds: Tensor | dict[str, Tensor], rng: RngKey, *, timestamps: Any = None) -> Sampled:
        """Return the neighborhood of nodes, for a loop of one's own.

        Args:
            seeds: int32 or int64 [n], repeats allowed; on a graph with types {node type: ids}.
            rng: the random key. That of the stage in a chain is RngKey(seed, epoch, index, ordinal of the stage).
            timestamps: the time of each seed, where the sampler needs times; of the form of `seeds`.
        Returns:
            `nodes`, `local_seeds` of the form of `seeds`, `hops` from the seeds outwards.
        Raises:
            As the stage does while running.
        """
        ids, restored = self.checked_seeds(seeds)
        for given in seeds.values() if isinstance(seeds, dict) else [seeds]:
            if given.ndim != 1:
                raise ValueError(
                    f"{self.name}: seeds of node_sample must be nodes [n], got the shape {list(given.shape)}. Pass "
                    "pairs to edge_sample."
                )
        return restored(await self._sample_async(ids, rng, self._trees(seeds, timestamps)))

    async def edge_sample(
        self, edges: Tensor | dict[EdgeType, Tensor], rng: RngKey, *, timestamps: Any = None
    ) -> Sampled:
        """Return the neighborhood of the ends of edges, for a loop of one's own; as node_sample otherwise.

        Args:
            edges: int32 or int64 [n, 2], source and destination of each; on a graph with types {edge type: pairs}. They
                need not be edges of the graph.
        """
        ids, restored = self.checked_seeds(edges)
        for given in edges.values() if isinstance(edges, dict) else [edges]:
            if given.ndim != 2 or given.shape[1] != 2:
                raise ValueError(
                    f"{self.name}: edge_sample needs pairs of nodes [n, 2], got the shape {list(given.shape)}. Pass "
                    "nodes to node_sample."
                )
        return restored(await self._sample_async(ids, rng, self._trees(edges, timestamps)))

    def _trees(self, seeds: Any, timestamps: Any) -> SeedTrees | None:
        if not (self.disjoint or self.has_times):
            return None
        return seed_trees(self.name, seeds, timestamps, disjoint=self.disjoint, has_times=self.has_times)

    def _hops(self, rng: RngKey, trees: SeedTrees | None) -> HopsOverParts:
        """Return the hops of a minibatch, with what each of them, hop 0 first, draws from each edge type."""
        ordinals = [self._ordinals[of] for of in self.edge_types]
        draws = [
            [HopDraw(fanout, rng.hop_key(hop, etype)) for fanout, etype in zip(fanouts, ordinals, strict=True)]
            for hop, fanouts in enumerate(self._fanouts)
        ]
        return self._hops_of(self.edge_types, draws, self.choice, trees)

    def _hops_of(
        self,
        edge_types: Sequence[Any],
        draws: list[list[HopDraw]],
        choice: Choice | None,
        trees: SeedTrees | None = None,
    ) -> HopsOverParts:
        return HopsOverParts(
            self.dist_graph,
            self._core_graph,
            edge_types,
            draws,
            replace=self.replace,
            only_new=self.frontier == "new",
            edge_ids=self.return_edge_ids,
            trees=trees,
            choice=choice,
        )

    async def _sample_async(self, seeds: Any, rng: RngKey, trees: SeedTrees | None) -> Sampled:
        return await self._all_hops(self._hops(rng, trees), seeds if self._has_types else {None: seeds})

    async def _all_hops(self, hops: HopsOverParts, seeds: dict[Any, Tensor]) -> Sampled:
        asked: list[Ask] | None = await off_loop(hops.start, seeds)
        while asked is not None:
            asked = await off_loop(hops.advance, await self._awaited_answers(asked))
        return hops.sampled()

    def _answers(self, asked: list[Ask]) -> list[list[Drawn]]:
        """Return the answer of each part. Other parts are asked first, so that they work while the own one draws."""
        waiting = self._request(asked)
        answers = {}
        for ask in sorted(asked, key=lambda ask: ask.part in waiting):
            with noting_part(ask.part):
                answers[ask.part] = waiting[ask.part].result() if ask.part in waiting else self._draw_here(ask)
        return [answers[ask.part] for ask in asked]

    async def _awaited_answers(self, asked: list[Ask]) -> list[list[Drawn]]:
        """Return what `_answers` does."""
        waiting = self._request(asked)

        async def answer(ask: Ask) -> list[Drawn]:
            with noting_part(ask.part):
                if ask.part in waiting:
                    return await asyncio.wrap_future(waiting[ask.part])
                return await off_loop(self._draw_here, ask)

        tasks = [asyncio.ensure_future(answer(ask)) for ask in asked]
        try:
            return await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()  # those that an error leaves behind

    def _request(self, asked: list[Ask]) -> dict[int, Future[list[Drawn]]]:
        local, waiting = self.dist_graph.local_part, {}
        for ask in asked:
            if local is None or local.part != ask.part:
                with noting_part(ask.part):
                    waiting[ask.part] = self.dist_graph.peers.draw(ask.part, ask.request)
        return waiting

    def _draw_here(self, ask: Ask) -> list[Drawn]:
        assert self.dist_graph.local_part is not None
        return answer_draw(self.dist_graph.local_part, ask.request, num_threads=num_threads())

    def describe(self) -> dict[str, Any]:
        return {**super().describe(), "concurrency": self.concurrency}
