"""Source: what is partitioned, as one graph with all attributes, whatever it was given as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from datapipes.base.types import EdgeType, NodeType
from datapipes.graph import CSCGraph, HeteroCSCGraph

TRAIN_MASK = "train_mask"  # the node attribute that says which nodes are to be trained on


@dataclass(frozen=True, eq=False)
class Source:
    """A graph that is to be partitioned.

    Attributes:
        graph: the graph, with all that goes into the parts as node and edge attributes.
        training_nodes: {node type: bool [num_nodes]}; types whose training nodes are known.
        node_types, edge_types: the types in the order in which they were given; PyG's layout numbers by it.
        left_out: what was given and does not go into the parts, in words.
    """

    graph: CSCGraph | HeteroCSCGraph
    training_nodes: Mapping[NodeType | None, Tensor]
    node_types: tuple[NodeType | None, ...]
    edge_types: tuple[EdgeType | None, ...]
    left_out: tuple[str, ...] = field(default=())
