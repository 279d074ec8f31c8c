"""What do the methods of Partitioner cost, and how well do they cut, beside pymetis alone?

Time, peak memory, cut and balance of each method over power-law graphs made here (100 thousand to 10 M edges, 20 a
node) and the one of --graph, one node in ten being a training node. A method's side only chooses the parts; the sides
"Partitioner" are whole runs, which check the graph, choose, measure and write the native layout. "pymetis alone" gets
the same symmetrised graph and weights, made before, in a process that has loaded NumPy and pymetis only. Each
measurement has a process of its own; the sides take turns, median of 3 up to 1 M edges, else one run. The peak is
private memory (RssAnon + RssShmem of /proc/PID/status), summed over the process and its children every 5 ms, above what
the process held before it began: the interpreter with torch. The graph is mapped from its files, whose pages are not
private. Of pymetis alone the symmetrised graph counts, which is loaded after that look; of ours the interpreter of
METIS's process counts too. Topology: the bytes of indptr and indices. The cut is the share of edges between parts; a
random one is 1 - 1/parts. Balance: the largest part over the mean, of nodes, training nodes and in-edges.
Run: python benchmarks/partition.py --graph GRAPH
Result (2-core AMD EPYC VM, shared): 1M nodes / 20M edges, 2 parts, in the order METIS, pymetis alone, Fennel, random,
range: 36.9, 24.3, 6.0, 0.10 and 0.01 s; cut 44.8, 41.4, 44.4, 50.0 and 50.0 %; edges 1.10, 1.33, 1.10, 1.00 and 1.01;
nodes and training nodes 1.11 or less but for pymetis alone (training nodes 1.18); peak 5,235, 5,193, 53, 30 and 16 MB.
So METIS takes 6 times as long as Fennel and 1.5 times as long as pymetis alone, evening 3 s of it, and 0.25 of the
topology (168 MB) more; Fennel takes 0.32 of it. Recursive METIS runs five times there, 106 s, since 15 % more cut does
not make its edges even. Whole run of METIS: 31.4 s and 5,235 MB. 1M edges, 8 parts: METIS 1.16 s, Fennel 0.17 s and
1.05 of the cut, all three measures 1.11 or less for both, where pymetis alone has 1.15, 1.29 and 1.24. Before each
measure was evened (commit bc68018), 20M edges: METIS 29.4 s, cut 38.6 %, edges 1.4; Fennel 0.8 s, 26.0 %, 1.5; with 8
parts edges 1.8 (METIS) to 5.0 (recursive). Good cuts of such graphs put the hubs together.
"""

from __future__ import annotations

import json
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from common import load_graph, parser, report

import datapipes as dp
from datapipes import _core
from datapipes.partition.methods.all_nodes import EVEN, AllNodes
from datapipes.partition.methods.assign import assign
from datapipes.partition.methods.metis_parts import as_metis_counts
from datapipes.partition.native.native_book import open_book
from datapipes.partition.partition_report import private_bytes
from datapipes.partition.source import Source, source_of

SIZES = [(5_000, 100_000), (50_000, 1_000_000), (500_000, 10_000_000)]
ONE_RUN = 5_000_000  # edges from which a side is measured once
ALONE = "pymetis alone"
WHOLE = "Partitioner, "  # and the method: the whole run, which writes the native layout
SIDES = ("range", "random", "fennel", "metis", "metis, recursive", ALONE, f"{WHOLE}fennel", f"{WHOLE}metis")
RNG_SEED = 1
LOOK_S = 0.005
TRAINING = 10  # one node in so many

ALONE_SCRIPT = """
import json, sys, time
import numpy as np, pymetis
print(json.dumps({}), flush=True)
folder, parts = sys.argv[1], int(sys.argv[2])
sys.stdin.readline()
xadj, adjncy, weights = (np.load(f"{folder}/{name}.npy") for name in ("xadj", "adjncy", "weights"))
began = time.perf_counter()
_, found = pymetis.part_graph(parts, pymetis.CSRAdjacency(xadj, adjncy), vweights=weights, recursive=False,
                              options=pymetis.Options(seed=1))
seconds = time.perf_counter() - began
np.save(f"{folder}/found.npy", np.array(found, dtype=np.int16))
print(json.dumps({"seconds": seconds}), flush=True)
"""


