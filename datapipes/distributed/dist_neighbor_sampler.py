"""DistNeighborSampler: NeighborSampler over a graph in parts, with the same bits.

Each hop asks the parts that own its nodes, all at once, and merges the answers in the order of the nodes. What a row
draws depends on the random key and its node alone, so it does not matter who draws it. docs/semantics.md, section 4.3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_index_tensor, check_int
from datapipes.base.errors import add_note
from datapipes.base.rng import RngKey
from datapipes.base.threads import num_threads
from datapipes.base.types import EdgeType, ends_of, known_edge_type
from datapipes.chain.asynchronous import off_loop
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hops_over_parts import Ask, CoreGraph, HopDraw, HopsOverParts
from datapipes.distributed.server.answers import answer_draw
from datapipes.distributed.wire.requests import Drawn
from datapipes.minibatch import MiniBatch
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled, Sampler

__all__ = ["DistNeighborSampler"]


@register_stage("dist_sample_neighbor")
class DistNeighborSampler(Sampler):
    """Sample the in-neighborhood of the seeds over a graph in parts; sets `blocks`, `input_nodes` and
    `compacted_seeds`.

    The minibatches are those of `sample_neighbor` over the whole graph, bit for bit. A saved state names it
    sample_neighbor too, so it goes on over any number of parts, and on one machine.

    Args:
        dist_graph: the graph in parts, of DistGraph.connect.
        fanouts: in-edges drawn per node, as for sample_neighbor.
        concurrency: minibatches in flight at once, 1 or more. Each takes the memory of what it finds, whatever the size
            of the graph.
        replace: draw with replacement; -1 still keeps each in-edge once.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        frontier: "all" or "new", as for sample_neighbor. "new" asks for each node once.
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, a part answered what was not asked for.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left.
        What the requests raise, see DistGraph.connect. A note names stage and minibatch, another one the part.
    """

    samples_parts = True

    def __init__(
        self,
        source: Stage,
        dist_graph: DistGraph,
        fanouts: Sequence[Fanout],
        *,
        concurrency: int = 8,
        replace: bool = False,
        return_edge_ids: bool = False,
        frontier: str = "all",
    ) -> None:
        super().__init__(source, dist_graph, fanouts, return_edge_ids=return_edge_ids)
        self.dist_graph = dist_graph
        self.concurrency = check_int(self.name, "concurrency", concurrency, 1)
        self.replace = check_bool(self.name, "replace", replace)
        self.frontier = check_choice(self.name, "frontier", frontier, ("all", "new"))
        self._core_graph = CoreGraph(dist_graph)
        self._ordinals = {of: number for number, of in enumerate(dist_graph.edge_types)}
        self._fanouts = [  # hop 0 first, as for sample_neighbor's kernel
            [fanout[of] if isinstance(fanout, dict) else fanout for of in self.edge_types]
            for fanout in reversed(self.fanouts)
        ]

    @property
    def state_name(self) -> str:
        return "sample_neighbor"

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Return the minibatch with its neighborhood."""
        ids, restored = self.seeds_of(minibatch)
        return self.filled(minibatch, restored(await self._sample_async(ids, self.rng_of(minibatch))))

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        """Return the neighborhood of `seeds`, waiting for the parts; `transform` calls it. See Sampler.sample."""
        hops = self._hops(rng)
        asked: list[Ask] | None = hops.start(seeds if self._has_types else {None: seeds})
        while asked is not None:
            asked = hops.advance(self._answers(asked))
        return hops.sampled()

    async def node_sample(self, seeds: Tensor | dict[str, Tensor], rng: RngKey) -> Sampled:
        """Return the neighborhood of nodes, for a loop of one's own.

        Args:
            seeds: int32 or int64 [n], repeats allowed; on a graph with types {node type: ids}.
            rng: the random key. That of the stage in a chain is RngKey(seed, epoch, index, ordinal of the stage).
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
        return restored(await self._sample_async(ids, rng))

    async def edge_sample(self, edges: Tensor | dict[EdgeType, Tensor], rng: RngKey) -> Sampled:
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
        return restored(await self._sample_async(ids, rng))

    async def sample_one_hop(
        self, ids: Tensor, *, fanout: int, key: int, edge_type: EdgeType | str | None = None
    ) -> Drawn:
        """Return in-edges of any nodes of the graph, in the order of the nodes; nothing is numbered.

        Args:
            ids: int32 or int64 [n], nodes of the destination type; repeats allowed, they draw the same.
            fanout: in-edges drawn per node, -1 for all.
            key: random key, uint64; `rng.hop_key(hop, etype)` of an RngKey, `etype` being the edge type's place in
                `dist_graph.edge_types`.
            edge_type: on a graph with types, the one to draw from.
        Returns:
            `indptr` int64 [n + 1], `neighbors` of the graph's `index_dtype`, `edge_ids` where the stage returns them.
        Raises:
            TypeError, ValueError: An argument is not allowed.
            IndexError: A node is outside the graph.
        """
        graph = self.dist_graph
        known = known_edge_type(self.name, edge_type, graph.edge_types) if self._has_types else None
        src, dst = ends_of(known)
        check_int(self.name, "fanout", fanout, -1)
        given = check_index_tensor(self.name, "ids", ids)
        hops = self._hops_of((known,), [[HopDraw(fanout, check_int(self.name, "key", key, 0, 2**64 - 1))]])
        found = await self._all_hops(hops, {dst: given})
        nodes, local, block = found.nodes, found.local_seeds, found.hops[0]
        if self._has_types:
            nodes, local, block = nodes[src], local[dst], block[known]
        neighbors = nodes[block.indices.long()]
        if given.shape[0] == block.num_dst:  # no repeats
            return Drawn(block.indptr, neighbors, block.edge_ids)
        rows = local.long()
        counts = block.indptr.diff()[rows]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        picks = torch.arange(int(indptr[-1])) + torch.repeat_interleave(block.indptr[rows] - indptr[:-1], counts)
        return Drawn(indptr, neighbors[picks], None if block.edge_ids is None else block.edge_ids[picks])

    def _hops(self, rng: RngKey) -> HopsOverParts:
        ordinals = [self._ordinals[of] for of in self.edge_types]
        draws = [
            [HopDraw(fanout, rng.hop_key(hop, etype)) for fanout, etype in zip(fanouts, ordinals, strict=True)]
            for hop, fanouts in enumerate(self._fanouts)
        ]
        return self._hops_of(self.edge_types, draws)

    def _hops_of(self, edge_types: Sequence[Any], draws: list[list[HopDraw]]) -> HopsOverParts:
        return HopsOverParts(
            self.dist_graph,
            self._core_graph,
            edge_types,
            draws,
            replace=self.replace,
            only_new=self.frontier == "new",
            edge_ids=self.return_edge_ids,
        )

    async def _sample_async(self, seeds: Any, rng: RngKey) -> Sampled:
        return await self._all_hops(self._hops(rng), seeds if self._has_types else {None: seeds})

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
            with _noting(ask):
                answers[ask.part] = waiting[ask.part].result() if ask.part in waiting else self._draw_here(ask)
        return [answers[ask.part] for ask in asked]

    async def _awaited_answers(self, asked: list[Ask]) -> list[list[Drawn]]:
        """Return what `_answers` does."""
        waiting = self._request(asked)

        async def answer(ask: Ask) -> list[Drawn]:
            with _noting(ask):
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
                with _noting(ask):
                    waiting[ask.part] = self.dist_graph.peers.draw(ask.part, ask.request)
        return waiting

    def _draw_here(self, ask: Ask) -> list[Drawn]:
        assert self.dist_graph.local_part is not None
        return answer_draw(self.dist_graph.local_part, ask.request, num_threads=num_threads())

    def fingerprint(self) -> Fingerprint:
        return {**super().fingerprint(), "replace": self.replace, "frontier": self.frontier}

    def describe(self) -> dict[str, Any]:
        replace = {"replace": True} if self.replace else {}
        return {**super().describe(), **replace, "frontier": self.frontier, "concurrency": self.concurrency}


@contextmanager
def _noting(ask: Ask) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        add_note(error, f"asked of part {ask.part}")
        raise
