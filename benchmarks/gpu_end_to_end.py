"""How much longer is a training step with minibatches from a chain than with minibatches that are on the GPU already?

1,024 seeds, fanouts [15, 10, 5], GraphSAGE of 3 layers, 256 wide, over node features (512 bytes per node on the graph
that gpu_all.sh makes). DataLoader with worker processes; the rest runs ahead, beside the model. Features are read from
page-locked memory by the GPU (UVA), lie on the GPU, or are fetched on the CPU and copied; each stored as float32 and as
float16. Beside them: the same model over 16 minibatches that stay on the GPU, sampling alone, and the bytes that a
minibatch's features take. All in alternation; the loaders stay, and steps that use up what was made ahead are not
counted; 40 steps per measurement, median of 5. Wanted: at most 1.1 x the step over minibatches on the GPU.
Without a GPU it says so, and is done; `--device cpu` runs the same chains without one, to try the script.
Run: python benchmarks/gpu_end_to_end.py --graph GRAPH
Result (2-core VM without a GPU, commit d24ce11): nothing was measured; 1.1 x is wanted.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from common import Training, alternate, load_graph, parser, report

import datapipes as dp

FANOUTS = [15, 10, 5]
STAYING = 16  # minibatches that stay on the GPU
STORED = {"float32": None, "float16": "float16"}


def main() -> None:
    args = arguments()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("gpu_end_to_end: there is no CUDA device here, so nothing is measured")
        return
    device = torch.device(args.device)
    graph, rows = load_graph(args.graph)
    bench = Bench(graph, device, args)
    train = Training(graph.num_nodes, rows.shape[1], args.hidden, len(FANOUTS), device)
    loaders = bench.loaders(rows)
    staying = [next(loaders["UVA, float32"]) for _ in range(STAYING)]
    widths = [minibatch.node_features["feat"].nbytes for minibatch in staying]
    sides: dict[str, Callable[[int], float]] = {"on the GPU already": Steps(endless(staying), train, args)}
    sides |= {name: Steps(loader, train, args) for name, loader in loaders.items()}
    sides["sampling alone"] = Steps(bench.sampled(), None, args)
    rates = alternate(sides, args.repeats, warm_ups=1)
    best = rates["on the GPU already"]
    figures: dict[str, float | str] = {f"{name} (ms a step)": 1e3 / rate for name, rate in rates.items()}
    figures |= {f"{name}: time of a step, ratio to on the GPU already": best / rates[name] for name in loaders}
    figures["features of a minibatch (MB)"] = sum(widths) / len(widths) / 1e6
    figures["device"] = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    report(figures, args.json)
    bench.close()


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.set_defaults(repeats=5)
    options.add_argument("--workers", type=int, default=min(8, (os.cpu_count() or 2) // 2), help="worker processes")
    options.add_argument("--hidden", type=int, default=256, help="width of the model")
    options.add_argument("--batch-size", type=int, default=1024)
    options.add_argument("--steps", type=int, default=40, help="of each measurement")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script")
    return options.parse_args()


class Bench:
    """The chains, and the loaders that are open."""

    def __init__(self, graph: dp.CSCGraph, device: torch.device, args: argparse.Namespace) -> None:
        items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), args.batch_size, shuffle=True, seed=1)
        self._sampled = items.sample_neighbor(graph, FANOUTS)
        self._device, self._workers = device, args.workers
        self._open: list[dp.DataLoader] = []

    def loaders(self, rows: np.ndarray) -> dict[str, Iterator[dp.MiniBatch]]:
        """Return the minibatches of each way, for each way to store the rows."""
        on_gpu = self._device.type == "cuda"
        values = torch.from_numpy(rows)
        found = {}
        for name, stored_as in STORED.items():
            pinned, plain = (dp.TensorFeature(values.clone(), stored_as=stored_as) for _ in range(2))
            there = dp.TensorFeature(values.to(self._device), stored_as=stored_as)
            if on_gpu:
                pinned.pin_memory_()
            found[f"UVA, {name}"] = self._delivered(self._copied_first(pinned), on_gpu)
            found[f"features on the GPU, {name}"] = self._delivered(self._copied_first(there), on_gpu)
            fetched = self._sampled.fetch_feature(_store(plain), ["feat"]).copy_to(self._device)
            found[f"CPU fetch and copy, {name}"] = self._delivered(fetched, on_gpu)
        return found

    def sampled(self) -> Iterator[dp.MiniBatch]:
        """Return sampled minibatches in host memory."""
        return self._delivered(self._sampled, False)

    def close(self) -> None:
        """End the worker processes."""
        for loader in self._open:
            loader.close()

    def _copied_first(self, feature: dp.TensorFeature) -> dp.Stage:
        return self._sampled.copy_to(self._device).fetch_feature(_store(feature), ["feat"])

    def _delivered(self, chain: dp.Stage, on_gpu: bool) -> Iterator[dp.MiniBatch]:
        loader = dp.DataLoader(chain, self._workers)
        if on_gpu:
            print(loader.explain(), flush=True)
        self._open.append(loader)
        return endless(loader)


def _store(feature: dp.TensorFeature) -> dp.FeatureStore:
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
