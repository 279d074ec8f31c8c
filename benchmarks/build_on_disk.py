"""How long does CSCGraph.build take, which holds few edges at once, against the build in memory?

The edges lie in a .npy file, in random order, int32. In memory: np.load, CSCGraph.from_edge_index, save. Out of core:
CSCGraph.build with max_memory of 4 GiB, in which all edges of the benchmark's graph fit, and with as much as the edges
take over four, so that all are written to files and read again. All three end on the disk (os.sync), in alternation,
median of 5; files that are read lie in the page cache. The limit is a copy of the file of edges to another file.
Run: python benchmarks/build_on_disk.py --graph GRAPH --repeats 5
Result (2-core AMD EPYC VM, quiet, 1M nodes / 20M edges, commit bdcfb02): 4 GiB 31.7 M edges/s, 0.99 of the time in
memory (31.4); 38 MiB 19.7 M edges/s, 1.59 of it; copy of the edges 241. In memory, the sort itself takes 40 % of the
time, reading and writing the rest.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from common import alternate, load_graph, parser, report, timed

import datapipes as dp


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.set_defaults(repeats=5)
    args = arguments.parse_args()
    torch.set_num_threads(1)
    graph, _ = load_graph(args.graph)
    num_nodes, num_edges = graph.num_nodes, graph.num_edges
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        path, built = root / "edges.npy", root / "built"
        dst = np.repeat(np.arange(num_nodes, dtype=np.int32), np.diff(graph.indptr.numpy()))
        order = np.random.default_rng(0).permutation(num_edges)
        np.save(path, np.stack((graph.indices.numpy().astype(np.int32)[order], dst[order])))
        del graph, dst, order

        def in_memory() -> None:
            dp.CSCGraph.from_edge_index(np.load(path), num_nodes).save(built)

        def out_of_core(max_memory: int) -> Callable[[], None]:
            return lambda: dp.CSCGraph.build(path, built, num_nodes, edge_ids=True, max_memory=max_memory) and None

        def copied() -> None:
            built.mkdir()
            shutil.copyfile(path, built / "copy")

        few = max(path.stat().st_size // 4, 2**24)
        works = {
            "in memory": in_memory,
            "max_memory=4 GiB": out_of_core(2**32),
            f"max_memory={few >> 20} MiB": out_of_core(few),
            "copy of the edges": copied,
        }

        def rate(work: Callable[[], None]) -> Callable[[int], float]:
            def side(_: int) -> float:
                shutil.rmtree(built, ignore_errors=True)
                os.sync()
                return num_edges / timed(lambda: (work(), os.sync()))[0]

            return side

        rates = alternate({name: rate(work) for name, work in works.items()}, args.repeats, warm_ups=1)
    figures: dict[str, float | str] = {f"{name} (M edges/s)": each / 1e6 for name, each in rates.items()}
    for name in list(works)[1:3]:
        figures[f"{name}, time against in memory"] = rates["in memory"] / rates[name]
    report(figures, args.json)


if __name__ == "__main__":
    main()
