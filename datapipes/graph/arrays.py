"""The arrays of a CSCGraph, as converters return them and as storage reads and writes them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class CSCArrays(NamedTuple):
    """The arguments of CSCGraph, unchecked."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    node_attributes: dict[str, Tensor]
    edge_attributes: dict[str, Tensor]
