"""How fast are random walks, and how far is that from the memory limit?

4,096 seeds, 4 walks of 40 steps from each, sample_random_walk (RandomWalkSampler) on a stage that makes one minibatch,
one thread; steps that were taken count. The limit is the rate of random lines of 1 GiB, read with many under way at
once. A uniform step needs 2 lines (offsets, the source), a step by weight 5 (the last sum of the row, sums of lines,
and the sums where the draw falls too). node2vec with p = 0.5 and q = 2 draws 3.9 times until a source is accepted, and
looks one of them up in the row of the node before: 6 lines; with p = 2 and q = 0.5 about once and a half time: 2.5.
Where torch_cluster can be imported, its random_walk on the same graph, which repeats a node without in-edges, and which
does not draw by weight. All in alternation, median of 9.
Run: python benchmarks/walks.py --graph GRAPH
Result (2-core Intel Xeon VM, shared, 1M nodes / 20M edges, torch 2.13.0 CPU, torch_cluster 1.6.3, commit 36bcd98, four
runs; a random line takes 18 to 19 ns): a uniform step takes 30 to 38 ns, 0.83 to 0.99 of its lines (offsets lie in the
cache in part), 6.0 times torch_cluster's rate; with restarts 1.4 to 1.6; by weight 1.5 to 1.7; node2vec with p = 0.5
and q = 2 2.1 to 2.5 of its lines, 15 times torch_cluster's rate, with p = 2 and q = 0.5 2.3 to 2.7 and 9 times; by
weight 1.5 to 1.7.
On a machine whose random lines take 6.5 ns (2-core AMD EPYC VM, shared, commit 9aa643e, without c9edbeb; two runs),
more of a step is computing: uniform 1.1 of its lines, with restarts 2.0, by weight 2.3, node2vec 3.3 and 3.4, by weight
2.6. A search by line_above (c9edbeb) took 1.5 to 1.9 times as long by weight, and was taken back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from common import Figures, RandomLines, alternate, load_graph, parser, report, timed

import datapipes as dp

NUM_SEEDS, WALKS, LENGTH = 4096, 4, 40
SIDES: dict[str, tuple[float, dict[str, Any]]] = {  # the lines that a step needs, and the options
    "uniform": (2, {}),
    "restart_prob 0.01": (2, {"restart_prob": 0.01}),
    "by weight": (5, {"prob_name": "w"}),
    "node2vec, p 0.5, q 2": (6, {"p": 0.5, "q": 2.0}),
    "node2vec, p 2, q 0.5": (2.5, {"p": 2.0, "q": 0.5}),
    "node2vec by weight, p 0.5, q 2": (18, {"p": 0.5, "q": 2.0, "prob_name": "w"}),
}


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    made, _ = load_graph(args.graph)
    weights = torch.rand(made.num_edges, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    graph = dp.CSCGraph(made.indptr, made.indices, edge_attributes={"w": weights})
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), NUM_SEEDS, shuffle=True, seed=1)
    seeds = next(iter(items)).replace(rng=dp.stages.RngKey(1, 0, 0, 1))  # as the runtime gives it to a stage
    lines = RandomLines()
    sides: dict[str, Callable[[int], float]] = {"random lines": lines}
    for name, (_, options) in SIDES.items():
        stage = items.sample_random_walk(graph, LENGTH, walks_per_node=WALKS, **options)
        sides[name] = steps_of(lambda stage=stage: stage.transform(seeds).extra["walks"])
    sides |= of_torch_cluster(graph, seeds.seeds)
    rates = alternate(sides, args.repeats)
    figures: Figures = {f"{name} (ns)": 1e9 / rate for name, rate in rates.items()}
    for name, (num_lines, _) in SIDES.items():
        figures[f"{name}: time over {num_lines:g} random lines"] = rates["random lines"] / rates[name] / num_lines
        if (other := f"torch_cluster, {name}") in rates:
            figures[f"{name}: rate over torch_cluster's"] = rates[name] / rates[other]
    report(figures, args.json)


def steps_of(walk: Callable[[], torch.Tensor]) -> Callable[[int], float]:
    def rate(_: int) -> float:
        seconds, walks = timed(walk)
        return int((walks[..., 1:] >= 0).sum()) / seconds

    return rate


def of_torch_cluster(graph: dp.CSCGraph, seeds: torch.Tensor) -> dict[str, Callable[[int], float]]:
    try:
        import torch_cluster  # noqa: F401 (it makes the operator)
    except ImportError:
        return {}
    start = seeds.repeat_interleave(WALKS)

    def side(p: float = 1.0, q: float = 1.0) -> Callable[[int], float]:
        walk = torch.ops.torch_cluster.random_walk
        return steps_of(lambda: walk(graph.indptr, graph.indices, start, LENGTH, p, q)[0])

    return {
        "torch_cluster, uniform": side(),
        "torch_cluster, node2vec, p 0.5, q 2": side(0.5, 2.0),
        "torch_cluster, node2vec, p 2, q 0.5": side(2.0, 0.5),
    }


if __name__ == "__main__":
    main()
