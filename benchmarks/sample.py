"""How fast does sample_neighbor (NeighborSampler) sample and compact, on one thread?

1,024 seeds, fanouts [15, 10, 5], frontier "all" and "new", the stage as users call it (ItemSampler included).
Against GraphBolt 2.1.0 in its own interpreter (--peer-python) in alternation, one second a measurement, median of 9.
Edges counted are those in the blocks. Run: python benchmarks/sample.py --graph GRAPH --peer-python PYTHON
Result (2-core AMD EPYC VM, 1M nodes / 20M edges, commits 3701689 and 8ab20ec): frontier all 26.5 and 25.3 M
edges/s, new 26.8 and 29.1, int32 ids 29.4 and 33.2; GraphBolt 4.0 and 4.4; 6.6 x and 5.8 x.
"""

from __future__ import annotations

import torch
from common import Peer, alternate, load_graph, parser, report, timed

import datapipes as dp

ROUND_S = 1.0


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    items = dp.ItemSampler(dp.ItemSet(graph.num_nodes), 1024, shuffle=True, seed=1)
    sides = {
        "datapipes, frontier all (edges/s)": Sampling(items.sample_neighbor(graph, [15, 10, 5])),
        "datapipes, frontier new (edges/s)": Sampling(items.sample_neighbor(graph, [15, 10, 5], frontier="new")),
        "datapipes, int32 ids (edges/s)": Sampling(
            items.sample_neighbor(graph.with_index_dtype(torch.int32), [15, 10, 5])
        ),
    }
    peer = Peer(args.peer_python, args.graph, "sample") if args.peer_python else None
    if peer is not None:
        sides["graphbolt 2.1.0 (edges/s)"] = peer.measure
    figures = alternate(sides, args.repeats)
    if peer is not None:
        peer.close()
        figures["ratio to graphbolt, frontier all"] = (
            figures["datapipes, frontier all (edges/s)"] / figures["graphbolt 2.1.0 (edges/s)"]
        )
    figures["ns/edge, frontier all"] = 1e9 / figures["datapipes, frontier all (edges/s)"]
    report(figures, args.json)


class Sampling:
    """Sampled edges per second of a chain, over about one second."""

    def __init__(self, pipe: dp.Stage) -> None:
        self._pipe = pipe
        self._stream = iter(pipe)

    def __call__(self, _: int) -> float:
        edges, spent = 0, 0.0
        while spent < ROUND_S:
            seconds, minibatch = timed(lambda: next(self._stream, None))
            if minibatch is None:
                self._stream = iter(self._pipe)
                continue
            spent += seconds
            edges += sum(block.num_edges for block in minibatch.blocks)
        return edges / spent


if __name__ == "__main__":
    main()
