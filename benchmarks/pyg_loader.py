"""How fast is datapipes.pyg.loader.NeighborLoader: against the chain without conversion, and against PyG's own?"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from common import Figures, alternate, load_graph, parser, report
from torch_geometric.data import Data

import datapipes as dp
from datapipes.minibatch.block import edges_of
from datapipes.pyg.loader import NeighborLoader

MINIBATCHES = 20
FANOUTS = [5, 10, 15]  # PyG's order: the first is next to the seeds


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    args = arguments.parse_args()
    torch.set_num_threads(1)
    graph, rows = load_graph(args.graph)
    columns = edges_of([dp.Block(graph.indptr, graph.indices, graph.num_nodes)], with_ids=False)[0]
    labels = torch.arange(graph.num_nodes) % 47
    data = Data(x=torch.from_numpy(rows), y=labels, edge_index=columns)
    narrow = dp.CSCGraph(graph.indptr, graph.indices.int())
    store = dp.FeatureStore(
        {("node", None, "x"): dp.TensorFeature(data.x), ("node", None, "y"): dp.TensorFeature(data.y)}
    )
    pipe = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1)
    pipe = pipe.sample_neighbor(narrow, FANOUTS[::-1], frontier="new", return_edge_ids=True)
    pipe = pipe.fetch_feature(store, ["x", "y"])
    shared: dict[str, Any] = {"batch_size": 1024, "shuffle": True}
    sides: dict[str, Callable[[int], float]] = {}
    for workers in args.workers:
        more: dict[str, Any] = {"persistent_workers": True} if workers else {}
        chain = dp.DataLoader(pipe, num_workers=workers, multiprocessing_context="fork" if workers else None)
        ours = NeighborLoader(data, FANOUTS, num_workers=workers, seed=1, is_sorted=True, **shared, **more)
        sides[f"chain, {workers} workers"] = rate(chain, workers)
        sides[f"ours, {workers} workers"] = rate(ours, workers)
    edges = next(iter(ours)).num_edges
    figures: Figures = {"edges of a minibatch": float(edges)}
    rates = alternate(sides, args.repeats)
    figures |= {f"{name} (minibatches/s)": value for name, value in rates.items()}
    for workers in args.workers:
        figures[f"{workers} workers: ratio to the chain"] = (
            rates[f"ours, {workers} workers"] / rates[f"chain, {workers} workers"]
        )
    report(figures, args.json)


def rate(loader: Any, workers: int) -> Callable[[int], float]:
    """Return a side for `alternate`: minibatches per second, of processor time without workers, else of the clock."""
    clock = time.perf_counter if workers else time.process_time
    stream: list[Iterator[Any]] = []

    def measure(_: int) -> float:
        if not stream:
            stream.append(iter(loader))
        for _ in range(3 if workers else 1):
            next(stream[0])
        began = clock()
        for _ in range(MINIBATCHES):
            next(stream[0])
        return MINIBATCHES / (clock() - began)

    return measure


if __name__ == "__main__":
    main()
