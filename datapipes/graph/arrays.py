"""The arrays that a CSCGraph is made of: what converters and storage give and take."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CSCArrays(NamedTuple):
    """The arguments of CSCGraph, not checked yet."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    node_attributes: dict[str, Tensor]
    edge_attributes: dict[str, Tensor]
