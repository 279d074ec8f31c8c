"""Epoch: the iterator of one loop over a loader."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data._utils import pin_memory

from datapipes.loader.data_loader import DataLoader
from datapipes.pyg.loader.data_warnings import warn_of_leaks
from datapipes.pyg.loader.stages import Carried, PygSlice, carried
from datapipes.pyg.torch_geometric_names import Data, HeteroData


class Epoch(Iterator[Any]):
    """The iterator over the batches of one loop over a loader. The epoch begins when its first batch is asked for."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._running: DataLoader | None = None
        self._minibatches: Iterator[Any] = iter(())
        self._has_begun = self._is_sliced = False
        self._last: Carried | None = None  # kept, since a thread finds the batch through it, see Carried

    def __len__(self) -> int:
        return len(self._loader)

    def __next__(self) -> Any:
        loader = self._loader
        if self._running is None:
            if not loader._draws_order and len(loader) == 0:
                raise StopIteration
            if loader._fetches_ahead():  # before _next(): an error in look() must not lose the loaded state
                loader.view.look()
            running = loader._next()
            self._is_sliced = isinstance(running.source, PygSlice)
            self._minibatches = iter(running)
            self._running = loader._running = running
        try:
            minibatch = next(self._minibatches)
        except StopIteration:
            loader.view.forget()  # attributes that the user deletes now are freed
            if not self._has_begun:  # the epoch had no minibatch left
                loader._epoch, self._has_begun = loader._epoch + 1, True
            raise
        if not self._has_begun:
            loader._epoch, self._has_begun = minibatch.epoch + 1, True
        value, key = carried(minibatch), loader.view.key(minibatch)
        batch = value if self._is_sliced else loader._batch_of(value, key)
        warn_of_leaks(loader.view, batch)
        if isinstance(minibatch, Carried) and isinstance(batch, (Data, HeteroData)):
            minibatch.value, minibatch.consumers_batch, self._last = None, weakref.ref(batch), minibatch
        pins: Any = pin_memory.pin_memory  # takes batches of any type
        return pins(batch) if loader.pin_memory and torch.cuda.is_available() else batch

    def __del__(self) -> None:
        if self._running is not None:
            self._loader.view.forget()
            if not self._loader._keeps_workers():
                self._running.close()  # workers end with the loop, also after a break
