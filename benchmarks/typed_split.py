"""The edges of a graph without types, split into 3 node types and 5 relations (or any number); NumPy only.

Nodes keep their in-edges: node v is of the type whose range holds it, and each of its in-edges goes to one of the
relations into that type, in turn by position. A source becomes a node of the relation's source type by the remainder
of its id. So the number of edges and the in-degrees are those of the graph.
"""

from __future__ import annotations

import numpy as np

Split = tuple[dict[str, int], dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]]]

SHARES = {"a": 0.5, "b": 0.3, "c": 0.2}
FIVE = [("a", "r", "a"), ("b", "r", "a"), ("a", "r", "b"), ("c", "r", "b"), ("a", "r", "c")]


def split_edges(indptr: np.ndarray, indices: np.ndarray, edge_types: list[tuple[str, str, str]] = FIVE) -> Split:
    """Return {node type: number} and {edge type: (indptr, indices)}; indices keep their dtype."""
    total = len(indptr) - 1
    bounds = np.round(np.cumsum([0.0, *SHARES.values()]) * total).astype(np.int64)
    num_nodes = {name: int(end - begin) for name, begin, end in zip(SHARES, bounds[:-1], bounds[1:], strict=True)}
    relations = {}
    for name, begin, end in zip(SHARES, bounds[:-1], bounds[1:], strict=True):
        first, last = indptr[begin], indptr[end]
        offsets, sources = indptr[begin : end + 1] - first, indices[first:last]
        into = [edge_type for edge_type in edge_types if edge_type[2] == name]
        for turn, edge_type in enumerate(into):
            own = sources[turn :: len(into)] % num_nodes[edge_type[0]]
            # In-edges of this turn before offset x: ceil((x - turn) / len(into)).
            relations[edge_type] = ((offsets - turn + len(into) - 1) // len(into), own.astype(indices.dtype))
    return num_nodes, relations
