"""How long is a training step of fixed shapes, captured in a CUDA graph, alone and beside the loader?

1,024 seeds, fanouts [15, 10, 5], GraphSAGE of 3 layers, 256 and 1,024 wide, over node features (512 bytes per node on
the graph that gpu_all.sh makes). `pad` gives one bucket, and `copy_to(into=)` behind the DataLoader fills the memory
that the captured step reads (forward, backward, optimizer). Alone: the model over minibatches that are on the GPU,
eager without padding and captured with it. Beside the loader: eager with features on the GPU, and captured with
features on the GPU, read by UVA as float32 and float16, through a GPUCachedFeature of a quarter of the rows, and from a
DiskFeature, which the CPU reads into page-locked memory. All in alternation; what the loader made ahead is used up
before the clock starts; 40 steps per measurement, median of 5. Wanted, 256 wide: the captured step beside the loader
at most 1.1 x the captured step alone, and below the eager model alone. Then what other threads than the training loop
ask of CUDA for a minibatch, in calls and microseconds (a profile of 12 steps).
Without a GPU it says so, and is done; `--device cpu` runs the same chains and steps without capture, to try the script.
Run: python benchmarks/gpu_captured.py --graph GRAPH
Result (2-core VM without a GPU, commit e386fe7): tried with `--device cpu`, 7 rows for each width; no figure counts.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from common import Figures, Training, alternate, lacks_gpu, load_graph, report_parts
from gpu_end_to_end import FANOUTS, Bench, Steps, arguments, endless

import datapipes as dp

WIDTHS = (256, 1024)
TRACED = 12  # steps
NO_CLASS = -100  # the label that the loss leaves out


class Captured(Training):
    """Training whose step is captured for each bucket; all minibatches of a bucket must lie in the same memory."""

    def __init__(self, *sizes: Any) -> None:
        super().__init__(*sizes, capturable=sizes[-1].type == "cuda")
        self._graphs: dict[int | None, torch.cuda.CUDAGraph] = {}

    def __call__(self, minibatch: dp.MiniBatch) -> None:
        if minibatch.seeds.device.type == "cpu":
            self._learn_from(minibatch)
            return
        if minibatch.bucket not in self._graphs:
            self._graphs[minibatch.bucket] = self._capture(minibatch)
        self._graphs[minibatch.bucket].replay()
        self.keep_pace()

    def _learn_from(self, minibatch: dp.MiniBatch) -> None:
        labels = self._labels[minibatch.seeds].masked_fill(minibatch.seeds < 0, NO_CLASS)
        self.learn(minibatch.node_features["feat"], minibatch.blocks, labels)

    def _capture(self, minibatch: dp.MiniBatch) -> torch.cuda.CUDAGraph:
        beside = torch.cuda.Stream()
        beside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(beside):  # libraries allocate their memory in the first steps
            for _ in range(3):
                self._learn_from(minibatch)
        torch.cuda.current_stream().wait_stream(beside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # the loader uses the GPU meanwhile
            self._learn_from(minibatch)
        return graph


def main() -> None:
    args = arguments(__doc__)
    if args.device == "cuda" and lacks_gpu("gpu_captured"):
        return
    device = torch.device(args.device)
    graph, rows = load_graph(args.graph)
    bench = Bench(graph, rows, device, args)
    padded = Bench(graph, rows, device, args, bucket=dp.measure_sizes(bench.sampled))
    widths = WIDTHS if args.hidden == WIDTHS[0] else (args.hidden,)

    def measured(width: int) -> Figures:
        sizes = (graph.num_nodes, rows.shape[1], width, len(FANOUTS), device)
        with tempfile.TemporaryDirectory() as folder, ExitStack() as open_loaders:
            stores = features_of(rows, device, Path(folder, "feat.rows"))

            def loader(bench: Bench, feature: dp.Feature) -> dp.DataLoader:
                made = dp.DataLoader(bench.with_feature(feature), args.workers)
                return open_loaders.enter_context(made)

            def captured(minibatches: Any) -> Steps:
                return Steps(endless(minibatches), Captured(*sizes), args)

            sides: dict[str, Callable[[int], float]] = {
                "eager, alone": Steps(endless(bench.staying()), Training(*sizes), args),
                "captured, alone": captured(padded.staying()[:1]),
                "eager, features on the GPU": Steps(
                    endless(loader(bench, stores["features on the GPU"])), Training(*sizes), args
                ),
            }
            loaders = {name: loader(padded, feature) for name, feature in stores.items()}
            for name, of_name in loaders.items():
                sides[f"captured, {name}"] = captured(of_name.copy_to(device, into={}))
            rates = alternate(sides, args.repeats, warm_ups=1)
            figures: Figures = {f"{width} wide: {name} (ms a step)": 1e3 / rate for name, rate in rates.items()}
            for name in loaders:
                ratio = rates["captured, alone"] / rates[f"captured, {name}"]
                figures[f"{width} wide: {name}: captured step, ratio to alone"] = ratio
                ratio = rates["eager, alone"] / rates[f"captured, {name}"]
                figures[f"{width} wide: {name}: captured step, ratio to the eager model alone"] = ratio
            if device.type == "cuda" and width == widths[0]:
                for name, of_name in loaders.items():
                    step = Captured(*sizes)
                    figures |= asked_of_cuda(name, iter(endless(of_name.copy_to(device, into={}))), step)
            return figures

    report_parts({f"{width} wide": lambda width=width: measured(width) for width in widths}, args.json)


def features_of(rows: Any, device: torch.device, file: Path) -> dict[str, dp.Feature]:
    values = torch.from_numpy(rows)

    def pinned(stored_as: str | None) -> dp.TensorFeature:
        feature = dp.TensorFeature(values.clone(), stored_as=stored_as)
        return feature.pin_memory_() if device.type == "cuda" else feature

    found: dict[str, dp.Feature] = {
        "features on the GPU": dp.TensorFeature(values.to(device)),
        "float32 by UVA": pinned(None),
        "float16 by UVA": pinned("float16"),
    }
    if device.type == "cuda":
        found["a cache on the GPU"] = dp.GPUCachedFeature(pinned(None), rows.nbytes // 4)
    return found | {"a disk": dp.DiskFeature.write(file, values)}


def asked_of_cuda(name: str, minibatches: Any, step: Captured) -> Figures:
    """Return what the threads beside this one ask of CUDA for a minibatch; the profiler knows the thread of a call."""
    for minibatch in itertools.islice(minibatches, TRACED):
        step(minibatch)
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        for minibatch in itertools.islice(minibatches, TRACED):
            step(minibatch)
        step.finish()
    calls = [each for each in profiler.profiler.kineto_results.events() if each.name().startswith(("cuda", "cuLaunch"))]
    training = {each.start_thread_id() for each in calls if each.name() == "cudaGraphLaunch"}
    others = [each for each in calls if each.start_thread_id() not in training]
    return {
        f"{name}: calls of other threads to CUDA, a minibatch": len(others) / TRACED,
        f"{name}: they take (us a minibatch)": sum(each.duration_ns() for each in others) / 1e3 / TRACED,
    }


if __name__ == "__main__":
    main()
