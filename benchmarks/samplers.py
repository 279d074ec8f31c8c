"""What does each sampler cost beside uniform sampling and beside GraphBolt's, per sampled edge and per input node?

A table of samplers: sample_layer_neighbor (LayerNeighborSampler: LABOR), sample_in_subgraph (InSubgraphSampler),
temporal_sample_neighbor (TemporalNeighborSampler: in-edges sorted by time, in any order, and by the times of their
sources), trees of sample_neighbor and of both, sample_neighbor by weights (prob_name). Each is measured in alternation
with sample_neighbor over the same seeds and the fanouts of the row, as users call them (ItemSampler included, 1,024
seeds, one thread), by processor time, so that other work on the machine counts for less; half a second per measurement,
median of 9; with --peer-python also with GraphBolt 2.1.0's sampler of the same kind, in its own interpreter, with an
allocator that keeps memory and as installed, over the same graph, weights and times (edge_values.py), a second or a
minibatch per measurement. Edges are those in the blocks;
input nodes are those that features would be read for. An in-edge is scanned if it is one of a node that a hop draws
for. --input-nodes instead counts the input nodes of LABOR and of sample_neighbor, [10, 10, 10], on made graphs of mean
degree 200.
Run: python benchmarks/samplers.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, shared, memory slow in these hours, 1M nodes / 20M edges; "and" joins a run at commit
8f5f682 and one at ad7159a): cost per edge, uniform sampling 1. Then how many times as fast as GraphBolt's sampler per
edge, allocator tuned and as installed (2-core Intel Xeon VM, shared, commit 1650a2c, median of 3); per input node that
is within 6 %. There labor costs 4.6, temporal_sorted 2.1, temporal and temporal_nodes 3.1 times uniform sampling.

| row | uniform = 1 | GraphBolt's, times; as installed |
|---|---|---|
| labor; labor_int32; labor_layers | 3.20 and 3.02; 3.73 and 3.28; 3.18 and 2.96 | 3.3; 3.5 |
| labor_batches | 5.49 and 5.13 | |
| labor_weighted (made graph of 4M edges, commit 9df108b, shared VM; labor beside it 3.03) | 8.23 | |
| in_subgraph, beside [-1] | 0.93 and 1.05 | 16.4; 17.3 |
| weighted; weighted_int32 | 2.33 and 2.26; 2.51 and 2.24 | 16.0; 16.2 |
| weighted_replace | 2.09 and 2.05 | 13.8; 13.7 |
| disjoint | 1.21 and 1.24 | |
| temporal_sorted; temporal_trees; temporal_last | 1.80 and 1.66; 1.73 and 1.62; 1.28 and 1.21 | 25.5; 25.7 |
| temporal: rows in no order are scanned | 2.72 (without coarse times 4.39) | 18.8; 18.1 |
| temporal_nodes: the same | 2.64 (without coarse times 4.07) | 22.4; 22.7 |

LABOR takes 4.3 to 5.4 ns per in-edge scanned, with batch_dependency 7.9 to 8.7; in an hour with faster memory 3.8 to
4.5, by weight (prob_name) 9.2 where it takes 3.3. Of that 1.9 ns are the number of the source, 5 cycles beside a bound
of 4.4 for Philox with AVX2; the rest is mostly the memory of the rows. Weighted sampling reads prefix sums made
once per graph, GraphBolt the weights at each draw. GraphBolt's temporal sampler numbers a node anew for each edge.
--input-nodes, on the power-law graph and that of equal degrees: LABOR 2.5 and 4.8 times fewer, with layer dependency
4.2 and 11 times.
"""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

import edge_values
import numpy as np
import torch
from common import Figures, Peer, alternate, load_graph, parser, peers_of, report

import datapipes as dp
from datapipes.graph.graph import Graph

ROUND_S = 0.5
BATCH_SIZE = 1024
DEEP = [15, 10, 5]

Build = Callable[[dp.Stage, Graph], dp.Stage]


class Row(NamedTuple):
    """A sampler, and the uniform sampling that it is compared with.

    `values` are the attributes that the graph gets for it, of those in `with_values`. `peer` is GraphBolt's sampler of
    the same kind, a name in SAMPLERS of peer_graphbolt.py.
    """

    name: str
    build: Build
    uniform: Build
    values: tuple[str, ...] = ()
    peer: str | None = None


def of_dtype(graph: Graph, dtype: torch.dtype) -> Graph:
    """Return the graph with ids of a dtype; one in parts as it is."""
    return graph if graph._in_parts else graph.with_index_dtype(dtype)


