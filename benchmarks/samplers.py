"""What does each sampler cost beside uniform sampling, per sampled edge and per input node?

A table of samplers: sample_in_subgraph (InSubgraphSampler). Each is measured in alternation with sample_neighbor over
the same seeds and the fanouts of the row, as users call them (ItemSampler included, 1,024 seeds, one thread), half a
second per measurement, median of 9. Edges are those in the blocks; input nodes are those that features would be read
for. An in-edge is scanned if it is one of a node that a hop draws for.
Run: python benchmarks/samplers.py --graph GRAPH --only in_subgraph
Result (2-core AMD EPYC VM, shared and busy, 1M nodes / 20M edges, commit 85f8ef2 and the sampler): sample_in_subgraph
38 and 57 ns/edge, 1.18 and 0.92 times sample_neighbor with [-1], the same kernel; the difference is noise.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import NamedTuple

import torch
from common import Figures, alternate, load_graph, parser, report, timed

import datapipes as dp

ROUND_S = 0.5
BATCH_SIZE = 1024
DEEP = [15, 10, 5]

Build = Callable[[dp.Stage, dp.CSCGraph], dp.Stage]


class Row(NamedTuple):
    """A sampler, and the uniform sampling that it is compared with."""

    name: str
    build: Build
    uniform: Build


def uniform(fanouts: list[int], **options: object) -> Build:
    """Return uniform sampling with these fanouts."""
    return lambda items, graph: items.sample_neighbor(graph, fanouts, **options)


# A new sampler is a row here, and a word in the docstring.
ROWS = [
    Row("in_subgraph", lambda items, graph: items.sample_in_subgraph(graph), uniform([-1])),
]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="*", help="pattern of the samplers to measure, such as 'in_*'")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    figures: Figures = {}
    for row in ROWS:
        if fnmatch.fnmatch(row.name, args.only):
            figures |= compare(row, graph, args.repeats)
    report(figures, args.json)


def compare(row: Row, graph: dp.CSCGraph, repeats: int) -> Figures:
    """Measure a sampler and its uniform counterpart in turn."""
    sides = {name: Sampling(build, graph) for name, build in (("it", row.build), ("uniform", row.uniform))}
    rates = alternate(dict(sides), repeats)
    cost = {name: 1e9 / rates[name] for name in sides}
    nodes = {name: cost[name] * side.edges / side.input_nodes for name, side in sides.items()}
    ours, name = sides["it"], row.name
    return {
        f"{name} (ns/edge)": cost["it"],
        f"{name}: uniform beside it (ns/edge)": cost["uniform"],
        f"{name}: ratio per edge": cost["it"] / cost["uniform"],
        f"{name} (ns/input node)": nodes["it"],
        f"{name}: ratio per input node": nodes["it"] / nodes["uniform"],
        f"{name} (ns/in-edge scanned)": cost["it"] * ours.edges / ours.scanned,
        f"{name} (in-edges scanned per edge)": ours.scanned / ours.edges,
    }


class Sampling:
    """Sampled edges per second of a chain; counts edges, input nodes and scanned in-edges."""

    def __init__(self, build: Build, graph: dp.CSCGraph) -> None:
        items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), BATCH_SIZE, shuffle=True, seed=1)
        self._degree = graph.indptr.diff()
        self._pipe = build(items, graph)
        self._stream = iter(self._pipe)
        self.edges = self.input_nodes = self.scanned = 0

    def __call__(self, _: int) -> float:
        edges, spent = 0, 0.0
        while spent < ROUND_S:
            seconds, minibatch = timed(lambda: next(self._stream, None))
            if minibatch is None:
                self._stream = iter(self._pipe)
                continue
            spent += seconds
            edges += sum(block.num_edges for block in minibatch.blocks)
            self.input_nodes += len(minibatch.input_nodes)
            degree = self._degree[minibatch.input_nodes.long()].cumsum(0)
            self.scanned += sum(int(degree[block.num_dst - 1]) for block in minibatch.blocks)
        self.edges += edges
        return edges / spent


if __name__ == "__main__":
    main()
