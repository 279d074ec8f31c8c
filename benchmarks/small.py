"""Up to what size is a minibatch made sooner than it is passed from thread to thread, and what does the loader add?

1 to 128 shuffled seeds, fanouts [10, 5], 400-byte features; the consumer does nothing. Microseconds a minibatch, in
alternation, median: the plain chain, and a DataLoader with threads (overlap=True), without (overlap=False) and by
itself, as the size says (loader/passes.py). Kernels with one thread.
Run: python benchmarks/small.py --graph GRAPH --repeats 15
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commit 9883118; time to that of the chain with threads,
without, by itself): 1 seed (89 us) 3.9, 1.20, 1.18; 8 (133 us) 2.5, 1.16, 1.12; 16 (176 us) 2.1, 1.13, 1.11; 32 (251
us) 1.3, 1.09, 1.09; 64 (404 us) 0.97, 1.03, 0.96; 128 (712 us) 0.83, 1.02, 1.06 (with threads too, so the noise is a
quarter). By its size 32 seeds are the last without threads: they read 1 MB. Three runs on the quiet machine gave 16
seeds 1.04, 1.09 and 1.10.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from common import alternate, load_graph, parser, report

import datapipes as dp

FANOUTS, SEEDS = [10, 5], (1, 8, 16, 32, 64, 128)


def endless(stage: dp.Stage) -> Iterator[dp.MiniBatch]:
    while True:
        yield from stage


def rate(stage: dp.Stage, count: int) -> Callable[[int], float]:
    """Return a side that gives the minibatches/s of `count` minibatches of `stage`."""
    minibatches = endless(stage)

    def measure(_: int) -> float:
        for _ in range(count // 8):
            next(minibatches)
        began = time.perf_counter()
        for _ in range(count):
            next(minibatches)
        return count / (time.perf_counter() - began)

    return measure


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, features = load_graph(args.graph)
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features)})
    figures: dict[str, float | str] = {}
    for batch_size in SEEDS:
        seeds = dp.ItemSampler(dp.ItemSet(graph.num_nodes), batch_size, shuffle=True)
        chain = seeds.sample_neighbor(graph, FANOUTS).fetch_feature(store, ["feat"])
        chosen = {"with threads": True, "without": False, "by itself": None}
        sides = {"chain": chain, **{name: dp.DataLoader(chain, overlap=overlap) for name, overlap in chosen.items()}}
        rates = alternate({name: rate(stage, 4096 // batch_size + 64) for name, stage in sides.items()}, args.repeats)
        figures[f"{batch_size} seeds: us a minibatch of the chain"] = 1e6 / rates["chain"]
        for name in chosen:
            figures[f"{batch_size} seeds: time of the loader {name}, to the chain"] = rates["chain"] / rates[name]
    report(figures, args.json)


if __name__ == "__main__":
    main()
