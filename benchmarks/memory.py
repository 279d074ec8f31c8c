"""Does what is built take the memory that its estimate says?

An estimate that is too low gets a process killed; one that is too high refuses what would fit. Each row runs in a
process of its own, which first does the same on a few edges, so that libraries are loaded. Peak: the most resident
memory (VmHWM, counted anew by /proc/self/clear_refs) less what was resident before. Estimate: the largest that
`check_memory` was asked for, and what was resident by then; from then on the address space is limited to 1.1 of it
(RLIMIT_AS) and what a thread reserves, so a row that ends shows that it is enough. Of `build` the estimate is its
max_memory. Of Partitioner it is the `memory_bytes` of its report, and the peak is private memory (RssAnon and RssShmem
of it and its children, looked at every 3 ms). 20 M edges of 2 M nodes unless the row says more: "nodes" has one edge,
2^27 nodes; "hub" one destination, "low ids" all edges but one within a thousandth of the nodes, "columns" an edge_index
that lies transposed.

Run: python benchmarks/memory.py [--edges 20000000] [--csv out.csv]
Result (peak / estimate, which should be at most 1.1; 2 cores, 23 GB, commit 3fbf0cc and later; in brackets what
was measured before): from_edge_index 0.98, int32 0.98, nodes 1.00 (2.00), hub 0.98 (1.97), low ids 0.99, columns 0.99
(1.96), attributes 1.01 (4.4); HeteroCSCGraph.from_edge_index 1.00; from_pyg 0.99; NeighborLoader 1.00 (no estimate);
open with mmap=False 1.00; datasets.open of a text file 1.02 (1.84); build of .npy 0.82, nodes 0.99, csv.gz 0.95 (5.6 at
64 MB, and growing with the file), Parquet 0.87; Partitioner by range, Fennel and random 1.00, METIS 1.02. Chunks of a
sixteenth of max_memory, in place of a thirty-second, took csv.gz to 1.09 to 1.14.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import datapipes as dp
import datapipes.datasets
from datapipes.base import sizes

FEW = 1000  # edges of the run that loads libraries
OF_A_THREAD = 160 * 2**20  # of address space, not of memory: its heap and its stack; one shows progress
BUILD_MEMORY = 2**27  # max_memory of the builds


def edges_of(num_edges: int, num_nodes: int, dtype: Any = np.int64) -> torch.Tensor:
    """Return a random edge_index [2, num_edges]."""
    return torch.from_numpy(np.random.default_rng(0).integers(0, num_nodes, (2, num_edges)).astype(dtype))


def hub(num_edges: int) -> torch.Tensor:
    """Return edges to node 0."""
    edges = edges_of(num_edges, max(num_edges // 10, 1))
    edges[1] = 0
    return edges


def low_ids(num_edges: int) -> torch.Tensor:
    """Return edges within a thousandth of the nodes, but for one."""
    edges = edges_of(num_edges, max(num_edges // 10_000, 1))
    edges[:, 0] = num_edges // 10
    return edges


def of_index(make: Callable[[int], torch.Tensor], **attributes: Any) -> Callable[[int, Path], Callable[[], Any]]:
    def ready(num_edges: int, folder: Path) -> Callable[[], Any]:
        edges = make(num_edges)
        of_edges = {name: torch.rand(edges.shape[1], width) for name, width in attributes.items()}
        return lambda: dp.CSCGraph.from_edge_index(edges, edge_attributes=of_edges)

    return ready


def typed(num_edges: int, folder: Path) -> Callable[[], Any]:
    count = num_edges // 10
    edges = {("a", "to", "b"): edges_of(num_edges // 2, count), ("b", "to", "a"): edges_of(num_edges // 2, count)}
    return lambda: dp.HeteroCSCGraph.from_edge_index(edges, {"a": count, "b": count})


def of_pyg(num_edges: int, folder: Path) -> Callable[[], Any]:
    from torch_geometric.data import Data

    count = num_edges // 10
    data = Data(edge_index=edges_of(num_edges, count), num_nodes=count, weight=torch.rand(num_edges))
    return lambda: dp.CSCGraph.from_pyg(data)


def neighbor_loader(num_edges: int, folder: Path) -> Callable[[], Any]:
    from torch_geometric.data import Data

    from datapipes.pyg.loader import NeighborLoader

    # one edge, and so many nodes that the offsets are all
    data = Data(edge_index=torch.tensor([[num_edges * 7], [0]]), num_nodes=num_edges * 7 + 1)
    return lambda: NeighborLoader(data, num_neighbors=[2], input_nodes=torch.tensor([0]))


def opened(num_edges: int, folder: Path) -> Callable[[], Any]:
    dp.CSCGraph.from_edge_index(edges_of(num_edges, num_edges // 10)).save(folder / "g")
    return lambda: dp.CSCGraph.open(folder / "g", mmap=False)


def edge_list(num_edges: int, folder: Path) -> Callable[[], Any]:
    rows = np.concatenate((edges_of(num_edges // 10, num_edges // 50).numpy(), [np.arange(num_edges // 10)])).T
    with gzip.open(folder / "edges.txt.gz", "wt", compresslevel=1) as file:
        np.savetxt(file, rows, "%d")
    return lambda: datapipes.datasets.open(folder / "edges.txt.gz", columns=("src", "dst", "time"))


def built(kind: str) -> Callable[[int, Path], Callable[[], Any]]:
    """Return what builds a graph in BUILD_MEMORY, of a .npy file, tables, or many nodes."""

    def ready(num_edges: int, folder: Path) -> Callable[[], Any]:
        num_nodes = 2**27 if kind == "nodes" and num_edges > FEW else num_edges // 10
        edges = edges_of(num_edges, num_nodes, np.int32)
        path = folder / f"edges.{'npy' if kind == 'nodes' else kind}"
        if path.suffix == ".npy":
            np.save(path, edges.numpy())
        else:
            import pyarrow
            import pyarrow.csv
            import pyarrow.parquet

            table = pyarrow.table({"src": edges[0].numpy(), "dst": edges[1].numpy()})
            if kind == "parquet":
                pyarrow.parquet.write_table(table, path)
            else:
                with gzip.open(path, "wb", compresslevel=1) as file:
                    pyarrow.csv.write_csv(table, file)
        return lambda: dp.CSCGraph.build(path, folder / "built", num_nodes, max_memory=BUILD_MEMORY)

    return ready


def partitioned(method: str) -> Callable[[int, Path], Callable[[], Any]]:
    def ready(num_edges: int, folder: Path) -> Callable[[], Any]:
        count = num_edges // 4
        edges = edges_of(count, max(count // 4, 4))
        dp.CSCGraph.from_edge_index(edges, max(count // 4, 4)).with_index_dtype(torch.int32).save(folder / "g")
        graph = dp.CSCGraph.open(folder / "g")
        root = folder / "parts"
        return lambda: dp.distributed.Partitioner(
            graph, 4, root, method=method, layouts=["native"]
        ).generate_partition()

    return ready


ROWS: dict[str, Callable[[int, Path], Callable[[], Any]]] = {
    "from_edge_index": of_index(lambda count: edges_of(count, count // 10)),
    "from_edge_index, int32": of_index(lambda count: edges_of(count, count // 10, np.int32)),
    "from_edge_index, nodes": of_index(lambda count: torch.tensor([[2**27 if count > FEW else 5], [0]])),
    "from_edge_index, hub": of_index(hub),
    "from_edge_index, low ids": of_index(low_ids),
    "from_edge_index, columns": of_index(lambda count: edges_of(count, count // 10).T.contiguous().T),
    "from_edge_index, attributes": of_index(lambda count: edges_of(count // 4, count // 10), x=16),
    "HeteroCSCGraph.from_edge_index": typed,
    "from_pyg": of_pyg,
    "NeighborLoader, nodes": neighbor_loader,
    "open, mmap=False": opened,
    "datasets.open, edges.txt.gz": edge_list,
    "build, npy": built("npy"),
    "build, nodes": built("nodes"),
    "build, csv.gz": built("csv.gz"),
    "build, parquet": built("parquet"),
    "Partitioner, range": partitioned("range"),
    "Partitioner, fennel": partitioned("fennel"),
    "Partitioner, random": partitioned("random"),
    "Partitioner, metis": partitioned("metis"),
}


def of_status(pid: int | str, *keys: str) -> int:
    """Return the sum of lines of /proc/PID/status, in bytes; 0 for a process that has ended."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(keys))
    return 0


