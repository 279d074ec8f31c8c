"""How many rows does a CPUCachedFeature find, how near is that to the best there could be, and what does a hit take?

"trace": the input nodes of the minibatches of an epoch (20,480 seeds, 1,024 at a time, [15, 10, 5]), a cache of a tenth
of the rows that is empty at first. Beside SIEVE and LRU the static cache that the same epoch's counts fill, and
Belady's optimum: after each minibatch, of the rows that are there and those of the minibatch, the ones that are needed
again soonest. A minibatch asks for each row once, so no cache can give more hits than it has rows. Also with
minibatches of 64 seeds. These figures depend on no machine.
"hit": rows of 400 bytes of these minibatches from a cache that holds everything, against torch.index_select into memory
that is there, and a TensorFeature, in alternation. "loader": a DataLoader without workers over either, minibatches/s.
Run: python benchmarks/cached_feature.py --graph GRAPH
Result (2-core AMD EPYC VM, 1M nodes / 20M edges, commit 1862eb3): 1,024 seeds: SIEVE 0.290, LRU 0.147, the static set
0.353, Belady 0.418, and 0.478 as many as the cache has rows. 64 seeds: 0.522, 0.400, 0.557, 0.645. A hit 6.1 GB/s, 1.16
of index_select, 0.96 of TensorFeature. The loader 69.6 minibatches/s, 0.98 of TensorFeature's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from common import Figures, alternate, load_graph, parser, report, timed
from products_size import store_of

import datapipes as dp
from datapipes._core import RowCache

SEEDS, BATCHES, FANOUTS, SHARE = 20_480, (1024, 64), [15, 10, 5], 0.1


def main() -> None:
    arguments = parser(__doc__ or "")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    graph, rows = load_graph(args.graph)
    seeds = torch.from_numpy(np.random.default_rng(0).choice(graph.num_nodes, SEEDS, replace=False))
    figures: Figures = {}
    for batch in BATCHES:
        trace = [minibatch.input_nodes for minibatch in _sampled(graph, seeds, batch)]
        for name, share in _hits(trace, graph.num_nodes).items():
            figures[f"{batch} seeds: {name}"] = share
    trace = [minibatch.input_nodes for minibatch in _sampled(graph, seeds, BATCHES[0])]
    tensor = dp.TensorFeature(torch.from_numpy(rows))
    cached = dp.CPUCachedFeature(tensor, 2 * rows.nbytes + 2**26)
    cached.read(torch.arange(graph.num_nodes))
    figures |= _speed_of_hits(trace, tensor, cached, args.repeats)
    figures |= _speed_of_loaders(_sampled(graph, seeds, BATCHES[0]), tensor, cached, args.repeats)
    if cached.stats()["misses"] != graph.num_nodes:
        raise AssertionError(f"the cache lacked rows: {cached.stats()}")
    report(figures, args.json)


def _sampled(graph: dp.CSCGraph, seeds: torch.Tensor, batch: int) -> dp.Stage:
    return dp.ItemSampler(dp.ItemSet(seeds), batch, shuffle=True, seed=1).sample_neighbor(graph, FANOUTS)


def _hits(trace: list[torch.Tensor], num_nodes: int) -> Figures:
    """Return the share of rows that each cache finds, and the most that there could be."""
    slots = round(num_nodes * SHARE)
    narrow = dp.TensorFeature(torch.zeros(num_nodes, 1, dtype=torch.uint8))
    counts = torch.zeros(num_nodes, dtype=torch.int64)
    for ids in trace:
        counts[ids.long()] += 1
    found: Figures = {}
    for policy in ("sieve", "lru", "static"):
        max_bytes = slots * RowCache.bytes_of_slot(1) + num_nodes * RowCache.bytes_of_id(policy)
        cache = dp.CPUCachedFeature(narrow, max_bytes, policy, counts=counts if policy == "static" else None)
        for ids in trace:
            cache.read(ids)
        stats = cache.stats()
        found[f"{policy}, hits"] = stats["hits"] / (stats["hits"] + stats["misses"])
    asked = sum(map(len, trace))
    found["Belady's optimum, hits"] = _best(trace, num_nodes, slots) / asked
    found["as many as the cache has rows, hits"] = sum(min(slots, len(ids)) for ids in trace) / asked
    return found


def _best(trace: list[torch.Tensor], num_nodes: int, slots: int) -> int:
    never = len(trace)
    next_use = np.full((len(trace), num_nodes), never, dtype=np.int16 if never < 2**15 else np.int32)
    known = np.full(num_nodes, never, next_use.dtype)
    for step in reversed(range(len(trace))):
        next_use[step] = known
        known[trace[step].numpy()] = step
    held, hits = np.zeros(num_nodes, bool), 0
    for step, ids in enumerate(trace):
        hits += int(held[ids.numpy()].sum())
        held[ids.numpy()] = True
        there = np.flatnonzero(held)
        if len(there) > slots:
            held[there[np.argpartition(next_use[step][there], slots)[slots:]]] = False
    return hits


def _speed_of_hits(
    trace: list[torch.Tensor], tensor: dp.TensorFeature, cached: dp.CPUCachedFeature, repeats: int
) -> Figures:
    out = [torch.empty(len(ids), *tensor.shape) for ids in trace[:4]]

    def side(read: Callable[[torch.Tensor, torch.Tensor], object]) -> Callable[[int], float]:
        def measure(round_: int) -> float:
            ids, into = trace[round_ % len(out)], out[round_ % len(out)]
            return into.nbytes / timed(lambda: read(ids, into))[0]

        return measure

    rates = alternate(
        {
            "index_select": side(lambda ids, into: torch.index_select(tensor.tensor, 0, ids, out=into)),
            "TensorFeature": side(lambda ids, into: tensor.read(ids, out=into)),
            "all cached": side(lambda ids, into: cached.read(ids, out=into)),
        },
        repeats,
    )
    figures: Figures = {f"hit: {name} (GB/s)": rate / 1e9 for name, rate in rates.items()}
    figures["hit: all cached, of index_select"] = rates["all cached"] / rates["index_select"]
    figures["hit: all cached, of TensorFeature"] = rates["all cached"] / rates["TensorFeature"]
    return figures


def _speed_of_loaders(
    sampled: dp.Stage, tensor: dp.TensorFeature, cached: dp.CPUCachedFeature, repeats: int
) -> Figures:
    loaders = {
        name: dp.DataLoader(sampled.fetch_feature(store_of(feature), ["feat"]))
        for name, feature in (("TensorFeature", tensor), ("all cached", cached))
    }

    def side(loader: dp.DataLoader) -> Callable[[int], float]:
        def measure(_: int) -> float:
            began, steps = time.perf_counter(), sum(1 for _ in loader)
            return steps / (time.perf_counter() - began)

        return measure

    rates = alternate({name: side(loader) for name, loader in loaders.items()}, repeats, warm_ups=1)
    figures: Figures = {f"loader: {name} (minibatches/s)": rate for name, rate in rates.items()}
    figures["loader: all cached, of TensorFeature"] = rates["all cached"] / rates["TensorFeature"]
    return figures


if __name__ == "__main__":
    main()
