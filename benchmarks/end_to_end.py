"""How many minibatches a second does a whole chain deliver on two cores, without worker processes?

1,024 seeds, fanouts [15, 10, 5], node features (400 bytes per node on the benchmark graph), through DataLoader:
sampling and fetching overlap in two threads (prefetch), torch.get_num_threads() is 2. Beside it, the same: with one
thread; without overlap; with a transform and a copy_to that change nothing, which shows the cost of a stage; and by
hand, with prefetch(2) alone. Compared with GraphBolt 2.1.0's DataLoader with 0, 1 and 2 workers in its own interpreter
(--peer-python; its best counts), with an allocator that keeps memory and as installed. The limit of two cores is the
time of sampling plus that of gathering, each measured alone on two threads; the same chain from features stored as
float16 and as int8 has a limit each of its own. The consumer only takes the minibatches. All in alternation, one second
per measurement, median of 9.
Run: python benchmarks/end_to_end.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commit 99cefe3): 63.6 minibatches/s; without overlap 55.8,
with one thread 37.6. 1.05 of what sampling (141) and gathering (107) alone add up to: the two cores are used. At commit
9ddbb91 64.8.
Beside GraphBolt (2-core Intel Xeon VM, shared, commit 1650a2c): 60.4 minibatches/s; GraphBolt with 0, 1 and 2 workers
15.1, 14.7 and 13.4 (4.0 x its best), as installed 10.0, 7.8 and 7.9 (6.1 x).
Stored with fewer bits: in a quiet hour (commit 1adc21e) 59.8 from float32, from float16 75.4 (1.26 x) and from int8
91.4 (1.53 x), 0.94, 0.97 and 1.01 of what sampling and their own gathering alone add up to. Six runs while others used
the machine (commit 1bab5b6): 1.19 x (1.08 to 1.34) and 1.42 x (1.28 to 1.51), 0.96 and 0.97 of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from common import PEERS, alternate, best_of, load_graph, loaders_of_peers, parser, report, timed, with_threads

import datapipes as dp
from datapipes import _core

ROUND_S = 1.0
WORKERS = (0, 1, 2)
STORED_AS = ("float16", "int8")


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, rows = load_graph(args.graph)
    features = torch.from_numpy(rows)
    stores = {
        name: dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(features, stored_as=name)})
        for name in (None, *STORED_AS)
    }
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1)
    sampled = items.sample_neighbor(graph, [15, 10, 5])
    fetched = sampled.fetch_feature(stores[None], node_feature_keys=["feat"])
    carried = fetched.transform(lambda minibatch: minibatch).copy_to("cpu")
    stream = iter(sampled)
    minibatches = [next(stream) for _ in range(10)]

    def gather(fetched: dp.FeatureFetcher) -> Callable[[int], float]:
        return lambda _: len(minibatches) / sum(timed(lambda m=m: fetched.transform(m))[0] for m in minibatches)

    sides = {
        "DataLoader": with_threads(2, Delivery(lambda: dp.DataLoader(fetched))),
        "DataLoader, 1 thread a kernel": Delivery(lambda: dp.DataLoader(fetched)),
        "DataLoader, overlap=False": with_threads(2, Delivery(lambda: dp.DataLoader(fetched, overlap=False))),
        "DataLoader, overlap=False, 1 thread": Delivery(lambda: dp.DataLoader(fetched, overlap=False)),
        "DataLoader, transform and copy_to": with_threads(2, Delivery(lambda: dp.DataLoader(carried))),
        "prefetch(2) by hand": with_threads(2, Delivery(lambda: fetched.prefetch(2))),
        "sampling alone": with_threads(2, Delivery(lambda: items.sample_neighbor(graph, [15, 10, 5]))),
        "gathering alone": with_threads(2, gather(fetched)),
    }
    for name in STORED_AS:
        fewer = sampled.fetch_feature(stores[name], node_feature_keys=["feat"])
        sides[f"DataLoader, stored as {name}"] = with_threads(2, Delivery(lambda fewer=fewer: dp.DataLoader(fewer)))
        sides[f"gathering alone, stored as {name}"] = with_threads(2, gather(fewer))
    peers = loaders_of_peers(args.peer_python, args.graph, "end_to_end", WORKERS)
    sides |= {name: peer.measure for name, peer in peers.items()}
    rates = alternate(sides, args.repeats)
    for peer in peers.values():
        peer.close()
    figures: dict[str, float | str] = {f"{name} (minibatches/s)": rate for name, rate in rates.items()}
    ours = rates["DataLoader"]
    for name in PEERS if peers else ():
        figures[f"DataLoader, ratio to {name}'s best"] = ours / best_of(name, rates)
    limit = 1 / (1 / rates["sampling alone"] + 1 / rates["gathering alone"])
    figures["both alone, added up (minibatches/s)"] = limit
    figures["DataLoader, ratio to both alone"] = ours / limit
    for name in STORED_AS:
        reached = rates[f"DataLoader, stored as {name}"]
        limit = 1 / (1 / rates["sampling alone"] + 1 / rates[f"gathering alone, stored as {name}"])
        figures[f"stored as {name}, both alone, added up (minibatches/s)"] = limit
        figures[f"stored as {name}, ratio to both alone"] = reached / limit
        figures[f"stored as {name}, ratio to float32"] = reached / ours
    figures["DataLoader, ratio to overlap=False, 1 thread"] = ours / rates["DataLoader, overlap=False, 1 thread"]
    stats = _core.pool_stats()
    figures["pool, most bytes in use at once (MB)"] = stats["peak_bytes"] / 1e6
    report(figures, args.json)


class Delivery:
    """Minibatches per second of a stage over about one second. Each measurement builds the stage anew and closes it."""

    def __init__(self, build: Callable[[], dp.Stage]) -> None:
        self._build = build

    def __call__(self, _: int) -> float:
        with self._build() as stage:
            stream = iter(stage)
            for _ in range(4):
                next(stream)
            done, began = 0, time.perf_counter()
            while time.perf_counter() - began < ROUND_S:
                minibatch = next(stream, None)
                if minibatch is None:
                    stream = iter(stage)
                else:
                    done += 1
            return done / (time.perf_counter() - began)


if __name__ == "__main__":
    main()
