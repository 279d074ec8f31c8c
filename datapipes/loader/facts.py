"""Facts: what is known of a plan before its first minibatch, and what its figures are read with."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from datapipes.base.checks import one_line, shown
from datapipes.chain.epoch import Numbering
from datapipes.chain.explain import lanes
from datapipes.chain.stage import MiniBatchTransformer, Stage
from datapipes.chain.stage_base import StageBase, is_async
from datapipes.loader.workers.workers import Workers


class StageFacts(NamedTuple):
    """A stage of a lane.

    Attributes:
        label: the name that its calls are counted under.
        text: its class and arguments.
        does: see StageBase; "transform" of a function or a class of the user's.
        awaits: whether its calls wait for something elsewhere, such as servers; several are in flight at once.
    """

    label: str
    text: str
    does: str
    awaits: bool


class LaneFacts(NamedTuple):
    """Stages that run one after the other.

    Attributes:
        workers: how many threads or processes do so.
        pool: "process" or "thread" if `num_workers` sets how many; "" otherwise.
        waiting: the name that its reader's waits are counted under; "" of the consumer's lane.
    """

    title: str
    workers: int
    pool: str
    waiting: str
    stages: tuple[StageFacts, ...]


class Facts(NamedTuple):
    """A plan as its lanes, the consumer's last; `batch_size` is 0 if it is not known."""

    title: str
    processors: int
    batch_size: int
    lanes: tuple[LaneFacts, ...]


def facts_of(title: str, plan: Iterable[Stage], numbering: Numbering) -> Facts:
    """Return the facts of a plan."""
    found: list[LaneFacts] = []
    batch_size = 0
    for lane in lanes(plan):
        workers, pool, waiting = 1, "", ""
        if lane.carrier is not None:
            waiting = numbering.waiting(lane.carrier.sources[0])
        if isinstance(lane.carrier, Workers):
            workers, pool = lane.carrier.options.num_workers, lane.carrier.options.worker_method
        stages = tuple(_stage_facts(stage, numbering) for stage in lane.stages)
        found.append(LaneFacts(lane.title, workers, pool, waiting, stages))
        batch_size = next((size for stage in lane.stages if (size := _batch_size(stage))), batch_size)
    return Facts(title, len(os.sched_getaffinity(0)), batch_size, tuple(found))


def _stage_facts(stage: StageBase, numbering: Numbering) -> StageFacts:
    is_theirs = not type(stage).__module__.startswith("datapipes.")
    if isinstance(stage, MiniBatchTransformer) and stage.fn is not None:
        is_theirs = True
    does = stage._does or ("transform" if is_theirs else "")
    return StageFacts(numbering.label(stage), one_line(shown(stage)), does, is_async(stage))


def _batch_size(stage: StageBase) -> int:
    size = stage.describe().get("batch_size") if stage._does == "seeds" else 0
    return size if isinstance(size, int) else 0
