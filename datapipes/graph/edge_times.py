"""The times of the in-edges of a graph, as temporal samplers read them: one or two arrays beside `indices`.

An edge may have a time, and so may its source node (docs/semantics.md, section 4.6). Where edges alone have times, the
attribute is used as it is. Otherwise the arrays are made once for each graph, by threads, in memory that workers map:
8 bytes an in-edge, 16 where both have times. A byte for each row says whether it is sorted, and rows that are not have
coarse times too. Workers get all of it with the graph; a copy of the graph makes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.array_digest import version_of
from datapipes.base.checks import dtype_name, shown
from datapipes.base.threads import num_threads
from datapipes.base.types import ends_of, type_text
from datapipes.graph.coarse_times import CoarseTimes, TimedRows, coarse_times
from datapipes.graph.graph import Graph, Relation
from datapipes.graph.row_weights import refuse_no_tensor, refuse_other_values
from datapipes.graph.rows_digest import rows_digest
from datapipes.processes.sharing import ForWorkers, Together, zeros_for_workers

__all__: list[str] = []


@dataclass(slots=True)
class EdgeTimes:
    """The times of the in-edges of one edge type.

    Attributes:
        latest: int64 [num_edges], the larger of the times that an in-edge has.
        earliest: int64 [num_edges], the smaller; None where an in-edge has one time only.
        sorted_rows: uint8 [num_rows], 1 where neither descends within the in-edges of a node.
        coarse: of `latest`.
    """

    latest: Tensor
    earliest: Tensor | None
    sorted_rows: Tensor
    coarse: CoarseTimes
    _digest: list[str] | None = field(default=None, repr=False)

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        """Return (latest, earliest or None, sorted_rows, coarse or None) as the kernels take them."""
        earliest = None if self.earliest is None else self.earliest.numpy()
        return self.latest.numpy(), earliest, self.sorted_rows.numpy(), self.coarse.arrays()

    def digest(self, indptr: Tensor) -> list[str]:
        """Return what names the times in a fingerprint; computed once. The numbers of the parts of a graph add up."""
        if self._digest is None:
            parts = [self.latest] if self.earliest is None else [self.latest, self.earliest]
            self._digest = [rows_digest(part, indptr) for part in parts]
        return self._digest


@dataclass(frozen=True, slots=True)
class TimeAttributes:
    """The attributes of an edge type that hold times, and how often they were changed in place until now.

    Attributes:
        of_edges, of_nodes: int64 [num_edges], and of the sources int64 [num_nodes]; None where there are none.
    """

    of_edges: Tensor | None
    of_nodes: Tensor | None
    versions: tuple[int | None, ...]

    @classmethod
    def of(cls, graph: Graph, edge_type: Any, edge_time_attr: str | None, node_time_attr: str | None) -> TimeAttributes:
        """Return those that a graph has now, of whatever form."""
        of_edges, of_nodes = None, None
        if edge_time_attr is not None:
            of_edges = graph.relation(edge_type).edge_attributes.get(edge_time_attr)
        if node_time_attr is not None:
            of_nodes = graph.node_attributes_of(ends_of(edge_type)[0]).get(node_time_attr)
        return cls(of_edges, of_nodes, tuple(_version(each) for each in (of_edges, of_nodes)))

    def is_same(self, other: TimeAttributes) -> bool:
        """Whether both are the same tensors in the same state."""
        same = self.of_edges is other.of_edges and self.of_nodes is other.of_nodes
        return same and self.versions == other.versions

    def refuse_change(self, where: str, now: TimeAttributes) -> None:
        """Raise ValueError if `now`, what the graph has, is not the same."""
        of_edges, of_nodes = self.versions
        refuse_other_values(where, "times of the edges", (self.of_edges, of_edges), now.of_edges)
        refuse_other_values(where, "times of the nodes", (self.of_nodes, of_nodes), now.of_nodes)


class KeptTimes:
    """The times of a graph that samplers have asked for, by edge type and the attributes that hold them."""

    def __init__(self, came: dict[Any, list[Tensor]] | None = None) -> None:
        self._kept: dict[Any, tuple[TimeAttributes, EdgeTimes]] = {}
        self._came = came or {}  # with a worker's graph: as `__reduce__` gives them

    def get(self, key: Any, given: TimeAttributes) -> EdgeTimes | None:
        """Return the times that were made of `given`, None if there are none."""
        if key in self._came:
            sorted_rows, values, scale, *times = self._came.pop(key)
            latest = times[0] if times else given.of_edges
            assert latest is not None
            earliest = times[1] if len(times) > 1 else None
            self.put(key, given, EdgeTimes(latest, earliest, sorted_rows, CoarseTimes(values, scale)))
        before = self._kept.get(key)
        return before[1] if before is not None and before[0].is_same(given) else None

    def put(self, key: Any, given: TimeAttributes, times: EdgeTimes) -> None:
        """Keep times that were made of `given`."""
        self._kept[key] = given, times

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the state with all tensors together, so that they reach workers in one memory; others get none."""
        state = {key: [*each] for key, each in self._came.items()}
        for key, (given, each) in [*self._kept.items()]:
            made = [] if given.of_nodes is None else [each.latest, each.earliest]  # else the attribute is the time
            state[key] = [each.sorted_rows, *each.coarse, *(part for part in made if part is not None)]
        counts = {key: len(each) for key, each in state.items()}
        return _restored, (counts, ForWorkers([tensor for each in state.values() for tensor in each]))


