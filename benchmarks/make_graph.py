"""Write a power-law graph in seconds: both ends of an edge are drawn by Pareto weights, as in common.load_graph.

How many edges end at each node is drawn at once, so nothing is sorted. Sources and features are drawn in blocks, each
with random numbers of its own, on all cores; the graph is the same on any number of them.
Usage: make_graph.py FOLDER NODES EDGES WIDTH: writes indptr.npy, indices.npy (int64), feat.npy ([NODES, WIDTH] float32)
and label.npy into FOLDER, unless they are there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

BLOCK = 2**20  # edges, or floats
NUM_CLASSES = 47


def main() -> None:
    folder, (num_nodes, num_edges, width) = Path(sys.argv[1]), map(int, sys.argv[2:5])
    if (folder / "made").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    weights = (rng.pareto(1.1, num_nodes) + 1).clip(max=num_nodes**0.5)
    indptr = np.zeros(num_nodes + 1, dtype=np.int64)
    np.cumsum(rng.multinomial(num_edges, weights / weights.sum()), out=indptr[1:])
    np.save(folder / "indptr.npy", indptr)
    np.save(folder / "label.npy", rng.integers(0, NUM_CLASSES, num_nodes))
    bounds = np.cumsum(weights)

    def sources(rng: np.random.Generator, count: int) -> np.ndarray:
        return np.searchsorted(bounds, rng.random(count) * bounds[-1]).clip(max=num_nodes - 1)

    def floats(rng: np.random.Generator, count: int) -> np.ndarray:
        return rng.standard_normal(count, dtype=np.float32)

    np.save(folder / "indices.npy", in_blocks(sources, np.empty(num_edges, dtype=np.int64), 1))
    features = in_blocks(floats, np.empty(num_nodes * width, dtype=np.float32), 2)
    np.save(folder / "feat.npy", features.reshape(num_nodes, width))
    (folder / "made").touch()


def in_blocks(draw: Callable[[np.random.Generator, int], np.ndarray], out: np.ndarray, stream: int) -> np.ndarray:
    """Fill `out` with what `draw(rng, count)` gives, a block at a time in threads."""

    def fill(begin: int) -> None:
        part = out[begin : begin + BLOCK]
        part[:] = draw(np.random.default_rng([stream, begin]), len(part))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(fill, range(0, len(out), BLOCK)))
    return out


if __name__ == "__main__":
    main()
