"""Does a DataLoader with workers deliver as much as without, on two cores, and what does a worker cost?

1,024 seeds, fanouts [15, 10, 5], node features (400 bytes a node on the benchmark graph); torch.get_num_threads() is 2.
Workers 0, 1 and 2, as processes (forkserver; fork for comparison) and as threads, over the graph in memory and over
the same graph saved and mapped. Compared with GraphBolt 2.1.0's DataLoader with 0, 1 and 2 workers in its own
interpreter (--peer-python; its best counts), with an allocator that keeps memory and as installed. Each side keeps its
workers; one second per measurement, in alternation, median of 9. Then the seconds until the first minibatch: of a new
loader, with the server that forks workers running or not, and of the next epoch with workers that stay (median over
epochs of 12 minibatches). Last the private memory (USS) of a worker, minus that of an idle process of the same server.
Run: python benchmarks/loader.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, shared and noisy, 1M nodes / 20M edges, commits f0d6d10, 6810c4a and c66de65): 0 workers
41.2, 40.9 and 40.3 minibatches/s; 1 process 0.84, 0.96 and 0.93 of that, 2 processes 0.97, 0.99, 1.06, mapped 0.97,
0.92, 0.92 and 1.01, 0.95, 1.03, fork 0.97, 1.02, 0.99, threads 1.05, 0.93, 0.97 and 1.03, 1.08, 1.08; GraphBolt's best
as installed 6.2 and 6.0 (6.9 x, 7.4 x; with a tuned allocator see training.py, 4.0 x). First minibatch of a new loader
3.0, 2.7 and 3.0 s, 0.3 to 0.9 s where the server runs; of an epoch 35, 37, 46 ms without workers, 28, 35, 35 ms with 1
and 39, 41, 51 ms with 2. 44 MB private memory of a worker beyond an idle process. One process against none alone, 12
pairs: 0.93 and 0.96.
"""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.synchronize
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing import active_children
from pathlib import Path

import torch
from common import PEERS, alternate, best_of, load_graph, loaders_of_peers, parser, report

import datapipes as dp

ROUND_S = 1.0
FEW = 12
EPOCHS = 9


class Delivery:
    """Minibatches per second of a loader over so many seconds. The epoch continues in the next measurement."""

    def __init__(self, loader: dp.DataLoader, round_s: float = ROUND_S) -> None:
        self._loader, self._round_s = loader, round_s
        self._stream = iter(loader)

    def __call__(self, _: int) -> float:
        for _ in range(8):  # skip minibatches made ahead while other sides were measured
            self._next()
        done, began = 0, time.perf_counter()
        while time.perf_counter() - began < self._round_s:
            self._next()
            done += 1
        return done / (time.perf_counter() - began)

    def _next(self) -> None:
        if next(self._stream, None) is None:
            self._stream = iter(self._loader)

    def close(self) -> None:
        self._loader.close()


def private_bytes(pid: int) -> float:
    """Return the bytes that only this process has mapped."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(1024.0 * int(line.split()[1]) for line in lines if line.startswith("Private_"))


def idle(ready: multiprocessing.synchronize.Event, end: multiprocessing.synchronize.Event) -> None:
    """Run in a process that has imported what a worker imports, and do nothing."""
    torch.set_num_threads(1)
    ready.set()
    end.wait(60)


def baseline_bytes() -> float:
    context = multiprocessing.get_context("forkserver")
    ready, end = context.Event(), context.Event()
    process = context.Process(target=idle, args=(ready, end))
    process.start()
    ready.wait(60)
    found = private_bytes(process.pid or 0)
    end.set()
    process.join()
    return found


def worker_bytes() -> float:
    pids = [child.pid or 0 for child in active_children() if child.name.startswith("datapipes-worker")]
    return max(map(private_bytes, pids))


def first_seconds(loader: dp.DataLoader) -> float:
    began = time.perf_counter()
    next(iter(loader))
    return time.perf_counter() - began


def later_epochs(loader: dp.DataLoader) -> float:
    """Return the median seconds until the first minibatch of an epoch, after earlier epochs were read to the end."""
    found = []
    for _ in range(EPOCHS):
        began = time.perf_counter()
        for number, _ in enumerate(loader):
            if number == 0:
                found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(2)
    graph, rows = load_graph(args.graph)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.from_numpy(rows))})

    def chain(graph: dp.CSCGraph, num_items: int) -> dp.Stage:
        items = dp.ItemSampler(dp.ItemSet(num_items), 1024, shuffle=True, seed=1)
        return items.sample_neighbor(graph, [15, 10, 5]).fetch_feature(store, node_feature_keys=["feat"])

    figures: dict[str, float | str] = {}
    few = chain(graph, 1024 * FEW)
    for name in ("start, with the server", "start"):
        with dp.DataLoader(few, 2) as loader:
            figures[f"{name}: first minibatch of a new loader, 2 workers (s)"] = first_seconds(loader)
    for workers in (0, 1, 2):
        with dp.DataLoader(few, workers) as loader:
            figures[f"first minibatch of an epoch, {workers} workers (ms)"] = later_epochs(loader) * 1e3
    report(figures, None)

    with tempfile.TemporaryDirectory() as folder:
        graph.save(folder)
        mapped = dp.CSCGraph.open(folder)
        whole = chain(graph, graph.num_nodes)
        loaders = {
            "0 workers": dp.DataLoader(whole),
            "1 process": dp.DataLoader(whole, 1),
            "2 processes": dp.DataLoader(whole, 2),
            "1 process, graph mapped": dp.DataLoader(chain(mapped, graph.num_nodes), 1),
            "2 processes, graph mapped": dp.DataLoader(chain(mapped, graph.num_nodes), 2),
            "2 processes, fork": dp.DataLoader(whole, 2, multiprocessing_context="fork"),
            "1 thread": dp.DataLoader(whole, 1, worker_method="thread"),
            "2 threads": dp.DataLoader(whole, 2, worker_method="thread"),
        }
        sides: dict[str, Callable[[int], float]] = {name: Delivery(loader) for name, loader in loaders.items()}
        peers = loaders_of_peers(args.peer_python, args.graph, "end_to_end", (0, 1, 2))
        sides |= {name: peer.measure for name, peer in peers.items()}
        rates = alternate(sides, args.repeats)
        for peer in peers.values():
            peer.close()
        found: dict[str, float | str] = {f"{name} (minibatches/s)": rate for name, rate in rates.items()}
        for name in loaders:
            found[f"{name}, ratio to 0 workers"] = rates[name] / rates["0 workers"]
        for name in PEERS if peers else ():
            best = max(rates[loader] for loader in loaders)
            found[f"best, ratio to {name}'s best"] = best / best_of(name, rates)
        used = worker_bytes()
        for loader in loaders.values():
            loader.close()
        before = baseline_bytes()
        found["private memory of a worker, beyond an idle process (MB)"] = (used - before) / 1e6
        found["private memory of an idle process (MB)"] = before / 1e6
    report(found, None)
    if args.json:
        args.json.write_text(json.dumps({**figures, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
