"""PartitionReport: how good a partition is, counted edge by edge, and what it cost; Cost measures time and memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import torch

from datapipes.base.checks import aligned, one_line, reason, shown
from datapipes.base.progress import Progress, now_and_then
from datapipes.base.records import Count, OptionalEdgeType, OptionalNodeType, from_json, to_json, whole
from datapipes.base.types import EdgeType, ends_of, type_text
from datapipes.partition.book import PartitionBook
from datapipes.partition.row_chunks import PartRows, refuse_other_book
from datapipes.partition.source import Source

__all__ = ["PartitionReport"]

MOST_MATRIX_PARTS = 256  # with more parts there is no edge matrix, which has num_parts^2 numbers
_FIRST = (  # the first keys in JSON
    *("num_parts", "num_nodes", "num_edges", "cut_edges", "cut_share", "balance"),
    *("nodes", "nodes_by_type", "training_nodes"),
)
LOOK_S = 0.02  # seconds between two samples of the memory
_PRIVATE = ("RssAnon:", "RssShmem:")  # without pages of mapped files, which the system drops when memory is short
_AGAIN = "Copy the partition again, or make it again."


@dataclass(frozen=True)
class PartitionReport:
    """How good a partition is, and what it cost to make. `str(report)` is a table; `to_json` and `from_json` are exact.

    Attributes:
        num_parts: number of parts, k.
        nodes_by_type: {node type: how many of its nodes each part has}; without types, the type is None.
        training_nodes: for each part, how many training nodes of all types it has. None: the graph does not say which
            nodes are training nodes.
        edges: for each part, how many edges of all types it has. An edge belongs to the part of its destination.
        halo_nodes: for each part, how many nodes of other parts its edges come from; each node is counted once.
        edges_by_type: {edge type: (number of edges, number of cut edges)}. An edge is cut if its ends are in two parts.
        edge_matrix: k rows of k numbers; row i, column j has the number of edges from part j to part i. None: there are
            more than 256 parts.
        left_out: texts that name the given data that no part holds.
        method: how the parts were made; "" if not known.
        seconds: {step: seconds}. The report stored in a partition lacks "write native", the step that stores it.
        memory_bytes: the peak of the private memory during these steps, that of METIS's process included, less the
            memory before them. None: not known.
    """

    num_parts: Annotated[int, whole(1)]
    nodes_by_type: Mapping[OptionalNodeType, tuple[Count, ...]]
    training_nodes: tuple[Count, ...] | None
    edges: tuple[Count, ...]
    halo_nodes: tuple[Count, ...]
    edges_by_type: Mapping[OptionalEdgeType, tuple[Count, Count]]
    edge_matrix: tuple[tuple[Count, ...], ...] | None
    left_out: tuple[str, ...] = ()
    method: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: Count | None = None

    def __post_init__(self) -> None:
        counts = [*self.nodes_by_type.values(), self.edges, self.halo_nodes, self.training_nodes, self.edge_matrix]
        for of_parts in [*counts, *(self.edge_matrix or ())]:
            if of_parts is not None and len(of_parts) != self.num_parts:
                raise ValueError(
                    f"found {len(of_parts)} entries, {shown(of_parts)}; each of the {self.num_parts} parts needs one"
                )

    @property
    def nodes(self) -> tuple[int, ...]:
        """How many nodes each part has, all types together."""
        return tuple(map(sum, zip(*self.nodes_by_type.values(), strict=True))) or (0,) * self.num_parts

    @property
    def cut_edges(self) -> int:
        """How many edges have their two ends in different parts."""
        return sum(cut for _, cut in self.edges_by_type.values())

    @property
    def cut_share(self) -> float:
        """The number of cut edges divided by the number of edges; 0.0 without edges."""
        return self.cut_edges / max(sum(self.edges), 1)

    @property
    def balance(self) -> dict[str, float]:
        """How even the parts are: {measure: the number in the largest part, divided by the mean}; 1.0 is even.

        The measures are "nodes", "edges" and "training_nodes"; the last is left out if no part has training nodes.
        """
        balance = {"nodes": _balance(self.nodes), "edges": _balance(self.edges)}
        if self.training_nodes is not None and any(self.training_nodes):
            balance["training_nodes"] = _balance(self.training_nodes)
        return balance

    @property
    def parts_without_training_nodes(self) -> tuple[int, ...]:
        """The ids of the parts that have no training nodes. (): each part has some, or no part has any."""
        counts = self.training_nodes or ()
        return tuple(part for part, count in enumerate(counts) if count == 0) if any(counts) else ()

    def to_json(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON, and with them the totals and balances, which are computed."""
        derived = {
            "num_nodes": sum(self.nodes),
            "num_edges": sum(self.edges),
            "cut_edges": self.cut_edges,
            "cut_share": self.cut_share,
            "balance": self.balance,
            "nodes": list(self.nodes),
            "parts_without_training_nodes": list(self.parts_without_training_nodes),
        }
        values = {**derived, **to_json(self)}
        return {name: values[name] for name in (*_FIRST, *values)}

    @classmethod
    def from_json(cls, values: Any) -> PartitionReport:
        """Return the report that was stored: `values` is what its `to_json` returned, read from JSON.

        Raises:
            ValueError: `values` is something else. Whether the numbers contradict each other is not checked.
        """
        try:
            return from_json(cls, "the report", values, others=True)
        except ValueError as error:
            raise ValueError(
                f"PartitionReport: the values are not those of a report: {reason(error)} Make the partition again."
            ) from error

    def __str__(self) -> str:
        total, by = sum(self.edges), f" by {self.method}" if self.method else ""
        lines = [
            f"{self.num_parts} parts{by}: {self.cut_edges} of {total} edges are cut ({100 * self.cut_share:.1f} %)"
        ]
        training: Sequence[int | None] = self.training_nodes or [None] * self.num_parts
        columns = zip(range(self.num_parts), self.nodes, training, self.edges, self.halo_nodes, strict=True)
        lines += aligned([("part", "nodes", "training nodes", "edges", "halo nodes"), *columns])
        balance = [f"{name.replace('_', ' ')} {value:.3f}" for name, value in self.balance.items()]
        lines.append(f"largest part / mean: {', '.join(balance)}")
        if without := self.parts_without_training_nodes:
            lines.append(f"parts without training nodes: {joined(without)}")
        if None not in self.nodes_by_type:
            nodes = ((type_text(kind), sum(n), max(n), min(n)) for kind, n in self.nodes_by_type.items())
            edges = ((type_text(kind), *counts) for kind, counts in self.edges_by_type.items())
            lines += aligned([("node type", "nodes", "most", "least"), *nodes])
            lines += aligned([("edge type", "edges", "cut"), *edges])
        if self.seconds:
            steps = ", ".join(f"{step} {seconds:.2f}" for step, seconds in self.seconds.items())
            lines.append(f"seconds: {steps}; {sum(self.seconds.values()):.2f} in all")
        if self.memory_bytes is not None:
            lines.append(f"memory: {self.memory_bytes / 2**20:.1f} MiB at most")
        lines += [f"not in the parts: {entry}" for entry in self.left_out]
        return "\n".join(map(one_line, lines))


