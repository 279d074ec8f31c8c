"""The relations of a graph or a part, as the object that the sampling kernels take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from datapipes import _core
from datapipes.base.types import EdgeType, NodeType, ends_of, type_text


class KeptTopology:
    """The `_core.Topology` of a graph or a part; each process makes it once.

    `tensor.share_memory_()`, which torch.multiprocessing calls when it sends a tensor, moves the memory of a tensor and
    frees the old one. So check `is_valid` before each use; if it is False, make a new one.

    Args:
        nodes: {node type: (number of nodes,)}, in order; for a part (number in the whole graph, number it owns).
        relations: {edge type: Relation}, in order.
    Attributes:
        topology: what the kernels take.
    """

    def __init__(
        self, nodes: Mapping[NodeType | None, tuple[int, ...]], relations: Mapping[EdgeType | None, Any]
    ) -> None:
        numbers = {node_type: number for number, node_type in enumerate(nodes)}
        self._tensors: list[Tensor] = []
        rows = []
        for edge_type, relation in relations.items():
            (src, dst), ids = ends_of(edge_type), relation.edge_ids
            arrays = (relation.indptr.numpy(), relation.indices.numpy(), None if ids is None else ids.numpy())
            rows.append((numbers[src], numbers[dst], *arrays, name_of(edge_type)))
            self._tensors += [relation.indptr, relation.indices, *([] if ids is None else [ids])]
        named: list[Any] = [(name_of(node_type), *counts) for node_type, counts in nodes.items()]
        self.topology = _core.Topology(named, rows)
        self._places = self._now()

    @property
    def is_valid(self) -> bool:
        """Whether all tensors are still at the same place in memory."""
        return self._now() == self._places

    def _now(self) -> list[int]:
        return [tensor.data_ptr() for tensor in self._tensors]


def name_of(value: Any) -> str:
    """Return the name of a type in the errors of the kernels; "" in a graph without types."""
    return "" if value is None else type_text(value)
