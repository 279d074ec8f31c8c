"""How fast does compact relabel ids, on one thread?

The ids are the picks of the outermost hop of minibatches of 1,024 seeds, fanouts [15, 10, 5]: about 430,000, half of
them distinct. int64 and int32 ids; the direct map and the hash map (used for graphs of more than 2^25 nodes). Compared
with torch.unique(return_inverse=True) and numpy.unique, which sort and so return the distinct ids in another order. The
floor is one random line per id, from memory of the size of the direct map. All in alternation, median of 9.
Run: python benchmarks/compact.py --graph GRAPH
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commit 99cefe3): 108 M ids/s (9.3 ns), int32 112, hash map
46; torch.unique 29 (3.7 x), numpy.unique 16 (6.8 x), floor 266 (0.41 x).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from common import RandomLines, alternate, load_graph, parser, peak_bytes, report, timed

from datapipes import _core


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    indptr, indices, _ = graph.arrays()
    seeds = np.random.default_rng(0).choice(graph.num_nodes, 1024, replace=False)
    for hop, fanout in enumerate((5, 10, 15)):
        _, neighbors, _ = _core.sample_hop(indptr, indices, seeds, fanout=fanout, replace=False, key=hop)
        seeds, _ = _core.compact(np.concatenate((seeds, neighbors)), num_nodes=graph.num_nodes)
    narrow = neighbors.astype(np.int32)
    works: dict[str, Callable[[], Any]] = {
        "compact": lambda: _core.compact(neighbors, num_nodes=graph.num_nodes),
        "compact, int32": lambda: _core.compact(narrow, num_nodes=graph.num_nodes),
        "compact, hash map": lambda: _core.compact(neighbors, num_nodes=graph.num_nodes, direct_limit=0),
        "torch.unique": lambda: torch.unique(torch.from_numpy(neighbors), return_inverse=True),
        "numpy.unique": lambda: np.unique(neighbors, return_inverse=True),
    }
    unique, local = works["compact"]()
    assert np.array_equal(unique[local], neighbors)
    assert np.array_equal(np.sort(unique), works["numpy.unique"]()[0])
    peaks = {}
    for name, work in works.items():
        _core.pool_trim()
        peaks[name] = peak_bytes(work) / len(neighbors)
    sides = {name: (lambda _, work=work: len(neighbors) / timed(work)[0]) for name, work in works.items()}
    sides["floor"] = RandomLines(4 * graph.num_nodes)
    rates = alternate(sides, args.repeats)
    figures: dict[str, float | str] = {"ids": float(len(neighbors)), "distinct": float(len(unique))}
    for name, rate in rates.items():
        figures[f"{name} (M ids/s)"] = rate / 1e6
        figures[f"{name} (ns/id)"] = 1e9 / rate
    for name in list(rates)[1:]:
        figures[f"compact, ratio to {name}"] = rates["compact"] / rates[name]
    for name, peak in peaks.items():
        figures[f"{name}, peak memory when fresh (bytes/id)"] = peak
    report(figures, args.json)


if __name__ == "__main__":
    main()
