"""What does it cost to sample a graph in parts, beside the undivided graph in the same run, without a network?

The hops alone, from ready answers: HopRequests (numbers seeds, merges the answers of 2 and 4 random parts, numbers
the neighbors by hash maps, splits the next rows) beside sample_neighbors, which draws, and numbers by direct maps;
ns of processor time per in-edge. Then whole minibatches: dist_sample_neighbor over 2 parts that answer in this process,
one of them local, beside sample_neighbor; minibatches/s. Seeds 1024, fanouts [15, 10, 5], frontier "new", one thread
for kernels. All sides give equal bits, which is checked first. In alternation, median of 9.
Run: python benchmarks/dist_neighbor_sampler.py --graph GRAPH
Result (2-core AMD EPYC VM, shared and busy, 1M nodes / 20M edges, commit 06c14d5 and the next): the hops alone 31 and
29 ns an edge over 2 and 4 parts, sample_neighbors 39: 0.8 and 0.75 of it. Minibatches: 10.1/s over 2 parts, 17.2/s
undivided: 0.59, one processor doing the work of both parts and of the caller.
"""

from __future__ import annotations

import tempfile
import time
from concurrent.futures import Future
from pathlib import Path

import torch
from common import alternate, load_graph, parser, report, timed

import datapipes as dp
from datapipes.distributed import DistGraph, Part, Partitioner
from datapipes.distributed.hop_requests import HopRequests
from datapipes.distributed.partition_facts import PartitionFacts

BATCH, FANOUTS, MINIBATCHES = 1024, [15, 10, 5], 4


class Here:
    """Peers whose parts are in this process, and answer at once."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts

    def ask(self, part, request):
        answered: Future = Future()
        answered.set_result(request.answered_by(self.parts[part]))
        return answered

    def close(self) -> None:
        pass


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    ids = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))[: BATCH * MINIBATCHES]
    start = dp.ItemSampler(dp.ItemSet(ids), BATCH)
    whole = start.sample_neighbor(graph, FANOUTS, frontier="new")
    minibatches = list(whole)
    seeds, rng = minibatches[0].seeds, dp.stages.RngKey(0, 0, 0, 1)
    edges = sum(block.num_edges for block in minibatches[0].blocks)
    sides = {"sample_neighbors, draws included (ns/edge)": lambda _: per(edges, lambda: whole.sample(seeds, rng))}
    chains = {"sample_neighbor (minibatches/s)": whole}
    with tempfile.TemporaryDirectory() as root:
        for num_parts in (2, 4):
            folder = Path(root, str(num_parts))
            Partitioner(graph, num_parts, folder, method="random", layouts=("native",)).generate_partition()
            parts = [Part.open(folder, part) for part in range(num_parts)]
            dist_graph = DistGraph(PartitionFacts.of(parts[0]), parts[0].book, Here(parts), parts[0])
            chain = start.dist_sample_neighbor(dist_graph, FANOUTS, frontier="new")
            for mine, theirs in zip(chain, minibatches, strict=True):
                assert mine.digest() == theirs.digest()
            if num_parts == 2:
                chains["dist_sample_neighbor, 2 parts (minibatches/s)"] = chain
            replay = Replay(dist_graph, parts, seeds, chain, rng)
            sides[f"HopRequests, {num_parts} parts (ns/edge)"] = lambda _, replay=replay: per(edges, replay)
        figures: dict[str, float | str] = dict(alternate(sides, args.repeats))
        rates = {
            name: lambda _, chain=chain: MINIBATCHES / timed(lambda: list(chain))[0] for name, chain in chains.items()
        }
        figures |= alternate(rates, args.repeats)
    report(figures, args.json)


class Replay:
    """The hops of one minibatch over answers that are ready."""

    def __init__(self, graph: DistGraph, parts: list[Part], seeds: torch.Tensor, chain, rng: dp.stages.RngKey) -> None:
        self.graph, self.plan, self.keyed = graph, chain.plan, chain.plan.keyed(rng)
        self.seeds = self.plan.checked(graph, seeds, self.keyed[1], None)
        self.core = graph._core_graph(chain.name)
        self.answers = []
        hops = self.hops()
        asked = hops.start()
        while asked is not None:
            self.answers.append([ask.request.answered_by(parts[ask.part]) for ask in asked])
            asked = hops.advance(self.answers[-1])

    def hops(self) -> HopRequests:
        return HopRequests(self.graph, self.core, self.plan, self.seeds, *self.keyed, None)

    def __call__(self) -> None:
        hops = self.hops()
        hops.start()
        for answers in self.answers:
            hops.advance(answers)
        hops.neighborhood()


def per(edges: int, work) -> float:
    """Return the processor time of one call for each in-edge, in ns."""
    began = time.thread_time()
    work()
    return 1e9 * (time.thread_time() - began) / edges


if __name__ == "__main__":
    main()
