"""RandomWalkSampler: random walks from the seeds; docs/semantics.md, section 4.11."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from datapipes.base.array_digest import Hashed
from datapipes.base.checks import check_bool, check_float, check_int, check_within, shown
from datapipes.base.codec import join_key
from datapipes.base.sizes import check_memory
from datapipes.base.types import known_edge_type, type_text
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.choice import UNIFORM
from datapipes.graph.graph import Graph
from datapipes.graph.walks import MOST_BIAS, MOST_WALKS, WalkPlan
from datapipes.minibatch import MiniBatch
from datapipes.sampling.choice_sampler import CONCURRENCY, set_concurrency
from datapipes.sampling.fanouts import fingerprint_of_hops
from datapipes.sampling.neighbor_sampler import ByWeight
from datapipes.sampling.sampler import items_before, refuse_padding_before, refuse_taken
from datapipes.sampling.seed_ids import check_seed_types, check_seeds

__all__ = ["RandomWalkSampler"]


MOST_STEPS = 2**20  # of a walk


@register_stage("sample_random_walk")
class RandomWalkSampler(MiniBatchTransformer):
    """Walk from each seed along in-edges, at random; sets `extra["walks"]` [n, walks_per_node, walk_length + 1].

    A walk begins with the seed, then has the source of an in-edge of the node before, and so on; -1 after its end. It
    ends at a node that has no in-edge which can be drawn. To walk along out-edges, sample the graph with its edges
    reversed.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph. Seeds are nodes, ids [n].
        walk_length: number of steps.
        walks_per_node: walks from each seed, each with random numbers of its own.
        p, q: node2vec's return and in-out parameters. From the second step on, the in-edge from the node before has
            the weight 1/p; one from a node with an edge to the node before 1; any other 1/q.
        restart_prob: chance that a walk ends before a step, as in DGL; walks never jump back to their seeds.
        metapath: on a graph with types, the edge type of each step, (src, rel, dst) or "src:rel:dst", followed from dst
            to src. The first has the type of the seeds as dst. A shorter list is repeated.
        prob_name: name of an edge attribute, the weights by which in-edges are drawn; see NeighborSampler.
        return_edge_ids: set `extra["walk_edge_ids"]` [n, walks_per_node, walk_length], the id of the edge of each step,
            -1 after the end.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8; see NeighborSampler.
    Raises:
        TypeError, ValueError: An argument is not allowed. While running, the seeds are no nodes [n], or have other
            types; the minibatch has more than 2^32 walks.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, the walks need more memory than is left.
        Over a DistGraph, also errors of requests to the servers (listed at DistGraph.connect).
    Source: DeepWalk (Perozzi et al., 2014), node2vec (Grover and Leskovec, 2016), metapath2vec (Dong et al., 2017).
    """

    _does = "sampling"
    concurrency = CONCURRENCY

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        walk_length: int,
        *,
        walks_per_node: int = 1,
        p: float = 1.0,
        q: float = 1.0,
        restart_prob: float = 0.0,
        metapath: Sequence[Any] | None = None,
        prob_name: str | None = None,
        return_edge_ids: bool = False,
        concurrency: int | None = None,
    ) -> None:
        super().__init__(source)
        if not isinstance(graph, Graph):
            raise TypeError(
                f"{self.name}: graph must be a CSCGraph, a HeteroCSCGraph or a DistGraph, got {type(graph).__name__}. "
                "Convert it, see CSCGraph.from_*."
            )
        refuse_padding_before(self.name, source)
        self.graph = graph
        set_concurrency(self, concurrency, RandomWalkSampler, "transform")
        self.walk_length = check_int(self.name, "walk_length", walk_length, 0, MOST_STEPS)
        self.walks_per_node = check_int(self.name, "walks_per_node", walks_per_node, 1)
        self.p = check_float(self.name, "p", p, 1 / MOST_BIAS, MOST_BIAS, allowed="[2^-64, 2^64]")
        self.q = check_float(self.name, "q", q, 1 / MOST_BIAS, MOST_BIAS, allowed="[2^-64, 2^64]")
        self.restart_prob = check_float(self.name, "restart_prob", restart_prob, 0, 1, allowed="[0, 1]")
        self.return_edge_ids = check_bool(self.name, "return_edge_ids", return_edge_ids)
        self.metapath = checked_metapath(self.name, graph, metapath, self.walk_length)
        if self.metapath is not None and (self.p, self.q) != (1.0, 1.0):
            raise ValueError(f"{self.name}: p and q (node2vec) are for graphs without types. Leave them out.")
        path = self.metapath or [None]
        steps = [path[step % len(path)] for step in range(self.walk_length)]
        self.prob_name = prob_name
        choice = UNIFORM if prob_name is None else ByWeight(prob_name)
        chances = self.p, self.q, self.restart_prob
        self.plan = WalkPlan(self.name, graph, steps, self.walks_per_node, *chances, choice, self.return_edge_ids)
        if (items := items_before(source)) is not None:
            check_seed_types(self.name, getattr(items, "types", None), graph)
            item_sets = getattr(items, "item_sets", {None: items})
            self._refuse_seeds(item_sets, max(len(item_set.seeds_shape) + 1 for item_set in item_sets.values()))

    def transform(self, minibatch: MiniBatch) -> MiniBatch:
        keys = self.plan.keys(self.rng_of(minibatch))
        return self._filled(minibatch, *self.graph.drawn(self.plan, self._seeds(minibatch.seeds), keys))

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Return the result of `transform`; over a graph in parts, do not block the event loop."""
        if not self.graph._in_parts:
            return self.transform(minibatch)
        graph: Any = self.graph
        keys = self.plan.keys(self.rng_of(minibatch))
        return self._filled(minibatch, *await graph.drawn_async(self.plan, self._seeds(minibatch.seeds), keys))

    def _filled(self, minibatch: MiniBatch, walks: Tensor, edge_ids: Tensor | None) -> MiniBatch:
        found = {"walks": walks} | ({} if edge_ids is None else {"walk_edge_ids": edge_ids})
        refuse_taken(self.name, minibatch, found)
        if self.metapath is not None:
            return minibatch.replace(extra=minibatch.extra | {name: {self._start: of} for name, of in found.items()})
        return minibatch.replace(extra=minibatch.extra | found)

    def fingerprint(self) -> Fingerprint:
        of_graph = fingerprint_of_hops(self.graph, [], self.return_edge_ids)
        del of_graph["fanouts"]
        walks = {name: getattr(self, name) for name in ("walk_length", "walks_per_node", "p", "q", "restart_prob")}
        path = {} if self.metapath is None else {"metapath": [join_key(of) for of in self._period()]}
        return {**of_graph, **walks, **path, **self.plan.choice.fingerprint(self.graph._choice_digests(self.plan))}

    @property
    def _hashed_inputs(self) -> tuple[Hashed, ...]:
        return (self.graph,) if isinstance(self.graph, Hashed) else ()

    def describe(self) -> dict[str, Any]:
        usual = {"p": 1.0, "q": 1.0, "restart_prob": 0.0, "metapath": None, "prob_name": None, "return_edge_ids": False}
        chosen = {name: getattr(self, name) for name, value in usual.items() if getattr(self, name) != value}
        return {"walk_length": self.walk_length, "walks_per_node": self.walks_per_node, "graph": self.graph, **chosen}

    def __reduce__(self) -> tuple[Any, ...]:
        self.graph._refuse_changes(self.plan)  # a worker would build the stage over the present values
        return super().__reduce__()

    def _period(self) -> list[Any]:
        """Return the shortest metapath that has the same steps."""
        steps = [*self.plan.steps[: len(self.metapath or ())]]
        sizes = range(1, len(steps))
        return next((steps[:size] for size in sizes if steps[size:] == steps[:-size]), steps)

    @property
    def _start(self) -> Any:
        """The type of the seeds; None without types."""
        return None if self.metapath is None else self.metapath[0][2]

    def _seeds(self, seeds: Any) -> Tensor:
        """Return the seeds of a minibatch, checked: ids [n]."""
        by_type = seeds if isinstance(seeds, dict) else {None: seeds}
        self._refuse_seeds(by_type, getattr(by_type.get(self._start), "ndim", 1))
        ids = check_seeds(self.name, "seeds", by_type[self._start])
        num_nodes = self.graph.num_nodes_of(self._start)
        check_within(self.name, "seeds", ids, num_nodes, "Take the seeds from the same graph.")
        if len(ids) * self.walks_per_node > MOST_WALKS:
            raise ValueError(
                f"{self.name}: {len(ids)} seeds with {self.walks_per_node} walks each; at most 2^32 walks can be drawn "
                "for a minibatch. Use a smaller batch_size."
            )
        num_nodes = len(ids) * self.walks_per_node * (self.walk_length + 1)
        check_memory(self.name, f"walks with {num_nodes} nodes", self._bytes_of(len(ids)), "Use a smaller batch_size.")
        return ids

    def bytes_for(self, minibatch: MiniBatch) -> int:
        """Return the bytes of the walks of a minibatch."""
        by_type: Any = minibatch.seeds if isinstance(minibatch.seeds, dict) else {None: minibatch.seeds}
        return self._bytes_of(sum(len(ids) for ids in by_type.values()))

    def _bytes_of(self, num_seeds: int) -> int:
        num_nodes = num_seeds * self.walks_per_node * (self.walk_length + 1)
        return num_nodes * (self.graph.index_dtype.itemsize + 8 * self.return_edge_ids)

    def _refuse_seeds(self, types: Collection[Any], ndim: int) -> None:
        """Raise ValueError if seeds of these types, or of so many dimensions, are no nodes at which walks begin."""
        if {*types} != {self._start}:
            found = f"the types {shown(sorted(map(type_text, types)))}" if None not in types else "no types"
            raise ValueError(
                f"{self.name}: the metapath begins at nodes of type {self._start!r}, found seeds of {found}. Give "
                "seeds of this type alone."
            )
        if ndim != 1:
            raise ValueError(
                f"{self.name}: walks begin at nodes [n], found seeds of {ndim} dimensions. Take one column, or flatten "
                "them."
            )


