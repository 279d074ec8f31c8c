"""ScoredNeighborSampler: the base of samplers that give a node the neighbors with the highest scores, near or far.

The edges of the blocks are made here: from each of these neighbors to the node. They have no ids in the graph; their
scores are an edge feature.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_int, shown
from datapipes.base.rng import RngKey
from datapipes.base.types import EdgeType
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.graph import Graph
from datapipes.graph.hops import Sampled
from datapipes.minibatch import Block, MiniBatch
from datapipes.sampling.asking import Asking, answered, answered_async
from datapipes.sampling.choice_sampler import CONCURRENCY, set_concurrency
from datapipes.sampling.sampler import Sampler, items_before
from datapipes.seeds import HeteroItemSet


class Neighbors(NamedTuple):
    """The neighbors of n nodes, the highest score first; of equal scores, the smaller id.

    Attributes:
        ids: ids [n, k]; -1 where a node has fewer.
        scores: float32 [n, k]; 0 where the id is -1.
    """

    ids: Tensor
    scores: Tensor


class ScoredNeighborSampler(Sampler):
    """Base of samplers of scored neighbors. With types, seeds and neighbors have one type.

    Args:
        num_neighbors: how many neighbors each hop takes; the last entry is the hop next to the seeds.
        edge_type: with types, the type of the edges of the blocks.
        score_name: the name of the edge feature with the scores.
    """

    _samples_parts = True
    concurrency = CONCURRENCY

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        num_neighbors: Sequence[int],
        edge_type: EdgeType | None = None,
        *,
        score_name: str,
        return_edge_ids: bool = False,
        concurrency: int | None,
    ) -> None:
        self.num_neighbors = [check_int(self.name, "num_neighbors", count, 1, 2**20) for count in num_neighbors]
        if not self.num_neighbors:
            raise ValueError(f"{self.name}: num_neighbors is [], it must have a number for each hop. Pass [10].")
        super().__init__(source, graph, self.num_neighbors, return_edge_ids=return_edge_ids)
        self.edge_types = (edge_type,)
        if self._type is not None and (items := items_before(source)) is not None:
            self._refuse_seeds(items.types if isinstance(items, HeteroItemSet) else [])
        self.score_name = score_name
        set_concurrency(self, concurrency, ScoredNeighborSampler, "sample", "transform")

    @abstractmethod
    def _neighbors(self, nodes: Tensor, hop: int, rng: RngKey) -> Asking[Neighbors]:
        """A generator that asks the graph for the neighbors of `nodes`, ids [n], distinct."""

    @property
    def _type(self) -> Any:
        """The type of seeds and neighbors; None without types."""
        return None if self.edge_types[0] is None else self.edge_types[0][2]

    def sample(self, seeds: Any, rng: RngKey) -> Sampled:
        return answered(self.graph, self._sampled(seeds, rng))[0]

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        return answered(self.graph, self._made(minibatch))

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Return the result of `transform`; over a graph in parts, do not block the event loop."""
        return await answered_async(self.graph, self._made(minibatch))

    def _made(self, minibatch: MiniBatch) -> Asking[MiniBatch]:
        """A generator that asks the graph; it returns the minibatch."""
        return (yield from self._with_scores(minibatch))[0]

    def _with_scores(self, minibatch: MiniBatch) -> Asking[tuple[MiniBatch, list[Neighbors]]]:
        """A generator that asks the graph; it returns the minibatch, and the neighbors of each hop, hop 0 first."""
        seeds, restored = self.seeds_of(minibatch)
        sampled, of_hops = yield from self._sampled(seeds, self.rng_of(minibatch))
        made = self.filled(minibatch, restored(sampled))
        name: Any = self.score_name if self._type is None else (self.edge_types[0], self.score_name)
        scores = [{name: found.scores[found.ids >= 0]} for found in reversed(of_hops)]
        return made.replace(edge_features=scores), of_hops

    def _sampled(self, seeds: Any, rng: RngKey) -> Asking[tuple[Sampled, list[Neighbors]]]:
        """A generator that asks the graph; it returns the sample, and the neighbors of each hop, hop 0 first."""
        ids = self._seeds_of_one_type(seeds)
        numbering = _core.NumberingInt32 if self.graph.index_dtype == torch.int32 else _core.NumberingInt64
        numbers: Any = numbering(self.graph.num_nodes_of(self._type))
        local_seeds = self._numbered_seeds(numbers, self._type, ids)
        hops, of_hops = [], []
        for hop in range(self.num_hops):
            found = yield from self._neighbors(torch.from_numpy(numbers.nodes()), hop, rng)
            indptr = torch.zeros(len(found.ids) + 1, dtype=torch.int64)
            torch.cumsum((found.ids >= 0).sum(1), 0, out=indptr[1:])
            local = torch.from_numpy(numbers.number(found.ids[found.ids >= 0].numpy()))
            hops.append(Block(indptr, local, len(numbers.nodes())))
            of_hops.append(found)
        nodes = torch.from_numpy(numbers.nodes())
        if self._type is None:
            return Sampled(nodes, local_seeds, hops), of_hops
        empty = dict.fromkeys(self.node_types, nodes[:0])
        blocks = [{self.edge_types[0]: block} for block in hops]
        return Sampled({**empty, self._type: nodes}, {self._type: local_seeds}, blocks), of_hops

    def _seeds_of_one_type(self, seeds: Any) -> Tensor:
        if self._type is None:
            return seeds  # type: ignore[no-any-return]
        self._refuse_seeds(seeds)
        return seeds[self._type]  # type: ignore[no-any-return]

    def _refuse_seeds(self, types: Collection[Any]) -> None:
        if {*types} != {self._type}:
            raise ValueError(
                f"{self.name}: seeds must have the type {self._type!r} alone, found {shown([*types])}. Give seeds of "
                "this type."
            )

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return {name: plain value} of the options that decide the neighbors, for states and `explain()`."""

    def fingerprint(self) -> Fingerprint:
        return {**super().fingerprint(), **self._options()}

    def describe(self) -> dict[str, Any]:
        details = super().describe()
        del details["fanouts"]
        return {"num_neighbors": self.num_neighbors, **details, **self._options()}
