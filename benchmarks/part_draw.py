"""How fast does a part draw, beside the whole graph, and how fast does it find rows by global id?

Nodes of one of two random parts, in random order, fanout 10, one thread: Part.draw (rows, kernel, edge ids) beside the
kernel over the whole graph (sample_hop: numbers of rows as they are, positions instead of edge ids), in ns per in-edge.
Part.rows_of beside numpy's searchsorted in the own ids, in ns per id. Both sides give equal results, which is checked
first. In alternation, median of 9.
Run: python benchmarks/part_draw.py --graph GRAPH
Result (2-core AMD EPYC VM, shared and busy, 1M nodes / 20M edges, commit 221fb28): 1,000, 10,000 and 100,000 nodes:
Part.draw 38, 47 and 31 ns an edge, the whole graph's kernel 11, 18 and 13; the difference is the gather of edge ids and
of files mapped in small pages. Rows 69, 38 and 11 ns an id, searchsorted 177, 290 and 210.
"""

from __future__ import annotations

import tempfile

import numpy as np
import torch
from common import alternate, load_graph, parser, report, timed

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
        "Part.draw (ns/edge)": lambda _: 1e9 * timed(lambda: part.draw(ids, **settings))[0] / edges,
        "whole graph (ns/edge)": lambda _: 1e9 * timed(whole)[0] / edges,
        "Part.rows_of (ns/id)": lambda _: 1e9 * timed(lambda: part.rows_of(ids))[0] / count,
        "searchsorted (ns/id)": lambda _: 1e9 * timed(lambda: np.searchsorted(own.numpy(), ids.numpy()))[0] / count,
    }
    found = alternate(sides, repeats)
    return {f"{count} nodes, {name}": value for name, value in found.items()}


if __name__ == "__main__":
    main()
