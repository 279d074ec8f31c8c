"""Feature: rows that are read by id; TensorFeature: rows of a tensor in host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from datapipes import _core
from datapipes.base.checks import as_tensor, check_index_tensor, dtype_name
from datapipes.base.other_names import OtherNames
from datapipes.base.rows import byte_rows, has_adjacent_values, take_rows
from datapipes.base.threads import num_threads
from datapipes.features.given_rows import check_out

__all__ = ["Feature", "TensorFeature"]


class Feature(OtherNames, ABC):
    """A table of equal rows. A subclass that defines `read`, `count` and `shape` can stand in a FeatureStore."""

    @abstractmethod
    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, int32 or int64 [n], repeats allowed: a tensor [n, *shape] of `dtype`.

        Args:
            out: memory for the rows, which is filled and returned; by default a new tensor is returned. A feature that
                only a FeatureFetcher reads may leave this argument out.
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
        """Shape of one row; () if a row is one number."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the values; by default found by reading no rows. Define it if reading is costly."""
        return self.read(torch.empty(0, dtype=torch.int64)).dtype


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
        if not has_adjacent_values(rows):
            raise ValueError(
                f"TensorFeature: the values of a row must be adjacent, got shape {list(rows.shape)} with stride "
                f"{rows.stride()}. Call .contiguous()."
            )
        self.tensor = rows
        self._table = byte_rows(rows)

    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, see Feature.read, equal to `tensor[ids]`; on `torch.get_num_threads()` threads.

        Args:
            out: memory for the rows, which is filled and returned: [n, *shape] of the same dtype, contiguous, in host
                memory (it may be pinned), not overlapping the rows or the ids. By default the rows lie in memory
                recycled from earlier minibatches.
        """
        wanted = check_index_tensor("TensorFeature", "ids", ids)
        if out is not None:
            check_out("TensorFeature", out, wanted.shape[0], self.shape, self.tensor.dtype)
            to = None if out.numel() == 0 else byte_rows(out)
            _core.gather_rows(self._table, wanted.numpy(), out=to, num_threads=num_threads())
            return out
        return take_rows(self.tensor, self._table, wanted, num_threads())

    @property
    def count(self) -> int:
        return int(self.tensor.shape[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape[1:])

    @property
    def dtype(self) -> torch.dtype:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"TensorFeature({self.count} rows of {dtype_name(self.tensor.dtype)} {list(self.shape)})"

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_table": None}  # a view of the rows, which a pickle would copy

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._table = byte_rows(self.tensor)
