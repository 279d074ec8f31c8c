"""What does MiniBatch.to_pyg take off the rate of a chain, on one thread?

1,024 seeds, fanouts [15, 10, 5], frontier "new", labels and node features (400 bytes a node on the benchmark graph):
minibatches/s of the chain alone, and with to_pyg of each; once with the features, once without. Processor time. Beside
it the time of a to_pyg, and of a memcpy of the bytes of its edge_index into memory that is there. All in alternation,
20 minibatches per measurement, median of 9.
Run: python benchmarks/to_pyg.py --graph GRAPH
Result (2-core Intel Xeon VM, shared, 1M nodes / 20M edges, commit 9c70ec9, three runs): to_pyg of 383,000 edges takes
0.61 to 0.77 ms, with features 0.81 to 1.04 ms; a memcpy of its edge_index 0.89 to 0.93 ms. 0.96 to 0.97 of the rate
with features (38 minibatches/s), 0.90 to 0.91 of sampling alone (151). In an hour in which memory was slower (memcpy
2.3 to 2.9 ms, commit d8d3abd, three runs): 0.89 to 1.13 and 1.09 to 1.56 ms; 0.95 to 0.97 and 0.88 to 0.90. Before, at
b3bdf86, it took 3.6 and 4.4 ms: 0.67 and 0.86.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from common import Figures, alternate, load_graph, memcpy, parser, report

import datapipes as dp

MINIBATCHES = 20


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, rows = load_graph(args.graph)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(torch.from_numpy(rows))})
    items = dp.ItemSet((torch.arange(graph.num_nodes), torch.arange(graph.num_nodes) % 47))
    sampled = dp.ItemSampler(items, 1024, shuffle=True, seed=1).sample_neighbor(graph, [15, 10, 5], frontier="new")
    chains: dict[str, dp.Stage] = {"sampled": sampled, "with features": sampled.fetch_feature(store, ["feat"])}
    data = next(iter(sampled)).to_pyg()
    num_bytes = data.edge_index.nbytes
    sides: dict[str, Callable[[int], float]] = {"memcpy": memcpy(num_bytes)}
    for name, chain in chains.items():
        sides[name] = rate(chain, lambda minibatch: minibatch)
        sides[f"{name}, to_pyg"] = rate(chain, lambda minibatch: minibatch.to_pyg())
    rates = alternate(sides, args.repeats)
    figures: Figures = {"edges of a minibatch": float(data.num_edges)}
    for name in chains:
        alone, converted = rates[name], rates[f"{name}, to_pyg"]
        figures[f"{name} (minibatches/s)"] = alone
        figures[f"{name}: to_pyg (ms)"] = 1e3 / converted - 1e3 / alone
        figures[f"{name}: with to_pyg, ratio to without"] = converted / alone
    figures["memcpy of an edge_index (ms)"] = 1e3 * num_bytes / rates["memcpy"]
    report(figures, args.json)


def rate(chain: dp.Stage, take: Callable[[dp.MiniBatch], Any]) -> Callable[[int], float]:
    """Return a side for `alternate`: minibatches per second of processor time, each taken and dropped."""

    def measure(_: int) -> float:
        stream = iter(chain)
        take(next(stream))
        began = time.process_time()
        for _ in range(MINIBATCHES):
            take(next(stream))
        return MINIBATCHES / (time.process_time() - began)

    return measure


if __name__ == "__main__":
    main()
