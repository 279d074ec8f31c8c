"""The samplers under their `dist_` names, which require a DistGraph and have methods for a loop of your own.

`pipe.sample_neighbor(dist_graph, fanouts)` and `pipe.dist_sample_neighbor(dist_graph, fanouts)` yield equal minibatches
and have equal states; only `dist_sample_neighbor` refuses a whole graph. See docs/semantics.md, section 4.3. The
constructors are derived from the constructors of the plain samplers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace as with_fields
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor, check_int
from datapipes.base.rng import RngKey
from datapipes.base.types import EdgeType, ends_of, type_in
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.requests.draw import Drawn
from datapipes.graph.graph import Graph
from datapipes.graph.hops import Sampled
from datapipes.sampling.choice_sampler import CONCURRENCY, ChoiceSampler
from datapipes.sampling.in_subgraph_sampler import InSubgraphSampler
from datapipes.sampling.layer_neighbor_sampler import LayerNeighborSampler
from datapipes.sampling.neighbor_sampler import NeighborSampler
from datapipes.sampling.temporal_neighbor_sampler import TemporalNeighborSampler

__all__ = [
    "DistInSubgraphSampler",
    "DistLayerNeighborSampler",
    "DistNeighborSampler",
    "DistTemporalNeighborSampler",
]


class SamplerOverParts(ChoiceSampler):
    """Base of the `dist_` samplers. It takes only a DistGraph, and has methods that sample without a chain of stages.

    Attributes:
        dist_graph: the partitioned graph.
    """

    @property
    def dist_graph(self) -> DistGraph:
        assert isinstance(self.graph, DistGraph)
        return self.graph

    @property
    def _state_name(self) -> str:
        return self.name.removeprefix("dist_")

    async def node_sample(
        self, seeds: Tensor | dict[str, Tensor], rng: RngKey, *, timestamps: Any = None, windows: Any = None
    ) -> Sampled:
        """Coroutine that samples and returns the neighborhood of nodes, for a loop of your own instead of a chain of
        stages.

        Args:
            seeds: int32 or int64 [n], repeats allowed; on a graph with types {node type: ids}.
            rng: the random key. In a chain the stage uses RngKey(seed, epoch, index, ordinal of the stage).
            timestamps: the time of each seed, needed if the sampler uses times: a tensor [n]; with types a dict with
                the keys of `seeds`.
            windows: the time window of each seed, in the same form, needed if `time_window` names a field.
        Returns:
            A Sampled, the neighborhood. Its `local_seeds`, the positions of the seeds among its nodes, is a tensor [n];
            with types a dict with the keys of `seeds`.
        Raises:
            The errors that the stage raises while running.
        """
        ids, restored = self._checked_seeds(seeds)
        for nodes in seeds.values() if isinstance(seeds, dict) else [seeds]:
            if nodes.ndim != 1:
                raise ValueError(
                    f"{self.name}: seeds of node_sample must be nodes [n], got the shape {list(nodes.shape)}. Pass "
                    "pairs to edge_sample."
                )
        return restored(await self.sample_async(ids, rng, self.trees_of(seeds, timestamps, windows)))

    async def edge_sample(
        self, edges: Tensor | dict[EdgeType, Tensor], rng: RngKey, *, timestamps: Any = None, windows: Any = None
    ) -> Sampled:
        """Coroutine that samples and returns the neighborhood of both ends of edges. It is like node_sample, except
        that `local_seeds` has the shape of `edges`.

        Args:
            edges: int32 or int64 [n, 2], pairs of source and destination; on a graph with types {edge type: pairs}. The
                pairs need not be edges of the graph.
        """
        ids, restored = self._checked_seeds(edges)
        for pairs in edges.values() if isinstance(edges, dict) else [edges]:
            if pairs.ndim != 2 or pairs.shape[1] != 2:
                raise ValueError(
                    f"{self.name}: edge_sample needs pairs of nodes [n, 2], got the shape {list(pairs.shape)}. Pass "
                    "nodes to node_sample."
                )
        return restored(await self.sample_async(ids, rng, self.trees_of(edges, timestamps, windows)))

    def _refuse_whole(self, graph: Any) -> None:
        """Raise TypeError if `graph` is a graph in memory, not a DistGraph."""
        if isinstance(graph, Graph) and not graph._in_parts:
            raise TypeError(
                f"{self.name}: graph must be a DistGraph, whose rows are in parts, got {type(graph).__name__}. Sample "
                f"a whole graph by {self._state_name}."
            )


_P = ParamSpec("_P")


def _with_parts(
    init: Callable[Concatenate[Any, Stage, Any, _P], None],
) -> Callable[Concatenate[Any, Stage, DistGraph, _P], None]:
    """Turn `init`, the constructor of a plain sampler, into the constructor of its `dist_` twin, and return this. In
    its signature `dist_graph` replaces `graph`, and `concurrency` has a number as default.
    """

    def construct(self: Any, source: Stage, dist_graph: DistGraph, *args: _P.args, **options: _P.kwargs) -> None:
        if options.keys() <= signature.parameters.keys():  # else `init` raises Python's own error
            self._refuse_whole(dist_graph)
        init(self, source, dist_graph, *args, **options)

    changes: dict[str, dict[str, Any]] = {
        "graph": {"name": "dist_graph", "annotation": DistGraph},
        "concurrency": {"default": CONCURRENCY, "annotation": int},
    }
    plain = inspect.signature(init)
    parameters = [parameter.replace(**changes.get(name, {})) for name, parameter in plain.parameters.items()]
    signature = plain.replace(parameters=parameters)
    construct.__name__, construct.__qualname__, construct.__doc__ = "__init__", init.__qualname__, init.__doc__
    construct.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters[1:]}
    # __wrapped__: annotations are resolved with the names of the plain sampler's module.
    vars(construct).update(__signature__=signature, __wrapped__=init)
    return construct  # type: ignore[return-value]  # mypy has no named arguments beside a ParamSpec


@register_stage("dist_sample_in_subgraph")
class DistInSubgraphSampler(SamplerOverParts, InSubgraphSampler):
    """InSubgraphSampler over a partitioned graph: `sample_in_subgraph` with a DistGraph.

    Args:
        dist_graph: the partitioned graph that DistGraph.connect returned.
        edge_types, return_edge_ids, concurrency: as for sample_in_subgraph.
    Raises:
        The errors of sample_in_subgraph. While sampling, also errors of requests to the servers (listed at
        DistGraph.connect). Each error has a note with the stage, the minibatch and the part.
    """

    __init__ = _with_parts(InSubgraphSampler.__init__)


@register_stage("dist_sample_layer_neighbor")
class DistLayerNeighborSampler(SamplerOverParts, LayerNeighborSampler):
    """LayerNeighborSampler over a partitioned graph: `sample_layer_neighbor` with a DistGraph.

    Args:
        dist_graph: the partitioned graph that DistGraph.connect returned.
        fanouts, prob_name, layer_dependency, batch_dependency, return_edge_ids, frontier, subgraph_type,
            reverse_etypes_mapping, concurrency: as for sample_layer_neighbor.
    Raises:
        The errors of sample_layer_neighbor. While sampling, also errors of requests to the servers (listed at
        DistGraph.connect). Each error has a note with the stage, the minibatch and the part.
    """

    __init__ = _with_parts(LayerNeighborSampler.__init__)


@register_stage("dist_sample_neighbor")
class DistNeighborSampler(SamplerOverParts, NeighborSampler):
    """NeighborSampler over a partitioned graph: `sample_neighbor` with a DistGraph.

    Args:
        dist_graph: the partitioned graph that DistGraph.connect returned.
        fanouts, replace, prob_name, return_edge_ids, frontier, disjoint, subgraph_type, reverse_etypes_mapping,
            concurrency: as for sample_neighbor.
    Raises:
        The errors of sample_neighbor. While sampling, also errors of requests to the servers (listed at
        DistGraph.connect). Each error has a note with the stage, the minibatch and the part.
    """

    __init__ = _with_parts(NeighborSampler.__init__)

    async def sample_one_hop(
        self, ids: Tensor, *, fanout: int, key: int, edge_type: EdgeType | str | None = None
    ) -> Drawn:
        """Coroutine that draws in-edges of the nodes `ids`, and returns them in the order of `ids` with global ids.

        Only this sampler has sample_one_hop, since its hops have a key for each edge type.

        Args:
            ids: int32 or int64 [n], nodes of the destination type. Repeats are allowed, and draw the same edges.
            fanout: in-edges drawn per node, -1 for all.
            key: random key, uint64: `rng.hop_key(hop, etype)` of an RngKey, where `etype` is the index of the edge type
                in `dist_graph.edge_types`.
            edge_type: the edge type to draw from, on a graph with types.
        Returns:
            A Drawn: `indptr` int64 [n + 1]; `neighbors`, global ids of the graph's `index_dtype`; `edge_ids` int64, or
            None if the stage does not return edge ids.
        Raises:
            TypeError, ValueError: An argument is not allowed.
            IndexError: A node is outside the graph.
        """
        graph = self.dist_graph
        known_type = type_in(self.name, "edge", edge_type, graph.edge_types)
        src, dst = ends_of(known_type)
        check_int(self.name, "fanout", fanout, -1)
        ids = check_index_tensor(self.name, "ids", ids)
        keys = [[check_int(self.name, "key", key, 0, 2**64 - 1)]]
        plan = with_fields(self.plan, edge_types=(known_type,), fanouts=[[fanout]])
        sampled = await graph.hops_async(plan, {dst: ids}, keys, self.choice)
        nodes, local, block = sampled.nodes, sampled.local_seeds, sampled.hops[0]
        if graph.is_heterogeneous:
            nodes, local, block = nodes[src], local[dst], block[known_type]
        neighbors = nodes[block.indices.long()]
        if ids.shape[0] == block.num_dst:  # no repeats
            return Drawn(block.indptr, neighbors, block.edge_ids)
        rows = local.long()
        counts = block.indptr.diff()[rows]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        picks = torch.arange(int(indptr[-1])) + torch.repeat_interleave(block.indptr[rows] - indptr[:-1], counts)
        return Drawn(indptr, neighbors[picks], None if block.edge_ids is None else block.edge_ids[picks])


@register_stage("dist_temporal_sample_neighbor")
class DistTemporalNeighborSampler(SamplerOverParts, TemporalNeighborSampler):
    """TemporalNeighborSampler over a partitioned graph: `temporal_sample_neighbor` with a DistGraph.

    Args:
        dist_graph: the partitioned graph that DistGraph.connect returned.
        fanouts, replace, return_edge_ids, node_time_attr, edge_time_attr, strategy, prob_name, inclusive, time_window,
            disjoint, frontier, subgraph_type, reverse_etypes_mapping, concurrency: as for temporal_sample_neighbor.
    Raises:
        The errors of temporal_sample_neighbor. While sampling, also errors of requests to the servers (listed at
        DistGraph.connect). Each error has a note with the stage, the minibatch and the part.
    """

    __init__ = _with_parts(TemporalNeighborSampler.__init__)
