"""How much faster does a model train from a DataLoader, and how busy does one keep a device that uses no processor?

Three parts (--parts). Minibatches of 1,024 seeds in an order that both systems share, fanouts [15, 10, 5], node
features (400 bytes a node on the benchmark graph); torch.get_num_threads() is 2.
"steps": milliseconds per step of the loader alone, of GraphSAGE (3 layers, 256 wide, consumers.py) over minibatches
that stay, and of both; from a plain loop over the chain, and from 0, 1 and 2 workers, processes and threads.
"consumer": a played device, which waits for 5, 10, 20, 30 or 50 ms a step and keeps its last minibatch while it asks
for the next; and for 2 ms with 256 seeds, fanouts [10, 10]. It is busy for the share step / mean period. "given at
once", a minibatch that is there, shows how busy the device can be. At 50 ms also the time of a `next`.
"accuracy": seconds of training until GraphSAGE classifies 0.77 of the validation nodes of the Debian packages right,
fanouts [10, 10], and how much of that was spent in `next`; evaluation, with all neighbors, is not counted.
Compared with GraphBolt 2.1.0's DataLoader in its own interpreter (--peer-python), with an allocator that keeps memory
and as installed; a model gains by it too, so --keep-memory gives it to our side. GraphBolt's chain ends in copy_to
where that is faster: for the played device. All in alternation, 12 steps or a second per measurement, median of 5.
--device cuda trains on a GPU, with features that are copied there.
Run: python benchmarks/training.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, a slow hour, 1M nodes / 20M edges, commit e4bb01a), allocators tuned: the plain loop takes
173 ms a step (model alone 150, loader alone 19), with 0, 1 and 2 workers 165 to 174; GraphBolt's best 236 (1.37 x).
As installed: 246, 265 to 294, 375 (1.52 x). 2-core Intel Xeon VM, commits 1650a2c (steps), 07c9839 (accuracy) and
4bb9b4d, allocators tuned: the plain loop 124, with 0, 1 and 2 workers 127 to 132; GraphBolt's best 160 (1.29 x). A
device of 20 ms a step is busy for 0.98 to 0.99, from GraphBolt 0.25 and 0.17; of 50 ms 0.99, 0.66 and 0.48; of 5 ms
0.3, 0.06 and 0.04. `next` takes 0.13 to 0.22 ms (median), 0.22 to 0.27 (p90). 0.77 of the validation nodes after 19 to
23 s, from GraphBolt 23 to 27 s. EPYC, commit 5aae629, three runs: a device of 20 ms is busy for 0.969 to 0.991, of
30 ms for 0.990 to 0.992, of 50 ms for 0.991 to 0.995 (GraphBolt 0.15 to 0.24, 0.37, 0.66); `next` takes 0.15 to
0.18 ms, 0.18 to 0.31 (p90).
2-core VM, commit 28abd92, without workers, 2 processes, 2 threads, and given at once: 20 ms 0.986, 0.972, 0.969, 0.994;
2 ms with 256 seeds 0.937, 0.929, 0.933, 0.962. So of the 0.07 that is missing there, the sleep of the device takes 0.04
(0.08 ms) and `next` 0.03 (0.05 to 0.06 ms of Python, in caches that have gone cold meanwhile).
NVIDIA H200, 16-core VM, commit 90e15b3, --device cuda, without a peer: the model alone 4.1 ms a step, the plain loop
24.7, without workers 8.1 (3.1 x), 2 and 8 processes 6.7 and 7.5 (3.7 x, 3.3 x), threads 8.9 and 9.1. A device of 20 ms
a step is busy for 0.89 without workers, 0.95 with 2 processes; of 5 ms for 0.71 and 0.84.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from itertools import islice, repeat
from pathlib import Path

import numpy as np
import torch
from common import (
    KEEP_MEMORY,
    PEERS,
    Figures,
    Peer,
    Training,
    alternate,
    best_of,
    lacks_gpu,
    load_graph,
    loaders_of_peers,
    parser,
    peers_of,
    report_parts,
)
from consumers import EPOCHS, Classification, play_device

import datapipes as dp

FANOUTS = [15, 10, 5]
STEPS_MS = (5, 10, 20, 30, 50)
SMALL, SMALL_MS = (256, [10, 10]), 2  # seeds and fanouts of a small step
ROUND_S = 1.0
STAYING = 4  # minibatches that the model alone is measured with
AHEAD = 8  # minibatches that a loader without workers has made ahead, at most
WANTED, SEEDS = 0.77, (0, 1)


def main() -> None:
    args = arguments()
    keeps = os.environ.items() >= KEEP_MEMORY.items()
    if args.keep_memory and not keeps:  # the allocator reads them when the process starts
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP_MEMORY})
    if args.device == "cuda" and lacks_gpu("training"):
        return
    if args.device == "cuda" and args.peer_python:
        raise SystemExit("--peer-python needs --device cpu: the peer trains on the CPU.")
    if args.device == "cpu":
        torch.set_num_threads(2)
    parts = {"steps": steps, "consumer": consumer, "accuracy": accuracy}
    known: Figures = {
        "device": torch.cuda.get_device_name() if args.device == "cuda" else "cpu",
        "allocator of this process": "keeps memory" if keeps else "as installed",
    }
    report_parts({part: lambda part=part: parts[part](args) for part in args.parts}, args.json, known)


def arguments() -> argparse.Namespace:
    options = parser(__doc__ or "")
    options.set_defaults(repeats=5)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model is")
    options.add_argument("--parts", default="steps,consumer,accuracy", help="which to measure, separated by commas")
    options.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="numbers of workers to measure")
    options.add_argument("--hidden", type=int, default=256, help="width of the model")
    options.add_argument("--batch-size", type=int, default=1024)
    options.add_argument("--steps", type=int, default=12, help="of each measurement")
    options.add_argument("--keep-memory", action="store_true", help="tune the allocator of our side as well")
    args = options.parse_args()
    args.parts = args.parts.split(",")
    if not {*args.parts} <= {"steps", "consumer", "accuracy"}:
        options.error(f"--parts: {args.parts}, must be of steps, consumer, accuracy")
    return args


# --- a model


def steps(args: argparse.Namespace) -> Figures:
    with ExitStack() as stack:
        graph, rows = load_graph(args.graph)
        device = torch.device(args.device)
        train = Training(graph.num_nodes, rows.shape[1], args.hidden, len(FANOUTS), device)
        chain = chain_of(graph, rows, args)
        streams = streams_of(chain, args.workers, stack)
        staying = [*islice(endless(chain), STAYING)]
        ahead = AHEAD * max(1, *args.workers)
        alone = {name: Steps(stream, None, args.steps, ahead) for name, stream in streams.items()}
        both = {name: Steps(stream, train, args.steps, ahead) for name, stream in streams.items()}
        peers = loaders_of_peers(
            args.peer_python, args.graph, "training", args.workers, "none", args.batch_size, args.hidden, args.steps
        )
        for peer in peers.values():
            stack.callback(peer.close)
        alone |= {name: lambda _, peer=peer: peer.measure(0) for name, peer in peers.items()}
        both |= {name: lambda _, peer=peer: peer.measure(2) for name, peer in peers.items()}
        sides = {"model alone": Steps(endless(staying), train, args.steps, 0)}
        for name in PEERS if peers else ():
            first = peers[f"{name}, {args.workers[0]} workers"]
            sides[f"{name}: model alone"] = lambda _, peer=first: peer.measure(1)
        sides |= {f"{name}: loader alone": side for name, side in alone.items()}
        sides |= {f"{name}: with the model": side for name, side in both.items()}
        rates = alternate(sides, args.repeats, warm_ups=1)
    figures: Figures = {f"{name} (ms a step)": 1e3 / rate for name, rate in rates.items()}
    for name in streams:
        ratio = rates[f"{name}: with the model"] / rates["plain loop: with the model"]
        figures[f"{name}: training, ratio to the plain loop"] = ratio
    for part in ("loader alone", "with the model"):
        of_part = {side: rate for side, rate in rates.items() if side.endswith(part)}
        best = max(of_part[f"{name}: {part}"] for name in streams)
        for name in PEERS if peers else ():
            figures[f"best, {part}, ratio to {name}'s best"] = best / best_of(name, of_part)
    return figures


class Steps:
    """Steps per second. Minibatches that were made ahead are used up before the clock starts."""

    def __init__(self, stream: Iterator[dp.MiniBatch], train: Training | None, num_steps: int, ahead: int) -> None:
        self._stream, self._train = stream, train
        self._num_steps, self._ahead = num_steps, ahead

    def __call__(self, _: int) -> float:
        for _ in range(self._ahead):
            next(self._stream)
        began = time.perf_counter()
        for _ in range(self._num_steps):
            minibatch = next(self._stream)
            if self._train is not None:
                self._train(minibatch)
        if self._train is not None:
            self._train.finish()
        return self._num_steps / (time.perf_counter() - began)


# --- a played device


def consumer(args: argparse.Namespace) -> Figures:
    with ExitStack() as stack:
        graph, rows = load_graph(args.graph)
        streams = streams_of(chain_of(graph, rows, args), args.workers, stack)
        peers = loaders_of_peers(args.peer_python, args.graph, "consumer", args.workers, "copy_to", args.batch_size)
        for peer in peers.values():
            stack.callback(peer.close)
        sides: dict[str, Callable[[int], float]] = {}
        small = argparse.Namespace(**{**vars(args), "batch_size": SMALL[0]})
        of_small = streams_of(chain_of(graph, rows, small, SMALL[1]), args.workers, stack)
        for ms, given in [*((ms, streams) for ms in STEPS_MS), (SMALL_MS, of_small)]:
            # The device itself is not always busy: a thread that sleeps wakes up a little late.
            every = {"given at once": repeat(next(given["plain loop"])), **given}
            sides |= {f"{name}, {ms} ms (busy)": Device(stream, ms / 1e3) for name, stream in every.items()}
        for ms in STEPS_MS:
            sides |= {f"{name}, {ms} ms (busy)": lambda _, p=p, ms=ms: p.measure(ms) for name, p in peers.items()}
        figures: Figures = dict(alternate(sides, args.repeats, warm_ups=1))
    for name in streams:
        waits = sides[f"{name}, {STEPS_MS[-1]} ms (busy)"].waits
        figures[f"{name}, {STEPS_MS[-1]} ms: next, median (ms)"] = 1e3 * statistics.median(waits)
        figures[f"{name}, {STEPS_MS[-1]} ms: next, p90 (ms)"] = 1e3 * float(np.quantile(waits, 0.9))
    return figures


class Device:
    """The share of time in which a played device is busy; notes how long each `next` took."""

    def __init__(self, stream: Iterator[dp.MiniBatch], step_s: float) -> None:
        self._stream, self._step_s = stream, step_s
        self.waits: list[float] = []

    def __call__(self, _: int) -> float:
        play_device(self._stream, self._step_s, AHEAD * self._step_s)
        busy, seconds, waits = play_device(self._stream, self._step_s, ROUND_S)
        self.waits += waits
        return busy / seconds


# --- an accuracy


Epoch = Callable[[int], tuple[float, float, float]]  # accuracy, seconds, and those spent in `next`


def accuracy(args: argparse.Namespace) -> Figures:
    """Train epoch by epoch, all sides in turn, until each has the accuracy that is wanted."""
    figures: Figures = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        data = dp.datasets.debian_packages()
        write_arrays(data, folder)
        peers = peers_of(args.peer_python, folder, "accuracy")
        for peer in peers.values():
            stack.callback(peer.close)
        for rng_seed in SEEDS:
            runs: dict[str, Epoch] = {
                name: Run(folder, rng_seed, stack.enter_context(loader))
                for name, loader in (
                    ("plain loop", packages(data, rng_seed)),
                    ("0 workers", dp.DataLoader(packages(data, rng_seed))),
                )
            }
            runs |= {name: lambda line, peer=peer: peer_epoch(peer, line) for name, peer in peers.items()}
            for name, (epochs, seconds, waited) in until_wanted(runs, rng_seed).items():
                figures[f"{name}: {WANTED} after (s), seed {rng_seed}"] = seconds
                figures[f"{name}: epochs of that, seed {rng_seed}"] = float(epochs)
                figures[f"{name}: share spent in next, seed {rng_seed}"] = waited / seconds
    return figures


def until_wanted(runs: dict[str, Epoch], rng_seed: int) -> dict[str, tuple[int, float, float]]:
    """Return of each run the epochs until its accuracy is that wanted, their seconds, and those spent in `next`.

    A run that never gets there has all epochs, and nan seconds.
    """
    found = dict.fromkeys(runs, (0, 0.0, 0.0))
    running = [*runs]
    for epoch in range(1, EPOCHS + 1):
        for name in [*running]:
            reached, seconds, waited = runs[name](rng_seed * EPOCHS + epoch - 1)
            found[name] = (epoch, found[name][1] + seconds, found[name][2] + waited)
            if reached >= WANTED:
                running.remove(name)
    return found | {name: (EPOCHS, float("nan"), float("nan")) for name in running}


class Run:
    """A training of ours: a call is an epoch, and returns accuracy, seconds, and those spent in `next`."""

    def __init__(self, folder: Path, rng_seed: int, minibatches: dp.Stage) -> None:
        self._training, self._minibatches = Classification(folder, rng_seed), minibatches

    def __call__(self, _: int) -> tuple[float, float, float]:
        given = ((each.node_features["words"], each.blocks, each.seeds) for each in self._minibatches)
        seconds, waited = self._training.epoch(given)
        return self._training.accuracy(), seconds, waited


def peer_epoch(peer: Peer, line: int) -> tuple[float, float, float]:
    reached, waited, seconds, _ = peer.counts(line)
    return reached, seconds, waited


def packages(data: dp.datasets.Dataset, rng_seed: int) -> dp.Stage:
    items = dp.ItemSampler(data.train_set, Classification.BATCH_SIZE, shuffle=True, seed=rng_seed)
    return items.sample_neighbor(data.graph, list(Classification.FANOUTS)).fetch_feature(data.features, ["words"])


def write_arrays(data: dp.datasets.Dataset, folder: Path) -> None:
    """Write what Classification reads."""
    words = data.features["node", None, "words"]
    labels = torch.zeros(data.graph.num_nodes, dtype=torch.int64)
    arrays = {"indptr": data.graph.indptr, "indices": data.graph.indices}
    arrays["words"] = words.read(torch.arange(words.count))
    for name, items in (("train", data.train_set), ("validation", data.validation_set)):
        whole = next(iter(dp.ItemSampler(items, len(items))))
        arrays[name] = whole.seeds
        labels[whole.seeds] = whole.labels.long()
    for name, array in (arrays | {"labels": labels}).items():
        np.save(folder / f"{name}.npy", array.numpy())


# --- the chain and its loaders


def chain_of(
    graph: dp.CSCGraph, rows: np.ndarray, args: argparse.Namespace, fanouts: Sequence[int] = FANOUTS
) -> dp.Stage:
    """Return the chain over seeds in the order of peer_graphbolt.py."""
    seeds = torch.from_numpy(np.random.default_rng(1).permutation(graph.num_nodes))
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.from_numpy(rows))})
    chain = dp.ItemSampler(dp.ItemSet(seeds), args.batch_size).sample_neighbor(graph, list(fanouts))
    chain = chain.fetch_feature(store, node_feature_keys=["feat"])
    return chain if args.device == "cpu" else chain.copy_to(args.device)


def streams_of(chain: dp.Stage, numbers: list[int], stack: ExitStack) -> dict[str, Iterator[dp.MiniBatch]]:
    """Return the minibatches of a plain loop and of all loaders, by name, without end; `stack` closes the loaders."""
    loaders: dict[str, dp.Stage] = {"plain loop": chain}
    for number in numbers:
        if number == 0:
            loaders["0 workers"] = dp.DataLoader(chain)
            continue
        for method, several in (("process", "processes"), ("thread", "threads")):
            name = f"{number} {method if number == 1 else several}"
            loaders[name] = dp.DataLoader(chain, number, worker_method=method)
    return {name: endless(stack.enter_context(loader)) for name, loader in loaders.items()}


def endless(minibatches) -> Iterator[dp.MiniBatch]:
    """Yield minibatches, epoch after epoch."""
    while True:
        yield from minibatches


if __name__ == "__main__":
    main()
