"""TemporalNeighborSampler: draws only in-edges that are earlier than their seed. The class ByTime is this rule.

docs/semantics.md, sections 3.3, 4.5 and 4.6, fixes the draws.

An edge may have a time, and its source node may have a time too. If only edges have times, these are used as they are;
so are times of sources that a part has stored with its edges. Otherwise arrays of times are made once for the rows of a
graph or a part, by threads, in memory that workers map: 8 bytes an in-edge, 16 if edges and sources have times. For
each node, a byte says whether its in-edges are sorted by time.

In-edges that are not sorted are scanned. The scan compares coarse times, which take 2 bytes an in-edge instead of 8,
and reads the times themselves only where two coarse times are equal, so the draws do not change. Coarse times are not
made if nearly all in-edges are sorted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import check_bool, check_choice, check_int, shown
from datapipes.base.forms import check_form, check_values
from datapipes.base.records import OMITTED, Count, one_of
from datapipes.base.sizes import check_memory
from datapipes.base.threads import num_threads
from datapipes.base.types import ends_of, of_type, type_text
from datapipes.chain.functional import register_stage
from datapipes.chain.stage import Stage
from datapipes.graph.choice import Attributed, Choice, Rows, by_text, rows_digest
from datapipes.graph.graph import Graph
from datapipes.processes.sharing import zeros_for_workers
from datapipes.sampling.choice_sampler import ChoiceSampler
from datapipes.sampling.fanouts import Fanout
from datapipes.sampling.neighbor_sampler import ByWeight

__all__ = ["TemporalNeighborSampler"]

COARSE_PAYS = 16  # coarse times are made if unsorted rows have more than 1 / COARSE_PAYS of the in-edges
_OF_EDGES, _OF_NODES = "times of the edges", "times of the nodes"  # in errors about changes


@dataclass(frozen=True)
class ByTime(Choice):
    """The rule that only in-edges that are eligible at the time of the seed are drawn; see TemporalNeighborSampler.

    Attributes:
        edge_time_attr: the edge attribute that holds times, int64 [num_edges], or None.
        node_time_attr: the node attribute of the sources that holds times, int64 [num_nodes], or None; over parts, the
            attribute that the Partitioner was given.
        strategy: "uniform" or "last".
        prob_name: the edge attribute with the weights by which eligible in-edges are drawn, as in ByWeight; None: each
            is equally likely.
        window_field: the field of the minibatch that has a time window for each seed, in place of `time_window`.
    """

    edge_time_attr: str | None
    node_time_attr: str | None
    strategy: Annotated[str, one_of("uniform", "last")] = "uniform"
    inclusive: bool = False
    time_window: Count | None = None
    prob_name: Annotated[str | None, OMITTED] = None
    window_field: Annotated[str | None, OMITTED] = None

    by: ClassVar[str] = "time"
    of_times: ClassVar[bool] = True

    @property
    def reads(self) -> ByTime:
        return ByTime(self.edge_time_attr, self.node_time_attr, prob_name=self.prob_name)

    @property
    def _weights(self) -> ByWeight | None:
        return None if self.prob_name is None else ByWeight(self.prob_name)

    def check(self, where: str, graph: Attributed, edge_types: Sequence[Any], among: Any = None) -> None:
        if self._weights is not None:
            self._weights.check(where, graph, edge_types)
        among = edge_types if among is None else among
        if self.edge_time_attr is not None:
            _check(where, graph, "edge", self.edge_time_attr, among)
        if self.node_time_attr is not None:
            sources = sorted({ends_of(one)[0] for one in among}, key=lambda node_type: node_type or "")
            _check(where, graph, "node", self.node_time_attr, sources)
            graph._refuse_source_times(where, self.node_time_attr)

    def attributes(self, rows: Rows) -> dict[str, Tensor | None]:
        of_edges = None if self.edge_time_attr is None else rows.edge_attributes.get(self.edge_time_attr)
        of_nodes = None if self.node_time_attr is None else rows.source_attribute(self.node_time_attr)
        of_weights = {} if self._weights is None else self._weights.attributes(rows)
        return {_OF_EDGES: of_edges, _OF_NODES: of_nodes, **of_weights}

    def make(self, where: str, edge_type: Any, rows: Rows) -> list[Tensor]:
        """Return the arrays that the kernel needs to draw by time: [*weights, sorted_rows, coarse times, scale of the
        coarse times, *times]. If neither edges nor sources have times, return the weights alone.

        `weights` is one array, float64 [num_edges], or none if in-edges are not drawn by weights. `sorted_rows` is
        uint8 [num_rows]: whether the in-edges of each node are sorted by time. The coarse times and their scale are the
        result of `_coarse`. `times` are the result of `_times`, without a tensor that is an attribute itself.
        """
        weights = [] if self._weights is None else [self._weights.doubles(where, edge_type, rows)]
        of_edges, of_nodes, *_ = self.attributes(rows).values()
        if of_edges is None and of_nodes is None:
            return weights
        num_edges, num_nodes = rows.indices.shape[0], rows.num_source_values
        _check_values(where, f"edge attribute {self.edge_time_attr!r}{of_type(edge_type)}", of_edges, num_edges)
        src = of_type(ends_of(edge_type)[0])
        _check_values(where, f"node attribute {self.node_time_attr!r}{src}", of_nodes, num_nodes)
        sorted_rows = torch.zeros(rows.indptr.shape[0] - 1, dtype=torch.uint8)
        try:
            times = latest, *earliest = self._times(where, rows)
            _core.find_sorted_rows(
                rows.indptr.numpy(),
                latest.numpy(),
                sorted_rows.numpy(),
                earliest=earliest[0].numpy() if earliest else None,
                num_threads=num_threads(),
            )
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from error
        made = [values for values in times if values is not of_edges and values is not of_nodes]
        return [*weights, sorted_rows, *_coarse(where, rows.indptr, latest, sorted_rows), *made]

    def _times(self, where: str, rows: Rows) -> list[Tensor]:
        """Return [times], int64 [num_edges], of the in-edges or of their sources. If both have times, return [latest,
        earliest]: for each in-edge the later and the earlier of its two times.
        """
        of_edges, of_nodes, *_ = self.attributes(rows).values()
        if of_nodes is None:
            assert of_edges is not None
            return [of_edges]
        assert self.node_time_attr is not None
        if of_edges is None:
            return [rows.times_of_sources(self.node_time_attr)]
        check_memory(where, "the times of edges and sources together", 2 * of_edges.nbytes, "Draw by one of the two.")
        latest, earliest = zeros_for_workers([(tuple(of_edges.shape), torch.int64)] * 2)
        rows.times_of_sources(self.node_time_attr, out=earliest)
        torch.maximum(of_edges, earliest, out=latest)
        return [latest, torch.minimum(of_edges, earliest, out=earliest)]

    def _split(self, made: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
        """Return the result of `make` as (its weights, the rest)."""
        count = 0 if self.prob_name is None else 1
        return made[:count], made[count:]

    def _made_times(self, rows: Rows, made: list[Tensor]) -> list[Tensor]:
        """Return the times of in-edges as `_times` does, from the result of `make` without its weights."""
        if len(made) > 3:
            return made[3:]
        return [next(values for values in self.attributes(rows).values() if values is not None)]

    def argument(self, rows: Rows, made: list[Tensor]) -> Any:
        """Return (times, weights) for the kernel; None in place of either that is not there."""
        weights, made = self._split(made)
        of_weights = weights[0].numpy() if weights else None
        if not made:
            return None, of_weights
        sorted_rows, coarse, scale = made[:3]
        latest, *earliest = (times.numpy() for times in self._made_times(rows, made))
        coarse_times = (coarse.numpy(), *scale.tolist()) if coarse.shape[0] > 0 else None
        return (latest, earliest[0] if earliest else None, sorted_rows.numpy(), coarse_times), of_weights

    def digests(self, rows: Rows, made: list[Tensor]) -> list[str] | None:
        of_weights = [] if self._weights is None else self._weights.digests(rows, made)
        _, made = self._split(made)
        times = self._made_times(rows, made) if made else []
        return [*of_weights, *(rows_digest(of_each, rows.indptr, node_ids=rows.node_ids) for of_each in times)] or None

    def kernel(self, arguments: list[Any]) -> _core.EdgeTimes:
        return _core.EdgeTimes(
            [times for times, _ in arguments],
            last=self.strategy == "last",
            inclusive=self.inclusive,
            window=self.time_window,
            weights=[] if self.prob_name is None else [weights for _, weights in arguments],
        )

    def refuse_contradictions(self) -> None:
        if self.edge_time_attr is None and self.node_time_attr is None:
            raise ValueError("neither edges nor nodes have times")
        if self.strategy == "last" and self.prob_name is not None:
            raise ValueError("the last in-edges cannot be drawn by weights")
        if self.time_window is not None and self.window_field is not None:
            raise ValueError("there are a time_window and a window_field; one of them is allowed")

    def refuse_request(self, num_draws: int, *, replace: bool, has_streams: bool) -> None:
        if self.strategy == "last" and replace:
            raise ValueError("the last in-edges cannot be drawn with replacement")

    def fingerprint(self, digests: Mapping[Any, list[str] | None]) -> dict[str, Any]:
        window = self.time_window if self.window_field is None else self.window_field
        read = 1 if window is None else 2  # without a window the earliest times change no pick
        drawn = {}
        if self._weights is not None:
            drawn = self._weights.fingerprint(digests)
            digests = {key: values and (values[1:] or None) for key, values in digests.items()}
        return {
            **drawn,
            "strategy": self.strategy,
            "inclusive": self.inclusive,
            "time_window": window,
            "times_digest": by_text({key: values and values[:read] for key, values in digests.items()}),
        }


def _coarse(where: str, indptr: Tensor, latest: Tensor, sorted_rows: Tensor) -> list[Tensor]:
    """Return [coarse times, scale], with which the kernel scans in-edges that are not sorted by time.

    The coarse times are int16 [num_edges + padding], the scale is int64 [2]; csrc/graph/coarse_times.h says how they
    stand for times. The coarse times are empty if nearly all in-edges are sorted.

    Args:
        latest: int64 [num_edges], the time of each in-edge.
        sorted_rows: uint8 [num_rows], whether the in-edges of each node are sorted by time.
    """
    unsorted = int(indptr.diff()[sorted_rows == 0].sum())
    if unsorted * COARSE_PAYS <= latest.shape[0]:
        return [torch.empty(0, dtype=torch.int16), torch.zeros(2, dtype=torch.int64)]
    count = latest.shape[0] + _core.COARSE_PADDING
    remedy = "Sort the in-edges of each node by time; sorted rows need none."
    check_memory(where, "the array of coarse times, of in-edges in no order,", 2 * count, remedy)
    (values,) = zeros_for_workers([((count,), torch.int16)])
    return [values, torch.tensor(_core.fill_coarse_times(latest.numpy(), values.numpy(), num_threads=num_threads()))]


def _check(where: str, graph: Attributed, domain: str, name: str, types: Sequence[Any]) -> None:
    """Check the attribute `name`, which holds times. Raise ValueError if no type has it. Raise TypeError or ValueError
    unless it is int64, with one time for each node or edge.

    Args:
        domain: "node" or "edge".
        types: the node types or edge types that may have the attribute.
    """
    forms = graph.forms()
    wanted = {type_: forms[domain, type_, name] for type_ in types if (domain, type_, name) in forms}
    if not wanted:
        raise _no_attribute(where, graph, domain, name)
    convert = "Convert it, in a unit that fits: (seconds * 1000).long()."
    for type_, form in wanted.items():
        holder = f"{where}: {domain} attribute {name!r}{of_type(type_)}, which holds times,"
        check_form(holder, form, [torch.int64], f"num_{domain}s", convert=convert, anew=graph._anew)


def _check_values(where: str, name: str, times: Tensor | None, count: int) -> None:
    if times is None:
        return
    name = f"{where}: {name}, which holds times,"
    # The dtype of other times was checked before; these may be times of sources that a part has stored.
    check_values(name, times, [torch.int64], count, convert="Partition the graph again.")
    if not times.is_contiguous():
        raise ValueError(f"{name} is not contiguous (stride {times.stride()}). Call .contiguous().")


def _no_attribute(where: str, graph: Attributed, domain: str, name: str) -> ValueError:
    """Return the error for an attribute that no sampled edge type has."""
    names: dict[str, list[str]] = {}  # {attribute: the types that have it}
    for other, type_, attribute in graph.forms():
        if other == domain:
            names.setdefault(attribute, []).append(type_text(type_))
    sampled = "no sampled edge type has it" if graph.is_heterogeneous else "the graph does not have it"
    sources = ", nor have its sources" if graph.is_heterogeneous and domain == "node" else ""
    remedy = f"Add {shown(name)} to the graph{', or name one of these' if names else ''}."
    if name in names:
        how = "these" if domain == "edge" else "edges from there"
        remedy = f"Only {shown(names[name])} have it: sample {how}."
    return ValueError(
        f"{where}: {domain}_time_attr is {shown(name)}, but {sampled}{sources}; the {domain} attributes of the graph "
        f"are {shown(sorted(names))}. {remedy}{graph._anew}"
    )


@register_stage("temporal_sample_neighbor")
class TemporalNeighborSampler(ChoiceSampler):
    """Sample the in-neighborhood of the seeds as it was at their times; sets `blocks`, `input_nodes` and
    `compacted_seeds`.

    Each row of the seeds has a time, in the field `timestamps` of the minibatch. All hops from a seed are drawn at its
    time. Seeds of different times share no nodes, so `input_nodes` may hold a node once for each time.

    Args:
        graph: the CSCGraph, HeteroCSCGraph or DistGraph to sample from. If the graph has types, the seeds have types
            too (HeteroItemSet).
        fanouts: in-edges drawn per node, as for sample_neighbor; -1 keeps all eligible in-edges.
        replace: draw with replacement; -1 still keeps each in-edge once.
        return_edge_ids: fill `edge_ids` of the blocks, which edge features need.
        node_time_attr, edge_time_attr: the node attribute and the edge attribute with the times; int64. At least one is
            needed. With both, an in-edge must be eligible by its own time and by the time of its source node. In a
            graph with types, all edges of a type are eligible if neither they nor their sources have times. The times
            are read when the stage is built; if they are changed later, the stage raises ValueError. Over a DistGraph,
            node_time_attr is the attribute that the Partitioner was given: each part has stored the times of sources
            with its edges.
        strategy: "uniform" draws among the eligible in-edges, "last" takes the latest.
        prob_name: the edge attribute with the weights by which eligible in-edges are drawn, or a mask, as for
            sample_neighbor; not with "last". Each sampled edge type needs it. It takes 8 more bytes an in-edge.
        inclusive: False draws in-edges that are earlier than the seed (as GraphBolt does), True also in-edges of the
            same time (as PyG does).
        time_window: if given, the most time by which an in-edge may be earlier than the seed; or the name of a field of
            the items with a window for each row of the seeds, int64, 0 or more. Then only seeds of equal times and
            windows share nodes.
        disjoint: sample a tree for each seed, also for seeds of one time, and set `batch`, as sample_neighbor does.
        frontier: "all" or "new", as for sample_neighbor.
        subgraph_type, reverse_etypes_mapping: as for sample_neighbor. "induced" has only edges that are eligible at the
            time of their seed.
        concurrency: over a DistGraph, minibatches in flight at once, by default 8. Each takes the memory of its own
            result, whatever the size of the graph. Not allowed for a graph in memory.
    Raises:
        TypeError, ValueError: An argument is not allowed; while running, the seeds have no times, or times that are not
            int64.
        IndexError: While running, a seed is not a node of the graph.
        MemoryError: While running, a hop needs more memory than is left; the message names hop, fanout and bytes.
    Cost: times of edges are used as they are. With times of nodes, an array of 8 bytes an in-edge is made when the
    stage is built, and kept with the graph; with both kinds of times 16 bytes. The in-edges of a node need no order. If
    they are sorted by time, drawing is faster; if not, 2 bytes an in-edge are added.
    """

    _fingerprinted = ("replace", "frontier", "disjoint")

    def __init__(
        self,
        source: Stage,
        graph: Graph,
        fanouts: Sequence[Fanout],
        *,
        replace: bool = False,
        return_edge_ids: bool = False,
        node_time_attr: str | None = None,
        edge_time_attr: str | None = None,
        strategy: str = "uniform",
        prob_name: str | None = None,
        inclusive: bool = False,
        time_window: int | str | None = None,
        disjoint: bool = False,
        frontier: str = "all",
        subgraph_type: str = "directional",
        reverse_etypes_mapping: Mapping[Any, Any] | None = None,
        concurrency: int | None = None,
    ) -> None:
        self.node_time_attr = _check_attribute(self.name, "node_time_attr", node_time_attr)
        self.edge_time_attr = _check_attribute(self.name, "edge_time_attr", edge_time_attr)
        if node_time_attr is None and edge_time_attr is None:
            raise ValueError(
                f"{self.name}: found neither node_time_attr nor edge_time_attr; at least one must name an attribute of "
                "the graph. Without times use sample_neighbor."
            )
        self.strategy = check_choice(self.name, "strategy", strategy, ("uniform", "last"))
        self.prob_name = prob_name
        refuse_last_of_draws(self.name, strategy, replace, prob_name)
        self.inclusive = check_bool(self.name, "inclusive", inclusive)
        field = time_window if isinstance(time_window, str) else None
        of_all = "time_window, if it names no field of the seeds,"
        window = None if field or time_window is None else check_int(self.name, of_all, time_window, 0)
        self.time_window = field or window
        super().__init__(
            source,
            graph,
            fanouts,
            ByTime(edge_time_attr, node_time_attr, strategy, self.inclusive, window, prob_name, field),
            return_edge_ids=return_edge_ids,
            replace=replace,
            frontier=frontier,
            disjoint=disjoint,
            subgraph_type=subgraph_type,
            reverse_etypes_mapping=reverse_etypes_mapping,
            concurrency=concurrency,
        )

    def _describe_choice(self) -> dict[str, Any]:
        return {
            "node_time_attr": self.node_time_attr,
            "edge_time_attr": self.edge_time_attr,
            "strategy": self.strategy,
            "prob_name": self.prob_name,
            "inclusive": self.inclusive or None,
            "time_window": self.time_window,
        }


def refuse_last_of_draws(where: str, strategy: str, replace: bool, weights: str | None) -> None:
    """Raise ValueError if `strategy` is "last", and `replace` is True or `weights` names weights: the latest in-edges
    are not drawn.
    """
    if strategy == "last" and weights is not None:
        raise ValueError(
            f"{where}: strategy is 'last' and the weights are {shown(weights)}; the last in-edges are taken without a "
            "draw, so only 'uniform' can draw by weights. Leave out one of the two."
        )
    if strategy == "last" and replace:
        raise ValueError(
            f"{where}: strategy is 'last' and replace is True; the last in-edges are taken once each, so only "
            "'uniform' can draw with replacement. Leave out one of the two."
        )


def _check_attribute(where: str, argument: str, name: Any) -> str | None:
    if name is not None and not isinstance(name, str):
        raise TypeError(f"{where}: {argument} must be the name of an attribute, got {shown(name)}. Pass a str.")
    return name
