"""RowCounts: where a DistFeatureStore's rows came from, counted over all processes that read it."""

from __future__ import annotations

from typing import Any

import torch

from datapipes import _core
from datapipes.processes.copies import zeros_together
from datapipes.processes.sharing import Together


class RowCounts:
    """Counters in memory that worker processes share, so that whoever made them sees what workers did."""

    NAMES = ("own", "cached", "asked", "requests", "received_bytes")

    def __init__(self) -> None:
        (self._counters,) = zeros_together([((len(self.NAMES),), torch.int64)])

    def add(self, *, own: int = 0, cached: int = 0, asked: int = 0, requests: int = 0, received_bytes: int = 0) -> None:
        """Count more; from any thread and process."""
        _core.add_to(self._counters.numpy(), [own, cached, asked, requests, received_bytes])

    def so_far(self) -> dict[str, int]:
        """Return {name: number}."""
        return dict(zip(self.NAMES, self._counters.tolist(), strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {"counters": Together([self._counters])}

    def __setstate__(self, state: dict[str, Any]) -> None:
        given = state["counters"]
        (self._counters,) = given.tensors if isinstance(given, Together) else given  # copy.copy pickles nothing
