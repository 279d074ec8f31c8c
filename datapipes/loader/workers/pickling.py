"""Refuse stages that cannot be passed on to a worker process, when the loader is built."""

from __future__ import annotations

import io
import pickle
from types import FunctionType
from typing import Any

import numpy as np
import torch

from datapipes.chain.stage import Stage
from datapipes.chain.stage_graph import StageGraph
from datapipes.processes.main_module import NAMES, refuse_hidden, refuse_missing_main, refuse_repetition
from datapipes.processes.sharing import Together


def refuse_unpicklable(graph: StageGraph[Stage], worker_init_fn: Any) -> None:
    """Check that processes which are not forked can make minibatches of `graph`; the message says why they cannot.

    Raises:
        TypeError: A stage or worker_init_fn cannot be pickled, or workers do not find a class or function of it.
        RuntimeError: Workers cannot import the main module, or would run it again.
    """
    refuse_missing_main()
    refuse_repetition(is_building=True)
    for stage in graph:
        _refuse(graph.numbering.where(stage), (type(stage), *stage.arguments))
    _refuse("worker_init_fn", worker_init_fn)


def _refuse(what: str, value: Any) -> None:
    trial = _Trial()
    try:
        trial.dump(value)
    except Exception as error:
        raise TypeError(
            f"data_loader: {what} cannot be passed on to a worker process, since it cannot be pickled: "
            f"{str(error).rstrip('.')}. Define functions and classes at the top of a module, or use "
            "multiprocessing_context='fork' or worker_method='thread'."
        ) from error
    for name in trial.names_of_main:
        refuse_hidden(what, name)


class _Trial(pickle.Pickler):
    """Pickles the arguments of a stage as processes/sharing.py does, but without tensors, arrays and the stages before
    it. Remembers which classes and functions of the main module it has met.
    """

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.names_of_main: list[str] = []

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, (type, FunctionType)) and value.__module__ in NAMES:
            self.names_of_main.append(value.__qualname__)
        is_numbers = isinstance(value, np.ndarray) and not value.dtype.hasobject
        return "left out" if is_numbers or isinstance(value, (Stage, torch.Tensor, Together)) else None
