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
        self._found: tuple[Tensor, Tensor | None] | None = None  # set at once: several threads may ask

    def rows_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return (rows int64 [n], found bool [n]) for ids int64 [n]; the row of an id that is not there is any number.

        Raises:
            ValueError: Two rows have the same id.
        """
        found = self._found
        if found is None:
            found = self._found = self._ascending()
        ascending, order = found
        places = torch.searchsorted(ascending, ids).clamp(max=max(0, ascending.shape[0] - 1))
        if ascending.shape[0] == 0:
            return places, torch.zeros_like(ids, dtype=torch.bool)
        return (places if order is None else order[places]), ascending[places] == ids

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