def _restored(counts: dict[Any, int], given: Any) -> KeptTimes:
    came = given.tensors if isinstance(given, Together) else given  # copy.copy pickles nothing
    tensors = iter(came)
    return KeptTimes({key: [next(tensors) for _ in range(count)] for key, count in counts.items()} if came else {})


def edge_times(
    where: str,
    graph: Graph,
    edge_types: Sequence[Any],
    *,
    edge_time_attr: str | None,
    node_time_attr: str | None,
    kept: KeptTimes,
) -> dict[Any, EdgeTimes | None]:
    """Return what LocalGraph.edge_times does; `kept` are those of the graph."""
    given = {of: _checked(where, graph, of, edge_time_attr, node_time_attr) for of in edge_types}
    if edge_time_attr is not None and all(each.of_edges is None for each in given.values()):
        attributes: dict[Any, list[str]] = {of: [*graph.relation(of).edge_attributes] for of in graph.edge_types}
        raise _no_attribute(where, edge_time_attr, "edge", attributes)
    if node_time_attr is not None and all(each.of_nodes is None for each in given.values()):
        raise _no_attribute(
            where, node_time_attr, "node", {of: [*graph.node_attributes_of(of)] for of in graph.node_types}
        )
    found: dict[Any, EdgeTimes | None] = {}
    missing = {}
    for of, each in given.items():
        if each.of_edges is None and each.of_nodes is None:
            found[of] = None
            continue
        times = kept.get((of, edge_time_attr, node_time_attr), each)
        if times is None:
            missing[of] = each
        else:
            found[of] = times
    try:
        made = _made(where, graph, missing)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    for of, times in made.items():
        kept.put((of, edge_time_attr, node_time_attr), missing[of], times)
        found[of] = times
    return {of: found[of] for of in edge_types}


def _made(where: str, graph: Graph, given: dict[Any, TimeAttributes]) -> dict[Any, EdgeTimes]:
    """Return the times of some edge types; the arrays lie in one memory that workers map, coarse times in another."""
    forms: list[tuple[tuple[int, ...], torch.dtype]] = []
    for of, each in given.items():
        relation = graph.relation(of)
        num_arrays = 0 if each.of_nodes is None else 1 if each.of_edges is None else 2
        forms += [((relation.indices.shape[0],), torch.int64)] * num_arrays
        forms.append(((relation.indptr.shape[0] - 1,), torch.uint8))
    arrays = iter(zeros_for_workers(forms))
    filled = {of: _filled(graph.relation(of), each, arrays) for of, each in given.items()}
    rows = [TimedRows(graph.relation(of).indptr, latest, order) for of, (latest, _, order) in filled.items()]
    coarse = coarse_times(where, rows)
    return {of: EdgeTimes(*each, coarse[i]) for i, (of, each) in enumerate(filled.items())}


