"""What do types cost sample_neighbor (NeighborSampler over a HeteroCSCGraph), and how far is GraphBolt's typed sampler?

The edges of one graph, without types and split into 3 node types and 5 relations (typed_split.py; every edge stays).
1,024 seeds, fanouts [15, 10, 5]; with types each relation has these fanouts, and the seeds are of all types
(HeteroItemSet). The stage as users call it (ItemSampler included), one thread, int64 ids; the edges in the blocks
count. Then fanouts [8, 5, 3] on both sides, which draw fewer edges of each row. GraphBolt 2.1.0 samples the same
relations with the same fanouts in its own interpreter (--peer-python), with an allocator that keeps memory and as
installed. The floor is as many random lines of 1 GiB as
the minibatch must touch: per edge a line of a neighbor list and one of an id map, per row of a relation one of its
indptr. All in alternation, half a second per measurement, median of 9. Then the same edges in 150 relations: the time
until the first minibatch of two worker processes, and their private memory (USS) beside the bytes of the graph.
Run: python benchmarks/hetero.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commits c5110ed and 329971a): 5 relations 44.6 and 50.0 M
edges/s, without types 37.6 and 44.1: 0.84 and 0.88 of the time per edge; fewer 0.89 and 0.90. With types more rows
are kept whole, since each relation has some of their in-edges. Time over the floor 0.87 and 0.73: caches hold a part.
150 relations (563 MB): first minibatch 4.2 s with three other processes running, and 2.7 s; most of it is the start of
the fork server. Private memory of a worker 18 MB.
Beside GraphBolt (2-core Intel Xeon VM, shared, commit 1650a2c): 5 relations 53.1 M edges/s, GraphBolt 6.2 (8.6 x), as
installed 6.4 (8.4 x).
"""

from __future__ import annotations

import gc

import numpy as np
import torch
from common import RandomLines, alternate, load_graph, parser, peers_of, report, timed
from typed_split import SHARES, split_edges

import datapipes as dp

ROUND_S = 0.5
FANOUTS, FEWER = [15, 10, 5], [8, 5, 3]
NUM_RELATIONS = 150


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--short", action="store_true", help="leave the graph of 150 relations out")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    plain, _ = load_graph(args.graph)
    indptr, indices, _ = plain.arrays()
    num_nodes, relations = split_edges(indptr, indices)
    graph = dp.HeteroCSCGraph(relations, num_nodes)
    start = dp.ItemSampler(dp.ItemSet(plain.num_nodes), 1024, shuffle=True, seed=1)
    typed_start = dp.ItemSampler(all_nodes(num_nodes), 1024, shuffle=True, seed=1)
    ours = Sampling(typed_start.sample_neighbor(graph, FANOUTS))
    sides = {
        "without types (edges/s)": Sampling(start.sample_neighbor(plain, FANOUTS)),
        "5 relations (edges/s)": ours,
        "without types, fewer (edges/s)": Sampling(start.sample_neighbor(plain, FEWER)),
        "5 relations, fewer (edges/s)": Sampling(typed_start.sample_neighbor(graph, FEWER)),
        "lines of 1 GiB (lines/s)": RandomLines(),
    }
    peers = peers_of(args.peer_python, args.graph, "sample_types")
    sides |= {f"{name}, 5 relations (edges/s)": peer.measure for name, peer in peers.items()}
    rates = alternate(sides, args.repeats)
    for peer in peers.values():
        peer.close()
    figures: dict[str, float | str] = dict(rates)
    for name in ("without types", "5 relations", "without types, fewer", "5 relations, fewer"):
        figures[f"{name} (ns/edge)"] = 1e9 / rates[f"{name} (edges/s)"]
    figures["time per edge, 5 relations over none"] = rates["without types (edges/s)"] / rates["5 relations (edges/s)"]
    figures["the same, fewer"] = rates["without types, fewer (edges/s)"] / rates["5 relations, fewer (edges/s)"]
    for name in peers:
        ratio = rates["5 relations (edges/s)"] / rates[f"{name}, 5 relations (edges/s)"]
        figures[f"5 relations, ratio to {name}"] = ratio
    floor = (2 + ours.rows / ours.edges) / rates["lines of 1 GiB (lines/s)"]
    figures["rows of relations per edge"] = ours.rows / ours.edges
    figures["floor, every line a miss (ns/edge)"] = floor * 1e9
    figures["time over that floor"] = 1 / rates["5 relations (edges/s)"] / floor
    if not args.short:
        del sides, ours, graph, relations
        gc.collect()
        figures |= many_relations(indptr, indices)
    report(figures, args.json)


def all_nodes(num_nodes: dict[str, int]) -> dp.HeteroItemSet:
    return dp.HeteroItemSet({name: dp.ItemSet(count) for name, count in num_nodes.items()})


class Sampling:
    """Sampled edges per second of a chain, with types or without; counts edges and rows of relations."""

    def __init__(self, pipe: dp.Stage) -> None:
        self._pipe = pipe
        self._stream = iter(pipe)
        self.edges = self.rows = 0

    def __call__(self, _: int) -> float:
        edges, spent = 0, 0.0
        while spent < ROUND_S:
            seconds, minibatch = timed(lambda: next(self._stream, None))
            if minibatch is None:
                self._stream = iter(self._pipe)
                continue
            spent += seconds
            for hop in minibatch.blocks:
                for block in hop.values() if isinstance(hop, dict) else [hop]:
                    edges += block.num_edges
                    self.rows += block.num_dst
        self.edges += edges
        return edges / spent


def many_relations(indptr: np.ndarray, indices: np.ndarray) -> dict[str, float | str]:
    """Measure the first minibatch of two workers over 150 relations, and what the workers keep for themselves."""
    names = list(SHARES)
    ends = [(names[i % 3], f"r{i}", names[i // 3 % 3]) for i in range(NUM_RELATIONS)]
    num_nodes, relations = split_edges(indptr, indices, ends)
    graph = dp.HeteroCSCGraph(relations, num_nodes)
    start = dp.ItemSampler(all_nodes(num_nodes), 256, shuffle=True, seed=1)
    loader = dp.DataLoader(start.sample_neighbor(graph, [2, 2]).transform(tell_private_bytes), 2)
    began_s, first = timed(lambda: next(iter(loader)))
    private = int(first.extra["private_bytes"][names[0]][0])
    second_s, _ = timed(lambda: list(zip(range(10), loader, strict=False)))
    loader.close()
    bytes_of_graph = sum(array.nbytes for arrays in relations.values() for array in arrays)
    return {
        "150 relations: first minibatch of 2 workers (s)": began_s,
        "150 relations: the next ten, workers running (s)": second_s,
        "150 relations: graph (MB)": bytes_of_graph / 1e6,
        "150 relations: private memory of a worker (MB)": private / 1e6,
    }


def tell_private_bytes(minibatch: dp.MiniBatch) -> dp.MiniBatch:
    """Store the private memory (USS) of the process that runs it, once for each seed."""
    with open("/proc/self/smaps_rollup", encoding="ascii") as file:
        found = sum(1024 * int(line.split()[1]) for line in file if line.startswith("Private_"))
    told = {of: torch.full((len(ids),), found) for of, ids in minibatch.seeds.items()}
    return minibatch.replace(extra={"private_bytes": told})


if __name__ == "__main__":
    main()
