"""Feature: rows that are read by id, also into memory that a caller gives."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor

from datapipes.base.checks import dtype_name
from datapipes.base.shown_names import ShownABC

__all__ = ["Feature"]


class Feature(metaclass=ShownABC):
    """A table of rows of one shape. A subclass that defines `read`, `count` and `shape` can stand in a FeatureStore.

    Attributes:
        reads_async: whether `read` waits, for a disk for example. A FeatureFetcher then reads several minibatches at
            once, each in a thread beside the others.
    """

    reads_async: bool = False

    _hidden = frozenset({"bytes_for", "decode", "finish_reads", "read_stored", "stored_dtype"})

    @abstractmethod
    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, int32 or int64 [n], repeats allowed: a tensor `[n, *shape]` of `dtype`.
        A SparseFeature gives SparseRows of that shape.

        Args:
            out: memory for the rows, which is filled and returned; by default a new tensor is returned. A feature that
                only a FeatureFetcher reads may leave this argument out.
        Raises:
            IndexError: An id is not in [0, count); some rows of `out` may be filled.
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

    @property
    def stored_dtype(self) -> torch.dtype:
        """Dtype of the rows as they are stored, by default that of the values."""
        return self.dtype

    def bytes_for(self, ids: Tensor) -> int:
        """Return the bytes of the rows at `ids`."""
        return int(ids.shape[0]) * math.prod(self.shape) * self.dtype.itemsize

    def read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids` as they are stored, by default as `read` gives them; `decode` gives their values."""
        return self.read(ids) if out is None else self.read(ids, out)

    def decode(self, rows: Tensor) -> Tensor:
        """Return the values of stored rows [n, *shape]: those of `read`, to the bit."""
        return rows

    def reads_on(self, device: torch.device) -> str | None:
        """Return how rows are read with ids that lie on `device`, a CUDA device: "uva" (by the GPU, from page-locked
        host memory) or "device memory"; None if `read` takes only ids in host memory, as by default.

        A feature that returns no None takes such ids in `read`, and gives rows on their device. There an id that is not
        in [0, count) gives zeros at first; a later `read` or `finish_reads` raises IndexError.
        """
        return None

    def stats(self) -> Mapping[str, int]:
        """Return counts of what was read, for `DataLoader.stats()`; {} of a feature that counts nothing."""
        return {}

    def finish_reads(self) -> None:  # most features have nothing to wait for
        """Wait until it is known whether all ids that were read on devices had rows; by default nothing is waited for.

        Raises:
            IndexError: One had none.
        """


def check_out(where: str, out: Tensor, num_rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Refuse `out` unless it is a contiguous tensor [num_rows, *shape] of `dtype` in host memory.

    Raises:
        TypeError, ValueError: It is not; the message says what it must be.
    """
    if not isinstance(out, Tensor):
        raise TypeError(f"{where}: out must be a tensor, got {type(out).__name__}. Use torch.empty.")
    if out.layout != torch.strided or out.requires_grad or out.is_conj() or out.is_neg():
        raise TypeError(
            f"{where}: out must be a dense tensor without gradient, conjugate or negative view, got layout "
            f"{out.layout}, requires_grad={out.requires_grad}. Use torch.empty."
        )
    wanted = (num_rows, *shape)
    if tuple(out.shape) != wanted or out.dtype != dtype:
        raise ValueError(
            f"{where}: out has shape {list(out.shape)} and dtype {dtype_name(out.dtype)}; it must have shape "
            f"{list(wanted)} and dtype {dtype_name(dtype)}. Allocate it for these ids."
        )
    if out.device.type != "cpu" or not out.is_contiguous():
        raise ValueError(
            f"{where}: out must be contiguous in host memory, found stride {out.stride()} on {out.device}. Use "
            "torch.empty."
        )
