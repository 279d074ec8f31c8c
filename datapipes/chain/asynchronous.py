"""Which stages are asynchronous, and how many of their calls are in flight."""

from __future__ import annotations

from typing import Any

from datapipes.base.checks import check_int
from datapipes.chain.stage_base import StageBase, TransformerBase
from datapipes.chain.stage_graph import StageGraph


def is_async(stage: StageBase) -> bool:
    """Return whether the stage defines `transform_async`."""
    return isinstance(stage, TransformerBase) and hasattr(stage, "transform_async")


def async_window(graph: StageGraph[Any]) -> int:
    """Return how many minibatches the asynchronous stages of a graph keep in flight; 0 if it has none."""
    return max((concurrency_of(stage) for stage in graph if is_async(stage)), default=0)


def concurrency_of(stage: StageBase) -> int:
    """Return how many calls of an asynchronous stage are kept in flight."""
    return check_int(stage.name, "concurrency", getattr(stage, "concurrency", 1), 1)