def checked_metapath(where: str, graph: Graph, metapath: Any, walk_length: int) -> list[Any] | None:
    """Return the metapath as tuples; None without types.

    Raises:
        TypeError, ValueError: The graph has types and there is no metapath, or the other way round; or a type is
            unknown, or does not begin where the type before ends.
    """
    known = graph.edge_types
    if not graph.is_heterogeneous:
        if metapath is not None:
            raise ValueError(f"{where}: metapath is for a graph with types, this one has none. Leave it out.")
        return None
    is_one_type = isinstance(metapath, tuple) and all(isinstance(name, str) and ":" not in name for name in metapath)
    if isinstance(metapath, str) or is_one_type or not isinstance(metapath, Sequence) or not metapath:
        raise TypeError(
            f"{where}: on a graph with types, metapath must be a list of edge types, got {shown(metapath)}; "
            f"edge types are {shown(known)}. Name the type of each step, against the direction of the edges."
        )
    path = [known_edge_type(where, edge_type, known) for edge_type in metapath]
    steps = [*path, path[0]] if walk_length > len(path) else path
    for step, (before, edge_type) in enumerate(itertools.pairwise(steps), 1):
        if before[0] != edge_type[2]:
            raise ValueError(
                f"{where}: step {step} of the metapath begins at {edge_type[2]!r}, but the step before it ends at "
                f"{before[0]!r}. A step goes from the destination to the source of its edge type; a metapath shorter "
                "than the walk is repeated."
            )
    return path
