"""OwnRows: an index that finds the row of an id among the ids that a part owns."""

from __future__ import annotations

import torch
from torch import Tensor

from datapipes import _core
from datapipes.base.threads import num_threads

_MOST_IDS_A_ROW = 64  # if ids are further apart, an index over their range would be larger than the sorted ids
AT_ONCE = 2**20  # ids read at a time


class OwnRows:
    """An index over the ids of a part's rows: it finds the row of an id.

    It is made once for a part and then only read, by any number of threads.

    Memory: none for contiguous ids. For others, 0.17 bytes for each integer in [0, num_ids), and 4 or 8 bytes a row
    more if the ids do not ascend. If `num_ids` is not given and the ids are far apart, 16 bytes a row instead.

    Args:
        ids: int64 [n], the id of each row, 0 or more. If several rows have the same id, the first of them is found.
        num_ids: a number above all ids; by default the largest id + 1.
        ascending: whether the ids ascend strictly; by default this is checked.
    Attributes:
        first: the id of row 0, if the ids are contiguous; then there is no index. None for other ids.
        rank: the C++ object that finds the position of an id among the sorted, distinct ids. None: the ids are
            contiguous, or are searched in a sorted copy.
        order: the row of the id at each of these positions. None: row and position are equal.
    """

    def __init__(self, ids: Tensor, *, num_ids: int | None = None, ascending: bool | None = None) -> None:
        self.num_rows = int(ids.shape[0])
        self.first: int | None = None
        self.rank: _core.IdRank | None = None
        self.order: Tensor | None = None
        self._sorted: Tensor | None = None  # the sorted, distinct ids, in place of a rank
        ascends = _ascends(ids) if ascending is None else ascending
        if self.num_rows == 0 or (ascends and int(ids[-1]) - int(ids[0]) == self.num_rows - 1):
            self.first = int(ids[0]) if self.num_rows > 0 else 0
            return
        low, end = (0, num_ids) if num_ids is not None else (int(ids.min()), int(ids.max()) + 1)
        if num_ids is None and (low < 0 or end > _MOST_IDS_A_ROW * self.num_rows):
            ascending_ids, order = ids.sort(stable=True)
            is_first = torch.cat([torch.ones(1, dtype=torch.bool), ascending_ids[1:] != ascending_ids[:-1]])
            self._sorted, self.order = ascending_ids[is_first], order[is_first]
            return
        self.rank = _core.IdRank(ids.numpy(), end, any_order=not ascends)
        if not ascends:
            self.order = self._rows_by_id(ids)

    def _rows_by_id(self, ids: Tensor) -> Tensor:
        assert self.rank is not None
        order = torch.empty(self.rank.num_rows, dtype=torch.int32 if self.num_rows < 2**31 else torch.int64)
        for begin in range((self.num_rows - 1) // AT_ONCE * AT_ONCE, -1, -AT_ONCE):  # the first of equal ids stays
            some = ids[begin : begin + AT_ONCE].numpy()
            places = self.rank.rows(some, num_threads=num_threads())[::-1]
            order.numpy()[places] = torch.arange(begin, begin + len(some)).numpy()[::-1]
        return order

    @property
    def num_ids(self) -> int:
        """How many different ids there are."""
        if self.rank is not None:
            return self.rank.num_rows
        return self.num_rows if self._sorted is None else int(self._sorted.shape[0])

    def rows(self, ids: Tensor) -> Tensor:
        """Return the row of each id, int64 [n], -1 for an unknown id; `ids` is int32 or int64 [n]."""
        if self.first is not None:
            rows = ids.long() - self.first
            return rows.where((rows >= 0) & (rows < self.num_rows), -1)
        if self.rank is not None:
            places = torch.from_numpy(self.rank.rows(ids.numpy(), num_threads=num_threads()))
        else:
            assert self._sorted is not None
            wanted = ids.long()
            places = torch.searchsorted(self._sorted, wanted).clamp(max=self._sorted.shape[0] - 1)
            places = places.where(self._sorted[places] == wanted, -1)
        return self.in_order(places)

    def in_order(self, places: Tensor) -> Tensor:
        """Return the row of each id that is given by its position among the sorted, distinct ids.

        A position -1 gives -1.
        """
        if self.order is None:
            return places
        return self.order[places].long().where(places >= 0, -1)


def _ascends(ids: Tensor) -> bool:
    """Return whether the ids ascend strictly. They are read in chunks, up to the first chunk that does not ascend."""
    for begin in range(0, ids.shape[0], AT_ONCE):
        some = ids[begin : begin + AT_ONCE + 1]
        if bool((some[1:] <= some[:-1]).any()):
            return False
    return True


def order_of(rows: Tensor, keys: list[Tensor]) -> Tensor | None:
    """Return the permutation, int64 [n], that sorts stably by `rows`, then by each of `keys` in turn.

    None: they are in this order already.
    """
    ties = torch.ones(max(len(rows) - 1, 0), dtype=torch.bool)
    descends = ~ties
    for key in (rows, *keys):
        descends |= ties & (key[1:] < key[:-1])
        ties &= key[1:] == key[:-1]
    if not bool(descends.any()):
        return None
    order = torch.arange(len(rows))
    for key in (*reversed(keys), rows):
        order = order[torch.argsort(key[order], stable=True)]
    return order
