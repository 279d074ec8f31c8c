"""AllNodes: the nodes of all types in one numbering, and the weight that each node has when parts are balanced.

The types follow one another in sorted order: node v of a type has the number `offset + v`, where `offset` is how many
nodes the types before have. A graph without types has one type, None.

**Combined weight.** METIS, Fennel and ranges balance one weight for each node. It is made of three measures: the nodes,
the in-edges (an edge belongs to the part of its destination) and the training nodes. A node weighs `base`, plus
`per_edge` for each of its in-edges, plus `extra` if it is a training node. All nodes together weigh UNITS, but for
rounding, and each measure has a share of this. With N nodes, E edges, T training nodes and shares that add up to 1,
base is UNITS * share / N, per_edge is UNITS * share / E and extra is UNITS * share / T, each rounded to the nearest
integer. If the graph has no edges or no training nodes, the share of that measure goes to the other measures, in
proportion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from datapipes.base.types import NodeType, ends_of
from datapipes.partition.source import Source

UNITS = 2**50  # weight of all nodes together: exact in float64, and fine enough for a billion nodes
EVEN = {"nodes": 1.0, "edges": 1.0, "train": 1.0}  # shares of the measures, unless others are given
CHUNK = 2**20  # nodes whose weights are made at once
STAGE = 2**16 - 1  # stands for the stage in the random keys of all methods; no chain has so many stages


class Combined(NamedTuple):
    """The terms of a node's weight: `base`, plus `per_edge` for each in-edge, plus `extra` if it is a training node."""

    base: int
    per_edge: int
    extra: int


class AllNodes:
    """The nodes of all types of a graph in one numbering, and their weights.

    Node v of a type has the number offsets[type] + v.

    Attributes:
        types: node types in sorted order; (None,) without types.
        counts: {node type: number of nodes}.
        offsets: {node type: the number of its first node in the numbering}.
        total: how many nodes there are, of all types.
        num_training: how many of them are training nodes.
        shares: {measure: its share of the weight}, as given; the measures are "nodes", "edges" and "train".
        combined: the three terms of the weight of a node.
    """

    def __init__(self, source: Source, shares: Mapping[str, float]) -> None:
        self._graph = source.graph
        self.types: tuple[NodeType | None, ...] = source.graph.node_types
        self.counts = {node_type: source.graph.num_nodes_of(node_type) for node_type in self.types}
        *firsts, self.total = accumulate(self.counts.values(), initial=0)
        self.offsets = dict(zip(self.types, firsts, strict=True))
        self._training: Mapping[NodeType | None, Tensor] = source.training_nodes
        self.num_training = sum(int(mask.sum()) for mask in self._training.values())
        self.weigh(shares)

    def weigh(self, shares: Mapping[str, float]) -> None:
        """Change `shares`, the share of each measure in the weight of a node, and compute `combined` again."""
        num_edges = sum(map(self._graph.num_edges_of, self._graph.edge_types))
        self.shares = dict(shares)
        self.combined = combined_weight(shares, (self.total, num_edges, self.num_training))

    def training(self, node_type: NodeType | None) -> NDArray[np.bool_] | None:
        """Return the mask of the training nodes of a type, bool [n], a view. None: the type has no mask."""
        mask = self._training.get(node_type)
        return None if mask is None else mask.numpy()

    def training_bytes(self) -> list[NDArray[np.uint8] | None]:
        """Return a list of the masks of training nodes of all types, as the C++ code takes them.

        A mask is contiguous uint8 [n]. The entry of a type without a mask is None.
        """
        masks = [self.training(node_type) for node_type in self.types]
        return [None if mask is None else np.ascontiguousarray(mask).view(np.uint8) for mask in masks]

    def weights(self, node_type: NodeType | None) -> Iterator[NDArray[np.int64]]:
        """Yield the weights of the nodes of a type, int64, up to CHUNK nodes at a time."""
        into = [edge_type for edge_type in self._graph.edge_types if ends_of(edge_type)[1] == node_type]
        offsets = [self._graph.relation(edge_type).indptr.numpy() for edge_type in into]
        return node_weights(self.combined, self.counts[node_type], self.training(node_type), offsets)


def node_weights(
    combined: Combined, count: int, mask: NDArray[np.bool_] | None, offsets: Sequence[NDArray[np.int64]] = ()
) -> Iterator[NDArray[np.int64]]:
    """Yield the weights of `count` nodes of one type, int64, up to CHUNK nodes at a time.

    Args:
        combined: the three terms of the weight.
        mask: bool [count], whether each node is a training node. None: no node is.
        offsets: the indptr of each relation whose destinations are these nodes, from which in-edges are counted.
    """
    base, per_edge, extra = combined
    for begin in range(0, count, CHUNK):
        end = min(begin + CHUNK, count)
        weights = np.full(end - begin, base, dtype=np.int64)
        for indptr in offsets if per_edge > 0 else ():
            weights += per_edge * np.diff(indptr[begin : end + 1])
        if mask is not None and extra > 0:
            weights += extra * mask[begin:end].astype(np.int64)
        yield weights


def combined_weight(shares: Mapping[str, float], totals: tuple[int, int, int]) -> Combined:
    """Return the Combined weight: what a node, an in-edge and a training node weigh.

    The weights are chosen so that, summed over all nodes, the measures "nodes", "edges" and "train" contribute in the
    proportion of `shares`. A measure with total 0 contributes nothing. If no measure is left, each node weighs 1.

    Args:
        shares: {measure: its share of the weight}.
        totals: (number of nodes, number of edges, number of training nodes).
    """
    counted = [shares.get(name, 0) if total > 0 else 0 for name, total in zip(EVEN, totals, strict=True)]
    every = sum(counted)
    if every == 0:  # no measure has a share: all nodes weigh the same
        return Combined(1, 0, 0)
    return Combined(
        *(round(UNITS * share / every / max(total, 1)) for share, total in zip(counted, totals, strict=True))
    )