def private_bytes() -> int:
    """Return the private memory of this process and its children; what they share counts once."""
    pids = ["self", *Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    shared = max(of_status(pid, "RssShmem:") for pid in pids)
    return sum(of_status(pid, "RssAnon:") for pid in pids) + shared


class Looking(threading.Thread):
    """Looks for the most private memory until it is told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.before, self.peak, self.ends = private_bytes(), 0, False
        self.start()

    def run(self) -> None:
        while not self.ends:
            self.peak = max(self.peak, private_bytes())
            time.sleep(0.003)

    def stopped(self) -> int:
        self.ends = True
        self.join()
        return self.peak - self.before


def estimates() -> list[int]:
    """Let checks of memory note what is resident, and what is asked for, and limit the process to 1.1 of that.

    Returns:
        The sums, one for each check.
    """
    noted: list[int] = []
    check = sizes.check_memory

    def noting(where: str, what: str, num_bytes: int, remedy: str) -> None:
        noted.append(of_status("self", "VmRSS:") + num_bytes)
        if num_bytes >= sizes.UNCHECKED_BYTES:
            limit = of_status("self", "VmSize:") + int(1.1 * num_bytes) + OF_A_THREAD
            resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
        check(where, what, num_bytes, remedy)

    for module in list(sys.modules.values()):
        if getattr(module, "check_memory", None) is check:
            module.check_memory = noting  # type: ignore[attr-defined]
    return noted


def measure(name: str, num_edges: int) -> dict[str, float]:
    """Run a row in this process; return its peak and its estimate."""
    with tempfile.TemporaryDirectory() as small, tempfile.TemporaryDirectory() as large:
        ROWS[name](FEW, Path(small))()
        work = ROWS[name](num_edges, Path(large))
        noted = estimates()
        looking = Looking() if name.startswith("Partitioner") else None
        Path("/proc/self/clear_refs").write_text("5")
        before = of_status("self", "VmRSS:")
        made = work()
        peak = of_status("self", "VmHWM:") - before
        if looking is not None:
            return {"peak": looking.stopped(), "estimate": made.memory_bytes}
        if name.startswith("build"):
            return {"peak": peak, "estimate": BUILD_MEMORY}
        return {"peak": peak, "estimate": max(noted) - before}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=int, default=20_000_000)
    parser.add_argument("--only", default="", help="rows that begin so")
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row is not None:
        print(json.dumps(measure(arguments.row, arguments.edges)))
        return
    rows = []
    for name in ROWS:
        if not name.startswith(arguments.only):
            continue
        command = [sys.executable, __file__, "--row", name, "--edges", str(arguments.edges)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        found = json.loads(ended.stdout.splitlines()[-1])
        ratio = found["peak"] / found["estimate"]
        rows.append([name, found["peak"] / 2**20, found["estimate"] / 2**20, ratio])
        print(f"{name:34} peak {rows[-1][1]:8.1f} MiB, estimate {rows[-1][2]:8.1f} MiB, {ratio:.3f}", flush=True)
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows([["row", "peak (MiB)", "estimate (MiB)", "ratio"], *rows])


if __name__ == "__main__":
    main()
