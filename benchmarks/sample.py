"""How fast does sample_neighbor (NeighborSampler) sample and compact, and how far is that from the memory limit?

1,024 seeds, fanouts [15, 10, 5], frontiers "all" and "new", the stage as users call it (ItemSampler included), one
thread. The edges in the blocks count. Compared with GraphBolt 2.1.0 in its own interpreter (--peer-python), with an
allocator that keeps memory and as installed, and with NumPy (picks with replacement by one multiplication, np.unique).
The floor is as many random lines as the minibatch must
touch, read with many under way at once: per edge one line of a neighbor list and one of the id map, per destination one
of indptr. It is given for lines that miss every cache (from 1 GiB), and for lines from memory of the size of each
structure, part of which is cached. All in alternation, half a second per measurement, median of 9. Then two threads
inside a minibatch and one, and the floor with two and one: turns of 0.1 s, median of 25. Then small minibatches (32
seeds, [5, 5]): the time of the chain beyond the kernel. --int32-only leaves out the sides with int64 ids, for graphs
too large to hold both.
Run: python benchmarks/sample.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commits 9ddbb91 and 99cefe3): frontier all 43.3 and 41.1 M
edges/s (23.1 and 24.3 ns/edge), new 41.4 and 41.5, int32 ids 46.3 and 45.8; NumPy 5.0 and 4.7. Time over the floor:
1.17 and 1.19 where every line misses, 1.91 and 2.14 where caches hold what they can. Two threads (commit 99cefe3, three
times): 1.61, 1.49, 1.57 times the rate, the floor 1.75, 1.61, 1.64: 0.92, 0.92 and 0.96 of its scaling. Python around a
small minibatch: 138 and 91 us. 2.4M nodes / 120M edges, int32 only: 30.4 to 32.7 M edges/s, 1.15 times the floor. Id
map 4 bytes a node.
Beside GraphBolt (2-core Intel Xeon VM, shared, commit 1650a2c): 50.7 M edges/s, GraphBolt 8.2 (6.2 x), as installed 7.2
(7.1 x); two threads 96, GraphBolt 14.0 (6.6 x), as installed 11.6 (8.1 x).
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from common import (
    Figures,
    RandomLines,
    alternate,
    load_graph,
    parser,
    peak_bytes,
    peers_of,
    report,
    timed,
    with_threads,
)

import datapipes as dp
from datapipes import _core

ROUND_S = 0.5
FANOUTS = [15, 10, 5]
MAP_BYTES = 4  # of the id map, per node


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--int32-only", action="store_true", help="leave the sides with int64 ids out")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    narrow = graph.with_index_dtype(torch.int32)
    if args.int32_only:
        graph = narrow
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1)
    ours = Sampling(items.sample_neighbor(graph, FANOUTS))
    sides = {
        "frontier all (edges/s)": ours,
        "frontier new (edges/s)": Sampling(items.sample_neighbor(graph, FANOUTS, frontier="new")),
        "int32 ids (edges/s)": Sampling(items.sample_neighbor(narrow, FANOUTS)),
        "numpy (edges/s)": lambda round_: numpy_rate(graph, round_),
        "lines of 1 GiB (lines/s)": RandomLines(),
        "lines of indices (lines/s)": RandomLines(graph.indices.nbytes),
        "lines of the id map (lines/s)": RandomLines(MAP_BYTES * graph.num_nodes),
        "lines of indptr (lines/s)": RandomLines(graph.indptr.nbytes),
    }
    peers = peers_of(args.peer_python, args.graph, "sample")
    sides |= {f"{name} (edges/s)": peer.measure for name, peer in peers.items()}
    rates = alternate(sides, args.repeats)
    for peer in peers.values():
        peer.close()
    figures: dict[str, float | str] = dict(rates)
    for name in ("frontier all", "frontier new", "int32 ids", "numpy"):
        figures[f"{name} (M edges/s)"] = rates[f"{name} (edges/s)"] / 1e6
        figures[f"{name} (ns/edge)"] = 1e9 / rates[f"{name} (edges/s)"]
    all_rate = rates["frontier all (edges/s)"]
    for other in (*peers, "numpy"):
        for name in ("frontier all", "frontier new", "int32 ids"):
            figures[f"{name}, ratio to {other}"] = rates[f"{name} (edges/s)"] / rates[f"{other} (edges/s)"]
    per_edge = ours.destinations / ours.edges
    missed = (2 + per_edge) / rates["lines of 1 GiB (lines/s)"]
    sized = (
        1 / rates["lines of indices (lines/s)"]
        + 1 / rates["lines of the id map (lines/s)"]
        + per_edge / rates["lines of indptr (lines/s)"]
    )
    figures["floor, every line a miss (ns/edge)"] = missed * 1e9
    figures["time over that floor"] = 1 / all_rate / missed
    figures["floor, lines of each structure (ns/edge)"] = sized * 1e9
    figures["time over that one"] = 1 / all_rate / sized
    figures |= scaling_figures(items, graph)
    figures |= two_thread_figures(items, graph, args)
    figures |= small_minibatches(graph)
    figures["peak memory of a minibatch (bytes/edge)"] = ours.peak_bytes_per_edge()
    figures["id map (bytes/node)"] = float(MAP_BYTES)
    report(figures, args.json)


def scaling_figures(items: dp.Stage, graph: dp.CSCGraph) -> dict[str, float | str]:
    """Measure what a second thread adds to sampling and to the floor. Turns are short, so other load hits all sides."""
    sides = {
        "1 thread": Sampling(items.sample_neighbor(graph, FANOUTS), 0.1),
        "2 threads": with_threads(2, Sampling(items.sample_neighbor(graph, FANOUTS), 0.1)),
        "floor, 1 thread": RandomLines(num_reads=2**22),
        "floor, 2 threads": RandomLines(num_reads=2**22, threads=2),
    }
    rates = alternate(sides, 25)
    scaling = rates["2 threads"] / rates["1 thread"]
    floor_scaling = rates["floor, 2 threads"] / rates["floor, 1 thread"]
    return {
        "2 threads (M edges/s)": rates["2 threads"] / 1e6,
        "2 threads (ns/edge)": 1e9 / rates["2 threads"],
        "scaling to 2 threads": scaling,
        "scaling of the floor": floor_scaling,
        "share of the floor's scaling": scaling / floor_scaling,
    }


def two_thread_figures(items: dp.Stage, graph: dp.CSCGraph, args: argparse.Namespace) -> Figures:
    """Measure sampling with two threads beside GraphBolt's with two."""
    peers = peers_of(args.peer_python, args.graph, "sample 2")
    sides = {name: peer.measure for name, peer in peers.items()}
    rates = alternate(sides | {"ours": with_threads(2, Sampling(items.sample_neighbor(graph, FANOUTS)))}, args.repeats)
    for peer in peers.values():
        peer.close()
    figures: Figures = {f"{name}, 2 threads (M edges/s)": rates[name] / 1e6 for name in peers}
    return figures | {f"2 threads, ratio to {name}, 2 threads": rates["ours"] / rates[name] for name in peers}


