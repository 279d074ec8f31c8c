"""What does each sampler over parts cost beside the same one over the undivided graph, without a network?

The rows of samplers.py, but for those of another index dtype: dist_sample_neighbor with trees (disjoint) and with
weights (prob_name), dist_sample_in_subgraph, dist_sample_layer_neighbor, dist_temporal_sample_neighbor (times of edges
or of sources); the plain one is measured in dist_neighbor_sampler.py. Whole minibatches over 2 random parts that answer
in this process, one of them local, beside the sampler of the whole graph over the same seeds, 1,024 of them; fanouts
[15, 10, 5] where the row has no others; minibatches/s. Both give equal bits, which is checked first. In alternation,
one thread for kernels, median of 9.
Run: python benchmarks/dist_samplers.py --graph GRAPH
Result (2-core AMD EPYC VM, shared and very busy, made graph of 200,000 nodes and 4M edges, median of 3, commit b0371f2
and the next), over 2 parts and undivided: trees 11.9 and 14.7, 0.81 of it; weights 19.0 and 25.0, 0.76; LABOR 19.0 and
27.2, 0.70; temporal, by both times, 22.6 and 33.7, 0.67. In-subgraphs 156 and 707: most of a minibatch over parts is
the event loop, the threads and the requests of an epoch of four.
"""

from __future__ import annotations

import fnmatch
import tempfile
from collections.abc import Callable
from pathlib import Path

import edge_values
import torch
from common import Figures, alternate, load_graph, parser, report, timed
from dist_neighbor_sampler import Here
from samplers import ROWS, with_values

import datapipes as dp
from datapipes.distributed import DistGraph, Part, Partitioner
from datapipes.distributed.partition_facts import PartitionFacts

BATCH, MINIBATCHES = 1024, 4


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
    with tempfile.TemporaryDirectory() as root:
        Partitioner(
            graph, 2, Path(root, "parts"), method="random", node_time_attr="node_time", layouts=("native",)
        ).generate_partition()
        parts = [Part.open(Path(root, "parts"), part) for part in range(2)]
        dist_graph = DistGraph(PartitionFacts.of(parts[0]), parts[0].book, Here(parts), parts[0])
        for row in ROWS:
            if "int32" in row.name or not fnmatch.fnmatch(row.name, args.only):
                continue
            whole, ours = row.build(items, graph), row.build(items, dist_graph)
            for one, other in zip(whole, ours, strict=True):
                assert one.digest() == other.digest()
            sides = {f"{row.name}: whole (minibatches/s)": whole, f"{row.name}: 2 parts (minibatches/s)": ours}
            figures |= alternate({name: rate_of(chain) for name, chain in sides.items()}, args.repeats)
    report(figures, args.json)


def rate_of(chain: dp.Stage) -> Callable[[int], float]:
    """Return what measures the minibatches of an epoch in a second."""
    return lambda _: MINIBATCHES / timed(lambda: list(chain))[0]


if __name__ == "__main__":
    main()
