"""AllNodes: the nodes of all types in one numbering, and the weight that each has when parts are balanced.

The types lie one after another, in sorted order: node v of a type is number `offset + v`. A graph without types is the
case of one type.

**Combined weight.** METIS balances one number for each node. So a node weighs `base`, and a training node
`base + extra`. All extras together are as much as all bases together: one half of a part's weight stands for its nodes,
the other half for its training nodes. With N nodes, T of them for training, and g their greatest common divisor, base
is T / g and extra is N / g. Where all weights together would exceed 2^30, base is 2^29 / N, rounded down (at least 1),
and extra is base * N / T, rounded to the nearest integer. Without training nodes, or where all nodes are training
nodes, a node weighs 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.types import NodeType
from datapipes.partition.source import Source

MOST_WEIGHT = 2**30  # of all nodes together: METIS may count in int32
CHUNK = 2**20  # nodes whose weights are made at once


class AllNodes:
    """The nodes of a source.

    Attributes:
        types: node types in sorted order; (None,) without types.
        counts: {node type: number of nodes}.
        offsets: {node type: number of its first node}.
        total: number of all nodes.
        base, extra: the weight of a node, and what a training node has above it.
        total_weight: weight of all nodes.
    """

    def __init__(self, source: Source) -> None:
        self.types: tuple[NodeType | None, ...] = source.graph.node_types
        self.counts = {each: source.graph.num_nodes_of(each) for each in self.types}
        self.offsets: dict[NodeType | None, int] = {}
        self.total = 0
        for each in self.types:
            self.offsets[each] = self.total
            self.total += self.counts[each]
        self._training: Mapping[NodeType | None, Tensor] = source.training_nodes
        trained = sum(int(mask.sum()) for mask in self._training.values())
        self.num_training = trained
        self.base, self.extra = combined_weight(self.total, trained)
        self.total_weight = self.base * self.total + self.extra * trained

    def training(self, node_type: NodeType | None) -> NDArray[np.bool_] | None:
        """Return the mask of the training nodes of a type, bool [n], viewed; None if no node of it is one."""
        mask = self._training.get(node_type)
        return None if mask is None else mask.numpy()

    def weights(self, node_type: NodeType | None) -> Iterator[NDArray[np.int64]]:
        """Yield the weights of the nodes of a type, up to CHUNK at a time."""
        mask, count = self.training(node_type), self.counts[node_type]
        for begin in range(0, count, CHUNK):
            size = min(CHUNK, count - begin)
            if mask is None:
                yield np.full(size, self.base, dtype=np.int64)
            else:
                yield self.base + self.extra * mask[begin : begin + size].astype(np.int64)


def combined_weight(num_nodes: int, num_training: int) -> tuple[int, int]:
    """Return (base, extra); the docstring of the module says what they are."""
    if num_training in (0, num_nodes):
        return 1, 0
    common = math.gcd(num_nodes, num_training)
    if 2 * num_nodes * num_training // common <= MOST_WEIGHT:
        return num_training // common, num_nodes // common
    base = max(1, MOST_WEIGHT // (2 * num_nodes))
    return base, (2 * base * num_nodes + num_training) // (2 * num_training)