class Sampling:
    """Sampled edges per second of a chain; counts edges and destinations."""

    def __init__(self, pipe: dp.Stage, round_s: float = ROUND_S) -> None:
        self._pipe = pipe
        self._round_s = round_s
        self._stream = iter(pipe)
        self.edges = self.destinations = 0

    def __call__(self, _: int) -> float:
        edges, spent = 0, 0.0
        while spent < self._round_s:
            seconds, minibatch = timed(lambda: next(self._stream, None))
            if minibatch is None:
                self._stream = iter(self._pipe)
                continue
            spent += seconds
            edges += sum(block.num_edges for block in minibatch.blocks)
            self.destinations += sum(block.num_dst for block in minibatch.blocks)
        self.edges += edges
        return edges / spent

    def peak_bytes_per_edge(self) -> float:
        """Peak resident memory of one minibatch when the pool is empty."""
        made: list[dp.MiniBatch] = []
        _core.pool_trim()
        peak = peak_bytes(lambda: made.append(next(self._stream)))
        return peak / sum(block.num_edges for block in made[0].blocks)


def numpy_rate(graph: dp.CSCGraph, round_: int) -> float:
    """Edges per second of the plain way: whole-array operations, picks with replacement, ids compacted by sorting."""
    indptr, indices, _ = graph.arrays()
    rng = np.random.default_rng(round_)
    seeds = rng.choice(graph.num_nodes, 1024, replace=False)

    def sample() -> int:
        nodes, edges = seeds, 0
        for fanout in reversed(FANOUTS):
            degrees = indptr[nodes + 1] - indptr[nodes]
            counts = np.minimum(degrees, fanout)
            picks = (rng.random(counts.sum()) * np.repeat(degrees, counts)).astype(np.int64)
            neighbors = indices[np.repeat(indptr[nodes], counts) + picks]
            unique, first, local = np.unique(np.concatenate((nodes, neighbors)), return_index=True, return_inverse=True)
            order = np.argsort(first)
            rank = np.empty_like(order)
            rank[order] = np.arange(len(order))
            nodes, edges = unique[order], edges + len(rank[local[len(nodes) :]])
        return edges

    seconds, edges = timed(sample)
    return edges / seconds


def small_minibatches(graph: dp.CSCGraph, num: int = 2_000) -> dict[str, float | str]:
    """The time of the chain for a minibatch of 32 seeds beyond the kernel's, both over the same seeds and keys."""
    stream = iter(dp.ItemSampler(dp.ItemSet(graph.num_nodes), 32, shuffle=True, seed=2).sample_neighbor(graph, [5, 5]))
    seeds = [next(stream).seeds.numpy() for _ in range(num)]
    topology = graph.topology()
    options = {"sampled": [0], "fanouts": [[5], [5]], "keys": [[1], [2]]}
    options |= {"replace": False, "only_new": False, "want_edge_ids": False}

    def chain(_: int) -> float:
        again = iter(
            dp.ItemSampler(dp.ItemSet(graph.num_nodes), 32, shuffle=True, seed=2).sample_neighbor(graph, [5, 5])
        )
        return timed(lambda: [next(again) for _ in range(num)])[0] / num * 1e6

    def kernel(_: int) -> float:
        make = _core.sample_neighbors
        return timed(lambda: [make(topology, [(0, s)], **options) for s in seeds])[0] / num * 1e6

    taken = alternate({"chain": chain, "kernel": kernel}, 5, 1)
    return {
        "32 seeds, [5, 5]: chain (us)": taken["chain"],
        "32 seeds, [5, 5]: kernel (us)": taken["kernel"],
        "32 seeds, [5, 5]: Python (us)": taken["chain"] - taken["kernel"],
    }


if __name__ == "__main__":
    main()
