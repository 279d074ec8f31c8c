"""The method "range": each part has one contiguous range of each type's nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from datapipes.base.types import NodeType
from datapipes.partition.id_maps import IdMap, RangeMap
from datapipes.partition.methods.all_nodes import AllNodes


def range_parts(nodes: AllNodes, num_parts: int) -> dict[NodeType | None, IdMap]:
    """Cut the nodes of each type, in the order of their ids, so that the parts of it weigh the same.

    Part p begins at the first node before which at least p / num_parts of the weight of the type lies. Each part has
    at least one node of a type that has as many nodes as parts; the nodes of a smaller type go to as many parts, one
    each, and the next smaller type goes on with the part after. So no part is empty.

    O(num_nodes), in 8 bytes a part for the result and 16 MiB.
    """
    maps: dict[NodeType | None, IdMap] = {}
    turn = 0
    for node_type in nodes.types:
        count = nodes.counts[node_type]
        if count < num_parts:
            sizes = np.zeros(num_parts, dtype=np.int64)
            sizes[(turn + np.arange(count)) % num_parts] = 1
            turn += count
            bounds = np.concatenate(([0], np.cumsum(sizes)))
        else:
            bounds = _cut(nodes, node_type, num_parts)
        maps[node_type] = RangeMap(bounds)
    return maps


def _cut(nodes: AllNodes, node_type: NodeType | None, num_parts: int) -> NDArray[np.int64]:
    """Return the offsets of the parts, int64 [num_parts + 1]."""
    count = nodes.counts[node_type]
    total = sum(int(weights.sum()) for weights in nodes.weights(node_type))
    # The weight before the first node of each part: Python's integers, since total * num_parts may exceed int64.
    wanted = np.array([-(-total * part // num_parts) for part in range(num_parts + 1)], dtype=np.int64)
    bounds = np.zeros(num_parts + 1, dtype=np.int64)
    before, first = 0, 0
    for weights in nodes.weights(node_type):
        upto = before + np.cumsum(weights)
        here = (wanted > before) & (wanted <= upto[-1])
        bounds[here] = first + np.searchsorted(upto, wanted[here]) + 1
        before, first = int(upto[-1]), first + len(weights)
    turns = np.arange(num_parts + 1)
    bounds = np.maximum.accumulate(bounds - turns) + turns  # at least one node in each part
    return np.minimum(bounds, count - num_parts + turns)
