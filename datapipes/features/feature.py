"""Feature: rows that are read by id, also into a caller's memory."""

from __future__ import annotations

import math
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import as_tensor, check_index_tensor, check_within, dtype_name
from datapipes.base.rows import bits_of
from datapipes.chain.input_use import refuse_while_read
from datapipes.device.runtime import cuda
from datapipes.features.stored_values import decode

__all__ = ["Feature"]


class Feature(ABC):
    """A table of rows of one shape. A subclass that defines `read`, `count` and `shape` can be put into a FeatureStore;
    a subclass that defines `write_rows` too can be updated.

    Attributes:
        reads_async: whether `read` waits, for example for a disk. A FeatureFetcher then reads several minibatches at
            once, each in a thread of its own.
    """

    reads_async: bool = False

    @abstractmethod
    def read(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids`, int32 or int64 [n], repeats allowed: a tensor `[n, *shape]` of `dtype`.
        A SparseFeature gives SparseRows of that shape.

        Args:
            out: memory for the rows, which is filled and returned; by default a new tensor is returned. A feature that
                only a FeatureFetcher reads may lack this argument.
        Raises:
            IndexError: An id is not in [0, count). Some rows of `out` may have been filled.
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
        """Dtype of the values; by default found by a read of zero rows. Define it if that is costly."""
        return self.read(torch.empty(0, dtype=torch.int64)).dtype

    @property
    def _stored_dtype(self) -> torch.dtype:
        """Dtype of the rows as they are stored; by default `dtype`."""
        return self.dtype

    def bytes_for(self, ids: Tensor) -> int:
        """Return the bytes of the rows at `ids`."""
        return int(ids.shape[0]) * math.prod(self.shape) * self.dtype.itemsize

    def _read_stored(self, ids: Tensor, out: Tensor | None = None) -> Tensor:
        """Return the rows at `ids` as they are stored, from which `_decode` makes values. By default the result of
        `read`.
        """
        return self.read(ids) if out is None else self.read(ids, out)

    def _decode(self, rows: Tensor) -> Tensor:
        """Return the values of `rows`, [n, *shape], which `_read_stored` returned. They have the same bits as from
        `read`.
        """
        return rows

    def update(self, ids: Tensor, values: Tensor) -> None:
        """Set the rows at `ids`. If an id occurs several times, its last row is used.

        All ids and values are checked before the first row is set. Caches over this feature read the rows anew. Other
        features over the same memory or file do not notice, nor do processes that have a copy of this feature. No other
        thread may read rows meanwhile.

        Args:
            ids: int32 or int64 [n], on any device.
            values: [n, *shape] of `dtype`, on any device. A feature that is stored with fewer bits rounds them like its
                other rows; int8 keeps the scale of each column.
        Raises:
            TypeError: This class of feature cannot be changed, or `ids` or `values` has another dtype.
            ValueError: `ids` or `values` has another shape; the rows are read-only; or a value does not fit the stored
                dtype: with int8, a value beyond 127 times the scale of its column.
            IndexError: An id is not in [0, count).
            RuntimeError: A chain that reads this feature, or a cache over it, has an open epoch in this process, or
                worker processes have a copy of the chain; the message names the chain.
            OSError: A disk is full or fails, or the file may not be written.
        Cost: a copy of the values, and for a feature on disk a write for each run of consecutive ids.
        """
        where = f"{type(self).__name__}.update"
        if type(self).write_rows is Feature.write_rows:
            raise TypeError(
                f"{where}: this kind of feature is read-only; TensorFeature and DiskFeature can be updated, and "
                "features that define write_rows. Write the rows to one of these."
            )
        distinct, rows = self._checked(where, ids, values)
        views: list[Any] = [self]
        for view in views:  # the list grows during the loop: there may be caches over caches
            views += [cache for ref in _caches.copy() if (cache := ref()) is not None and cache.feature is view]
        refuse_while_read(where, views)
        if distinct.shape[0] == 0:
            return
        try:
            self.write_rows(distinct, rows)
        finally:
            dropped = [(cache, cache._forget(distinct)) for cache in views[1:]]
            for cache, kept in dropped:
                cache._keep(kept)

    def write_rows(self, ids: Tensor, values: Tensor) -> None:
        """Set rows for `update`, the only caller; a subclass that can be updated defines this.

        Args:
            ids: int64 [n] in host memory, each in [0, count), ascending without repeats; n is 1 or more.
            values: [n, *shape] of `dtype`, contiguous, a copy that belongs to the callee.
        """
        raise NotImplementedError

    def _checked(self, where: str, ids: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Check the arguments of `update`. Return (ids, values) as `write_rows` needs them: ids ascending without
        repeats, and for each id the last of its rows.
        """
        wanted = check_index_tensor(where, "ids", ids, in_host=False).cpu().long()
        rows, expected = as_tensor(where, "values", values), (wanted.shape[0], *self.shape)
        if rows.dtype != self.dtype:
            raise TypeError(
                f"{where}: values have dtype {dtype_name(rows.dtype)}; {dtype_name(self.dtype)} is needed. Convert "
                "them."
            )
        if tuple(rows.shape) != expected:
            raise ValueError(
                f"{where}: values have shape {list(rows.shape)}; {list(expected)} is needed, a row for each id. "
                "Reshape them."
            )
        check_within(where, "ids", wanted, self.count, "Give ids of existing rows.")
        order = wanted.argsort(stable=True)
        ascending = wanted[order]
        is_last = torch.ones_like(wanted, dtype=torch.bool)
        is_last[:-1] = ascending[1:] != ascending[:-1]
        places = order[is_last]
        if cuda().holds(rows):
            places = cuda().copy(places, rows.device, non_blocking=False)
        return ascending[is_last], bits_of(rows)[places].view(rows.dtype).contiguous()

    def reads_on(self, device: torch.device) -> str | None:
        """Return how `read` works with ids on `device`, a CUDA device.

        "uva": the GPU reads the rows from page-locked host memory. "device memory": all or some rows lie on the GPU.
        None, the default: `read` takes only ids in host memory.

        Unless the result is None, `read` takes ids on that device and returns rows there. For an id that is not in
        [0, count), it returns zeros at first; a later `read` or `_finish_reads` raises IndexError.
        """
        return None

    def stats(self) -> Mapping[str, int]:
        """Return counts of reads, for `DataLoader.stats()`; {} if the feature counts nothing."""
        return {}

    def _finish_reads(self) -> None:  # most features have nothing to wait for
        """Wait until it is known whether all ids of earlier reads on GPUs have rows. By default do nothing.

        Raises:
            IndexError: An id had no row.
        """


class FeatureOver(Feature):
    """A feature whose rows come from another feature.

    Attributes:
        feature: the other feature.
    """

    def __init__(self, feature: Feature) -> None:
        self.feature = feature

    @property
    def count(self) -> int:
        return self.feature.count

    @property
    def shape(self) -> tuple[int, ...]:
        return self.feature.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.feature.dtype

    def stats(self) -> Mapping[str, int]:
        return self.feature.stats()


class StoredFeature(Feature):
    """A feature whose float32 values may be stored with fewer bits.

    Attributes:
        stored_as: the dtype of the stored rows; None if it is the dtype of the values.
        scale: float32 [*shape], the factors of stored int8 values; else None.
    """

    stored_as: torch.dtype | None = None
    scale: Tensor | None = None
    _scales: dict[torch.device, Tensor]

    def _scale_on(self, device: torch.device) -> Tensor | None:
        """Return `scale` on `device`, for work that is queued there on the current stream. It is copied only once.
        None: there is no scale.
        """
        if self.scale is None or device.type == "cpu":
            return self.scale
        copied = self._scales.get(device)
        if copied is None:
            copied = self._scales[device] = cuda().copy(self.scale, device, non_blocking=False)
        if device.type == "cuda":
            cuda().used_on(copied, cuda().current_stream(device))
        return copied

    def _decode(self, rows: Tensor) -> Tensor:
        return rows if self.stored_as is None else decode(rows, self._scale_on(rows.device))

    def _form(self) -> str:
        stored = "" if self.stored_as is None else f", stored as {dtype_name(self.stored_as)}"
        return f"{self.count} rows of {dtype_name(self.dtype)} {list(self.shape)}{stored}"


_caches: set[weakref.ref[Any]] = set()  # its operations are atomic, so threads need no lock


def note_cache(cache: Any) -> None:
    """Register a cache, so that `update` of the feature `cache.feature` tells it which rows have changed. The
    registration ends with the cache.

    `update` calls `cache._forget(ids)`, which drops the rows and returns the ids to read again, and `cache._keep(ids)`,
    which reads and keeps the rows at those ids.
    """
    _caches.add(weakref.ref(cache, _caches.discard))


def read_decoded(where: str, feature: Feature, ids: Tensor, out: Tensor | None) -> Tensor:
    """Return the rows at `ids`, see Feature.read, by decoding the result of the feature's `_read_stored`."""
    if feature._stored_dtype == feature.dtype:
        return feature._read_stored(ids, out)
    if out is not None:
        check_out(where, out, ids.shape[0], feature.shape, feature.dtype)
    values = feature._decode(feature._read_stored(ids))
    return values if out is None else out.copy_(values)


def check_out(where: str, out: Tensor, num_rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Raise TypeError or ValueError unless `out` is a dense tensor [num_rows, *shape] of `dtype` in host memory.

    It must also be contiguous, without gradient, and no conjugate or negative view.
    """
    if not isinstance(out, Tensor):
        raise TypeError(f"{where}: out must be a tensor, got {type(out).__name__}. Use torch.empty.")
    if out.layout != torch.strided or out.requires_grad or out.is_conj() or out.is_neg():
        raise TypeError(
            f"{where}: out must be a dense tensor without gradient, conjugate or negative view, got layout "
            f"{out.layout}, requires_grad={out.requires_grad}, is_conj={out.is_conj()}, is_neg={out.is_neg()}. Use "
            "torch.empty."
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