def _filled(
    relation: Relation, given: TimeAttributes, arrays: Iterator[Tensor]
) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return `latest`, `earliest` and `sorted_rows`."""
    earliest: Tensor | None = None
    if given.of_nodes is None:
        assert given.of_edges is not None
        latest = given.of_edges
    else:
        latest = next(arrays)
        of_edges = None
        if given.of_edges is not None:
            earliest, of_edges = next(arrays), given.of_edges.numpy()
        _core.fill_edge_times(
            relation.indices.numpy(),
            given.of_nodes.numpy(),
            latest.numpy(),
            of_edges=of_edges,
            earliest=None if earliest is None else earliest.numpy(),
            num_threads=num_threads(),
        )
    sorted_rows = next(arrays)
    _core.find_sorted_rows(
        relation.indptr.numpy(),
        latest.numpy(),
        sorted_rows.numpy(),
        earliest=None if earliest is None else earliest.numpy(),
        num_threads=num_threads(),
    )
    return latest, earliest, sorted_rows


def _checked(
    where: str, graph: Graph, edge_type: Any, edge_time_attr: str | None, node_time_attr: str | None
) -> TimeAttributes:
    given = TimeAttributes.of(graph, edge_type, edge_time_attr, node_time_attr)
    if edge_time_attr is not None:
        of = "" if edge_type is None else f" of {edge_type}"
        count = int(graph.relation(edge_type).indices.shape[0])
        _check(where, f"edge attribute {edge_time_attr!r}{of}", given.of_edges, count)
    if node_time_attr is not None:
        src = ends_of(edge_type)[0]
        of = "" if src is None else f" of {type_text(src)!r}"
        _check(where, f"node attribute {node_time_attr!r}{of}", given.of_nodes, graph.num_nodes_of(src))
    return given


def _version(values: Any) -> int | None:
    return version_of(values) if isinstance(values, Tensor) else None


def _check(where: str, name: str, times: Tensor | None, count: int) -> None:
    if times is None:
        return
    refuse_no_tensor(f"{where}: {name}", times)
    if times.dtype != torch.int64:
        raise TypeError(
            f"{where}: {name} must hold times of int64, got {dtype_name(times.dtype)}. Convert it, in a unit "
            "that fits: (seconds * 1000).long()."
        )
    if times.ndim != 1 or times.shape[0] != count:
        raise ValueError(
            f"{where}: {name} must have shape [{count}], a time for each, got {list(times.shape)}. Give one for each."
        )
    if times.device.type != "cpu":
        raise ValueError(f"{where}: {name} must be in host memory, found it on {times.device}. Call .cpu().")
    if not times.is_contiguous():
        raise ValueError(f"{where}: {name} is not contiguous (stride {times.stride()}). Call .contiguous().")


def _no_attribute(where: str, name: str, kind: str, attributes: dict[Any, list[str]]) -> ValueError:
    """Return the error for an attribute that nothing has which is sampled; `attributes` by edge or node type."""
    has_types = None not in attributes
    sampled = "no edge type that is sampled has it" if has_types else "the graph does not have it"
    sources = ", nor have its sources" if has_types and kind == "node" else ""
    owners = [type_text(of) for of, names in attributes.items() if name in names]
    remedy = "Add it to the graph, or name one of these."
    if owners:
        remedy = f"Of {shown(owners)} it is known: sample what {'has it' if kind == 'edge' else 'comes from there'}."
    known = sorted({each for names in attributes.values() for each in names})
    return ValueError(
        f"{where}: {kind}_time_attr is {shown(name)}, but {sampled}{sources}; the {kind} attributes of the graph are "
        f"{known}. {remedy}"
    )
