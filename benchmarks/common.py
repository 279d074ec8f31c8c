"""Helpers of the benchmarks: the graph, alternating the sides in one run, physical limits, the peer's interpreter."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from consumers import Steps

import datapipes as dp
from datapipes import _core
from datapipes.cli.peer import KEEP_MEMORY, Peer

PEERS: dict[str, dict[str, str]] = {"graphbolt 2.1.0": KEEP_MEMORY, "graphbolt 2.1.0 as installed": {}}


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options of every benchmark."""
    arguments = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--graph", type=Path, help="folder with indptr.npy, indices.npy (int64) and feat.npy")
    arguments.add_argument("--json", type=Path, help="write the figures to this file")
    arguments.add_argument("--repeats", type=int, default=9, help="measurements of each side; the median counts")
    arguments.add_argument(
        "--peer-python", type=Path, help="interpreter with dgl 2.1.0 and torch 2.2.1, to measure GraphBolt"
    )
    return arguments


def lacks_gpu(name: str) -> bool:
    """Return whether there is no CUDA device here; say so, in one line."""
    if not torch.cuda.is_available():
        print(f"{name}: there is no CUDA device here, so nothing is measured")
        return True
    return False


def load_graph(
    folder: Path | None, num_nodes: int = 200_000, num_edges: int = 4_000_000
) -> tuple[dp.CSCGraph, np.ndarray]:
    """Return (graph, features) of the folder, or of a power-law graph made here: endpoints drawn by Pareto weights."""
    if folder is not None:
        indptr, indices = (np.load(folder / f"{name}.npy") for name in ("indptr", "indices"))
        return dp.CSCGraph(indptr, indices), np.load(folder / "feat.npy")
    rng = np.random.default_rng(0)
    weights = np.cumsum((rng.pareto(1.1, num_nodes) + 1).clip(max=num_nodes**0.5))
    ends = [np.searchsorted(weights, rng.random(num_edges) * weights[-1]).clip(max=num_nodes - 1) for _ in range(2)]
    features = rng.standard_normal((num_nodes, 100), dtype=np.float32)
    return dp.CSCGraph.from_edge_index(np.stack(ends), num_nodes), features


def alternate(sides: dict[str, Callable[[int], float]], repeats: int, warm_ups: int = 2) -> dict[str, float]:
    """Return the median rate of each side, measured in turn; `side(round)` does one measurement."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for i in range(warm_ups + repeats):
        for name, side in sides.items():
            rate = side(i)
            if i >= warm_ups:
                taken[name].append(rate)
    return {name: statistics.median(rates) for name, rates in taken.items()}


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds, result) of one call."""
    began = time.perf_counter()
    result = work()
    return time.perf_counter() - began, result


class RandomLines:
    """Measure the limit of random access: lines per second, read from `num_bytes` with many reads under way at once.

    1 GiB is far larger than any cache, so each line then costs a cache miss.
    """

    def __init__(self, num_bytes: int = 2**30, threads: int = 1, num_reads: int = 2**19) -> None:
        self._memory = np.ones(max(num_bytes // 64, 1) * 64, dtype=np.uint8)
        self._lines = np.random.default_rng(0).integers(0, len(self._memory) // 64, num_reads, dtype=np.uint32)
        self._threads = threads

    def __call__(self, _: int) -> float:
        seconds, _ = timed(lambda: _core.read_lines(self._memory, self._lines, num_threads=self._threads))
        return len(self._lines) / seconds


def memcpy(num_bytes: int) -> Callable[[int], float]:
    """Return a side for `alternate`: bytes per second of a copy into memory that exists already."""
    source, target = np.ones(num_bytes, dtype=np.uint8), np.zeros(num_bytes, dtype=np.uint8)
    return lambda _: num_bytes / timed(lambda: np.copyto(target, source))[0]


def with_threads(threads: int, side: Callable[[int], float]) -> Callable[[int], float]:
    """Return `side` measured with so many threads for torch and our kernels."""

    def measure(round_: int) -> float:
        torch.set_num_threads(threads)
        try:
            return side(round_)
        finally:
            torch.set_num_threads(1)

    return measure


def peak_bytes(work: Callable[[], Any]) -> float:
    """Return the peak rise of resident memory during one call; nan if the system does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak restarts at the resident memory
    except OSError:
        return float("nan")
    before = _resident_bytes("VmRSS")
    work()
    return _resident_bytes("VmHWM") - before


def _resident_bytes(field: str) -> float:
    """Return a field of /proc/self/status in bytes; the file has it in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024.0 * int(line.split()[1]) for line in lines if line.startswith(field))


class Training(Steps):
    """GraphSAGE with mean aggregation: a call trains one step over our minibatch."""

    def __call__(self, minibatch: dp.MiniBatch) -> None:
        self.step(minibatch.node_features["feat"], minibatch.blocks, minibatch.seeds)


def peer_of(python: Path, graph: Path | None, what: str, allocator: dict[str, str]) -> Peer:
    """Return GraphBolt in its own interpreter, with these settings of glibc's allocator."""
    if graph is None:
        raise SystemExit("--peer-python needs --graph DIR: the peer reads the same files.")
    script = Path(__file__).with_name("peer_graphbolt.py")
    return Peer([str(python), str(script), str(graph), *what.split()], allocator)


def peers_of(python: Path | None, graph: Path | None, what: str) -> dict[str, Peer]:
    """Return GraphBolt with an allocator that keeps memory, and as installed, by name; none without an interpreter."""
    if python is None:
        return {}
    return {name: peer_of(python, graph, what, allocator) for name, allocator in PEERS.items()}


def loaders_of_peers(
    python: Path | None, graph: Path | None, what: str, workers: Iterable[int], *rest: object
) -> dict[str, Peer]:
    """Return a peer of each kind for each number of workers, by name; `rest` follows the number."""
    return {
        f"{name}, {count} workers": peer
        for count in workers
        for name, peer in peers_of(python, graph, " ".join(map(str, (what, count, *rest)))).items()
    }


def best_of(name: str, rates: dict[str, float]) -> float:
    """Return the best rate of a peer's loaders; `name` is that of the peer."""
    return max(rate for side, rate in rates.items() if side.startswith(f"{name}, "))


Figures = dict[str, float | str]


def report_parts(parts: dict[str, Callable[[], Figures]], file: Path | None, known: Figures | None = None) -> None:
    """Report the figures of all parts, together with those that are known; they are written after each part, and a part
    that fails is one line among them. Then the exit code is 1.
    """
    figures, failed = dict(known or {}), False
    for name, part in parts.items():
        seconds, found = timed(lambda part=part: _figures_or_failure(part))
        failed = failed or isinstance(found, str)
        figures |= {f"{name}: failed": found} if isinstance(found, str) else found
        print(f"-- {name}: {seconds:.1f} s", flush=True)
        if file is not None:
            file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    report(figures, file)
    if failed:
        sys.exit(1)


def _figures_or_failure(part: Callable[[], Figures]) -> Figures | str:
    try:
        return part()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:200]


def report(figures: Figures, file: Path | None) -> None:
    """Print the figures, and write them to `file`."""
    for name, value in figures.items():
        print(f"{name:44s} {value:.4g}" if isinstance(value, float) else f"{name:44s} {value}")
    if file is not None:
        file.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    sys.stdout.flush()
