"""Does the copy of minibatch i + 1 to the GPU run while the model trains on minibatch i?

16 minibatches of 1,024 seeds, fanouts [15, 10, 5], are sampled before; chains of a DataLoader give them in turn, so
that no sampling is waited for. One copies them with their node features from page-locked memory (copy_to). The other
copies the ids, and the GPU reads the features from page-locked memory (copy_to, then fetch_feature). Measured in
alternation over the same minibatches: the model alone, over minibatches on the GPU (a); the copies alone (b); both (c).
The hidden share of the copies is (a + b - c) / b; it is at most a / b where the model takes less time than
the copies. Beside it the same from a trace of the GPU: the share of the time of the copies and gathers, on streams of
their own, in which kernels of the model run too. `--trace FILE` keeps the traces, for Perfetto or chrome://tracing.
Without a GPU it says so, and is done; `--device cpu` runs the same without one, to try the script.
Run: python benchmarks/gpu_copy.py --graph GRAPH --trace trace.json
Result (NVIDIA H200, 16-core VM, 113 MB a minibatch): the model alone 3.8 to 4.3 ms, copies alone 2.1 ms (53 GB/s), UVA
2.5 ms. Of what can be hidden, 0.41 and 0.28 of the copies were, 0.46 and 0.06 of the reads (commits 90e15b3 and
2451f37; 0.9 was expected): the GPU waits for Python for half of such a step, which runs one thread at a time. With
--hidden 1024 (5.0 ms, 2451f37), where the GPU has work all the time, 0.88 and 0.50; in the trace 0.67 and 0.74. Tried,
and no gain: one piece of device memory for all tensors of a dtype, copied by one call, 0.92 and 0.53 there, 0.24 and
0.28 for 256.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from common import Figures, Training, alternate, lacks_gpu, load_graph, parser, report_parts, timed

import datapipes as dp

FANOUTS = [15, 10, 5]
PREPARED = 16
TRACED = 12  # minibatches
SIDE_STREAM_WORK = ("kernel", "gpu_memcpy", "gpu_memset")

Span = tuple[float, float]  # begin and end, microseconds


def main() -> None:
    args = arguments()
    if args.device == "cuda" and lacks_gpu("gpu_copy"):
        return
    device = torch.device(args.device)
    graph, rows = load_graph(args.graph)
    feature = dp.TensorFeature(torch.from_numpy(rows))
    if device.type == "cuda":
        feature.pin_memory_()
    chains = prepared_chains(graph, feature, args, device)
    train = Training(graph.num_nodes, rows.shape[1], args.hidden, len(FANOUTS), device)

    def measured(name: str) -> Figures:
        with dp.DataLoader(chains[name]) as loader:
            print(loader.explain(), flush=True)
            return {f"{name}: {what}": value for what, value in hidden(loader, train, device, args).items()}

    report_parts({name: lambda name=name: measured(name) for name in chains}, args.json)


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.add_argument("--trace", type=Path, help="keep the traces of the GPU's work: FILE, and one more beside it")
    options.add_argument("--hidden", type=int, default=256, help="width of the model")
    options.add_argument("--batch-size", type=int, default=1024)
    options.add_argument("--steps", type=int, default=48, help="minibatches of each measurement")
    options.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the script")
    return options.parse_args()


def prepared_chains(
    graph: dp.CSCGraph, feature: dp.TensorFeature, args: argparse.Namespace, device: torch.device
) -> dict[str, dp.Stage]:
    """Return chains that give minibatches which were made before."""
    store = dp.FeatureStore({("node", None, "feat"): feature})
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), args.batch_size, shuffle=True, seed=1)
    sampled = items.sample_neighbor(graph, FANOUTS)
    kept = {"sampled": first_of(sampled, device), "fetched": first_of(sampled.fetch_feature(store, ["feat"]), device)}

    def again(what: str) -> Callable[[dp.MiniBatch], dp.MiniBatch]:
        def change(minibatch: dp.MiniBatch) -> dp.MiniBatch:
            found = kept[what][minibatch.index % PREPARED]
            return found.replace(epoch=minibatch.epoch, index=minibatch.index, rng=minibatch.rng)

        return change

    numbers = dp.ItemSampler(dp.ItemSet(max(args.steps, TRACED)), 1)
    return {
        "copy": numbers.transform(again("fetched")).copy_to(device),
        "ids and UVA": numbers.transform(again("sampled")).copy_to(device).fetch_feature(store, ["feat"]),
    }


def first_of(stage: dp.Stage, device: torch.device) -> list[dp.MiniBatch]:
    found = [*itertools.islice(stage, PREPARED)]
    stage.close()
    return [minibatch.pin_memory() for minibatch in found] if device.type == "cuda" else found


def hidden(loader: dp.DataLoader, train: Training, device: torch.device, args: argparse.Namespace) -> Figures:
    """Return the times of the model, of the copies and of both, and what they say."""
    there = [*itertools.islice(loader, PREPARED)]
    assert all(each.seeds.device.type == device.type for each in there)
    copied = nbytes(there[0])

    def model_alone(_: int) -> float:
        return args.steps / timed(lambda: trained(itertools.islice(itertools.cycle(there), args.steps), train))[0]

    def copies_alone(_: int) -> float:
        return args.steps / timed(lambda: finished(loader, device))[0]

    def both(_: int) -> float:
        return args.steps / timed(lambda: trained(loader, train))[0]

    rates = alternate({"model": model_alone, "copies": copies_alone, "both": both}, args.repeats)
    a, b, c = (1e3 / rates[name] for name in ("model", "copies", "both"))
    figures: Figures = {
        "the model alone (ms a minibatch)": a,
        "copies alone (ms a minibatch)": b,
        "both (ms a minibatch)": c,
        "bytes on the GPU (MB a minibatch)": copied / 1e6,
        "hidden share of the copies": (a + b - c) / b,
        "hidden share, of what can be hidden": (a + b - c) / min(a, b),
    }
    if device.type == "cuda":
        figures |= traced(loader, train, args.trace)
    return figures


def trained(minibatches: Iterable[dp.MiniBatch], train: Training) -> None:
    for minibatch in minibatches:
        train(minibatch)
    train.finish()


def finished(minibatches: Iterable[dp.MiniBatch], device: torch.device) -> None:
    for _ in minibatches:
        pass
    if device.type == "cuda":
        torch.cuda.synchronize()


def nbytes(minibatch: dp.MiniBatch) -> int:
    """Return the bytes of all tensors; one that stands in several fields counts once."""
    tensors = {each.data_ptr(): each.nbytes for each in minibatch.to_message().values()}
    return sum(tensors.values())


def traced(loader: dp.DataLoader, train: Training, trace: Path | None) -> Figures:
    """Return what the GPU's own clock says, from a trace of a few minibatches."""
    kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=kinds) as profiler:
        trained(itertools.islice(loader, TRACED), train)
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json") if trace is None else unused(trace)
        profiler.export_chrome_trace(str(file))
        share = share_beside(json.loads(file.read_text(encoding="utf-8"))["traceEvents"])
    if share is None:
        return {"hidden share in the trace": "the profiler saw no copies on a stream of their own"}
    return {"hidden share in the trace": share}


