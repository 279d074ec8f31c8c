"""Made values that samplers read beside the edges: weights, times of edges and nodes, times of seeds; NumPy only.

All come from fixed seeds, so GraphBolt's interpreter makes the same. Weights span three orders of magnitude. Times are
uniform over [0, SPAN); a seed is asked for at a time in the second half, so about three quarters of the in-edges are
older than their seed.
"""

from __future__ import annotations

import numpy as np

SPAN = 10**9


def weights(num_edges: int) -> np.ndarray:
    """Return float32 [num_edges], 1 to 1000, their logarithm uniform."""
    return np.power(np.float32(1000), np.random.default_rng(1).random(num_edges, dtype=np.float32))


def edge_times(indptr: np.ndarray, *, ascending: bool = False) -> np.ndarray:
    """Return int64 [num_edges]; `ascending` sorts them within each row, the same values otherwise."""
    times = np.random.default_rng(2).integers(0, SPAN, int(indptr[-1]))
    if ascending:
        times += np.repeat(np.arange(len(indptr) - 1) * SPAN, np.diff(indptr))
        times.sort()
        times %= SPAN
    return times


def node_times(num_nodes: int) -> np.ndarray:
    """Return int64 [num_nodes]."""
    return np.random.default_rng(3).integers(0, SPAN, num_nodes)


def seed_times(num_nodes: int) -> np.ndarray:
    """Return int64 [num_nodes], the time at which each node is asked for as a seed."""
    return np.random.default_rng(4).integers(SPAN // 2, SPAN, num_nodes)
