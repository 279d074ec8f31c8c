"""How fast are personalised PageRank, PinSAGE's neighbors and whole subgraphs?

sample_ppr (PprSampler): 1,024 seeds, the 64 nodes with the largest score, alpha 0.15, at eps 1e-4 and 1e-5, beside the
textbook's push in C++ (plain_push.cpp) on the same graph, with a hash map for each seed and with arrays of all nodes.
sample_pinsage (PinSageSampler): 1,024 seeds, 10 neighbors of 200 walks of at most 3 steps, restart_prob 0.5; beside the
walks alone, by sample_random_walk. sample_shadow (ShadowSampler): 1,024 seeds, [10, 5], beside sample_neighbor with
the same trees, and beside a plain pass in C++ that reads all in-edges of all nodes of the trees, which it must read.
sample_induced_subgraph (InducedSubgraphSampler): the edges among 20,000 random nodes, beside sample_in_subgraph, which
copies all their in-edges. One thread, all in alternation, median of 9.
Run: python benchmarks/subgraphs.py --graph GRAPH
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, torch 2.13.0 CPU, commit ac3c680, two runs): at eps 1e-4 32
and 35 us a seed, which follows 1,667 edges, 3.3 and 3.6 times the rate of a map, 1.46 and 1.48 that of arrays, which
take 24 bytes a node for each thread; at 1e-5 304 and 310 us, 15,770 edges, 3.4 and 3.5 times a map, 1.42 and 1.47 times
arrays. PinSAGE 31 and 32 ms, 2.2 times its walks. ShaDow 81 and 86 ms, 3.8 and 4.4 times a plain pass over its 30.9
million in-edges, 59 times its trees of 50,000 nodes. An induced subgraph 2.2 ms, 0.67 and 0.68 times a copy of its in-
edges.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import Figures, alternate, load_graph, parser, report, timed

import datapipes as dp
from datapipes import _core

NUM_SEEDS, COUNT, ALPHA = 1024, 64, 0.15


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    graph = dp.CSCGraph(graph.indptr, graph.indices.long())
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), NUM_SEEDS, shuffle=True, seed=1)
    seeds, many = minibatch_of(items), minibatch_of(dp.ItemSampler(items.item_set, 20_000, shuffle=True, seed=1))
    figures: Figures = {}
    shadow = items.sample_shadow(graph, [10, 5])
    trees: Any = shadow.transform(seeds)  # type: ignore[attr-defined]
    with tempfile.TemporaryDirectory() as folder:
        plain = compiled(Path(folder))
        for eps in (1e-4, 1e-5):
            figures |= of_ppr(plain, graph, seeds, eps, args.repeats)
    stages: dict[str, tuple[dp.Stage, Any]] = {
        "pinsage": (items.sample_pinsage(graph, 10, 200, 3, 0.5), seeds),
        "its walks": (items.sample_random_walk(graph, 3, walks_per_node=200, restart_prob=0.5), seeds),
        "shadow": (shadow, seeds),
        "its trees": (items.sample_neighbor(graph, [10, 5], disjoint=True), seeds),
        "induced subgraph": (items.sample_induced_subgraph(graph), many),
        "its in-edges": (items.sample_in_subgraph(graph), many),
    }
    sides = {name: per_second(*of) for name, of in stages.items()}
    sides["reading"] = reading(plain, graph, trees.input_nodes)
    rates = alternate(sides, args.repeats)
    figures["shadow: in-edges read (millions)"] = float(graph.in_degrees()[trees.input_nodes].sum()) / 1e6
    figures["shadow: time over a plain pass"] = rates["reading"] / rates["shadow"]
    names = [*stages]
    for ours, other in zip(names[::2], names[1::2], strict=True):
        figures[f"{ours} (ms)"] = 1e3 / rates[ours]
        figures[f"{ours}: time over {other}"] = rates[other] / rates[ours]
    report(figures, args.json)


def minibatch_of(items: dp.ItemSampler) -> dp.MiniBatch:
    return next(iter(items)).replace(rng=dp.stages.RngKey(1, 0, 0, 1))  # as the runtime gives it to a stage


def per_second(stage: Any, minibatch: dp.MiniBatch) -> Callable[[int], float]:
    return lambda _: 1 / timed(lambda: stage.transform(minibatch))[0]


def reading(plain: ctypes.CDLL, graph: dp.CSCGraph, nodes: torch.Tensor) -> Callable[[int], float]:
    plain.read_in_edges.restype = ctypes.c_int64
    pointers = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (graph.indptr, graph.indices, nodes)]
    return lambda _: 1 / timed(lambda: plain.read_in_edges(*pointers, ctypes.c_int64(nodes.shape[0])))[0]


def compiled(folder: Path) -> ctypes.CDLL:
    """Compile plain_push.cpp, and load it."""
    source, library = Path(__file__).with_name("plain_push.cpp"), folder / "plain_push.so"
    subprocess.run(["c++", "-std=c++20", "-O3", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    return ctypes.CDLL(str(library))


def of_ppr(plain: ctypes.CDLL, graph: dp.CSCGraph, minibatch: dp.MiniBatch, eps: float, repeats: int) -> Figures:
    seeds = minibatch.seeds.numpy()
    ids, scores = np.empty((NUM_SEEDS, COUNT), np.int64), np.empty((NUM_SEEDS, COUNT), np.float32)
    num_edges: dict[str, int] = {}

    def push(name: str) -> Callable[[int], float]:
        function = getattr(plain, name)
        function.restype = ctypes.c_int64
        addresses = [
            ctypes.c_void_p(array.ctypes.data) for array in (graph.indptr.numpy(), graph.indices.numpy(), seeds)
        ]
        numbers = ctypes.c_int64(NUM_SEEDS), ctypes.c_double(ALPHA), ctypes.c_double(eps), ctypes.c_int64(COUNT)
        out = ctypes.c_void_p(ids.ctypes.data), ctypes.c_void_p(scores.ctypes.data)

        def run(_: int) -> float:
            nodes = ctypes.c_int64(graph.num_nodes)
            seconds, num_edges[name] = timed(lambda: function(*addresses[:2], nodes, addresses[2], *numbers, *out))
            return 1 / seconds

        return run

    def ours(_: int) -> float:
        options = {"keep": int(ALPHA * 2**32), "eps": int(eps * 2**62), "count": COUNT}
        seconds, (*_, num_edges["ours"]) = timed(lambda: _core.ppr(graph.topology(), seeds, **options))
        return 1 / seconds

    sides = {"ours": ours, "a map": push("push_in_map"), "arrays": push("push_in_arrays")}
    rates = alternate(sides, repeats)
    what = f"ppr, eps {eps:g}"
    return {
        f"{what} (us a seed)": 1e6 / rates["ours"] / NUM_SEEDS,
        f"{what}: edges of a seed": num_edges["ours"] / NUM_SEEDS,
        f"{what}: edges over the queue's": num_edges["ours"] / num_edges["push_in_map"],
        f"{what}: rate over a map's": rates["ours"] / rates["a map"],
        f"{what}: rate over arrays'": rates["ours"] / rates["arrays"],
    }


if __name__ == "__main__":
    main()
