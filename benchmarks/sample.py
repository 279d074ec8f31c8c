"""How fast does sample_neighbor (NeighborSampler) sample and compact, and how far is that from the memory limit?

1,024 seeds, fanouts [15, 10, 5], frontiers "all" and "new", the stage as users call it (ItemSampler included). Edges
counted are those in the blocks. One thread, and two inside a minibatch. Against GraphBolt 2.1.0 in its own interpreter
(--peer-python), against NumPy (picks with replacement by one multiplication, np.unique), and against the floor: as many
random lines as the minibatch must touch (one of a neighbor list and one of the id map an edge, one of indptr a
destination), read with many under way at once. The floor is given for lines that miss every cache (from 1 GiB), and for
lines from memory of the size that each structure has, part of which caches hold. All in alternation, median of 9.
Small minibatches (32 seeds, [5, 5]): what the chain takes beyond the kernel. --int32-only leaves the sides with int64
ids out, for graphs too large to hold both. Run: python benchmarks/sample.py --graph GRAPH --peer-python PYTHON
RESULT
"""

from __future__ import annotations

import numpy as np
import torch
from common import Peer, RandomLines, alternate, load_graph, parser, peak_bytes, report, timed, with_threads

import datapipes as dp
from datapipes import _core

ROUND_S = 0.5
FANOUTS = [15, 10, 5]
MAP_BYTES = 4  # of the id map, a node


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
        "2 threads (edges/s)": with_threads(2, Sampling(items.sample_neighbor(graph, FANOUTS))),
        "numpy (edges/s)": lambda round_: numpy_rate(graph, round_),
        "lines of 1 GiB (lines/s)": RandomLines(),
        "lines of 1 GiB, 2 threads (lines/s)": RandomLines(threads=2),
        "lines of indices (lines/s)": RandomLines(graph.indices.nbytes),
        "lines of the id map (lines/s)": RandomLines(MAP_BYTES * graph.num_nodes),
        "lines of indptr (lines/s)": RandomLines(graph.indptr.nbytes),
    }
    peer = Peer(args.peer_python, args.graph, "sample") if args.peer_python else None
    if peer is not None:
        sides["graphbolt 2.1.0 (edges/s)"] = peer.measure
    rates = alternate(sides, args.repeats)
    if peer is not None:
        peer.close()
    figures: dict[str, float | str] = dict(rates)
    for name in ("frontier all", "frontier new", "int32 ids", "2 threads", "numpy"):
        figures[f"{name} (M edges/s)"] = rates[f"{name} (edges/s)"] / 1e6
        figures[f"{name} (ns/edge)"] = 1e9 / rates[f"{name} (edges/s)"]
    all_rate = rates["frontier all (edges/s)"]
    for other in ("graphbolt 2.1.0 (edges/s)", "numpy (edges/s)"):
        for name in ("frontier all", "frontier new", "int32 ids") if other in rates else ():
            figures[f"{name}, ratio to {other.split(' (')[0]}"] = rates[f"{name} (edges/s)"] / rates[other]
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
    scaling = rates["2 threads (edges/s)"] / all_rate
    floor_scaling = rates["lines of 1 GiB, 2 threads (lines/s)"] / rates["lines of 1 GiB (lines/s)"]
    figures |= {
        "scaling to 2 threads": scaling,
        "scaling of the floor": floor_scaling,
        "share of the floor's scaling": scaling / floor_scaling,
    }
    figures |= small_minibatches(graph)
    figures["peak memory of a minibatch (bytes/edge)"] = ours.peak_bytes_per_edge()
    figures["id map (bytes/node)"] = float(MAP_BYTES)
    report(figures, args.json)


class Sampling:
    """Sampled edges per second of a chain; counts edges and destinations."""

    def __init__(self, pipe: dp.Stage) -> None:
        self._pipe = pipe
        self._stream = iter(pipe)
        self.edges = self.destinations = 0

    def __call__(self, _: int) -> float:
        edges, spent = 0, 0.0
        while spent < ROUND_S:
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
        """Resident memory that one minibatch takes at its most, when the pool has nothing for it."""
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
    """What the chain takes for a minibatch of 32 seeds beyond the kernel, both over the same seeds and keys."""
    stream = iter(dp.ItemSampler(dp.ItemSet(graph.num_nodes), 32, shuffle=True, seed=2).sample_neighbor(graph, [5, 5]))
    seeds = [next(stream).seeds.numpy() for _ in range(num)]
    indptr, indices, _ = graph.arrays()
    options = {"replace": False, "only_new": False, "want_edge_ids": False}

    def chain(_: int) -> float:
        again = iter(
            dp.ItemSampler(dp.ItemSet(graph.num_nodes), 32, shuffle=True, seed=2).sample_neighbor(graph, [5, 5])
        )
        return timed(lambda: [next(again) for _ in range(num)])[0] / num * 1e6

    def kernel(_: int) -> float:
        make = _core.sample_neighbors
        return (
            timed(lambda: [make(indptr, indices, None, s, fanouts=[5, 5], keys=[1, 2], **options) for s in seeds])[0]
            / num
            * 1e6
        )

    taken = alternate({"chain": chain, "kernel": kernel}, 5, 1)
    return {
        "32 seeds, [5, 5]: chain (us)": taken["chain"],
        "32 seeds, [5, 5]: kernel (us)": taken["kernel"],
        "32 seeds, [5, 5]: Python (us)": taken["chain"] - taken["kernel"],
    }


if __name__ == "__main__":
    main()
