"""The method "range": each part has one contiguous range of each type's nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from datapipes.base.types import NodeType
from datapipes.partition.book import IdMap, RangeMap
from datapipes.partition.methods.all_nodes import AllNodes

BY_ID = {"nodes": 1.0, "train": 1.0}  # shares of the weight: edges may come once the owners of nodes are known


def range_parts(nodes: AllNodes, num_parts: int) -> dict[NodeType | None, IdMap]:
    """Cut the nodes of each type, in the order of their ids, so that its parts weigh the same.

    Part p begins at the first node that has at least p / num_parts of the type's weight before it. A type with
    num_parts nodes or more gives each part at least one. A smaller type gives one node each to as many parts as it has
    nodes; the next smaller type begins with the part after these. So no part is empty.

    O(num_nodes), in 8 bytes a part for the result and 16 MiB.
    """
    return {
        node_type: RangeMap(bounds)
        for node_type, bounds in range_bounds(nodes.counts, num_parts, lambda key: _cut(nodes, key, num_parts)).items()
    }


def range_bounds(
    counts: Mapping[NodeType | None, int], num_parts: int, cut: Callable[[NodeType | None], NDArray[np.int64]]
) -> dict[NodeType | None, NDArray[np.int64]]:
    """Return {node type: offsets}, int64 [num_parts + 1]: part p has the ids in [offsets[p], offsets[p + 1]).

    Args:
        counts: {node type: number of nodes}, sorted.
        cut: function (node type) -> offsets, for types with at least num_parts nodes.
    """
    bounds = {}
    turn = 0
    for node_type, count in counts.items():
        if count < num_parts:
            sizes = np.zeros(num_parts, dtype=np.int64)
            sizes[(turn + np.arange(count)) % num_parts] = 1
            turn += count
            bounds[node_type] = np.concatenate(([0], np.cumsum(sizes)))
        else:
            bounds[node_type] = cut(node_type)
    return bounds


def _cut(nodes: AllNodes, node_type: NodeType | None, num_parts: int) -> NDArray[np.int64]:
    """Return the offsets of a type with at least num_parts nodes, int64 [num_parts + 1]."""
    total = sum(int(weights.sum()) for weights in nodes.weights(node_type))
    bounds, _ = cut_by_weight(nodes.weights(node_type), total, num_parts)
    return with_a_node_each(bounds, nodes.counts[node_type])


def cut_by_weight(
    weights: Iterable[NDArray[np.int64]], total: int, num_parts: int, before: int = 0, first: int = 0
) -> tuple[NDArray[np.int64], int]:
    """Return (begins, weight): where parts begin among some nodes of a type, and the weight up to the last of these.

    Args:
        weights: the weights of the nodes from number `first` on, in pieces.
        total: the weight of all nodes of the type.
        before: the weight of the nodes before `first`.
    Returns:
        begins is int64 [num_parts + 1], with 0 for a part that does not begin among these nodes. weight includes
        `before`.
    """
    # The weight before the first node of each part: Python's integers, since total * num_parts may exceed int64.
    wanted = np.array([-(-total * part // num_parts) for part in range(num_parts + 1)], dtype=np.int64)
    bounds = np.zeros(num_parts + 1, dtype=np.int64)
    for some in weights:
        upto = before + np.cumsum(some)
        here = (wanted > before) & (wanted <= upto[-1])
        bounds[here] = first + np.searchsorted(upto, wanted[here]) + 1
        before, first = int(upto[-1]), first + len(some)
    return bounds, before


def with_a_node_each(bounds: NDArray[np.int64], num_nodes: int) -> NDArray[np.int64]:
    """Return the offsets, moved as little as needed for each part to have a node. There must be num_parts nodes."""
    num_parts = len(bounds) - 1
    turns = np.arange(num_parts + 1)
    return np.minimum(np.maximum.accumulate(bounds - turns) + turns, num_nodes - num_parts + turns)
