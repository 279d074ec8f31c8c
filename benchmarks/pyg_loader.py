"""How fast is datapipes.pyg.loader.NeighborLoader: against the chain without conversion, and against PyG's own?

1,024 seeds, num_neighbors [15, 10, 5], shuffled, x (400 bytes a node on the benchmark graph) and y. The chain is
sample_neighbor with frontier "new" and edge ids, and fetch_feature, in a DataLoader; with 2 workers both fork. PyG's
NeighborLoader samples by pyg-lib or torch-sparse, whichever can be imported. Without workers processor time of all
threads, with workers the clock; torch and our kernels with one thread. `--zipf` makes a graph of the shape that
pyg-lib was measured on before (in-degrees Poisson(20), sources Zipf(1)); `--bare` leaves out x and y. All in
alternation, 30 minibatches per measurement, median of 7.
Run: python benchmarks/pyg_loader.py --graph GRAPH
Result (2-core Intel Xeon VM with a last cache of 480 MB, shared, commit 1b22118): on the 1M-node, 20M-edge graph
(283,000 edges and 149,000 nodes a batch) 46.2 batches/s, 0.95 of the chain; with 2 workers 70.6, 0.99 of the chain. PyG
on pyg-lib 0.9.0 (its sampler built from its sources) 11.7 (3.9 x); on torch-sparse 0.6.18, at 1ff411b, 4.3 (10.5 x).
On --zipf (226,000 edges, 73,000 nodes) 91 batches/s, the chain 91, PyG on pyg-lib 27.0 (3.4 x); with --bare 173, the
chain 210, PyG on pyg-lib 37 (4.7 x). There PyG on pyg-lib was measured before, on an AMD EPYC: 24.5 batches/s, and 31.3
without features. What keeps the ratio with features below 4: gathering x takes 5 of our 11 ms, and torch's index_select
gathers as fast here, where all rows fit into the last cache.
--device: beside a played device that is busy for 10 ms with each batch of 256 seeds and uses no processor, how much of
the time is it? (2-core VM, shared, median of 5, commit bfdb5470) 0 workers: the chain 0.98, ours 0.59, with
fetch_ahead=True 0.96; 2 workers: 0.97, without batches ahead 0.59, with them 0.96. `next` takes 0.2 ms, half of it the
hand-over between threads; when the loop made a Data of rows that were gathered ahead, it took 0.54 ms, and the share
was 0.94 and 0.93.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from common import Figures, alternate, load_graph, parser, report
from consumers import play_device

import datapipes as dp
from datapipes.minibatch.block import edges_of
from datapipes.pyg.loader import NeighborLoader

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch_geometric.loader
    import torch_geometric.typing
    from torch_geometric.data import Data

MINIBATCHES = 30
SETTLED_S = 0.3
STEP_S, DEVICE_S = 0.01, 3.0  # of the played device: a step, and a measurement
FANOUTS = [15, 10, 5]  # PyG's order: the first is next to the seeds
PEERS = {"pyg-lib": torch_geometric.typing.WITH_PYG_LIB, "torch-sparse": torch_geometric.typing.WITH_TORCH_SPARSE}


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    arguments.add_argument("--zipf", action="store_true", help="on a graph of the shape that pyg-lib was measured on")
    arguments.add_argument("--bare", action="store_true", help="without features and labels")
    arguments.add_argument("--device", action="store_true", help="how busy each keeps a played device of 10 ms a step")
    args = arguments.parse_args()
    batch_size = 256 if args.device else 1024
    torch.set_num_threads(1)
    graph, rows = zipf_graph() if args.zipf else load_graph(args.graph)
    columns = edges_of([dp.Block(graph.indptr, graph.indices, graph.num_nodes)], with_ids=False)[0]
    data = Data(edge_index=columns, num_nodes=graph.num_nodes)
    pipe: dp.Stage = dp.ItemSampler(dp.ItemSet(graph.num_nodes), batch_size, shuffle=True, seed=1)
    pipe = pipe.sample_neighbor(
        dp.CSCGraph(graph.indptr, graph.indices.int()), FANOUTS[::-1], frontier="new", return_edge_ids=True
    )
    if not args.bare:
        data.x, data.y = torch.from_numpy(rows), torch.arange(graph.num_nodes) % 47
        store = dp.FeatureStore({("node", None, name): dp.TensorFeature(data[name]) for name in ("x", "y")})
        pipe = pipe.fetch_feature(store, ["x", "y"])
    shared: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "is_sorted": True}
    sides: dict[str, Callable[[int], float]] = {}
    figures: Figures = {}
    if args.device:
        report(busy_shares(pipe, data, shared, args), args.json)
        return
    for workers in args.workers:
        more: dict[str, Any] = {"num_workers": workers}
        chain = dp.DataLoader(pipe, multiprocessing_context="fork" if workers else None, **more)
        ours = NeighborLoader(data, FANOUTS, seed=1, persistent_workers=workers > 0, **shared, **more)
        sides[f"chain, {workers} workers"] = rate(chain, workers)
        sides[f"ours, {workers} workers"] = rate(ours, workers)
        batch = ours(range(1024))
        figures["edges of a batch"], figures["nodes of a batch"] = float(batch.num_edges), float(batch.num_nodes)
    peer = next((name for name, is_there in PEERS.items() if is_there), None)
    if peer is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyG: without pyg-lib it is slow
            sides[f"PyG on {peer}, 0 workers"] = rate(torch_geometric.loader.NeighborLoader(data, FANOUTS, **shared), 0)
    rates = alternate(sides, args.repeats)
    figures |= {f"{name} (minibatches/s)": value for name, value in rates.items()}
    for workers in args.workers:
        ratio = rates[f"ours, {workers} workers"] / rates[f"chain, {workers} workers"]
        figures[f"{workers} workers: ratio to the chain"] = ratio
    if peer is not None and 0 in args.workers:
        ratio = rates["ours, 0 workers"] / rates[f"PyG on {peer}, 0 workers"]
        figures[f"0 workers: ratio to PyG on {peer}"] = ratio
    report(figures, args.json)


def busy_shares(pipe: dp.Stage, data: Data, shared: dict[str, Any], args: Any) -> Figures:
    """Return how busy the chain and our loader keep a device that uses no processor, with and without rows ahead."""
    torch.set_num_threads(2)
    sides: dict[str, Callable[[int], float]] = {}
    for workers in args.workers:
        context = "fork" if workers else None
        chain = dp.DataLoader(pipe, num_workers=workers, multiprocessing_context=context)
        sides[f"chain, {workers} workers"] = busy_share(chain)
        for ahead in (False, True):
            options = {"num_workers": workers, "fetch_ahead": ahead, "persistent_workers": workers > 0}
            ours = NeighborLoader(data, FANOUTS, seed=1, **shared, **options)
            sides[f"ours, {workers} workers, fetch_ahead={ahead}"] = busy_share(ours)
    return {f"{name} (busy)": value for name, value in alternate(sides, args.repeats).items()}


def busy_share(loader: Any) -> Callable[[int], float]:
    """Return a side for `alternate`: the share of time in which the device is busy."""

    def measure(_: int) -> float:
        stream = iter(loader)
        for _ in range(3):
            next(stream)
        busy, seconds, _ = play_device(stream, STEP_S, DEVICE_S)
        return busy / seconds

    return measure


def zipf_graph() -> tuple[dp.CSCGraph, np.ndarray]:
    """Return (graph, features) of 1M nodes and 20M edges: in-degrees Poisson(20), sources Zipf(1)."""
    rng = np.random.default_rng(0)
    count, degrees = 1_000_000, rng.poisson(20, 1_000_000)
    weights = np.cumsum(1 / np.arange(1, count + 1))
    sources = np.searchsorted(weights, rng.random(int(degrees.sum())) * weights[-1]).clip(max=count - 1)
    indptr = np.concatenate(([0], np.cumsum(degrees)))
    return dp.CSCGraph(indptr, rng.permutation(count)[sources]), rng.standard_normal((count, 100), dtype=np.float32)


def rate(loader: Any, workers: int) -> Callable[[int], float]:
    """Return a side for `alternate`: minibatches per second, of processor time without workers, else of the clock."""
    clock = time.perf_counter if workers else time.process_time
    stream: list[Iterator[Any]] = []

    def measure(_: int) -> float:
        if not stream:
            stream.append(iter(loader))
        for _ in range(3):
            next(stream[0])
        began = clock()
        for _ in range(MINIBATCHES):
            next(stream[0])
        seconds = clock() - began
        time.sleep(SETTLED_S)  # what it makes ahead belongs to it and not to the next side
        return MINIBATCHES / seconds

    return measure


if __name__ == "__main__":
    main()
