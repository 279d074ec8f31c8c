"""Where the examples are, and a small file that they train on."""

from pathlib import Path

import numpy as np

EXAMPLES = Path(__file__).parents[2] / "examples"


def write_ring(path: Path, num_nodes: int) -> Path:
    """Write a gnn-benchmark file: node i has edges to i + 1 and i + 2, its class is in its words, as 1 of 100."""
    nodes = np.arange(num_nodes)
    labels = nodes * 2 // num_nodes  # so that nearly all neighbors have the class of a node
    words = np.stack([labels, *(2 + (nodes + shift) % 198 for shift in range(99))], axis=1)
    arrays = {
        "adj_data": np.ones(2 * num_nodes),
        "adj_indices": ((nodes[:, None] + [1, 2]) % num_nodes).ravel(),
        "adj_indptr": np.arange(0, 2 * num_nodes + 1, 2),
        "adj_shape": np.array([num_nodes, num_nodes]),
        "attr_data": np.ones(words.size),
        "attr_indices": words.ravel(),
        "attr_indptr": np.arange(0, words.size + 1, 100),
        "attr_shape": np.array([num_nodes, 200]),
        "labels": labels,
    }
    np.savez(path, **arrays)
    return path