def unused(file: Path) -> Path:
    """Return `file`, or a name beside it that no file has."""
    names = (file.with_stem(f"{file.stem}-{number}") for number in itertools.count(2))
    return next(name for name in itertools.chain([file], names) if not name.exists())


def share_beside(events: list[dict[str, Any]]) -> float | None:
    """Return the share of the time of copies and gathers in which kernels of the model run; its stream is the one with
    the most kernels.
    """
    work = [each for each in events if each.get("cat") in SIDE_STREAM_WORK and each.get("ph") == "X"]
    launched = Counter(each["args"]["stream"] for each in work if each["cat"] == "kernel")
    model = max(launched, key=lambda stream: launched[stream], default=None)
    copies = joined(span(each) for each in work if each["args"]["stream"] != model)
    kernels = joined(span(each) for each in work if each["args"]["stream"] == model and each["cat"] == "kernel")
    total = sum(end - begin for begin, end in copies)
    both = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in copies for b in kernels)
    return both / total if total else None


def span(event: dict[str, Any]) -> Span:
    return float(event["ts"]), float(event["ts"]) + float(event["dur"])


def joined(spans: Iterable[Span]) -> list[Span]:
    """Return the times that any of the spans covers, as spans that do not touch."""
    found: list[Span] = []
    for begin, end in sorted(spans):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((begin, end))
    return found


if __name__ == "__main__":
    main()
