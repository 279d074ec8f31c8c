"""SamplerOverParts: what the samplers have under their `dist_` names: methods for a loop of your own.

`pipe.sample_neighbor(dist_graph, fanouts)` and `pipe.dist_sample_neighbor(dist_graph, fanouts)` are one stage: the same
bits, and the same saved state. The latter refuses a whole graph. docs/semantics.md, section 4.3. The names themselves
stand in dist_samplers.py, which `make stubs` writes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor, check_int
from datapipes.base.rng import RngKey
from datapipes.base.types import EdgeType, ends_of, type_in
from datapipes.distributed.dist_graph import DistGraph
from datapipes.graph.choice import Keyed
from datapipes.graph.graph import Graph
from datapipes.graph.hops import Sampled, SeedTrees
from datapipes.partition.native.requests import Drawn
from datapipes.sampling.choice_sampler import ChoiceSampler


class SamplerOverParts(ChoiceSampler):
    """A sampler that takes a graph in parts only: the base of the classes in dist_samplers.py.

    Attributes:
        dist_graph: the graph in parts.
    """

    @property
    def dist_graph(self) -> DistGraph:
        assert isinstance(self.graph, DistGraph)
        return self.graph

    @property
    def _state_name(self) -> str:
        return self.name.removeprefix("dist_")

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
        ids, restored = self._checked_seeds(seeds)
        for given in seeds.values() if isinstance(seeds, dict) else [seeds]:
            if given.ndim != 1:
                raise ValueError(
                    f"{self.name}: seeds of node_sample must be nodes [n], got the shape {list(given.shape)}. Pass "
                    "pairs to edge_sample."
                )
        return restored(await self._sample(ids, rng, self._trees_of(seeds, timestamps)))

    async def edge_sample(
        self, edges: Tensor | dict[EdgeType, Tensor], rng: RngKey, *, timestamps: Any = None
    ) -> Sampled:
        """Return the neighborhood of the ends of edges, for a loop of one's own; as node_sample otherwise.

        Args:
            edges: int32 or int64 [n, 2], source and destination of each; on a graph with types {edge type: pairs}. They
                need not be edges of the graph.
        """
        ids, restored = self._checked_seeds(edges)
        for given in edges.values() if isinstance(edges, dict) else [edges]:
            if given.ndim != 2 or given.shape[1] != 2:
                raise ValueError(
                    f"{self.name}: edge_sample needs pairs of nodes [n, 2], got the shape {list(given.shape)}. Pass "
                    "nodes to node_sample."
                )
        return restored(await self._sample(ids, rng, self._trees_of(edges, timestamps)))

    async def _sample(self, ids: Any, rng: RngKey, trees: SeedTrees | None) -> Sampled:
        if type(self).sample is ChoiceSampler.sample:
            return await self.sample_async(ids, rng, trees)
        return self.sample(ids, rng, *(() if trees is None else (trees,)))  # a subclass has its own

    def _in_parts(self, graph: Any) -> Any:
        """Return the graph; raise TypeError if it is a whole one."""
        if isinstance(graph, Graph) and not graph._in_parts:
            raise TypeError(
                f"{self.name}: graph must be a DistGraph, whose rows are in parts, got {type(graph).__name__}. Sample "
                f"a whole graph by {self._state_name}."
            )
        return graph


class OneHopSampler(SamplerOverParts):
    """A sampler over parts whose hops are drawn by a key for each edge type, so that one of them can be asked alone."""

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
        known = type_in(self.name, "edge", edge_type, graph.edge_types)
        src, dst = ends_of(known)
        check_int(self.name, "fanout", fanout, -1)
        given = check_index_tensor(self.name, "ids", ids)
        keyed = Keyed([[check_int(self.name, "key", key, 0, 2**64 - 1)]], self.choice)
        numbers = [graph.edge_types.index(known)], [self.plan.node_numbers[src]]
        plan = replace(
            self.plan, edge_types=(known,), fanouts=[[fanout]], edge_numbers=numbers[0], source_numbers=numbers[1]
        )
        found = await graph.hops_async(plan, {dst: given}, keyed)
        nodes, local, block = found.nodes, found.local_seeds, found.hops[0]
        if graph.is_heterogeneous:
            nodes, local, block = nodes[src], local[dst], block[known]
        neighbors = nodes[block.indices.long()]
        if given.shape[0] == block.num_dst:  # no repeats
            return Drawn(block.indptr, neighbors, block.edge_ids)
        rows = local.long()
        counts = block.indptr.diff()[rows]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        picks = torch.arange(int(indptr[-1])) + torch.repeat_interleave(block.indptr[rows] - indptr[:-1], counts)
        return Drawn(indptr, neighbors[picks], None if block.edge_ids is None else block.edge_ids[picks])