def measure(source: Source, book: PartitionBook, progress: Progress) -> PartitionReport:
    """Count nodes and edges of the partition of `source` by `book`, and return the report. Every edge is read once.

    Time O(num_edges + num_parts * num_nodes). Memory: up to 3 bytes a node, 8 for each node of one part, and some MiB.
    The graph may be mapped.

    Raises:
        ValueError: The book is of another graph, or the graph is corrupt.
    """
    graph, parts = source.graph, book.num_parts
    refuse_other_book(graph, book)
    total = sum(graph.num_edges_of(kind) for kind in graph.edge_types)
    seen = {kind: torch.zeros(graph.num_nodes_of(kind), dtype=torch.bool) for kind in graph.node_types}
    owners = {kind: book.nodes(kind).dense() for kind in graph.node_types}
    cut: dict[EdgeType | None, int] = dict.fromkeys(graph.edge_types, 0)
    matrix, halos, done, progress = [], [], 0, now_and_then(progress)
    for part in range(parts):
        row = torch.zeros(parts, dtype=torch.int64)
        for edge_type in graph.edge_types:
            src, dst = ends_of(edge_type)
            for sources in PartRows(graph, edge_type, book.nodes(dst).ids_of(part)).indices():
                sources = sources.long()
                of_sources = owners[src][sources]
                row += torch.bincount(of_sources.int(), minlength=parts)
                remote = sources[of_sources != part]
                seen[src][remote] = True
                cut[edge_type] += int(remote.shape[0])
                done += int(sources.shape[0])
                progress("count edges", done, total)
        halos.append(sum(int(mask.count_nonzero()) for mask in seen.values()))
        for mask in seen.values():
            mask.zero_()
        matrix.append(row.tolist() if parts <= MOST_MATRIX_PARTS else [int(row.sum())])
    of_training = (owners[kind][mask].int() for kind, mask in source.training_nodes.items())
    training = [torch.bincount(of_nodes, minlength=parts).tolist() for of_nodes in of_training]
    return PartitionReport(
        num_parts=parts,
        nodes_by_type={kind: tuple(map(book.nodes(kind).count_of, range(parts))) for kind in graph.node_types},
        training_nodes=tuple(map(sum, zip(*training, strict=True))) if training else None,
        edges=tuple(map(sum, matrix)),
        halo_nodes=tuple(halos),
        edges_by_type={kind: (graph.num_edges_of(kind), cut[kind]) for kind in graph.edge_types},
        edge_matrix=tuple(map(tuple, matrix)) if parts <= MOST_MATRIX_PARTS else None,
        left_out=source.left_out,
    )


