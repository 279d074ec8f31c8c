"""Refuse stages that cannot be passed on to a worker process, when the loader is built."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch

from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph


def refuse_unpicklable(graph: StageGraph[Stage], worker_init_fn: Any) -> None:
    """Raise TypeError if a stage or worker_init_fn cannot be pickled for a worker process; the message names it."""
    for stage in graph:
        _refuse(graph.numbering.where(stage), (type(stage), *stage.arguments))
    _refuse("worker_init_fn", worker_init_fn)


def _refuse(what: str, value: Any) -> None:
    try:
        _Trial(io.BytesIO()).dump(value)
    except Exception as error:
        raise TypeError(
            f"data_loader: {what} cannot be passed on to a worker process, since it cannot be pickled: {error}. Define "
            "functions and classes at the top of a module, or use multiprocessing_context='fork' or "
            "worker_method='thread'."
        ) from error


class _Trial(pickle.Pickler):
    """Pickles the arguments of a stage as processes/sharing.py does, but without tensors, arrays and the stages before
    it.
    """

    def persistent_id(self, value: Any) -> str | None:
        is_numbers = isinstance(value, np.ndarray) and not value.dtype.hasobject
        return "left out" if is_numbers or isinstance(value, (Stage, torch.Tensor)) else None
