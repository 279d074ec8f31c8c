"""How fast does coo_to_csc (CSCGraph.from_edge_index) group edges by destination, on one thread?

Input: 20M edges over 1M nodes, int64 ids, in random order; a power-law graph made here, or the edges of --graph
shuffled. Compared with scipy's coo_matrix.tocsc twice: by default (sorts each column, adds up parallel edges), and with
the flag that nothing needs adding up and the edge ids as data. The second gives our result and is checked against it.
scipy converts the ids to int32 before the clock starts. Also compared with the plain way, torch.sort(stable=True) and a
gather. The limit is a memcpy of src and dst plus filling indptr, into memory that exists already, or into new memory
like that of a result. All in alternation, median of 5. The peak is the resident memory above the inputs, result
included.
Run: python benchmarks/build_csc.py --graph GRAPH
Result (2-core AMD EPYC VM, shared, 1M nodes / 20M edges, commit 99cefe3, median of 3): 78.6 M edges/s, int32 ids
82.5; scipy 10.7 (7.3 x), nothing added up 38.8 (2.0 x); torch.sort 8.4 (9.4 x); memcpy 767, into new memory 70 (1.12
x). At commit 98f7208 69 and 75, scipy 16.2 and 13.1 (4.3 x and 5.8 x). Peak 16.6 bytes/edge, 16.4 of them the result;
scipy 12.0 (int32 ids), torch.sort 32.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import alternate, load_graph, parser, peak_bytes, report, timed

import datapipes as dp
from datapipes import _core

try:
    import scipy.sparse
except ImportError:
    scipy = None


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=5)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    edges, num_nodes = shuffled_edges(args.graph)
    num_edges = edges.shape[1]
    src, dst = edges
    src32, dst32 = edges.astype(np.int32)
    copy, indptr = np.zeros_like(edges), np.zeros(num_nodes + 1, dtype=np.int64)

    def memcpy() -> None:
        np.copyto(copy, edges)
        indptr.fill(0)

    def torch_sort() -> tuple[torch.Tensor, ...]:
        ends, order = torch.sort(torch.from_numpy(dst), stable=True)
        counts = torch.bincount(ends, minlength=num_nodes)
        return torch.cat((counts.new_zeros(1), counts.cumsum(0))), torch.from_numpy(src)[order], order

    works: dict[str, Callable[[], Any]] = {
        "coo_to_csc": lambda: _core.coo_to_csc(src, dst, num_nodes),
        "coo_to_csc, int32 ids": lambda: _core.coo_to_csc(src32, dst32, num_nodes),
        "CSCGraph.from_edge_index": lambda: dp.CSCGraph.from_edge_index(edges, num_nodes),
        "torch.sort": torch_sort,
    }
    if scipy is not None:
        shape = (num_nodes, num_nodes)
        summed = scipy.sparse.coo_matrix((np.ones(num_edges), (src, dst)), shape)
        kept = scipy.sparse.coo_matrix((np.arange(num_edges), (src, dst)), shape)
        kept.has_canonical_format = True  # tocsc then neither sorts columns nor adds up parallel edges
        works |= {"scipy tocsc": summed.tocsc, "scipy tocsc, nothing added up": kept.tocsc}
    peaks = {name: peak_bytes(work) for name, work in works.items()}
    check(works, edges)
    figures: dict[str, float | str] = {}
    limits = {"memcpy": memcpy, "memcpy into new memory": lambda: (edges.copy(), indptr.copy())}
    sides = {name: rate_of(work, num_edges) for name, work in (works | limits).items()}
    rates = alternate(sides, args.repeats, 1)
    num_bytes = 4 * src.nbytes + indptr.nbytes  # reads src and dst; writes indices, order and indptr
    for name, rate in rates.items():
        figures[f"{name} (M edges/s)"] = rate / 1e6
        figures[f"{name} (ns/edge)"] = 1e9 / rate
    for name in ("coo_to_csc", *limits):
        figures[f"{name} (GB/s of what must move)"] = num_bytes * rates[name] / num_edges / 1e9
    for name in list(rates)[3:]:
        figures[f"coo_to_csc, ratio to {name}"] = rates["coo_to_csc"] / rates[name]
    for name, peak in peaks.items():
        figures[f"{name}, peak (bytes/edge)"] = peak / num_edges
    if scipy is None:
        figures["scipy"] = "not installed, left out"
    report(figures, args.json)


def shuffled_edges(folder: Path | None) -> tuple[np.ndarray, int]:
    """Return (int64[2, num_edges], num_nodes): the edges of load_graph's graph in a seeded random order."""
    graph, _ = load_graph(folder, 1_000_000, 20_000_000)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr.numpy()))
    shuffle = np.random.default_rng(1).permutation(graph.num_edges)
    return np.stack((graph.indices.numpy()[shuffle], dst[shuffle])), graph.num_nodes


def check(works: dict[str, Callable[[], Any]], edges: np.ndarray) -> None:
    """Fail unless all sides give our result; for a side that adds up parallel edges, our columns sorted and unique."""
    ours = works["coo_to_csc"]()
    assert all(map(np.array_equal, works["coo_to_csc, int32 ids"](), ours))
    assert all(map(np.array_equal, works["torch.sort"](), ours))
    if scipy is None:
        return
    kept = works["scipy tocsc, nothing added up"]()
    assert all(map(np.array_equal, (kept.indptr, kept.indices, kept.data), ours))
    summed = works["scipy tocsc"]()
    num_nodes = len(ours[0]) - 1
    wanted = np.sort(edges[1] * num_nodes + edges[0])
    wanted = wanted[np.diff(wanted, prepend=-1) > 0]
    assert np.array_equal(np.repeat(np.arange(num_nodes), np.diff(summed.indptr)) * num_nodes + summed.indices, wanted)
    assert summed.data.sum() == edges.shape[1]


def rate_of(work: Callable[[], Any], num_edges: int) -> Callable[[int], float]:
    """Return a side for `alternate`: edges per second of one call."""
    return lambda _: num_edges / timed(work)[0]


if __name__ == "__main__":
    main()
