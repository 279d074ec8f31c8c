"""How long does an epoch of training take on a graph of the size of ogbn-products, and how long does the model alone?

The graph is a power-law graph of make_graph.py: 2.4M nodes, 124M edges, 100 floats a node. 196,615 nodes are seeds, as
many as ogbn-products trains on: 193 minibatches of 1,024, fanouts [15, 10, 5]. GraphSAGE of 3 layers, 256 wide. Worker
processes of a DataLoader sample. With a GPU, the features are page-locked and read by it (UVA), or lie on it; without,
they are fetched on the CPU. Each way trains --epochs epochs to their end; the last one counts: in the first the workers
start. Beside it: the loader alone and sampling alone, over an epoch each, and the model alone, over 16 minibatches that
stay on the device. The model's share of an epoch is the time of as many steps of the model alone, over the epoch's.
Memory: the most that this process had resident, what the workers alone have, and the most on the GPU.
Run: python benchmarks/products_size.py --graph GRAPH --device cuda
Result (2-core Intel Xeon VM without a GPU, shared, commit 6c25d5c; --device cpu --workers 1 --epochs 1): sampling alone
76 minibatches/s (57 M edges/s), 2.5 s an epoch; the loader alone 26 minibatches/s. The epoch of 193 steps took 129 s,
1.5 minibatches/s; the model alone takes 412 ms a step, 0.62 of that. 366,000 input nodes a minibatch. 5.5 GB resident
at most, and 0.05 GB that only the worker has.
NVIDIA H200, 16-core VM, 8 workers, commit 90e15b3: sampling alone 574 minibatches/s (429 M edges/s), 0.34 s an epoch.
An epoch takes 1.08 s by UVA (the loader alone 252 minibatches/s), 0.85 s with the features on the GPU (464); the model
alone takes 3.3 ms a step, 0.59 and 0.75 of that. 1.1 GB on the GPU, 2.1 with the features; 4.9 GB resident at most.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterable
from multiprocessing import active_children
from pathlib import Path

import numpy as np
import torch
from common import Figures, Training, lacks_gpu, load_graph, parser, report_parts, timed
from loader import private_bytes

import datapipes as dp

TRAIN_NODES = 196_615
FANOUTS = [15, 10, 5]
STAYING = 16  # minibatches that stay on the device


def main() -> None:
    args = arguments()
    if args.device == "cuda" and lacks_gpu("products_size"):
        return
    device = torch.device(args.device)
    seconds, (graph, rows) = timed(lambda: load_graph(args.graph))
    bench = Bench(graph, rows, device, args)
    known: Figures = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "nodes": float(graph.num_nodes),
        "edges": float(graph.num_edges),
        "seconds to load": seconds,
    }
    ways = ("UVA", "features on the GPU") if device.type == "cuda" else ("CPU fetch",)
    parts: dict[str, Callable[[], Figures]] = {"sampling alone": bench.sampling, "the model alone": bench.model}
    parts |= {way: lambda way=way: bench.epochs(way) for way in ways}
    report_parts({**parts, "memory": bench.memory}, args.json, known)


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--workers", type=int, default=min(8, (os.cpu_count() or 2) // 2), help="worker processes")
    options.add_argument("--hidden", type=int, default=256, help="width of the model")
    options.add_argument("--batch-size", type=int, default=1024)
    options.add_argument("--train-nodes", type=int, default=TRAIN_NODES, help="seeds of an epoch")
    options.add_argument("--epochs", type=int, default=2, help="of each way to fetch")
    options.add_argument("--steps", type=int, help="the most steps of an epoch, to try the script")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return options.parse_args()


class Bench:
    """The chains, the model, and what is measured of them."""

    def __init__(self, graph: dp.CSCGraph, rows: np.ndarray, device: torch.device, args: argparse.Namespace) -> None:
        self._rows, self._device, self._args = torch.from_numpy(rows), device, args
        drawn = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
        seeds = drawn[: min(args.train_nodes, graph.num_nodes)].sort().values
        items = dp.ItemSampler(dp.ItemSet(seeds), args.batch_size, shuffle=True, seed=1)
        self._sampled = items.sample_neighbor(graph, FANOUTS)
        self._train = Training(graph.num_nodes, rows.shape[1], args.hidden, len(FANOUTS), device)
        self._model_s = self._workers_bytes = float("nan")

    def sampling(self) -> Figures:
        """Sampling to the end of an epoch, with nothing behind it."""
        edges = 0

        def count(minibatch: dp.MiniBatch) -> None:
            nonlocal edges
            edges += sum(block.num_edges for block in minibatch.blocks)

        with dp.DataLoader(self._sampled, self._args.workers) as loader:
            for _ in range(2):
                edges = 0
                seconds, steps = self._epoch(loader, count)
        return {
            "sampling alone (s an epoch)": seconds,
            "sampling alone (minibatches/s)": steps / seconds,
            "sampling alone (M edges/s)": edges / seconds / 1e6,
        }

    def model(self) -> Figures:
        """The model, over minibatches that are on the device."""
        chain = self._chain("CPU fetch")
        staying = [*itertools.islice(chain, STAYING)]
        chain.close()
        for _ in range(2):
            seconds, steps = self._epoch(staying, self._train)
        self._model_s = seconds / steps
        return {
            "the model alone (ms a step)": self._model_s * 1e3,
            "input nodes of a minibatch": sum(len(each.input_nodes) for each in staying) / len(staying),
        }

    def epochs(self, way: str) -> Figures:
        """Epochs of training, and then the loader alone."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        with dp.DataLoader(self._chain(way), self._args.workers) as loader:
            print(loader.explain(), flush=True)
            trained = [self._epoch(loader, self._train) for _ in range(self._args.epochs)]
            seconds, steps = trained[-1]
            alone, _ = self._epoch(loader, None)
            workers = [each.pid for each in active_children() if each.name.startswith("datapipes-worker") and each.pid]
            self._workers_bytes = sum(map(private_bytes, workers))
        found: Figures = {
            f"{way}: steps of an epoch": float(steps),
            f"{way}: first epoch, start of the workers too (s)": trained[0][0],
            f"{way}: epoch (s)": seconds,
            f"{way}: epoch (minibatches/s)": steps / seconds,
            f"{way}: loader alone (minibatches/s)": steps / alone,
            f"{way}: the model's share of an epoch": self._model_s * steps / seconds,
        }
        if self._device.type == "cuda":
            found[f"{way}: peak memory on the GPU (GB)"] = torch.cuda.max_memory_allocated() / 1e9
        return found

    def memory(self) -> Figures:
        return {
            "peak resident memory of this process (GB)": resident_peak() / 1e9,
            "private memory of all workers (GB)": self._workers_bytes / 1e9,
        }

    def _epoch(
        self, minibatches: Iterable[dp.MiniBatch], work: Callable[[dp.MiniBatch], None] | None
    ) -> tuple[float, int]:
        """Return (seconds, steps) of an epoch, until the device has done all of it."""
        steps, began = 0, time.perf_counter()
        for minibatch in itertools.islice(minibatches, self._args.steps):
            steps += 1
            if work is not None:
                work(minibatch)
        self._train.finish()
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began, steps

    def _chain(self, way: str) -> dp.Stage:
        if way == "UVA":
            return self._copied(dp.TensorFeature(self._rows).pin_memory_())
        if way == "features on the GPU":
            return self._copied(dp.TensorFeature(self._rows.to(self._device)))
        return self._sampled.fetch_feature(store_of(dp.TensorFeature(self._rows)), ["feat"]).copy_to(self._device)

    def _copied(self, feature: dp.TensorFeature) -> dp.Stage:
        return self._sampled.copy_to(self._device).fetch_feature(store_of(feature), ["feat"])


def store_of(feature: dp.TensorFeature) -> dp.FeatureStore:
    return dp.FeatureStore({("node", None, "feat"): feature})


def resident_peak() -> float:
    """Return the most bytes that this process had resident."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
