"""What does a state cost that names every byte of the graph, and does the first minibatch wait for it?

The arrays of a graph of 20M int64 edges and 1M nodes (168 MB), hashed by one thread and by two, of int64 and of int32
ids, beside a sum of the same bytes (NumPy, one thread: a memory read) and a copy. Then a whole chain, 1,024 seeds,
fanouts [15, 10, 5], features of 400 bytes: the first minibatch of a loader, and the first `state_dict()` right after
it, where nobody has taken the digest of the graph yet, and where it is known. In turn, median of 9, of the chain 21.
Run: python benchmarks/digests.py --graph GRAPH
Result (2-core Intel Xeon VM, shared and busy, 1M nodes / 20M edges, commit 2416138): 5.7 GB/s by one thread, 10.4 by
two; from int32 3.9 and 7.7 GB/s of int64; a sum 16.6, a copy 7.1. First minibatch 1.00 of the time with the digest
known; the first state right after it 0.29 ms where it is known, 50 to 100 ms where the digest has just begun.
2-core AMD EPYC VM, five runs: 7.6 GB/s by one thread (0.51 to 0.59 of a sum) and 11.8 to 14.0 by two (0.93 to 1.08);
from int32 8.5 and 15.5. First minibatch 1.09, 1.16 and 1.21 where the thread that hashes was started after it, 0.99 and
0.99 where it waits from the epoch's begin on (see DigestsInBackground); the first state 0.3 ms and 44 to 54 ms.
"""

from __future__ import annotations

import statistics

import numpy as np
import torch
from common import Figures, alternate, load_graph, memcpy, parser, report, timed, with_threads

import datapipes as dp
from datapipes.base.array_digest import array_digest

CHAINS = 21


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, rows = load_graph(args.graph)
    narrow = graph.indices.int()
    num_bytes = graph.indices.nbytes + graph.indptr.nbytes
    arrays = [graph.indices.numpy(), graph.indptr.numpy()]

    def hashed(indices: torch.Tensor) -> float:
        return num_bytes / timed(lambda: [array_digest(each, as_int64=True) for each in (indices, graph.indptr)])[0]

    rates = alternate(
        {
            "int64, 1 thread": lambda _: hashed(graph.indices),
            "int64, 2 threads": with_threads(2, lambda _: hashed(graph.indices)),
            "int32 as int64, 1 thread": lambda _: hashed(narrow),
            "int32 as int64, 2 threads": with_threads(2, lambda _: hashed(narrow)),
            "a sum of the same bytes, 1 thread": lambda _: (
                num_bytes / timed(lambda: [np.sum(each) for each in arrays])[0]
            ),
            "a copy of the same bytes, 1 thread": memcpy(num_bytes),
        },
        args.repeats,
    )
    figures: Figures = {f"{name} (GB/s)": rate / 1e9 for name, rate in rates.items()}
    for name in ("int64, 1 thread", "int64, 2 threads"):
        figures[f"{name}, ratio to a sum"] = rates[name] / rates["a sum of the same bytes, 1 thread"]
    torch.set_num_threads(2)
    report(figures | of_chains(graph, torch.from_numpy(rows)), args.json)


def of_chains(graph: dp.CSCGraph, rows: torch.Tensor) -> Figures:
    """Return what the digest takes of a new chain."""
    store = dp.FeatureStore({("node", None, "feat"): dp.TensorFeature(rows)})
    taken: dict[str, list[float]] = {}
    digests = [*graph._array_digests().values()]

    def run(is_known: bool, wants_state: bool, seed: int) -> float:
        """Return the seconds of the first minibatch, or of a state right after it."""
        fresh = dp.CSCGraph(graph.indptr, graph.indices)
        if is_known:
            fresh._take_digests(digests)  # without reading an array
        pipe = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=seed)
        pipe = pipe.sample_neighbor(fresh, [15, 10, 5]).fetch_feature(store, node_feature_keys=["feat"])
        with dp.DataLoader(pipe) as loader:
            stream = iter(loader)
            seconds, _ = timed(lambda: next(stream))
            if wants_state:
                seconds, _ = timed(loader.state_dict)
            for _ in range(4):  # the next run finds the same memory in the pool, whatever this one did
                next(stream)
        return seconds

    for turn in range(-1, CHAINS):
        for is_known, name in ((True, "digest known"), (False, "digest not taken yet")):
            for wants_state, what in ((False, "first minibatch"), (True, "first state_dict() right after it")):
                seconds = run(is_known, wants_state, turn + 1)
                if turn >= 0:
                    taken.setdefault(f"{name}: {what} (ms)", []).append(1e3 * seconds)
    figures: Figures = {name: statistics.median(times) for name, times in taken.items()}
    known, not_taken = (taken[f"digest {of}: first minibatch (ms)"] for of in ("known", "not taken yet"))
    ratios = [b / a for a, b in zip(known, not_taken, strict=True)]
    return {**figures, "first minibatch, digest not taken yet, ratio to known": statistics.median(ratios)}


if __name__ == "__main__":
    main()