def uniform(fanouts: list[int], dtype: torch.dtype = torch.int64, **options: object) -> Build:
    """Return uniform sampling with these fanouts, over ids of a dtype."""
    return lambda items, graph: items.sample_neighbor(of_dtype(graph, dtype), fanouts, **options)


def labor(fanouts: list[int], dtype: torch.dtype = torch.int64, **options: object) -> Build:
    """Return layer-neighbor sampling with these fanouts."""
    return lambda items, graph: items.sample_layer_neighbor(of_dtype(graph, dtype), fanouts, **options)


def temporal(**options: object) -> Build:
    """Return temporal sampling with the fanouts DEEP."""
    return lambda items, graph: items.temporal_sample_neighbor(graph, DEEP, **options)


# A new sampler is a row here, also for dist_samplers.py, and a word in the docstring, with its dist_ name.
ROWS = [
    Row("labor", labor(DEEP), uniform(DEEP), peer="labor"),
    Row("labor_10", labor([10, 10, 10]), uniform([10, 10, 10])),
    Row("labor_int32", labor(DEEP, torch.int32), uniform(DEEP, torch.int32)),
    Row("labor_layers", labor(DEEP, layer_dependency=True), uniform(DEEP)),
    Row("labor_batches", labor(DEEP, batch_dependency=64), uniform(DEEP)),
    Row("labor_weighted", labor(DEEP, prob_name="weight"), uniform(DEEP), ("weight",)),
    Row("in_subgraph", lambda items, graph: items.sample_in_subgraph(graph), uniform([-1]), peer="in_subgraph"),
    Row("weighted", uniform(DEEP, prob_name="weight"), uniform(DEEP), ("weight",), "weighted"),
    Row(
        "weighted_replace",
        uniform(DEEP, prob_name="weight", replace=True),
        uniform(DEEP, replace=True),
        ("weight",),
        "weighted_replace",
    ),
    Row("weighted_int32", uniform(DEEP, torch.int32, prob_name="weight"), uniform(DEEP, torch.int32), ("weight",)),
    Row("disjoint", uniform(DEEP, disjoint=True), uniform(DEEP)),
    Row(
        "temporal_sorted",
        temporal(edge_time_attr="ascending"),
        uniform(DEEP),
        values=("ascending",),
        peer="temporal_edges_ascending",
    ),
    Row("temporal", temporal(edge_time_attr="time"), uniform(DEEP), values=("time",), peer="temporal_edges"),
    Row("temporal_nodes", temporal(node_time_attr="node_time"), uniform(DEEP), ("node_time",), "temporal_nodes"),
    Row("temporal_trees", temporal(edge_time_attr="ascending", disjoint=True), uniform(DEEP), values=("ascending",)),
    Row("temporal_last", temporal(edge_time_attr="ascending", strategy="last"), uniform(DEEP), values=("ascending",)),
]


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--only", default="*", help="pattern of the samplers to measure, such as 'in_*'")
    arguments.add_argument("--input-nodes", action="store_true", help="count the input nodes of LABOR instead")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    if args.input_nodes:
        report(input_nodes(), args.json)
        return
    graph, _ = load_graph(args.graph)
    figures: Figures = {}
    for row in ROWS:
        if fnmatch.fnmatch(row.name, args.only):
            peers = peers_of(args.peer_python, args.graph, f"sample_{row.peer}") if row.peer else {}
            figures |= compare(row, with_values(graph, row.values), args.repeats, peers)
    report(figures, args.json)


def with_values(graph: dp.CSCGraph, names: tuple[str, ...]) -> dp.CSCGraph:
    """Return the graph with attributes of these names; the times of "ascending" are sorted within each row."""
    indptr = graph.indptr.numpy()
    edges: dict[str, Callable[[], np.ndarray]] = {
        "weight": lambda: edge_values.weights(graph.num_edges),
        "time": lambda: edge_values.edge_times(indptr),
        "ascending": lambda: edge_values.edge_times(indptr, ascending=True),
    }
    return dp.CSCGraph(
        graph.indptr,
        graph.indices,
        node_attributes={name: edge_values.node_times(graph.num_nodes) for name in names if name == "node_time"},
        edge_attributes={name: edges[name]() for name in names if name in edges},
    )


