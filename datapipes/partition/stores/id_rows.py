"""IdRows: at which row each of some ids stands."""

from __future__ import annotations

import torch
from torch import Tensor

from datapipes.base.checks import check_index_tensor


class IdRows:
    """The rows of ids, found by bisection: no map over all ids of the graph.

    Args:
        where: for messages.
        ids: int32 or int64 [num_rows], the id of each row. If they do not ascend, they are sorted once when the first
            row is asked for, which takes 16 bytes for each.
    """

    def __init__(self, where: str, ids: Tensor) -> None:
        self.ids = check_index_tensor(where, "global_id", ids)
        self._where = where
        self._sorted: Tensor | None = None
        self._order: Tensor | None = None

    def rows_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows int64 [n], found bool [n]) for ids int64 [n]; the row of an id that is not there is any number.

        Raises:
            ValueError: Two rows have the same id.
        """
        if self._sorted is None:
            self._sorted, self._order = self._ascending()
        places = torch.searchsorted(self._sorted, ids).clamp(max=max(0, self._sorted.shape[0] - 1))
        if self._sorted.shape[0] == 0:
            return places, torch.zeros_like(ids, dtype=torch.bool)
        return (places if self._order is None else self._order[places]), self._sorted[places] == ids

    def _ascending(self) -> tuple[Tensor, Tensor | None]:
        found, order = self.ids, None
        if bool((found[1:] < found[:-1]).any()):
            found, order = torch.sort(found)
        repeated = found[1:] == found[:-1]
        if bool(repeated.any()):
            raise ValueError(
                f"{self._where}: the id {int(found[int(repeated.nonzero()[0])])} is there twice, so its row is not "
                "known; each id may be there once. Put other global ids."
            )
        return found.long(), order
