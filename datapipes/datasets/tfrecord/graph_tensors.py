"""GraphTensors: the fields of a graph that was loaded from TFRecords, as they are before a graph is built of them.

LoadedGraphTensors, a subclass, turns these fields into something else; to_partition.py stands between the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from datapipes.base.types import EdgeType, NodeType, type_text

__all__ = ["DEFAULT_HOMOGENEOUS_EDGE_TYPE", "DEFAULT_HOMOGENEOUS_NODE_TYPE"]

_ByNode = Tensor | dict[NodeType, Tensor]
_ByEdge = Tensor | dict[EdgeType, Tensor]


@dataclass(eq=False, repr=False)
class GraphTensors:
    """The fields of LoadedGraphTensors, and which rank of how many has loaded them."""

    node_ids: _ByNode
    node_features: _ByNode | None
    node_labels: _ByNode | None
    edge_index: _ByEdge
    edge_features: _ByEdge | None
    positive_label: _ByEdge | None
    negative_label: _ByEdge | None
    edge_weights: _ByEdge | None = None
    node_quantized_features: None = None
    edge_quantized_features: None = None
    _rank: int = field(default=0, init=False, repr=False)
    _num_ranks: int = field(default=1, init=False, repr=False)

    def __repr__(self) -> str:
        """Return the shapes of the tensors."""
        fields = []
        for name in FIELDS:
            value = getattr(self, name)
            if isinstance(value, dict):
                fields.append(f"{name}={{{', '.join(f'{k!r}: {[*each.shape]}' for k, each in value.items())}}}")
            elif value is not None:
                fields.append(f"{name}={[*value.shape]}")
        return f"{type(self).__name__}({', '.join(fields)})"

    def by_type(self, name: str) -> dict[Any, Tensor]:
        """Return the field `name` as {type: tensor}: {None: tensor} for a tensor, {} for None."""
        value = getattr(self, name)
        return {} if value is None else dict(value) if isinstance(value, dict) else {None: value}

    def refuse_mixed_types(self, where: str) -> None:
        """Raise ValueError if one of nodes and edges has types and the other has none."""
        if (None in self.by_type("node_ids")) != (None in self.by_type("edge_index")):
            raise ValueError(
                f"{where}: one of node_ids and edge_index is a dict by type and the other is not. Give both by type, "
                "or both without."
            )

    def tensors(self) -> Iterator[Tensor]:
        """Yield all tensors, field by field."""
        for name in FIELDS:
            yield from self.by_type(name).values()


def field_text(name: str, kind: Any) -> str:
    """Return how messages name a type of a field: "node_ids", or "node_ids of user"."""
    return name if kind is None else f"{name} of {type_text(kind)}"


FIELDS = tuple(name for name in GraphTensors.__dataclass_fields__ if not name.startswith("_"))  # in GiGL's order


#: The node type under which a graph without types is stored.
DEFAULT_HOMOGENEOUS_NODE_TYPE: NodeType = "default_homogeneous_node_type"
#: The edge type under which a graph without types is stored.
DEFAULT_HOMOGENEOUS_EDGE_TYPE: EdgeType = (DEFAULT_HOMOGENEOUS_NODE_TYPE, "to", DEFAULT_HOMOGENEOUS_NODE_TYPE)
