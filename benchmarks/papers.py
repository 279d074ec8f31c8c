"""Does a graph of the size of ogbn-papers100M train in 24 GiB of memory, and how long do its build and an epoch take?

The graph is as large as the published one: 111,059,956 nodes and 1,615,685,872 edges, with 128 float32 features a node,
stored as float16 (28 GB). Both ends of an edge are drawn as in make_graph.py: with probability proportional to a Pareto
(2.1) weight of at most sqrt(nodes). A label is one of 172 classes; the features of a node are noise and the pattern of
its class, so that a loss can fall. Everything is a function of a seed; no array of all edges or features is in memory.

Parts (--parts), each on what the parts before it left in --folder:
"build": CSCGraph.build of a callable that makes chunks of edges, max_memory 4 GB.
"features": DiskFeature.write of pieces.
"train": GraphSAGE ([15, 10, 5], 256 wide, Adam) over 1,207,179 seeds, 1,024 at a time, for an epoch or --minutes. The
graph is read into memory; features come through a CPUCachedFeature from the disk. Memory, bytes read and losses.
With --policy static the cache has the rows that epoch 0 asks for most often, which is counted before epoch 1 trains.
"digest": a scaled copy built in memory and on disk: the digests of its minibatches, with features from a tensor and
from the disk, must be equal.
"growth": builds of 10^5 to 10^8 edges in the same max_memory; with the whole build they give the exponent of growth.
"partition": 4 parts of the built graph, by the streaming method.
Nodes, edges and seeds are divided by --scale, 100 by default.
Run: python benchmarks/papers.py --folder FOLDER --scale 1 --policy static
Result (2-core AMD EPYC VM with 23 GiB, ext4 on a virtual disk; build on a busy machine, commit 921b076; training
7288fb4, with --cache 8GB; the rest c2173a9): build 296 s (5.5 M edges/s; making the edges takes 99), 4.5 GB of memory,
7.4 GB on the disk. Features 808 s, 28.4 GB. A whole epoch of 1,179 minibatches in 27.5 min, 0.71 minibatches/s; the
loss from 5.07 to 1.46 (means of 20). 407,000 input nodes a minibatch, 0.757 of them in the cache; 504 GB read from the
disk for 36 GB of rows. The model takes 0.40 s a step, and waits for 0.71 of the epoch: the disk gives 60,000 to 75,000
rows/s. 18.3 GB resident at most. Counting epoch 0 took 26 s, filling the cache 42, reading the graph 17. Scaled copies
have equal digests. Builds of 10^5, 10^6, 10^7 and 10^8 edges take 0.023, 0.074, 1.27 and 8.7 s: exponent 0.90, and
0.98 from 10^5 to 1.6 x 10^9. A tenth of the graph in 4 parts: 95 s, 1.7 M edges/s.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import Figures, parser, report_parts, timed
from consumers import GraphSAGE
from products_size import resident_peak, store_of
from torch.nn import functional as F

import datapipes as dp

NODES, EDGES, SEEDS = 111_059_956, 1_615_685_872, 1_207_179
COLUMNS, CLASSES, FANOUTS, BATCH = 128, 172, [15, 10, 5], 1024
CHUNK = 2**23  # edges
PIECE = 2**17  # rows of features
SHAPE = 1.1  # of the Pareto weights
GROWTH = (10**5, 10**6, 10**7, 10**8)
PARTS = ("build", "features", "train", "digest", "growth", "partition")


def main() -> None:
    args = arguments()
    torch.set_num_threads(os.cpu_count() or 1)
    with contextlib.ExitStack() as stack:
        if args.folder is None:
            args.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        bench = Bench(args)
        report_parts({part: getattr(bench, part) for part in args.parts}, args.json, {"scale": float(args.scale)})


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--folder", type=Path, help="with 50 GB free at scale 1; by default a temporary one")
    options.add_argument("--scale", type=float, default=100, help="divides nodes, edges and seeds")
    options.add_argument("--minutes", type=float, default=90, help="of training, at most")
    options.add_argument("--max-memory", default="4GB", help="of the build")
    options.add_argument("--cache", default="9GB", help="of the features")
    options.add_argument("--policy", choices=("sieve", "lru", "static"), default="sieve", help="of the cache")
    options.add_argument("--workers", type=int, default=1, help="threads that sample")
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    return options.parse_args()


class Drawn:
    """The edges, labels and features of a graph of so many nodes, as functions of their places."""

    def __init__(self, num_nodes: int, num_edges: int) -> None:
        self.num_nodes, self.num_edges = num_nodes, num_edges
        # A node of rank x in (0, 1) weighs x^(-1 / SHAPE), at most sqrt(num_nodes): it is reached at rank `_even`.
        most = math.sqrt(num_nodes)
        self._even, self._power = most**-SHAPE, 1 - 1 / SHAPE
        self._of_even = most * self._even
        self._all = self._of_even + (1 - self._even**self._power) / self._power
        self._stride = next(
            each for each in range(num_nodes * 618 // 1000, num_nodes * 2) if math.gcd(each, num_nodes) == 1
        )
        rng = np.random.default_rng(0)
        self._patterns = torch.from_numpy(rng.standard_normal((CLASSES, COLUMNS), np.float32)) * 0.3
        self._noise = torch.from_numpy(rng.standard_normal((2**16, COLUMNS), np.float32))

    def chunks(self) -> Iterator[np.ndarray]:
        """Yield edges [2, n], the same ones each time."""
        for number, begin in enumerate(range(0, self.num_edges, CHUNK)):
            rng = np.random.default_rng((1, number))
            yield self._nodes(rng.random((2, min(CHUNK, self.num_edges - begin))))

    def _nodes(self, chance: np.ndarray) -> np.ndarray:
        """Return the nodes at these places of the distribution; neighbors in rank are far apart as ids."""
        reached = chance * self._all
        tail = np.maximum(reached - self._of_even, 0) * self._power + self._even**self._power
        rank = np.where(reached < self._of_even, reached / self._of_even * self._even, tail ** (1 / self._power))
        places = np.minimum((rank * self.num_nodes).astype(np.int64), self.num_nodes - 1)
        return (places * self._stride % self.num_nodes).astype(np.int32)

    def labels(self, ids: torch.Tensor) -> torch.Tensor:
        return _hashed(ids, 17) % CLASSES

    def features(self) -> Iterator[torch.Tensor]:
        """Yield rows [n, COLUMNS]."""
        for begin in range(0, self.num_nodes, PIECE):
            ids = torch.arange(begin, min(begin + PIECE, self.num_nodes))
            yield self._patterns[self.labels(ids)] + self._noise[_hashed(ids, 23) % len(self._noise)]

    def seeds(self, count: int) -> torch.Tensor:
        chosen = np.random.default_rng(2).choice(self.num_nodes, count, replace=False, shuffle=False)
        return torch.from_numpy(np.sort(chosen))


def _hashed(ids: torch.Tensor, salt: int) -> torch.Tensor:
    mixed = (ids.long() + salt) * 0x9E3779B97F4A7C1 & 0x7FFFFFFFFFFFFFFF
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5 >> 20 & 0xFFFFFFFF


class Bench:
    """The parts of the benchmark."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args, self._folder = args, args.folder
        self._drawn = Drawn(round(NODES / args.scale), round(EDGES / args.scale))
        self._seeds = max(round(SEEDS / args.scale), BATCH)
        self._folder.mkdir(parents=True, exist_ok=True)

    def build(self) -> Figures:
        before = resident_peak()
        drawn, target = self._drawn, self._folder / "graph"
        made, _ = timed(lambda: sum(each.shape[1] for each in drawn.chunks()))
        seconds, graph = timed(lambda: _built(drawn, target, self._args.max_memory))
        return {
            "edges": float(graph.num_edges),
            "make the edges alone (s)": made,
            "build (s)": seconds,
            "build (M edges/s)": graph.num_edges / seconds / 1e6,
            "peak resident memory of the build, beyond the process (GB)": (resident_peak() - before) / 1e9,
            "graph on disk (GB)": _size(target) / 1e9,
        }

    def features(self) -> Figures:
        path = self._folder / "feat.rows"
        seconds, feature = timed(lambda: _written(self._drawn, path))
        return {"features (s)": seconds, "features (GB)": path.stat().st_size / 1e9, "rows": float(feature.count)}

    def train(self) -> Figures:
        load_s, graph = timed(lambda: dp.CSCGraph.open(self._folder / "graph", mmap=False))
        disk = dp.DiskFeature(self._folder / "feat.rows")
        sampled = self._sampled(graph)
        count_s, counts = 0.0, None
        if self._args.policy == "static":
            store = store_of(disk)
            count_s, found = timed(lambda: dp.count_accesses(sampled.fetch_feature(store, ["feat"])))
            counts = found["node", None, "feat"]
            print(f"counted epoch 0 in {count_s:.0f} s", flush=True)
        fill_s, cached = timed(lambda: dp.CPUCachedFeature(disk, self._args.cache, self._args.policy, counts=counts))
        torch.manual_seed(0)
        model = GraphSAGE([COLUMNS, 256, 256, CLASSES])
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        losses, waited, trained, nodes = [], 0.0, 0.0, 0
        chain = sampled.fetch_feature(store_of(cached), ["feat"])
        with dp.DataLoader(chain, self._args.workers, worker_method="thread") as loader:
            print(loader.explain(), flush=True)
            loader.set_epoch(1)  # epoch 0 may have been counted
            began = asked = time.perf_counter()
            for step, minibatch in enumerate(loader):
                got = time.perf_counter()
                scores = model(minibatch.node_features["feat"], minibatch.blocks)
                loss = F.cross_entropy(scores, self._drawn.labels(minibatch.seeds))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                nodes += len(minibatch.input_nodes)
                waited, trained = waited + got - asked, trained + time.perf_counter() - got
                asked = time.perf_counter()
                if step % 20 == 0:
                    stats = cached.stats()
                    share = stats["hits"] / max(stats["hits"] + stats["misses"], 1)
                    print(
                        f"step {step}: loss {np.mean(losses[-20:]):.3f}, {(step + 1) / (asked - began):.3f} "
                        f"minibatches/s, hits {share:.3f}, {stats['disk_bytes'] / 1e9:.1f} GB read, "
                        f"{resident_peak() / 1e9:.1f} GB resident at most",
                        flush=True,
                    )
                if asked - began > 60 * self._args.minutes:
                    break
            seconds = time.perf_counter() - began
        steps, of_epoch = len(losses), math.ceil(self._seeds / BATCH)
        stats = cached.stats()
        return {
            "read the graph (s)": load_s,
            "count an epoch's accesses (s)": count_s,
            "fill the cache (s)": fill_s,
            "steps": float(steps),
            "steps of an epoch": float(of_epoch),
            "minibatches/s": steps / seconds,
            "an epoch at that rate (min)": of_epoch * seconds / steps / 60,
            "waited for minibatches (share)": waited / seconds,
            "model (s a step)": trained / steps,
            "input nodes of a minibatch": nodes / steps,
            "hits of the cache (share)": stats["hits"] / max(stats["hits"] + stats["misses"], 1),
            "read from the disk (GB)": stats["disk_bytes"] / 1e9,
            "of that, rows (GB)": stats["row_bytes"] / 1e9,
            "loss of the first 20 steps": float(np.mean(losses[:20])),
            "loss of the last 20 steps": float(np.mean(losses[-20:])),
            "peak resident memory (GB)": resident_peak() / 1e9,
            "major page faults": float(resource.getrusage(resource.RUSAGE_SELF).ru_majflt),
        }

    def digest(self) -> Figures:
        drawn = Drawn(NODES // 10_000, EDGES // 10_000)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            whole = dp.CSCGraph.from_edge_index(np.concatenate([*drawn.chunks()], axis=1), drawn.num_nodes)
            built = _built(drawn, Path(folder) / "graph", "16MB")
            rows = dp.TensorFeature(torch.cat([*drawn.features()]), stored_as="float16")
            cached = dp.CPUCachedFeature(_written(drawn, Path(folder) / "feat.rows"), "1MB")
            of_each = []
            for graph, feature in ((whole, rows), (built, cached)):
                items = dp.ItemSampler(dp.ItemSet(drawn.seeds(4096)), BATCH, shuffle=True, seed=1)
                chain = items.sample_neighbor(graph, FANOUTS).fetch_feature(store_of(feature), ["feat"])
                with dp.DataLoader(chain, 1, worker_method="thread") as loader:
                    of_each.append([minibatch.digest() for minibatch in loader])
        if of_each[0] != of_each[1]:
            raise AssertionError("the minibatches in memory and on disk differ")
        return {"minibatches with equal digests": float(len(of_each[0]))}

    def growth(self) -> Figures:
        figures: Figures = {}
        taken = {}
        for num_edges in GROWTH:
            drawn = Drawn(max(num_edges * NODES // EDGES, 1), num_edges)
            with tempfile.TemporaryDirectory(dir=self._folder) as folder:
                taken[num_edges] = min(
                    timed(lambda: _built(drawn, Path(folder) / str(turn), self._args.max_memory))[0]  # noqa: B023
                    for turn in range(3)
                )
            figures[f"build of {num_edges:.0e} edges (s)"] = taken[num_edges]
        slope, _ = np.polyfit(np.log([*taken]), np.log([*taken.values()]), 1)
        return {**figures, "exponent of the growth": float(slope)}

    def partition(self) -> Figures:
        graph = dp.CSCGraph.open(self._folder / "graph")
        target = self._folder / "parts"
        shutil.rmtree(target, ignore_errors=True)
        partitioner = dp.distributed.Partitioner(graph, 4, target, method="fennel", layouts="native")
        seconds, _ = timed(partitioner.generate_partition)
        size = _size(target)
        shutil.rmtree(target)
        return {
            "partition in 4 (s)": seconds,
            "partition (M edges/s)": graph.num_edges / seconds / 1e6,
            "parts on disk (GB)": size / 1e9,
            "peak resident memory after it (GB)": resident_peak() / 1e9,
        }

    def _sampled(self, graph: dp.CSCGraph) -> dp.Stage:
        items = dp.ItemSampler(dp.ItemSet(self._drawn.seeds(self._seeds)), BATCH, shuffle=True, seed=1)
        return items.sample_neighbor(graph, FANOUTS)


def _built(drawn: Drawn, target: Path, max_memory: str) -> dp.CSCGraph:
    shutil.rmtree(target, ignore_errors=True)
    return dp.CSCGraph.build(drawn.chunks, target, drawn.num_nodes, max_memory=max_memory)


def _written(drawn: Drawn, path: Path) -> dp.DiskFeature:
    pieces: Callable[[], Iterator[torch.Tensor]] = drawn.features
    return dp.DiskFeature.write(path, pieces, stored_as="float16")


def _size(folder: Path) -> int:
    return sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())


if __name__ == "__main__":
    main()
