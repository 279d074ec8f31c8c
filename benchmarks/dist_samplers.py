"""What does each sampler over parts cost beside the same one over the undivided graph, without a network?

The rows of samplers.py, but for those of another index dtype: dist_sample_neighbor with trees (disjoint) and with
weights (prob_name), dist_sample_in_subgraph, dist_sample_layer_neighbor, dist_temporal_sample_neighbor (times of edges
or of sources); the plain one is measured in dist_neighbor_sampler.py. Whole minibatches over 2 random parts that answer
in this process, one of them local, beside the sampler of the whole graph over the same seeds, 1,024 of them; fanouts
[15, 10, 5] where the row has no others; minibatches/s. The last row is a made graph with the sizes of FB15k-237, 474
edge types: 256 seeds, fanouts [2, 2]. Both give equal bits, which is checked first. In alternation, one thread for
kernels, median of 9.
Run: python benchmarks/dist_samplers.py --graph GRAPH
Result (2-core AMD EPYC VM, shared and very busy, made graph of 200,000 nodes and 4M edges, median of 3, commit b0371f2
and the next), over 2 parts and undivided: trees 11.9 and 14.7, 0.81 of it; weights 19.0 and 25.0, 0.76; LABOR 19.0 and
27.2, 0.70; temporal, by both times, 22.6 and 33.7, 0.67. In-subgraphs 156 and 707: most of a minibatch over parts is
the event loop, the threads and the requests of an epoch of four.
474 edge types (2-core VM, shared and very busy, median of 15, commit 8846c78): 13.2 and 14.1, 0.94 of it, since two
threads draw at once; in processor time 0.58 (81 and 47 ms a minibatch). At commit 05790ed: 0.22, and 0.21.
"""

from __future__ import annotations

import contextlib
import fnmatch
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import edge_values
import numpy as np
import torch
from common import Figures, alternate, load_graph, parser, report, timed
from dist_neighbor_sampler import Here
from samplers import ROWS, with_values

import datapipes as dp
from datapipes.distributed import DistGraph, Part, Partitioner
from datapipes.distributed.partition_facts import PartitionFacts

BATCH, MINIBATCHES = 1024, 4
MANY = (14_541, 544_230, 474)  # nodes, edges and edge types of FB15k-237


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="*", help="pattern of the rows to measure, such as 'temporal*'")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    plain, _ = load_graph(args.graph)
    graph = with_values(plain, tuple({name for row in ROWS for name in row.values}))
    ids = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[: BATCH * MINIBATCHES]
    times = torch.from_numpy(edge_values.seed_times(graph.num_nodes))[ids]
    items = dp.ItemSampler(dp.ItemSet((ids, times), names=("seeds", "timestamps")), BATCH)
    figures: Figures = {}
    with in_parts(graph, "node_time") as dist_graph:
        for row in ROWS:
            if "int32" not in row.name and fnmatch.fnmatch(row.name, args.only):
                figures |= compared(row.name, row.build(items, graph), row.build(items, dist_graph), args.repeats)
    if fnmatch.fnmatch("edge types", args.only):
        typed = many_types()
        seeds = dp.HeteroItemSet({"e": dp.ItemSet(torch.arange(256 * MINIBATCHES))})
        build = dp.ItemSampler(seeds, 256).sample_neighbor
        with in_parts(typed) as dist_graph:
            name = f"{len(typed.edge_types)} edge types"
            figures |= compared(name, build(typed, [2, 2]), build(dist_graph, [2, 2]), args.repeats)
    report(figures, args.json)


@contextlib.contextmanager
def in_parts(graph: dp.CSCGraph | dp.HeteroCSCGraph, node_time_attr: str | None = None) -> Iterator[DistGraph]:
    """Yield a graph in two random parts of this process."""
    with tempfile.TemporaryDirectory() as root:
        Partitioner(
            graph, 2, Path(root, "parts"), method="random", node_time_attr=node_time_attr, layouts=("native",)
        ).generate_partition()
        parts = [Part.open(Path(root, "parts"), part) for part in range(2)]
        yield DistGraph(PartitionFacts.of(parts[0]), parts[0].book, Here(parts), parts[0])


def many_types() -> dp.HeteroCSCGraph:
    """Return a graph with edge types of very different sizes."""
    num_nodes, num_edges, num_types = MANY
    rng = np.random.default_rng(0)
    number = (rng.pareto(1.2, num_edges) * 8).astype(np.int64) % num_types
    ends = torch.from_numpy(rng.integers(0, num_nodes, (2, num_edges)))
    edges = {("e", f"r{i:03d}", "e"): ends[:, torch.from_numpy(number == i)] for i in range(num_types)}
    return dp.HeteroCSCGraph.from_edge_index(edges, {"e": num_nodes})


def compared(name: str, whole: dp.Stage, ours: dp.Stage, repeats: int) -> Figures:
    for one, other in zip(whole, ours, strict=True):
        assert one.digest() == other.digest()
    sides = {f"{name}: whole (minibatches/s)": whole, f"{name}: 2 parts (minibatches/s)": ours}
    return alternate({side: rate_of(chain) for side, chain in sides.items()}, repeats)


def rate_of(chain: dp.Stage) -> Callable[[int], float]:
    """Return what measures the minibatches of an epoch in a second."""
    return lambda _: MINIBATCHES / timed(lambda: list(chain))[0]


if __name__ == "__main__":
    main()
