"""How many minibatches a second come from a graph in parts behind servers, against the undivided graph?

A rank for each part, its part in the process and the others behind `datapipes serve` on this machine; 1,024 of the
rank's own seeds, fanouts [15, 10, 5], frontier "new", one node feature (400 bytes a node on the benchmark graph):
DistributedItemSampler, dist_sample_neighbor, fetch_feature over a DistFeatureStore, DataLoader without workers. Three
sides, all ranks at once, in alternation, two seconds each, median of 5: the undivided graph in the memory of each rank;
the parts without a cache; the parts with the cache that --cache states. For each: minibatches/s of all ranks, and for
the parts the requests and bytes a minibatch, and the bytes per second that come from servers. The parts are made by
--method in a temporary folder, and are in memory. With --proxy also: with the cache, behind a TCP proxy that does
nothing, and behind one that delays each way by 1 ms and stalls 1 % of the requests for 200 ms.
Run: python benchmarks/distributed.py --graph GRAPH --parts 2 --proxy
Result (2-core AMD EPYC VM, 1M nodes / 20M edges, METIS, 39 % of the edges cut), quiet machine:
commit c520d3d, --cache 200MB (of 400 MB of rows): undivided 55.2 minibatches/s of both ranks, parts 17.2 (0.31 of it; 3
requests and 39 MB a minibatch), with the cache 31.1 (0.56; 3.1 MB). Commit 2d1895d, --cache 128MB: 65.9, 19.2 (0.29),
30.5 (0.46; 6.1 MB). Beside other work, 128MB, commits 6278edc and 9b597f7, three runs: 0.33, 0.46 and 0.29 without the
cache, 0.53, 0.54 and 0.40 with it; behind the proxy that disturbs 0.78 and 1.2 times as many as behind the one that
does not. Of 127 ms of processor time for a minibatch over parts, 35 are those of the undivided graph, and about 70 are
Flight's for 39 MB.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from common import load_graph, parser, report

import datapipes as dp
from datapipes import distributed
from datapipes.distributed.requests.rows import RowsRequest

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from proxy import Proxy

BOUND_S = 120.0  # for the start of a process and for one measurement
FANOUTS, BATCH_SIZE = [15, 10, 5], 1024


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=5)
    arguments.add_argument("--parts", type=int, default=2, help="parts, and ranks")
    arguments.add_argument("--method", default="metis", help="how the graph is cut")
    arguments.add_argument("--cache", default="128MB", help="bytes of hot remote rows that each rank keeps")
    arguments.add_argument("--concurrency", type=int, default=8, help="minibatches that each rank has in flight")
    arguments.add_argument("--round-s", type=float, default=2.0, help="seconds of a measurement")
    arguments.add_argument("--proxy", action="store_true", help="measure behind a TCP proxy too")
    arguments.add_argument("--rank", help=argparse.SUPPRESS)  # what a rank's process is started with, JSON
    args = arguments.parse_args()
    if args.rank is not None:
        Rank(**json.loads(args.rank)).serve()
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        graph, rows = load_graph(args.graph)
        graph = dp.CSCGraph(graph.indptr, graph.indices, node_attributes={"feat": torch.from_numpy(rows)})
        graph.save(folder / "whole")
        cut = distributed.Partitioner(graph, args.parts, folder / "parts", method=args.method, layouts=("native",))
        share = cut.generate_partition().cut_share
        del graph, rows
        servers = [stack.enter_context(server(folder / "parts", part)) for part in range(args.parts)]
        book = {part: line_of(running).split()[1] for part, running in enumerate(servers)}
        cached = f"parts, cache {args.cache}"
        sides: dict[str, Any] = {"undivided": None, "parts": (0, book), cached: (args.cache, book)}
        if args.proxy:
            for name, disturbance in (("plain proxy", {}), ("disturbed", {"delay": 0.001, "stall": (0.01, 0.2)})):
                behind = {part: stack.enter_context(Proxy(book[part], **disturbance)).address for part in book}
                sides[f"{cached}, {name}"] = (args.cache, behind)
        given = {"folder": str(folder), "sides": sides, "ranks": args.parts, "concurrency": args.concurrency}
        given["round_s"] = args.round_s
        ranks = [stack.enter_context(rank_process({**given, "rank": rank})) for rank in range(args.parts)]
        for running in ranks:
            line_of(running)  # "ready"
        found = rounds(ranks, list(sides), args.repeats)
    figures: dict[str, float | str] = {"cut edges of all": share}
    for name in sides:
        rate = figures[f"{name} (minibatches/s)"] = median(found[name], "minibatches")
        if name != "undivided":
            figures[f"{name}, ratio to undivided"] = rate / median(found["undivided"], "minibatches")
            for what, unit in (("requests", 1), ("bytes", 1e6)):
                shown = "MB" if what == "bytes" else what
                figures[f"{name}, {shown} a minibatch"] = median(found[name], what) / rate / unit
            figures[f"{name} (MB/s)"] = median(found[name], "bytes") / 1e6
    if args.proxy:
        for name in ("plain proxy", "disturbed"):
            figures[f"{name}, ratio to {cached}"] = rate_of(figures, f"{cached}, {name}") / rate_of(figures, cached)
    report(figures, args.json)


def rate_of(figures: dict[str, float | str], side: str) -> float:
    return float(figures[f"{side} (minibatches/s)"])


def rounds(
    ranks: list[subprocess.Popen[str]], sides: list[str], repeats: int
) -> dict[str, list[list[dict[str, float]]]]:
    """Return what the ranks answered: for each side, for each round, for each rank. The first round is a warm-up."""
    found: dict[str, list[list[dict[str, float]]]] = {name: [] for name in sides}
    for i in range(1 + repeats):
        for name in sides:
            for rank in ranks:
                print(name, file=rank.stdin, flush=True)
            answers = [json.loads(line_of(rank)) for rank in ranks]
            if i > 0:
                found[name].append(answers)
    return found


def median(found: list[list[dict[str, float]]], what: str) -> float:
    """Return the median over rounds of what all ranks together do in a second."""
    return statistics.median(sum(each[what] / each["seconds"] for each in ranks) for ranks in found)


class Rank:
    """The process of a rank: it measures the side that it is told, one line each."""

    def __init__(
        self, folder: str, sides: dict[str, Any], ranks: int, concurrency: int, round_s: float, rank: int
    ) -> None:
        torch.set_num_threads(1)
        self._round_s = round_s
        root = Path(folder) / "parts"
        self.counted: list[Counted] = []
        self.chains: dict[str, dp.Stage] = {}
        for name, side in sides.items():
            own = dp.ItemSet(distributed.Part.open(root, rank, verify=False).node_ids())
            steps = -(-len(own) // BATCH_SIZE)
            items = dp.DistributedItemSampler(
                own, BATCH_SIZE, rank=rank, world_size=ranks, local_items=True, num_steps=steps, shuffle=True, seed=1
            )
            store: dp.FeatureStore
            if side is None:
                whole = dp.CSCGraph.open(Path(folder) / "whole", mmap=False)
                store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(whole.node_attributes["feat"])})
                sampled = items.sample_neighbor(whole, FANOUTS, frontier="new")
            else:
                cache, book = side
                others = {int(key): address for key, address in book.items() if int(key) != rank}
                graph = distributed.DistGraph.connect(root, others, local_part=rank, mmap=False)
                store = distributed.DistFeatureStore(graph, cache_bytes=cache)
                graph.peers = Counted(graph.peers)
                self.counted.append(graph.peers)
                sampled = items.dist_sample_neighbor(graph, FANOUTS, frontier="new", concurrency=concurrency)
            self.chains[name] = sampled.fetch_feature(store, node_feature_keys=["feat"])

    def serve(self) -> None:
        print("ready", flush=True)
        for line in sys.stdin:
            print(json.dumps(self.measure(self.chains[line.strip()])), flush=True)

    def measure(self, chain: dp.Stage) -> dict[str, float]:
        with dp.DataLoader(chain) as loader:
            stream = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
            for _ in range(10):  # until as many are in flight as can be
                next(stream)
            before = [(each.requests, each.bytes) for each in self.counted]
            done, began = 0, time.perf_counter()
            while (seconds := time.perf_counter() - began) < self._round_s:
                next(stream)
                done += 1
            after = [(each.requests, each.bytes) for each in self.counted]
        moved = [sum(new[i] - old[i] for new, old in zip(after, before, strict=True)) for i in range(2)]
        return {"minibatches": done, "seconds": seconds, "requests": moved[0], "bytes": moved[1]}


class Counted:
    """Counts the requests to other parts, and the bytes of tensors that come back."""

    def __init__(self, peers: Any) -> None:
        self._peers = peers
        self.requests = self.bytes = 0

    def ask(self, part: int, request: Any) -> Future[Any]:
        def counted(number: int, first: int, rows: torch.Tensor) -> None:
            request.take(number, first, rows)
            self.bytes += rows.numel()

        is_taken = isinstance(request, RowsRequest) and request.take is not None
        return self._count(self._peers.ask(part, replace(request, take=counted) if is_taken else request))

    def close(self) -> None:
        self._peers.close()

    def _count(self, future: Future[Any]) -> Future[Any]:
        self.requests += 1
        future.add_done_callback(self._add)
        return future

    def _add(self, future: Future[Any]) -> None:
        if future.cancelled():  # as those of an epoch that is left
            return
        for each in future.result():
            tensors = [each] if isinstance(each, torch.Tensor) else [rows for rows in each if rows is not None]
            self.bytes += sum(rows.numel() * rows.element_size() for rows in tensors)


def server(root: Path, part: int) -> AbstractContextManager[subprocess.Popen[str]]:
    """Serve a part from a process of its own, which writes its address."""
    command = [sys.executable, "-m", "datapipes.cli", "serve", str(root), "--part", str(part), "--in-memory"]
    return process([*command, "--address", "127.0.0.1:0"])


def rank_process(given: dict[str, Any]) -> AbstractContextManager[subprocess.Popen[str]]:
    return process([sys.executable, __file__, "--rank", json.dumps(given)])


@contextmanager
def process(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a command; end it with the context."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as running:
        try:
            yield running
        finally:
            running.send_signal(signal.SIGKILL)


def line_of(running: subprocess.Popen[str]) -> str:
    """Return the next line that a process writes."""
    assert running.stdout is not None
    answered, _, _ = select.select([running.stdout], [], [], BOUND_S)
    line = running.stdout.readline() if answered else ""
    if not line:
        raise RuntimeError(f"{running.args} wrote nothing for {BOUND_S:.0f} s, or ended; see its messages above")
    return line.strip()


if __name__ == "__main__":
    main()
