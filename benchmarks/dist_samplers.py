"""What does each sampler over parts cost beside the same one over the undivided graph, without a network?

A table of samplers: dist_sample_neighbor with trees (disjoint), dist_sample_in_subgraph; the plain one is measured in
dist_neighbor_sampler.py. Whole minibatches over 2 random parts that answer in this process, one of them local, beside
the sampler of the whole graph over the same seeds, 1,024 of them, fanouts [15, 10, 5]; minibatches/s. Both give equal
bits, which is checked first. In alternation, one thread for kernels, median of 9.
Run: python benchmarks/dist_samplers.py --graph GRAPH
Result (2-core AMD EPYC VM, shared and busy, made graph of 200,000 nodes and 4M edges, commit 8ccfcfc and the next):
trees 8.3/s over 2 parts, 9.0/s undivided, 0.92 of it. In-subgraphs 111/s and 1,175/s: a minibatch takes 0.9 ms
undivided; over parts 9 ms, most of it the event loop, threads and requests of an epoch of four minibatches.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from common import alternate, load_graph, parser, report, timed
from dist_neighbor_sampler import Here

import datapipes as dp
from datapipes.distributed import DistGraph, Part, Partitioner
from datapipes.distributed.facts import PartitionFacts
from datapipes.graph.graph import Graph

BATCH, FANOUTS, MINIBATCHES = 1024, [15, 10, 5], 4

Build = Callable[[dp.Stage, Graph], dp.Stage]


class Row(NamedTuple):
    """A sampler over the whole graph, and the same over its parts."""

    name: str
    whole: Build
    parts: Build


# A new sampler is a row here, and a word in the docstring.
ROWS = [
    Row(
        "dist_sample_neighbor, trees",
        lambda items, graph: items.sample_neighbor(graph, FANOUTS, disjoint=True),
        lambda items, graph: items.dist_sample_neighbor(graph, FANOUTS, disjoint=True),
    ),
    Row(
        "dist_sample_in_subgraph",
        lambda items, graph: items.sample_in_subgraph(graph),
        lambda items, graph: items.dist_sample_in_subgraph(graph),
    ),
]


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    ids = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[: BATCH * MINIBATCHES]
    items = dp.ItemSampler(dp.ItemSet(ids), BATCH)
    rates: dict[str, Callable[[int], float]] = {}
    with tempfile.TemporaryDirectory() as root:
        Partitioner(graph, 2, Path(root, "parts"), method="random", layouts=("native",)).generate_partition()
        parts = [Part.open(Path(root, "parts"), part) for part in range(2)]
        dist_graph = DistGraph(PartitionFacts.of(parts[0]), parts[0].book, Here(parts), parts[0])
        for name, of_whole, of_parts in ROWS:
            whole, ours = of_whole(items, graph), of_parts(items, dist_graph)
            for one, other in zip(whole, ours, strict=True):
                assert one.digest() == other.digest()
            for side, chain in ((f"{name}: whole (minibatches/s)", whole), (f"{name}: 2 parts (minibatches/s)", ours)):
                rates[side] = lambda _, chain=chain: MINIBATCHES / timed(lambda: list(chain))[0]  # type: ignore[misc]
        figures: dict[str, float | str] = dict(alternate(rates, args.repeats))
    report(figures, args.json)


if __name__ == "__main__":
    main()
