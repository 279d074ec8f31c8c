"""The node type and the edge type that stand for the only one of a graph without types; texts as GiGL has them."""

from __future__ import annotations

from datapipes.base.types import EdgeType, NodeType

__all__ = ["DEFAULT_HOMOGENEOUS_EDGE_TYPE", "DEFAULT_HOMOGENEOUS_NODE_TYPE"]

DEFAULT_HOMOGENEOUS_NODE_TYPE: NodeType = "default_homogeneous_node_type"
DEFAULT_HOMOGENEOUS_EDGE_TYPE: EdgeType = (DEFAULT_HOMOGENEOUS_NODE_TYPE, "to", DEFAULT_HOMOGENEOUS_NODE_TYPE)
