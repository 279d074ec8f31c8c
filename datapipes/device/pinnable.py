"""Pinnable: a class whose tensors in host memory may be page-locked in place, so that a GPU reads them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Any, TypeVar

from torch import Tensor

from datapipes.device.host_memory import Pinned, pin

__all__: list[str] = []

_Self = TypeVar("_Self", bound="Pinnable")


class Pinnable:
    """Has `pin_memory_`, `unpin_memory_` and `is_pinned`. A copy of the object, also one in a worker, is not pinned."""

    _pinned: Pinned | None = None

    @abstractmethod
    def _pinned_tensors(self) -> Iterable[Tensor]:
        """Return the tensors that are pinned together."""

    def pin_memory_(self: _Self) -> _Self:
        """Lock all arrays in memory where they are and map them for the GPUs of this process; return this object.

        Nothing is copied, and a second call changes nothing. Arrays in mapped files are locked for reading only; where
        the driver cannot do that, the system copies their pages into memory, and the log says so. What other objects
        share with this one is locked once. The lock ends with `unpin_memory_`, or with this object; before that it
        waits for the work of the GPUs. Processes that were forked from this one, and workers, have no lock; each may
        make its own.

        Raises:
            RuntimeError: There is no CUDA device here, or CUDA refuses.
            MemoryError: The limit of locked memory (`ulimit -l`) is too low.
        Cost: every page is brought into memory and locked, so the time grows with the bytes.
        """
        if not self.is_pinned():
            self._pinned = None  # of memory that has moved
            self._pinned = pin(f"{type(self).__name__}.pin_memory_", self._pinned_tensors())
        return self

    def unpin_memory_(self: _Self) -> _Self:
        """Undo `pin_memory_`, after the work of the GPUs; return this object."""
        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            pinned.release()
        return self

    def is_pinned(self) -> bool:
        """Return whether `pin_memory_` of this object holds in this process."""
        return self._pinned is not None and self._pinned.holds


def without_pin(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state of a Pinnable without its lock, for a copy."""
    return {name: value for name, value in state.items() if name != "_pinned"}
