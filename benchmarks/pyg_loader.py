"""How fast is datapipes.pyg.loader.NeighborLoader: against the chain without conversion, and against PyG's own?"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from common import Figures, alternate, load_graph, parser, report

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
FANOUTS = [15, 10, 5]  # PyG's order: the first is next to the seeds
PEERS = {"pyg-lib": torch_geometric.typing.WITH_PYG_LIB, "torch-sparse": torch_geometric.typing.WITH_TORCH_SPARSE}


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    arguments.add_argument("--zipf", action="store_true", help="on a graph of the shape that pyg-lib was measured on")
    arguments.add_argument("--bare", action="store_true", help="without features and labels")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    graph, rows = zipf_graph() if args.zipf else load_graph(args.graph)
    columns = edges_of([dp.Block(graph.indptr, graph.indices, graph.num_nodes)], with_ids=False)[0]
    data = Data(edge_index=columns, num_nodes=graph.num_nodes)
    pipe: dp.Stage = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1)
    pipe = pipe.sample_neighbor(
        dp.CSCGraph(graph.indptr, graph.indices.int()), FANOUTS[::-1], frontier="new", return_edge_ids=True
    )
    if not args.bare:
        data.x, data.y = torch.from_numpy(rows), torch.arange(graph.num_nodes) % 47
        store = dp.FeatureStore({("node", None, name): dp.TensorFeature(data[name]) for name in ("x", "y")})
        pipe = pipe.fetch_feature(store, ["x", "y"])
    shared: dict[str, Any] = {"batch_size": 1024, "shuffle": True, "is_sorted": True}
    sides: dict[str, Callable[[int], float]] = {}
    figures: Figures = {}
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