def compare(row: Row, graph: dp.CSCGraph, repeats: int, peers: dict[str, Peer]) -> Figures:
    """Measure a sampler, its uniform counterpart and GraphBolt's in turn."""
    sides = {name: Sampling(build, graph) for name, build in (("it", row.build), ("uniform", row.uniform))}
    others = {name: PeerSampling(peer) for name, peer in peers.items()}
    rates = alternate({**sides, **others}, repeats)
    cost = {name: 1e9 / rate for name, rate in rates.items()}
    nodes = {name: cost[name] * side.edges / side.input_nodes for name, side in sides.items()}
    ours, name = sides["it"], row.name
    figures: Figures = {
        f"{name} (ns/edge)": cost["it"],
        f"{name}: uniform beside it (ns/edge)": cost["uniform"],
        f"{name}: ratio per edge": cost["it"] / cost["uniform"],
        f"{name} (ns/input node)": nodes["it"],
        f"{name}: ratio per input node": nodes["it"] / nodes["uniform"],
        f"{name} (ns/in-edge scanned)": cost["it"] * ours.edges / ours.scanned,
        f"{name} (in-edges scanned per edge)": ours.scanned / ours.edges,
    }
    for other, side in others.items():
        peers[other].close()
        of_nodes = cost[other] * side.edges_per_input_node
        figures |= {
            f"{name}: {other} (ns/edge)": cost[other],
            f"{name}: faster than {other} per edge": cost[other] / cost["it"],
            f"{name}: {other} (ns/input node)": of_nodes,
            f"{name}: faster than {other} per input node": of_nodes / nodes["it"],
        }
    return figures


def input_nodes(num_nodes: int = 100_000, degree: int = 200, minibatches: int = 8) -> Figures:
    """Count the input nodes of a minibatch by LABOR and by uniform sampling, on two graphs of this mean degree."""
    count = num_nodes * degree
    even = np.random.default_rng(0).integers(0, num_nodes, count)
    graphs = {
        "power-law graph": load_graph(None, num_nodes, count)[0],
        "graph of equal degrees": dp.CSCGraph(np.arange(num_nodes + 1) * degree, even),
    }
    figures: Figures = {}
    fanouts = [10, 10, 10]
    for name, graph in graphs.items():
        items = dp.ItemSampler(dp.ItemSet(num_nodes), BATCH_SIZE, shuffle=True, seed=1)
        chains = {
            "uniform": items.sample_neighbor(graph, fanouts),
            "LABOR": items.sample_layer_neighbor(graph, fanouts),
            "LABOR, layer dependency": items.sample_layer_neighbor(graph, fanouts, layer_dependency=True),
        }
        found = {of: mean_input_nodes(chain, minibatches) for of, chain in chains.items()}
        figures |= {f"{name}, {of} (input nodes)": nodes for of, nodes in found.items()}
        figures |= {
            f"{name}, {of}: fewer by": found["uniform"] / nodes for of, nodes in found.items() if of != "uniform"
        }
    return figures


def mean_input_nodes(chain: dp.Stage, minibatches: int) -> float:
    return sum(len(minibatch.input_nodes) for minibatch in islice(chain, minibatches)) / minibatches


class Sampling:
    """Sampled edges of a chain per second of processor time; counts edges, input nodes and scanned in-edges.

    Its seeds have times.
    """

    def __init__(self, build: Build, graph: dp.CSCGraph) -> None:
        seeds = torch.arange(graph.num_nodes), torch.from_numpy(edge_values.seed_times(graph.num_nodes))
        items = dp.ItemSampler(dp.ItemSet(seeds, ("seeds", "timestamps")), BATCH_SIZE, shuffle=True, seed=1)
        self._degree = graph.indptr.diff()
        self._pipe = build(items, graph)
        self._stream = iter(self._pipe)
        self.edges = self.input_nodes = self.scanned = 0

    def __call__(self, _: int) -> float:
        edges, spent = 0, 0.0
        while spent < ROUND_S:
            began = time.process_time()
            minibatch = next(self._stream, None)
            if minibatch is None:
                self._stream = iter(self._pipe)
                continue
            spent += time.process_time() - began
            edges += sum(block.num_edges for block in minibatch.blocks)
            self.input_nodes += len(minibatch.input_nodes)
            degree = self._degree[minibatch.input_nodes.long()].cumsum(0)
            self.scanned += sum(int(degree[block.num_dst - 1]) for block in minibatch.blocks)
        self.edges += edges
        return edges / spent


class PeerSampling:
    """Sampled edges of GraphBolt per second of processor time; notes its edges for each input node."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.edges_per_input_node = 0.0

    def __call__(self, round_: int) -> float:
        edges, input_nodes, _, seconds = self._peer.counts(round_)
        self.edges_per_input_node = edges / input_nodes
        return edges / seconds


if __name__ == "__main__":
    main()
