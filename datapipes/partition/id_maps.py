"""IdMap: the part of each id of one type, as one value for each id or as contiguous ranges."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from datapipes.base.checks import as_tensor, check_index_tensor, shown

MOST_PARTS = 2**15  # the largest number of a part fits int16


class IdMap(ABC):
    """The part of each id in [0, num_ids)."""

    num_ids: int
    num_parts: int
    _stored: Tensor

    @abstractmethod
    def part_of(self, ids: Tensor) -> Tensor:
        """Return the part of each id, int64 [n]; `ids` is int32 or int64 [n], each in [0, num_ids)."""

    @abstractmethod
    def ids_of(self, part: int) -> Tensor:
        """Return the ids of a part, int64, ascending."""

    @abstractmethod
    def count_of(self, part: int) -> int:
        """Return the number of ids of a part."""

    @abstractmethod
    def dense(self) -> Tensor:
        """Return the part of every id, [num_ids], in the smallest dtype that holds `num_parts` numbers."""

    def stored(self) -> Tensor:
        """Return the one tensor that the map is made of."""
        return self._stored

    def over(self, stored: Tensor | None) -> IdMap:
        """Return the map over other memory with the same values, unchecked; None until the memory is known."""
        other = copy.copy(self)
        other.__dict__["_stored"] = stored
        return other


class DenseMap(IdMap):
    """One value for each id.

    Args:
        parts: [num_ids] of an integer dtype, the part of each id. It is viewed if its dtype is the smallest that holds
            the parts, else converted.
        num_parts: parts are in [0, num_parts).
    """

    def __init__(self, parts: Any, num_parts: int) -> None:
        values = as_tensor("PartitionBook", "parts", parts)
        if values.ndim != 1 or values.dtype.is_floating_point or values.dtype.is_complex or values.dtype == torch.bool:
            raise TypeError(
                f"PartitionBook: parts must be integers [num_ids], got {values.dtype} {list(values.shape)}. Pass the "
                "number of the part of each id."
            )
        self.num_ids, self.num_parts = int(values.shape[0]), num_parts
        if self.num_ids > 0:
            low, high = limits_of(values)
            if low < 0 or high >= num_parts:
                raise ValueError(
                    f"PartitionBook: found the part {low if low < 0 else high}; parts must be in [0, {num_parts}). "
                    "Correct num_parts, or the parts."
                )
        self._stored = values.to(smallest_dtype(num_parts)).contiguous()

    def part_of(self, ids: Tensor) -> Tensor:
        """See IdMap."""
        return self._stored[ids.long()].long()

    def ids_of(self, part: int) -> Tensor:
        """See IdMap. O(num_ids)."""
        return (self._stored == part).nonzero().flatten()

    def count_of(self, part: int) -> int:
        """See IdMap. O(num_ids)."""
        return int((self._stored == part).sum())

    def dense(self) -> Tensor:
        """See IdMap; no copy."""
        return self._stored


class RangeMap(IdMap):
    """Contiguous ranges: part p has the ids in [offsets[p], offsets[p + 1]).

    Args:
        offsets: int64 [num_parts + 1], from 0, not descending; the last is num_ids.
    """

    def __init__(self, offsets: Any) -> None:
        bounds = check_index_tensor("PartitionBook", "offsets", offsets).long()
        if bounds.numel() < 2 or int(bounds[0]) != 0 or bool((bounds[1:] < bounds[:-1]).any()):
            raise ValueError(
                f"PartitionBook: offsets {shown(bounds.tolist())} must begin with 0, not descend, and be one more than "
                "the parts. Correct them."
            )
        self.num_ids, self.num_parts = int(bounds[-1]), int(bounds.numel()) - 1
        self._stored = bounds

    def part_of(self, ids: Tensor) -> Tensor:
        """See IdMap. O(n log num_parts)."""
        return torch.searchsorted(self._stored, ids.long(), right=True) - 1

    def ids_of(self, part: int) -> Tensor:
        """See IdMap."""
        return torch.arange(int(self._stored[part]), int(self._stored[part + 1]))

    def count_of(self, part: int) -> int:
        """See IdMap."""
        return int(self._stored[part + 1] - self._stored[part])

    def dense(self) -> Tensor:
        """See IdMap; a new tensor."""
        parts = torch.arange(self.num_parts).to(smallest_dtype(self.num_parts))
        return torch.repeat_interleave(parts, self._stored.diff())


def limits_of(values: Tensor) -> tuple[int, int]:
    """Return the smallest and the largest of some numbers, integers of any dtype."""
    if values.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch finds neither
        array = values.cpu().numpy()
        return int(array.min()), int(array.max())
    return int(values.min()), int(values.max())


def smallest_dtype(num_parts: int) -> torch.dtype:
    """Return the smallest dtype of torch that holds the numbers of so many parts; uint16 lacks most operations."""
    return torch.uint8 if num_parts <= 256 else torch.int16
