"""What does each sampler over parts cost beside the same one over the undivided graph, without a network?

A table of samplers: dist_sample_neighbor with trees (disjoint) and with weights (prob_name), dist_sample_in_subgraph,
dist_sample_layer_neighbor, dist_temporal_sample_neighbor (times of edges and sources); the plain one is measured in
dist_neighbor_sampler.py. Whole minibatches over 2 random parts that answer in this process, one of them local, beside
the sampler of the whole graph over the same seeds, 1,024 of them, fanouts [15, 10, 5]; minibatches/s. Both give equal
bits, which is checked first. In alternation, one thread for kernels, median of 9.
Run: python benchmarks/dist_samplers.py --graph GRAPH
Result (2-core AMD EPYC VM, shared and very busy, made graph of 200,000 nodes and 4M edges, median of 3, commit b0371f2
and the next), over 2 parts and undivided: trees 11.9 and 14.7, 0.81 of it; weights 19.0 and 25.0, 0.76; LABOR 19.0 and
27.2, 0.70; temporal 22.6 and 33.7, 0.67. In-subgraphs 156 and 707: most of a minibatch over parts is the event loop,
the threads and the requests of an epoch of four.
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
TIMES = {"edge_time_attr": "at", "node_time_attr": "since"}
LAST_TIME = 1000

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
        "dist_sample_neighbor, weights",
        lambda items, graph: items.sample_neighbor(graph, FANOUTS, prob_name="w"),
        lambda items, graph: items.dist_sample_neighbor(graph, FANOUTS, prob_name="w"),
    ),
    Row(
        "dist_sample_in_subgraph",
        lambda items, graph: items.sample_in_subgraph(graph),
        lambda items, graph: items.dist_sample_in_subgraph(graph),
    ),
    Row(
        "dist_sample_layer_neighbor",
        lambda items, graph: items.sample_layer_neighbor(graph, FANOUTS),
        lambda items, graph: items.dist_sample_layer_neighbor(graph, FANOUTS),
    ),
    Row(
        "dist_temporal_sample_neighbor",
        lambda items, graph: items.temporal_sample_neighbor(graph, FANOUTS, **TIMES),
        lambda items, graph: items.dist_temporal_sample_neighbor(graph, FANOUTS, **TIMES),
    ),
]


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    plain, _ = load_graph(args.graph)
    made = torch.Generator().manual_seed(0)
    times = [torch.randint(LAST_TIME, (count,), generator=made) for count in (plain.num_edges, plain.num_nodes)]
    edges = {"at": times[0], "w": torch.rand(plain.num_edges, generator=made)}
    graph = dp.CSCGraph(plain.indptr, plain.indices, edge_attributes=edges, node_attributes={"since": times[1]})
    ids = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[: BATCH * MINIBATCHES]
    items = dp.ItemSampler(
        dp.ItemSet((ids, torch.full_like(ids, LAST_TIME // 2)), names=("seeds", "timestamps")), BATCH
    )
    rates: dict[str, Callable[[int], float]] = {}
    with tempfile.TemporaryDirectory() as root:
        Partitioner(
            graph, 2, Path(root, "parts"), method="random", node_time_attr="since", layouts=("native",)
        ).generate_partition()
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
