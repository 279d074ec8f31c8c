"""How fast does a part draw, beside the whole graph, and how fast does it find rows by global id?

Nodes of one of two random parts, in random order, fanout 10, one thread: Part.draw (rows by id, kernel), with edge ids
and without, beside the kernel over the whole graph (sample_hop: numbers of rows as they are, positions instead of edge
ids), in ns of processor time per in-edge. Part.rows_of beside numpy's searchsorted in the own ids, in ns per id. Both
sides give equal results, which is checked first. In alternation, median of 9.
Run: python benchmarks/part_draw.py --graph GRAPH
Result (2-core AMD EPYC VM, shared and busy, 1M nodes / 20M edges, commit 06c14d5 and the next): 10,000 and 100,000
nodes: Part.draw 42 and 23 ns an edge with edge ids, 24 and 16 without, the whole graph's kernel 22 and 16; so 1.5 to
1.9 times the kernel with edge ids, as much as the kernel without. Rows 46 and 14 ns an id, searchsorted 366 and 269.
"""

from __future__ import annotations

import tempfile
import time

import numpy as np
import torch
from common import alternate, load_graph, parser, report

from datapipes import _core
from datapipes.distributed import Part, Partitioner

COUNTS = (1_000, 10_000, 100_000)
FANOUT, KEY = 10, 5


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    figures: dict[str, float | str] = {}
    with tempfile.TemporaryDirectory() as root:
        Partitioner(graph, 2, root, method="random", layouts=("native",)).generate_partition()
        part = Part.open(root, 0)
        for count in COUNTS:
            figures |= figures_of(graph, part, count, args.repeats)
    report(figures, args.json)


def figures_of(graph, part: Part, count: int, repeats: int) -> dict[str, float]:
    own, (indptr, indices, _) = part.node_ids(), graph.arrays()
    ids = own[torch.from_numpy(np.random.default_rng(0).integers(0, len(own), count))]
    settings = {"fanout": FANOUT, "replace": False, "key": KEY}

    def whole():
        return _core.sample_hop(indptr, indices, ids.numpy(), **settings)

    drawn, expected = part.draw(ids, **settings), whole()
    for mine, theirs in zip(drawn, expected, strict=True):  # the id of an edge is its position in this graph
        assert np.array_equal(mine.numpy(), theirs)
    assert np.array_equal(part.rows_of(ids).numpy(), np.searchsorted(own.numpy(), ids.numpy()))
    edges = len(expected[1])
    sides = {
        "Part.draw (ns/edge)": lambda _: 1e9 * cpu_of(lambda: part.draw(ids, **settings)) / edges,
        "Part.draw without edge ids (ns/edge)": lambda _: (
            1e9 * cpu_of(lambda: part.draw(ids, edge_ids=False, **settings)) / edges
        ),
        "whole graph (ns/edge)": lambda _: 1e9 * cpu_of(whole) / edges,
        "Part.rows_of (ns/id)": lambda _: 1e9 * cpu_of(lambda: part.rows_of(ids)) / count,
        "searchsorted (ns/id)": lambda _: 1e9 * cpu_of(lambda: np.searchsorted(own.numpy(), ids.numpy())) / count,
    }
    found = alternate(sides, repeats)
    return {f"{count} nodes, {name}": value for name, value in found.items()}


def cpu_of(work) -> float:
    """Return the seconds of processor time that one call takes; other programs on the machine count less in it."""
    began = time.thread_time()
    work()
    return time.thread_time() - began


if __name__ == "__main__":
    main()
