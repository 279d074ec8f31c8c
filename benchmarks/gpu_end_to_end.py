"""How much longer is a training step with minibatches from a chain than with minibatches that are on the GPU already?

1,024 seeds, fanouts [15, 10, 5], GraphSAGE of 3 layers, 256 wide, over node features (512 bytes per node on the graph
that gpu_all.sh makes). DataLoader with worker processes; the rest runs ahead, beside the model. Features are read from
page-locked memory by the GPU (UVA), lie on the GPU, or are fetched on the CPU and copied; each stored as float32 and as
float16. Each in alternation with the same model over 16 minibatches that stay on the GPU; the loader stays, and steps
that use up what was made ahead are not counted; 40 steps per measurement, median of 5. Wanted: at most 1.1 x the step
over minibatches on the GPU. Beside them: sampling alone, and the bytes that a minibatch's features take.
Without a GPU it says so, and is done; `--device cpu` runs the same chains without one, to try the script.
Run: python benchmarks/gpu_end_to_end.py --graph GRAPH
Result (NVIDIA H200, 16-core VM, 8 workers, commit 90e15b3; 107 MB of features a minibatch, sampling 1.05 ms): a step
takes 1.51 times the step over minibatches on the GPU (3.5 ms) by UVA, 1.47 with features on the GPU, 2.12 fetched on
the CPU; as float16 1.42, 1.38, 1.56 (at 7366c06 1.51, 1.44, 1.73; 1.57, 1.58, 1.56). So 1.1 is missed: this GPU works
for half of such a step, and for the rest it waits for Python, which runs one thread at a time, the model's or the
loader's. With --hidden 1024 (5.07 ms, commit 2451f37), where the GPU has work all the time: 1.24, 1.015, 1.30; as
float16 1.07, 1.08, 1.12. A float32 minibatch takes the link 2.3 ms by UVA. Tried, and no gain: the copies of minibatch
i + 1 queued by the thread that takes i, 1.58 where the thread of the loader takes 1.69, and 1.45 where it takes 1.44.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from common import Figures, Training, alternate, lacks_gpu, load_graph, parser, report_parts

import datapipes as dp

FANOUTS = [15, 10, 5]
STAYING = 16  # minibatches that stay on the GPU
STORED = (None, "float16")
WAYS = ("UVA", "features on the GPU", "CPU fetch and copy")


def main() -> None:
    args = arguments(__doc__)
    if args.device == "cuda" and lacks_gpu("gpu_end_to_end"):
        return
    device = torch.device(args.device)
    graph, rows = load_graph(args.graph)
    bench = Bench(graph, rows, device, args)
    train = Training(graph.num_nodes, rows.shape[1], args.hidden, len(FANOUTS), device)
    staying = bench.staying()
    best = Steps(endless(staying), train, args)
    widths = [minibatch.node_features["feat"].nbytes for minibatch in staying]

    def beside(name: str, stored_as: str | None) -> Figures:
        with dp.DataLoader(bench.chain(name, stored_as), args.workers) as loader:
            print(loader.explain(), flush=True)
            sides: dict[str, Callable[[int], float]] = {"best": best, "loader": Steps(endless(loader), train, args)}
            rates = alternate(sides, args.repeats, warm_ups=1)
        label = f"{name}, {stored_as or 'float32'}"
        return {
            f"{label} (ms a step)": 1e3 / rates["loader"],
            f"{label}: on the GPU already (ms a step)": 1e3 / rates["best"],
            f"{label}: time of a step, ratio to on the GPU already": rates["best"] / rates["loader"],
        }

    def sampling_alone() -> Figures:
        with dp.DataLoader(bench.sampled, args.workers) as loader:
            rates = alternate({"sampling": Steps(endless(loader), None, args)}, args.repeats, warm_ups=1)
        return {"sampling alone (ms a step)": 1e3 / rates["sampling"]}

    parts: dict[str, Callable[[], Figures]] = {
        f"{name}, {stored_as or 'float32'}": lambda name=name, stored_as=stored_as: beside(name, stored_as)
        for stored_as in STORED
        for name in WAYS
    }
    known: Figures = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "features of a minibatch (MB)": sum(widths) / len(widths) / 1e6,
    }
    report_parts({"sampling alone": sampling_alone, **parts}, args.json, known)


def arguments(doc: str | None) -> argparse.Namespace:
    options = parser(doc or "")
    options.set_defaults(repeats=5)
    options.add_argument("--workers", type=int, default=min(8, (os.cpu_count() or 2) // 2), help="worker processes")
    options.add_argument("--hidden", type=int, default=256, help="width of the model")
    options.add_argument("--batch-size", type=int, default=1024)
    options.add_argument("--steps", type=int, default=40, help="of each measurement")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script")
    return options.parse_args()


class Bench:
    """The chains; with `bucket`, minibatches are padded."""

    def __init__(
        self, graph: dp.CSCGraph, rows: np.ndarray, device: torch.device, args: argparse.Namespace, bucket: Any = None
    ) -> None:
        items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), args.batch_size, shuffle=True, seed=1)
        self.sampled = items.sample_neighbor(graph, FANOUTS)
        if bucket is not None:
            self.sampled = self.sampled.pad(bucket)
        self._rows, self._device = torch.from_numpy(rows), device

    def staying(self) -> list[dp.MiniBatch]:
        """Return minibatches that lie on the device."""
        chain = self._fetched_first(dp.TensorFeature(self._rows))
        found = [*itertools.islice(chain, STAYING)]
        chain.close()
        return found

    def chain(self, name: str, stored_as: str | None) -> dp.Stage:
        """Return the chain of one of WAYS."""
        if name == "CPU fetch and copy":
            return self._fetched_first(dp.TensorFeature(self._rows, stored_as=stored_as))
        if name == "features on the GPU":
            return self.with_feature(dp.TensorFeature(self._rows.to(self._device), stored_as=stored_as))
        pinned = dp.TensorFeature(self._rows.clone(), stored_as=stored_as)
        return self.with_feature(pinned.pin_memory_() if self._device.type == "cuda" else pinned)

    def _fetched_first(self, feature: dp.Feature) -> dp.Stage:
        return self.sampled.fetch_feature(_store(feature), ["feat"]).copy_to(self._device)

    def with_feature(self, feature: dp.Feature) -> dp.Stage:
        """Return the chain that reads a feature where it lies, if the device can."""
        if isinstance(feature, dp.DiskFeature):
            return self._fetched_first(feature)
        return self.sampled.copy_to(self._device).fetch_feature(_store(feature), ["feat"])


def _store(feature: dp.Feature) -> dp.FeatureStore:
    return dp.FeatureStore({("node", None, "feat"): feature})


def endless(minibatches: dp.DataLoader | list[dp.MiniBatch]) -> Iterator[dp.MiniBatch]:
    """Yield the minibatches, epoch after epoch."""
    while True:
        yield from minibatches


class Steps:
    """Steps per second. What the loader made ahead, while others were measured, is used up before the clock starts."""

    def __init__(self, minibatches: Iterator[dp.MiniBatch], train: Training | None, args: argparse.Namespace) -> None:
        self._minibatches, self._train = minibatches, train
        self._steps, self._ahead = args.steps, 4 * max(args.workers, 1)

    def __call__(self, _: int) -> float:
        self._run(self._ahead)
        began = time.perf_counter()
        self._run(self._steps)
        return self._steps / (time.perf_counter() - began)

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            minibatch = next(self._minibatches)
            if self._train is not None:
                self._train(minibatch)
        if self._train is not None:
            self._train.finish()


if __name__ == "__main__":
    main()
