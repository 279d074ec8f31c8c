"""What do more cores give, as threads of sample_neighbor and fetch_feature, and as workers of a DataLoader?

1,024 seeds, fanouts [15, 10, 5], node features (400 bytes a node on the benchmark graph), on 1, 2, 4, 8, ... up to all
cores. Threads inside a minibatch: sampling and gathering, each beside its limit with as many threads in the same run.
For sampling these are random lines from memory of the size of each structure, as in sample.py: for each edge one of the
indices and one of the id map, for each destination one of indptr. For gathering it is a memcpy of 256 MiB, a slice for
each thread. Workers: minibatches/s of a DataLoader with w workers, each with one thread, whose consumer only takes:
sampling in processes, sampling in threads, sampling in processes with the features fetched by the caller (with w
threads), and with the features fetched by the workers (cut="end"). Beside them 0 workers, and the limit: the time that
the lines of such a minibatch, and the memcpy of its features, take with w threads. What was made ahead while others
were measured is used up before the clock starts. All sides of a table in alternation, --round-s a measurement, median.
Run: python benchmarks/cores.py --graph GRAPH
Result (2-core Intel Xeon VM, shared, 1M nodes / 20M edges, commit 6c25d5c, median of 5; more than 2 cores are not
measured yet): sampling 48.9 M edges/s, two threads 1.81 times that; 0.76 and 0.78 of the limit. Gathering 4.1 GB/s and
1.84 times that, 0.34 and 0.74 of a memcpy, which two threads did not speed up. Sampling in 1 and 2 processes 94 and 192
minibatches/s (0.90 and 1.84 of 0 workers), 0.78 and 0.77 of the limit; in threads 98 and 203 (1.01 and 2.09), 0.88 and
0.82. With features 48.8 minibatches/s without workers (two threads: one samples, one fetches); fetched by the caller
47.1 and 57.4, by the workers 22.5 and 44.9.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import torch
from common import Figures, RandomLines, alternate, load_graph, parser, report_parts, timed, with_threads
from sample import Sampling

import datapipes as dp

FANOUTS = [15, 10, 5]
COPIED_BYTES = 2**28
MAP_BYTES = 4  # of the id map, per node
PREFETCH = 2  # minibatches that a worker makes ahead
CHAINS = ("sampling, processes", "sampling, threads", "fetched by the caller", "fetched by the workers")

Side = Callable[[int], float]


def main() -> None:
    args = arguments()
    torch.set_num_threads(1)
    bench = Bench(args)
    parts: dict[str, Callable[[], Figures]] = {}
    if "threads" in args.parts:
        parts["threads"] = bench.threads
    if "workers" in args.parts:
        parts |= {name: lambda name=name: bench.workers(name) for name in CHAINS}
    report_parts(parts, args.json, {"cores": float(bench.counts[-1])})


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--parts", default="threads,workers", help="which tables")
    options.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)), help="the most threads or workers")
    options.add_argument("--round-s", type=float, default=0.5, help="seconds of a measurement")
    return options.parse_args()


class Bench:
    """The chains and their limits, for each number of cores."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.counts = [*(2**i for i in range((args.cores - 1).bit_length())), args.cores]
        self._repeats, self._round_s = args.repeats, args.round_s
        self._graph, rows = load_graph(args.graph)
        self._items = dp.ItemSampler(dp.ItemSet(self._graph.num_nodes), 1024, shuffle=True, seed=1)
        store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.from_numpy(rows))})
        self._sampled = self._items.sample_neighbor(self._graph, FANOUTS)
        self._fetched = self._sampled.fetch_feature(store, node_feature_keys=["feat"])
        stream = iter(self._sampled)
        self._few = [next(stream) for _ in range(5)]
        self._edges, self._destinations, self._row_bytes = (
            sum(map(each, self._few)) / len(self._few)
            for each in (
                lambda minibatch: sum(block.num_edges for block in minibatch.blocks),
                lambda minibatch: sum(block.num_dst for block in minibatch.blocks),
                lambda minibatch: len(minibatch.input_nodes) * rows[0].nbytes,
            )
        )
        self._touched = {  # bytes of a structure, and lines of it that sampling a minibatch touches
            "indices": (self._graph.indices.nbytes, self._edges),
            "id map": (MAP_BYTES * self._graph.num_nodes, self._edges),
            "indptr": (self._graph.indptr.nbytes, self._destinations),
        }
        source, target = (np.ones(COPIED_BYTES, dtype=np.uint8) for _ in range(2))
        self._limits: dict[str, Side] = {}
        for count in self.counts:
            for name, (num_bytes, _) in self._touched.items():
                self._limits[f"{name}, {count}"] = RandomLines(num_bytes, count, 2**22)
            self._limits[f"memcpy, {count}"] = memcpy_by(count, source, target)

    def threads(self) -> Figures:
        """Threads inside a minibatch."""
        sides = dict(self._limits)
        for count in self.counts:
            sampled = self._items.sample_neighbor(self._graph, FANOUTS)  # a stage has one iterator at a time
            sides[f"sampling, {count}"] = with_threads(count, Sampling(sampled, self._round_s))
            sides[f"gather, {count}"] = with_threads(count, self._gather)
        rates = alternate(sides, self._repeats)
        figures: Figures = {}
        for count in self.counts:
            limits = {"sampling": self._edges / self._lines_s(rates, count), "gather": rates[f"memcpy, {count}"]}
            for what, limit in limits.items():
                rate, unit = rates[f"{what}, {count}"], ("M edges/s", 1e6) if what == "sampling" else ("GB/s", 1e9)
                name = f"{what}, {count} threads"
                figures[f"{name} ({unit[0]})"] = rate / unit[1]
                figures[f"{name}: ratio to 1"] = rate / rates[f"{what}, 1"]
                figures[f"{name}: limit ({unit[0]})"] = limit / unit[1]
                figures[f"{name}: ratio to the limit"] = rate / limit
        return figures

    def workers(self, name: str) -> Figures:
        """A chain with 0, 1, 2, 4, ... workers."""
        chain = self._fetched if name.startswith("fetched") else self._sampled
        options = {"cut": "end"} if name == "fetched by the workers" else {}
        options |= {"worker_method": "thread"} if name == "sampling, threads" else {}
        with ExitStack() as stack:
            sides = dict(self._limits)
            for count in (0, *self.counts):
                torch.set_num_threads(max(count, 1))  # a worker takes its share when it starts: one
                given = options if count else {}
                loader = stack.enter_context(dp.DataLoader(chain, count, prefetch_factor=PREFETCH, **given))
                sides[str(count)] = with_threads(max(count, 1), Delivery(loader, count, self._round_s))
                torch.set_num_threads(1)
            rates = alternate(sides, self._repeats, warm_ups=1)
        figures: Figures = {f"{name}, 0 workers (minibatches/s)": rates["0"]}
        for count in self.counts:
            limit_s = self._lines_s(rates, count)
            if chain is self._fetched:
                limit_s += self._row_bytes / rates[f"memcpy, {count}"]
            rate, label = rates[str(count)], f"{name}, {count} workers"
            figures[f"{label} (minibatches/s)"] = rate
            figures[f"{label}: ratio to 0"] = rate / rates["0"]
            figures[f"{label}: ratio to 1"] = rate / rates["1"]
            figures[f"{label}: limit (minibatches/s)"] = 1 / limit_s
            figures[f"{label}: ratio to the limit"] = rate * limit_s
        return figures

    def _lines_s(self, rates: dict[str, float], count: int) -> float:
        """Return the seconds that the random lines of a minibatch take with so many threads."""
        return sum(lines / rates[f"{name}, {count}"] for name, (_, lines) in self._touched.items())

    def _gather(self, _: int) -> float:
        seconds = sum(timed(lambda each=each: self._fetched.transform(each))[0] for each in self._few)
        return self._row_bytes * len(self._few) / seconds


class Delivery:
    """Minibatches per second of a loader, epoch after epoch."""

    def __init__(self, loader: dp.DataLoader, workers: int, round_s: float) -> None:
        self._loader, self._round_s = loader, round_s
        self._ahead = max(workers, 1) * (PREFETCH + 1) + 2
        self._stream = iter(loader)

    def __call__(self, _: int) -> float:
        for _ in range(self._ahead):
            self._next()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < self._round_s:
            self._next()
            done += 1
        return done / (time.perf_counter() - began)

    def _next(self) -> None:
        if next(self._stream, None) is None:
            self._stream = iter(self._loader)


def memcpy_by(threads: int, source: np.ndarray, target: np.ndarray) -> Side:
    """Return a side: bytes per second of a copy, a slice of which each thread makes."""
    slices = [np.array_split(each, threads) for each in (target, source)]
    pool = ThreadPoolExecutor(threads)
    return lambda _: len(source) / timed(lambda: list(pool.map(np.copyto, *slices)))[0]


if __name__ == "__main__":
    main()