def main() -> None:
    arguments = parser(__doc__ or "")
    arguments.add_argument("--short", action="store_true", help="graphs of up to 1 M edges only")
    arguments.add_argument("--side", nargs=3, metavar=("SIDE", "FOLDER", "PARTS"), help="what a measured process gets")
    arguments.set_defaults(repeats=3)
    args = arguments.parse_args()
    if args.side is not None:
        run_side(args.side[0], Path(args.side[1]), int(args.side[2]))
        return
    figures: dict[str, float | str] = {}
    for num_nodes, num_edges in SIZES[:2] if args.short else SIZES:
        graph, _ = load_graph(None, num_nodes, num_edges)
        figures |= figures_of(graph, 2, args.repeats if num_edges < ONE_RUN else 1)
        if num_edges < ONE_RUN:
            figures |= figures_of(graph, 8, args.repeats)
    if args.graph is not None:
        indptr, indices = (np.load(args.graph / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices"))
        figures |= figures_of(dp.CSCGraph(indptr, indices), 2, 1)
    report(figures, args.json)


def figures_of(graph: dp.CSCGraph, num_parts: int, repeats: int) -> dict[str, float | str]:
    """Return the figures of all sides over one graph."""
    training = np.random.default_rng(0).random(graph.num_nodes) < 1 / TRAINING
    graph = dp.CSCGraph(graph.indptr, graph.indices, node_attributes={"train_mask": training})
    source = source_of(graph)
    topology = graph.indptr.nbytes + graph.indices.nbytes
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        graph.save(folder / "graph")
        write_undirected(source, folder)
        took: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(repeats):
            for side in SIDES:
                run = measured(side, folder, num_parts)
                took[side].append(run | quality(source, np.load(folder / "found.npy"), num_parts))
    figures: dict[str, float | str] = {}
    before = f"{graph.num_edges / 1e6:g} M edges, {num_parts} parts: "
    median = {
        side: {name: statistics.median(run[name] for run in runs) for name in runs[0]} for side, runs in took.items()
    }
    for side, of_side in median.items():
        of_side["peak (x topology)"] = 1e6 * of_side["peak (MB)"] / topology
        figures |= {f"{before}{side}, {name}": value for name, value in of_side.items()}
    for side in ("metis", f"{WHOLE}metis"):
        above = median[side]["peak (x topology)"] - median[ALONE]["peak (x topology)"]
        figures[f"{before}{side}, peak above {ALONE} (x topology)"] = above
    for than in ("fennel", ALONE):
        figures[f"{before}metis, time over that of {than}"] = median["metis"]["time (s)"] / median[than]["time (s)"]
    for than in ("metis", "metis, recursive"):
        figures[f"{before}fennel, cut over that of {than}"] = median["fennel"]["cut"] / median[than]["cut"]
    return figures


def write_undirected(source: Source, folder: Path) -> None:
    """Write what pymetis alone gets: the symmetrised graph and the weights of the nodes."""
    xadj = np.zeros(source.graph.num_nodes_of(None) + 1, dtype=np.int64)
    adjncy = np.empty(_core.count_neighbors(source.graph.topology(), xadj), dtype=np.int64)
    count = _core.fill_neighbors(source.graph.topology(), xadj, adjncy)
    np.save(folder / "xadj.npy", xadj)
    np.save(folder / "adjncy.npy", adjncy[:count])
    np.save(folder / "weights.npy", as_metis_counts(np.concatenate(list(AllNodes(source, EVEN).weights(None)))))


# --- the measured process


def run_side(side: str, folder: Path, num_parts: int) -> None:
    """Say that all is loaded; when told to, run the method once, save the parts and tell the seconds."""
    graph = dp.CSCGraph.open(folder / "graph")
    source = source_of(graph)
    method, _, recursive = side.removeprefix(WHOLE).partition(", ")
    options: dict[str, Any] = {"method": method, "recursive": recursive != "", "rng_seed": RNG_SEED}
    print(json.dumps({}), flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    if side.startswith(WHOLE):
        root = folder / "parts"
        dp.distributed.Partitioner(graph, num_parts, root, layouts=("native",), **options).generate_partition()
        seconds = time.perf_counter() - began
        book = open_book(root, verify=False)
    else:
        book = assign(source, num_parts, progress=lambda *_: None, **options)
        seconds = time.perf_counter() - began
    np.save(folder / "found.npy", book.nodes().dense().numpy().astype(np.int16))
    print(json.dumps({"seconds": seconds}), flush=True)


def measured(side: str, folder: Path, num_parts: int) -> dict[str, float]:
    """Return the seconds and the peak memory of a side, which leaves its parts in the folder."""
    given = [str(folder), str(num_parts)]
    command = ["-c", ALONE_SCRIPT, *given] if side == ALONE else [__file__, "--side", side, *given]
    with subprocess.Popen(
        [sys.executable, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        before = private_bytes(process.pid)
        process.stdin.write("go\n")
        process.stdin.flush()
        peak = 0
        while not select.select([process.stdout], [], [], LOOK_S)[0]:
            peak = max(peak, sum(map(held_bytes, tree(process.pid))))
        told = json.loads(process.stdout.readline())
    return {"time (s)": told["seconds"], "peak (MB)": (peak - before) / 1e6, "before (MB)": before / 1e6}


def tree(pid: int) -> Iterator[int]:
    """Yield a process and those that it has started, and they.

    Until a new process runs its program, it has the memory, and the command line, of the one that started it.
    """
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            children = (task / "children").read_text(encoding="ascii").split()
            started = [int(child) for child in children if command_of(int(child)) != command_of(pid)]
        except OSError:  # one of them has ended
            continue
        for child in started:
            yield from tree(child)


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def held_bytes(pid: int) -> int:
    """Return the private memory of a process, 0 once it has ended."""
    try:
        return private_bytes(pid)
    except OSError:
        return 0


def quality(source: Source, parts: np.ndarray[Any, Any], num_parts: int) -> dict[str, float]:
    """Return the share of edges that are cut, and the heaviest part over the mean by several weights."""
    indptr, indices, _ = source.graph.relation(None).arrays()  # type: ignore[attr-defined]
    cut = 0
    for first in range(0, len(indptr) - 1, 2**16):
        rows = indptr[first : first + 2**16 + 1]
        destinations = np.repeat(parts[first : first + 2**16], np.diff(rows))
        cut += int((parts[indices[rows[0] : rows[-1]]] != destinations).sum())
    training = source.training_nodes[None].numpy()
    weights = {
        "nodes": np.ones(len(parts)),
        "training nodes": training,
        "edges": np.diff(indptr),
    }
    found = {"cut": cut / len(indices)}
    for name, weight in weights.items():
        found[f"balance of {name}"] = float(np.bincount(parts, weight, num_parts).max() * num_parts / weight.sum())
    return found


if __name__ == "__main__":
    main()
