"""DistNeighborSampler: NeighborSampler over a graph in parts, with the same bits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from datapipes.base.checks import check_bool, check_choice, check_int
from datapipes.base.rng import RngKey
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.hops_over_parts import Ask, HopsOverParts
from datapipes.distributed.server.answers import answer_draw
from datapipes.distributed.wire.requests import Drawn
from datapipes.minibatch import MiniBatch
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.sampler import Sampled, Sampler

__all__ = ["DistNeighborSampler"]


@register_stage("dist_sample_neighbor")
class DistNeighborSampler(Sampler):
    """Sample the in-neighborhood of the seeds over a graph in parts; what NeighborSampler does on the whole graph, with
    the same bits.
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
        ordinals = {of: number for number, of in enumerate(dist_graph.edge_types)}
        self._ordinals = [ordinals[of] for of in self.edge_types]
        self._fanouts = [
            [fanout[of] if isinstance(fanout, dict) else fanout for of in self.edge_types]
            for fanout in reversed(self.fanouts)
        ]

    @property
    def state_name(self) -> str:
        return "sample_neighbor"

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        hops = self._hops(rng)
        asked = hops.start(seeds if self._has_types else {None: seeds})
        while asked:
            waiting = [None if self._is_here(ask) else self.dist_graph.peers.draw(*ask) for ask in asked]
            answers = [
                self._answer(ask) if future is None else future.result()
                for ask, future in zip(asked, waiting, strict=True)
            ]
            asked = hops.advance(answers)
        return hops.sampled()

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        ids, restored = self.seeds_of(minibatch)
        return self.filled(minibatch, restored(await self._sample_async(ids, self.rng_of(minibatch))))

    async def _sample_async(self, seeds: Any, rng: RngKey) -> Sampled:
        hops = self._hops(rng)
        asked = hops.start(seeds if self._has_types else {None: seeds})
        while asked:
            remote = {
                i: asyncio.wrap_future(self.dist_graph.peers.draw(*ask))
                for i, ask in enumerate(asked)
                if not self._is_here(ask)
            }
            local = {i: self._answer(ask) for i, ask in enumerate(asked) if self._is_here(ask)}
            answers = dict(zip(remote, await asyncio.gather(*remote.values()), strict=True)) | local
            asked = hops.advance([answers[i] for i in range(len(asked))])
        return hops.sampled()

    def _hops(self, rng: RngKey) -> HopsOverParts:
        keys = [[rng.hop_key(hop, etype) for etype in self._ordinals] for hop in range(self.num_hops)]
        return HopsOverParts(
            self.dist_graph,
            self.edge_types,
            self._fanouts,
            keys,
            replace=self.replace,
            only_new=self.frontier == "new",
            edge_ids=self.return_edge_ids,
        )

    def _is_here(self, ask: Ask) -> bool:
        local = self.dist_graph.local_part
        return local is not None and local.part == ask.part

    def _answer(self, ask: Ask) -> list[Drawn]:
        assert self.dist_graph.local_part is not None
        return answer_draw(self.dist_graph.local_part, ask.request)

    def fingerprint(self) -> Fingerprint:
        return {**super().fingerprint(), "replace": self.replace, "frontier": self.frontier}

    def describe(self) -> dict[str, Any]:
        replace = {"replace": True} if self.replace else {}
        return {**super().describe(), **replace, "frontier": self.frontier, "concurrency": self.concurrency}
