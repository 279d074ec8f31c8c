"""Feature: rows that are read by id; TensorFeature: rows of a tensor in host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.checks import as_tensor, check_index_tensor, dtype_name


class Feature(ABC):
    """A table of equal rows. A subclass that defines these three can stand in a FeatureStore."""

    @abstractmethod
    def read(self, ids: Tensor) -> Tensor:
        """Return the rows at `ids`, int32 or int64 [n], repeats allowed: a new tensor [n, *shape].

        Raises:
            IndexError: An id is not in [0, count).
        """

    @property
    @abstractmethod
    def count(self) -> int:
        """Number of rows."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one row; () for a number each."""


class TensorFeature(Feature):
    """The rows of a tensor or array in host memory, of any fixed-width dtype; it is viewed, so it may be memory-mapped.

    Args:
        tensor: [count, *shape]; rows may lie apart, the values of one row must be adjacent.
    """

    def __init__(self, tensor: Tensor | NDArray[Any]) -> None:
        rows = as_tensor("TensorFeature", "tensor", tensor)
        if rows.ndim == 0:
            raise ValueError(
                "TensorFeature: needs at least 1 dimension, got a 0-d tensor. Its first size is the number of rows."
            )
        if rows.device.type != "cpu":
            raise ValueError(f"TensorFeature: must be in host memory, found the tensor on {rows.device}. Call .cpu().")
        rows = rows.resolve_conj().resolve_neg()
        inner = rows[:1]
        if not inner.is_contiguous() or (rows.shape[0] > 1 and rows.stride(0) < inner.numel()):
            raise ValueError(
                f"TensorFeature: the values of a row must be adjacent, got shape {list(rows.shape)} with stride "
                f"{rows.stride()}. Call .contiguous()."
            )
        self.tensor = rows
        self._table = _byte_rows(rows)

    def read(self, ids: Tensor) -> Tensor:
        wanted = check_index_tensor("TensorFeature", "ids", ids)
        rows = torch.from_numpy(_core.gather_rows(self._table, wanted.numpy()))
        if rows.numel() == 0:
            return torch.empty((wanted.shape[0], *self.shape), dtype=self.tensor.dtype)
        return rows.view(self.tensor.dtype).reshape(wanted.shape[0], *self.shape)

    @property
    def count(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[1:])

    def __repr__(self) -> str:
        return f"TensorFeature({self.count} rows of {dtype_name(self.tensor.dtype)} {list(self.shape)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (TensorFeature, (self.tensor,))


def _byte_rows(rows: Tensor) -> NDArray[np.uint8]:
    """Return `rows` as uint8 [count, bytes of a row], sharing their memory."""
    count, width = int(rows.shape[0]), rows[:1].numel()
    if width == 0 or count == 0:
        return np.empty((count, width * rows.element_size()), dtype=np.uint8)
    flat = rows.as_strided((count, width), (max(rows.stride(0), width), 1))
    return flat.view(torch.uint8).numpy()
