"""Graphs in parts within this process: the parts answer through the same code as servers do, without a network."""

import functools
import tempfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from partitions import source_of
from pipelines import BOUND_S, small_graph
from typed_pipelines import NUM_NODES, typed_graph

import datapipes as dp
from datapipes.base.rows import byte_rows
from datapipes.distributed import Part, PartitionBook
from datapipes.distributed.dist_graph import DistGraph
from datapipes.distributed.partition_facts import PartitionFacts
from datapipes.distributed.requests.request import Answer, Request
from datapipes.distributed.requests.rows import RowsRequest, TakeRows
from datapipes.graph.graph import Graph
from datapipes.partition.native.native_write import write_native


class LocalPeers:
    """Peers whose parts are all in this process. `asked` lists what was asked: (part, request)."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.asked: list[tuple[int, Request]] = []
        self._threads: ThreadPoolExecutor | None = None

    def ask(self, part: int, request: Request[Answer]) -> Future[Answer]:
        self.asked.append((part, request))
        if self._threads is None:
            self._threads = ThreadPoolExecutor(4)
        return self._threads.submit(self._answer, self.parts[part], request)

    def _answer(self, part: Part, request: Request[Answer]) -> Answer:
        answer = request.answered_by(part)
        take = request.take if isinstance(request, RowsRequest) else None
        return answer if take is None else given_away(answer, take)

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def __getstate__(self):
        return {"parts": self.parts, "asked": [], "_threads": None}


class ChangedPeers:
    """Peers whose answers are changed.

    Args:
        change: returns another answer, or raises.
        part: whose answers are changed; by default those of all parts.
    """

    def __init__(self, peers: Any, change: Callable[[Any], Any], part: int | None = None) -> None:
        self.peers, self.change, self.part = peers, change, part

    def ask(self, part: int, request: Request[Answer]) -> Future[Answer]:
        request = replace(request, take=None) if isinstance(request, RowsRequest) else request
        answer = self.peers.ask(part, request)
        if self.part not in (None, part):
            return answer
        changed: Future = Future()
        try:
            changed.set_result(self.change(answer.result(BOUND_S)))
        except Exception as error:
            changed.set_exception(error)
        return changed

    def close(self) -> None:
        self.peers.close()


def given_away(answer: list, take: TakeRows) -> list:
    """Hand the rows of an answer on in pieces of two, the first of them twice, as a request that is asked again."""
    for number, rows in enumerate(answer):
        table = torch.from_numpy(byte_rows(rows))
        for first in (0, *range(0, len(table), 2)):
            take(number, first, table[first : first + 2].clone())
    return []


def dist_graph_of(
    graph: Graph, book: PartitionBook, root: Path, local_part: int | None = None, node_time_attr: str | None = None
) -> DistGraph:
    """The graph in the parts of a book, all of them in this process; `local_part` is read without asking."""
    root.mkdir(parents=True, exist_ok=True)
    write_native(root, source_of(graph), book, node_time_attr=node_time_attr, about={}, progress=lambda *_: None)
    parts = [Part.open(root, number) for number in range(book.num_parts)]
    local = None if local_part is None else parts[local_part]
    return DistGraph(PartitionFacts.of(parts[0]), parts[0].book, LocalPeers(parts), local)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory()  # removed at exit


def new_root() -> Path:
    return Path(tempfile.mkdtemp(dir=_folder().name))


def in_parts(
    graph: Graph, owners, num_parts: int, local_part: int | None = None, node_time_attr: str | None = None
) -> DistGraph:
    """The graph in parts; `owners` is the part of each node, or {node type: the part of each}."""
    return dist_graph_of(graph, PartitionBook(num_parts, owners), new_root(), local_part, node_time_attr)


def small_parts(
    num_parts: int = 3,
    local_part: int | None = 1,
    graph: dp.CSCGraph | None = None,
    node_time_attr: str | None = None,
) -> DistGraph:
    owners = torch.arange(40) * 7 % 11 % num_parts
    return in_parts(graph or small_graph(), owners, num_parts, local_part, node_time_attr)


def typed_parts(num_parts: int = 3, local_part: int | None = 1, graph: dp.HeteroCSCGraph | None = None) -> DistGraph:
    owners = {of: torch.arange(count) * 5 % 7 % num_parts for of, count in NUM_NODES.items()}
    return in_parts(graph or typed_graph(), owners, num_parts, local_part)