def _balance(counts: Sequence[int]) -> float:
    mean = sum(counts) / len(counts)
    return max(counts) / mean if mean > 0 else 1.0


# --- a report that comes from a file


def refuse_contradictions(where: str, report: PartitionReport) -> None:
    """Raise ValueError if the numbers of a report from a file contradict each other.

    Time O(num_parts^2) if the report has an edge matrix.
    """
    contradiction = _contradiction(report)
    if contradiction is not None:
        raise ValueError(f"{where}: the report contradicts itself: {contradiction}. {_AGAIN}")


def _contradiction(report: PartitionReport) -> str | None:
    nodes, edges, matrix = report.nodes, report.edges, report.edge_matrix
    by_type = sum(count for count, _ in report.edges_by_type.values())
    if by_type != sum(edges):
        return f"all parts together have {sum(edges)} edges, and all types together {by_type}"
    for kind, (count, cut) in report.edges_by_type.items():
        if cut > count:
            return f"the edge type {shown(kind)} has {count} edges, and {cut} of them are cut"
    for part, halos in enumerate(report.halo_nodes):
        others = sum(nodes) - nodes[part]
        if halos > (most := min(others, edges[part])):
            counts = f"{edges[part]} edges, and {others} nodes in other parts"
            return f"part {part} has {halos} halo nodes; at most {most} are possible with {counts}"
    for part, trained in enumerate(report.training_nodes or ()):
        if trained > nodes[part]:
            return f"part {part} has {nodes[part]} nodes, and {trained} training nodes"
    if matrix is None:
        return None
    for part, row in enumerate(matrix):
        if sum(row) != edges[part]:
            return f"part {part} has {edges[part]} edges, and {sum(row)} in its row of edge_matrix"
    cut = sum(edges) - sum(row[part] for part, row in enumerate(matrix))
    if cut != report.cut_edges:
        return f"by edge_matrix {cut} edges are cut, and by edges_by_type {report.cut_edges}"
    return None


def refuse_other_report(
    where: str, report: PartitionReport, num_parts: int, num_nodes: Mapping[Any, int], num_edges: Mapping[Any, int]
) -> None:
    """Raise ValueError unless a report has these numbers: of parts, and of nodes and edges of each type.

    A report from a file is compared with the header of the partition here.
    """
    of_report = (
        report.num_parts,
        {kind: sum(counts) for kind, counts in report.nodes_by_type.items()},
        {kind: count for kind, (count, _) in report.edges_by_type.items()},
    )
    of_header = (num_parts, dict(num_nodes), dict(num_edges))
    for noun, reported, stated in zip(("parts", "nodes", "edges"), of_report, of_header, strict=True):
        if reported != stated:
            raise ValueError(
                f"{where}: the report says {shown(reported)} {noun}, and the header {shown(stated)}. {_AGAIN}"
            )


def refuse_other_part(
    where: str, report: PartitionReport, part: int, num_nodes: Mapping[Any, int], num_edges: int
) -> None:
    """Raise ValueError unless `report` says that `part` has these numbers of nodes of each type and of all edges."""
    reported = {kind: counts[part] for kind, counts in report.nodes_by_type.items()}
    if reported != dict(num_nodes) or report.edges[part] != num_edges:
        raise ValueError(
            f"{where}: the report gives part {part} {shown(reported)} nodes and {report.edges[part]} edges, and it has "
            f"{shown(dict(num_nodes))} and {num_edges}. {_AGAIN}"
        )


# --- a list in a text


def joined(values: Sequence[object], most: int = 32) -> str:
    """Return `values` as a text with commas between them.

    After the first `most`, only the number of the others is given.
    """
    rest = len(values) - most
    return ", ".join(map(str, values[:most])) + (f" and {rest} more" if rest > 0 else "")


# --- the cost of a run


class Cost:
    """Measures the time and memory of the steps of a run; a context manager, in which `step` marks each step.

    Attributes:
        seconds: {step: seconds}, of the steps that ended.
        memory_bytes: {step: peak}: the peak of this process's private memory in the step, less its memory when the Cost
            was entered. The memory is sampled every 20 ms. The key "" has the peak between steps.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.memory_bytes: dict[str, int] = {}
        self._step = ""
        self._ended = threading.Event()

    def __enter__(self) -> Cost:
        self._before = private_bytes()
        self._thread = threading.Thread(target=self._look, name="datapipes-memory", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the body of a with statement as the step `name`. Several bodies of one name are added up."""
        begin, self._step = time.monotonic(), name
        yield
        self._count()
        self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin
        self._step = ""

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            self._count()

    def _count(self) -> None:
        step = self._step
        self.memory_bytes[step] = max(self.memory_bytes.get(step, 0), private_bytes() - self._before)


def private_bytes(pid: int | str = "self") -> int:
    """Return the private memory of a process in bytes: anonymous and shared pages, but no pages of mapped files.

    `pid` is the process id, or "self".
    """
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as lines:
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_PRIVATE))
