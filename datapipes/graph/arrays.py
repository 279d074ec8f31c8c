"""The arrays of a CSCGraph, as converters return them and as storage reads and writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor


class CSCArrays(NamedTuple):
    """The arguments of CSCGraph, unchecked."""

    indptr: Tensor
    indices: Tensor
    edge_ids: Tensor | None
    node_attributes: Mapping[str, Any] | None
    edge_attributes: Mapping[str, Any] | None
