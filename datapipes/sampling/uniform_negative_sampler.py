"""UniformNegativeSampler: draws negatives from all nodes of a type; docs/semantics.md, section 4.7, fixes the draws.

Each negative has a random stream of its own, so a whole graph and a graph in parts give the same draws. If candidates
must be looked up in the graph (strict, times), each round draws 1, 2, 4 ... candidates for each negative still open,
and looks them up together.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import INT32_MAX, check_bool, check_within
from datapipes.base.rng import RngKey
from datapipes.base.types import EdgeType, ends_of, known_edge_type, of_type
from datapipes.chain.asynchronous import hides_own
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import Fingerprint
from datapipes.graph.choice import by_text
from datapipes.graph.graph import Graph
from datapipes.minibatch import MiniBatch
from datapipes.sampling.asking import Asking, answered, answered_async
from datapipes.sampling.choice_sampler import CONCURRENCY
from datapipes.sampling.negative_sampler import ENDS, NegativeSampler, Wanted
from datapipes.sampling.node_values import NodeTimes, NodeWeights
from datapipes.sampling.sampler import items_before
from datapipes.sampling.seed_ids import check_times

__all__ = ["UniformNegativeSampler"]

MOST_TRIES = 1024  # for a negative
MOST_OPEN = 2**12  # negatives whose later tries are drawn together, in at most 250 MB


class Drawing(NamedTuple):
    """How the negatives of one edge type are drawn.

    Attributes:
        key: the random key of the draws.
        drawn: for each end that is drawn, an entry (column, node type, (number of nodes, sums of weights)). The sums
            are None if each node is equally likely.
        times: int64 [n], the times of the positives; None if they make no difference.
    """

    edge_type: Any
    key: int
    drawn: list[tuple[int, Any, tuple[int, Any]]]
    times: Tensor | None


@register_stage("sample_uniform_negative")
class UniformNegativeSampler(NegativeSampler):
    """Add negatives to the pairs of a minibatch: each keeps one end of its positive and draws the other from all nodes
    of its type, or draws both ends. See NegativeSampler for the two layouts.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph whose nodes are drawn.
        negative_ratio, corrupt, form: as for NegativeSampler.
        strict: never return an edge of the graph, nor the positive itself. With types, only edges of the seeds' type
            count; times make no difference. If 1,024 tries find no negative, a ValueError names the positive. Without
            `strict`, a negative may be an edge by chance.
        src_weight, dst_weight: weights of the nodes that are drawn as source or as destination: 0 or more, [num_nodes],
            of float16, bfloat16, float32 or float64; with types {node type: weights}, for each drawn type. None: each
            node is equally likely. Their digest is part of the state, and workers share them; their sums take 9 more
            bytes a node.
        node_time_attr: name of the node attribute, int64, that holds since when each node exists. A drawn node must
            exist at the time of the positive (`timestamps`). If 1,024 tries find no such node, the negative is the
            earliest node of its type. With types, nodes without the attribute always exist. Over a DistGraph, name the
            attribute that the Partitioner was given.
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, the seeds are no pairs, have no times, or have
            labels in the form "pairs"; or all tries for a negative were edges.
        IndexError: While running, `strict` found a seed that is no node of the graph.
        Over a DistGraph, also errors of requests to the servers (listed at DistGraph.connect).
    """

    concurrency = CONCURRENCY

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        negative_ratio: float,
        *,
        corrupt: str = "dst",
        form: str = "pairs",
        strict: bool = False,
        src_weight: Any = None,
        dst_weight: Any = None,
        node_time_attr: str | None = None,
    ) -> None:
        super().__init__(source, negative_ratio, corrupt=corrupt, form=form)
        if not isinstance(graph, Graph):
            raise TypeError(
                f"{self.name}: graph must be a CSCGraph, a HeteroCSCGraph or a DistGraph, got {type(graph).__name__}. "
                "Convert it, see CSCGraph.from_*."
            )
        self.graph, self.strict = graph, check_bool(self.name, "strict", strict)
        self._columns = ENDS[self.corrupt]
        self.src_weight = self._weights(0, "src_weight", src_weight)
        self.dst_weight = self._weights(1, "dst_weight", dst_weight)
        self.weights = [self.src_weight, self.dst_weight]
        self.node_time_attr = node_time_attr
        self.times = None if node_time_attr is None else NodeTimes(self.name, graph, node_time_attr)
        args, kwargs = self._arguments  # copies of the stage share the sums of the weights
        made = {"src_weight": self.src_weight, "dst_weight": self.dst_weight}
        self._arguments = args, {name: made.get(name, value) for name, value in kwargs.items()}
        items = items_before(source)
        if items is not None:
            for key, item_set in getattr(items, "item_sets", {None: items}).items():
                if self._has_times(self._checked_type(key)) and "timestamps" not in item_set.names:
                    raise self._no_times()
        asks = graph._in_parts and self._asks
        self.asynchronous = asks and not hides_own(self, UniformNegativeSampler, "sample", "transform")
        if not self.asynchronous:
            self.concurrency = 1

    @property
    def _asks(self) -> bool:
        """Whether negatives depend on answers of the graph."""
        return self.strict or self.times is not None

    def sample(self, pairs: Tensor, rng: RngKey, edge_type: EdgeType | None, timestamps: Tensor | None) -> Tensor:
        return answered(self.graph, self._steps(pairs, rng, edge_type, timestamps))

    async def sample_async(
        self, pairs: Tensor, rng: RngKey, edge_type: EdgeType | None, timestamps: Tensor | None
    ) -> Tensor:
        """Return the result of `sample`; over a graph in parts, do not block the event loop."""
        return await answered_async(self.graph, self._steps(pairs, rng, edge_type, timestamps))

    async def transform_async(self, minibatch: MiniBatch) -> MiniBatch:
        """Return the result of `transform`; over a graph in parts, do not block the event loop."""
        rng, wanted = self.rng_of(minibatch), self._wanted(minibatch)
        seeds = {}
        for edge_type, links in wanted.items():
            pairs, times = links.repeated()
            seeds[edge_type] = self._formed(links, pairs, await self.sample_async(pairs, rng, edge_type, times))
        return self._filled(minibatch, wanted, seeds)

    def _seeds(self, wanted: Wanted, rng: RngKey, edge_type: Any) -> Tensor:
        is_overridden = type(self).sample is not UniformNegativeSampler.sample
        if self._asks or self.form == "rows" or is_overridden:
            return super()._seeds(wanted, rng, edge_type)
        # The first try for each negative is allowed: one call of the core replaces the steps.
        edge_type, positives = self._checked_type(edge_type), wanted.positives
        ends: list[tuple[int, Any]] = [(0, None), (0, None)]  # (0, None): the end is kept
        for column, _, drawn in self._ends(edge_type):
            ends[column] = drawn
        key = rng.hop_key(0, self.graph.edge_types.index(edge_type))
        pairs = torch.from_numpy(_core.corrupt_pairs(key, positives.long().numpy(), wanted.number, ends))
        is_narrow = positives.dtype == torch.int32 and max(ends[0][0], ends[1][0]) <= INT32_MAX
        return pairs.to(torch.int32) if is_narrow else pairs

    def _steps(self, pairs: Tensor, rng: RngKey, edge_type: Any, times: Tensor | None) -> Asking[Tensor]:
        """A generator that draws a negative for each of `pairs`. It yields questions to the graph, gets the answers,
        and at the end returns the negatives, ids [n, 2].
        """
        edge_type = self._checked_type(edge_type)
        key, drawn = rng.hop_key(0, self.graph.edge_types.index(edge_type)), self._ends(edge_type)
        if self.times is not None:
            self.times.refuse_change()
        for column, node_type in enumerate(ends_of(edge_type) if self.strict else ()):
            name, count = f"column {column} of the seeds{of_type(node_type)}", self.graph.num_nodes_of(node_type)
            check_within(self.name, name, pairs[:, column], count, "Take the pairs from the same graph.")
        has_times = self._has_times(edge_type)
        if has_times and times is None:
            raise self._no_times()
        if has_times:
            times = torch.from_numpy(check_times(self.name, "timestamps", times, pairs))
        if any(num_nodes > INT32_MAX for _, _, (num_nodes, _) in drawn):
            pairs = pairs.long()
        negatives, slots = pairs.clone(), torch.arange(len(pairs))
        drawing = Drawing(edge_type, key, drawn, times if has_times else None)
        left = yield from self._round(drawing, pairs, negatives, slots, 0, 1)
        for some in torch.split(left, MOST_OPEN):  # bounds the memory of a round of many tries
            first, count = 1, 2
            while len(some) > 0 and first < MOST_TRIES:
                some = yield from self._round(drawing, pairs, negatives, some, first, count)
                first, count = first + count, min(2 * count, MOST_TRIES - first - count)
            if len(some) > 0:
                negatives[some] = yield from self._last_resort(drawing, pairs, some)
        return negatives

    def _round(
        self, drawing: Drawing, pairs: Tensor, negatives: Tensor, slots: Tensor, first: int, count: int
    ) -> Asking[Tensor]:
        """A generator that draws the tries `first` to `first + count - 1` for some negatives, and writes the first
        allowed one to `negatives`.

        It yields questions to the graph, and at the end returns the slots for which no try was allowed.

        Args:
            slots: int64, the rows of `pairs` and of `negatives` to draw for.
        """
        ids = _core.draw_negatives(
            drawing.key, slots.numpy(), first_try=first, num_tries=count, ends=[end for _, _, end in drawing.drawn]
        )
        of_slots = pairs[slots.repeat_interleave(count)] if count > 1 else pairs[slots]
        tries = of_slots.clone()
        for (column, _, _), nodes in zip(drawing.drawn, ids, strict=True):
            tries[:, column] = torch.from_numpy(nodes)
        times = None if drawing.times is None else drawing.times[slots].repeat_interleave(count)
        allowed = yield from self._allowed(drawing, tries, of_slots, times)
        if allowed is None:
            negatives[slots] = tries
            return slots[:0]
        allowed = allowed.view(-1, count)
        place = allowed.to(torch.int8).argmax(1)  # the first allowed try, if any
        done = allowed.any(1)
        negatives[slots[done]] = tries.view(-1, count, 2)[done, place[done]]
        return slots[~done]

    def _allowed(
        self, drawing: Drawing, tries: Tensor, positives: Tensor, times: Tensor | None
    ) -> Asking[Tensor | None]:
        """A generator that yields questions to the graph, and at the end returns bool [n]: whether each try may be a
        negative of its positive at its time. None: all tries may.
        """
        allowed: Tensor | None = None
        if times is not None:
            assert self.times is not None
            allowed = torch.ones(len(tries), dtype=torch.bool)
            for column, node_type, _ in drawing.drawn:
                if self.times.has(node_type):
                    since = yield "_node_times", (self.node_time_attr, tries[:, column].contiguous(), node_type)
                    allowed &= since <= times
        if self.strict:
            edges = yield "has_edges", (tries, drawing.edge_type)
            new = (edges.counts == 0) & (tries != positives).any(1)
            allowed = new if allowed is None else allowed & new
        return allowed

    def _last_resort(self, drawing: Drawing, pairs: Tensor, left: Tensor) -> Asking[Tensor]:
        """A generator that finds negatives for the rows `left` of `pairs`, for which no try was allowed. It yields
        questions to the graph.

        At the end it returns the earliest nodes as negatives, if nodes have times and the earliest nodes are allowed.
        Otherwise it raises ValueError.
        """
        tries = pairs[left]
        if drawing.times is not None:
            assert self.times is not None
            for column, node_type, _ in drawing.drawn:
                if self.times.has(node_type):
                    tries[:, column] = self.times.earliest(node_type)
            allowed = yield from self._allowed(drawing, tries, pairs[left], None)
            if allowed is None or bool(allowed.all()):
                return tries
            left = left[~allowed]
        source, destination = pairs[left[0]].tolist()
        ends = [f"source {source}", f"destination {destination}"]
        both = len(self._columns) == 2
        kept = f"in place of its {' and '.join(ends)}" if both else f"with its {ends[1 - self._columns[0]]}"
        late = ", or does not exist at its time" if drawing.times is not None else ""
        positive = f"({source}, {destination}){of_type(drawing.edge_type)}"
        raise ValueError(
            f"{self.name}: found no negative for the positive {positive} in {MOST_TRIES} tries: {kept}, every draw "
            f"is an edge or the positive itself{late}. Leave out strict, or take such pairs out of the item set."
        )

    def _ends(self, edge_type: Any) -> list[tuple[int, Any, tuple[int, Any]]]:
        """Return which ends of a negative of this edge type are drawn, and from which nodes: the entries of
        `Drawing.drawn`.
        """
        drawn = []
        for column in self._columns:
            node_type, weights = ends_of(edge_type)[column], self.weights[column]
            num_nodes = self.graph.num_nodes_of(node_type)
            drawn.append((column, node_type, (num_nodes, None if weights is None else weights.sums(node_type))))
        return drawn

    def _has_times(self, edge_type: Any) -> bool:
        """Return whether times matter for negatives of this edge type: whether the nodes that are drawn have times."""
        return self.times is not None and any(self.times.has(ends_of(edge_type)[column]) for column in self._columns)

    def _no_times(self) -> ValueError:
        return ValueError(
            f"{self.name}: found seeds without timestamps, at which the negatives must exist (node_time_attr). "
            "Name one item 'timestamps' in the ItemSet."
        )

    def _weights(self, column: int, name: str, weights: Any) -> NodeWeights | None:
        if weights is None:
            return None
        if column not in self._columns:
            raise ValueError(
                f"{self.name}: {name} is given, but corrupt is {self.corrupt!r}, which keeps this end. Leave it out, "
                "or corrupt that end."
            )
        if isinstance(weights, NodeWeights):  # of the stage from which this one was copied
            weights.refuse_change()
            weights.refuse_other(self.graph)
            return weights
        return NodeWeights(self.name, name, self.graph, weights)

    def _checked_type(self, edge_type: Any) -> Any:
        """Return the edge type of the seeds, or None; raise TypeError or ValueError if the graph does not have it."""
        graph = self.graph
        if graph.is_heterogeneous != (edge_type is not None):
            has, have = ("types", "no types") if graph.is_heterogeneous else ("no types", "types")
            raise TypeError(
                f"{self.name}: the seeds have {have}, the graph has {has}; both or neither must have types. Use "
                f"{'dp.HeteroItemSet({(src, rel, dst): items})' if graph.is_heterogeneous else 'dp.ItemSet(pairs)'}."
            )
        if edge_type is not None:
            edge_type = known_edge_type(f"{self.name}, seeds", edge_type, graph.edge_types)
        for column in self._columns:
            node_type, weights = ends_of(edge_type)[column], self.weights[column]
            if weights is not None:
                weights.refuse_missing(node_type)
            if graph.num_nodes_of(node_type) == 0:
                raise ValueError(
                    f"{self.name}: found no nodes{of_type(node_type)}; at least 1 is needed to draw one. Add nodes."
                )
        return edge_type

    def fingerprint(self) -> Fingerprint:
        graph = self.graph
        num_nodes = by_text({node_type: graph.num_nodes_of(node_type) for node_type in graph.node_types})
        drawn: Fingerprint = {"num_nodes": num_nodes, "strict": self.strict}
        if self.strict:
            drawn["graph_digest"] = graph.digest()
        for name, weights in zip(("src_weight", "dst_weight"), self.weights, strict=True):
            if weights is not None:
                drawn[f"{name}_digest"] = weights.digest()
        if self.times is not None:
            drawn["times_digest"] = self.times.digest()
        return {**super().fingerprint(), **drawn}

    @property
    def _hashed_inputs(self) -> Any:
        return (self.graph,) if self.strict and not self.graph._in_parts else ()

    def describe(self) -> dict[str, Any]:
        options = {
            **super().describe(),
            "strict": self.strict or None,
            "src_weight": self.src_weight,
            "dst_weight": self.dst_weight,
            "node_time_attr": self.node_time_attr,
        }
        return {name: value for name, value in options.items() if value is not None}
