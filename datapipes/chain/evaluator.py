"""Make the minibatch of an index, stage by stage.

A carrier is a stage that passes minibatches on unchanged, such as a Prefetcher. Up to its first carrier a chain is a
function of (epoch, index). Replay, resume and workers only evaluate this function; the place and the order of
evaluation change no bit.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any

from datapipes.base.errors import sentence
from datapipes.base.rng import RngKey
from datapipes.chain.asynchronous import concurrency_of, off_loop
from datapipes.chain.calls import Call, Calls
from datapipes.chain.loop_thread import LoopThread
from datapipes.chain.stage_base import QueuesOnStreams, StageBase, is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch
from datapipes.minibatch.aligned import NOTHING, check_aligned


class Evaluator:
    """Calls stages. It holds none of them, so a thread that keeps an evaluator keeps no stage alive.

    Args:
        calls: what the calls of the chain's stages share: names, counts and calls under way.
        drops: {label of a stage: how many minibatches it has dropped}, updated in place.
    """

    def __init__(self, calls: Calls, drops: Counter[str] | None = None) -> None:
        self.calls = calls
        self._drops: Counter[str] = Counter() if drops is None else drops
        self._slots: dict[int, asyncio.Semaphore] = {}

    def minibatch(self, graph: StageGraph[Any], epoch: int, index: int) -> MiniBatch | None:
        """Return the minibatch of (epoch, global index) as it leaves `graph.root`; None if a stage drops it."""
        if graph._is_async:
            loop = LoopThread()
            try:
                minibatch = loop.submit(self.minibatch_async(graph, epoch, index)).result()
            finally:
                loop.close()
            return left_loop(graph.find(QueuesOnStreams), minibatch)
        made: dict[int, MiniBatch] = {}
        stages = _stages_after_replay(graph, made, epoch, index)
        self._record_drop(self._run_stages(stages, made, epoch, index, graph._made_for_reader))
        return made.get(id(graph.root))

    async def minibatch_async(self, graph: StageGraph[Any], epoch: int, index: int) -> MiniBatch | None:
        """Return the minibatch of (epoch, global index), as `minibatch` does, without blocking the event loop.
        Afterwards call `left_loop` in the thread that takes the minibatch.

        Stages that are not asynchronous are called beside the event loop, so they hold up no other minibatch.
        """
        made: dict[int, MiniBatch] = {}
        dropped_by: StageBase | None = None
        every: Iterable[StageBase] = graph
        if graph._replays:
            every = await off_loop(_stages_after_replay, graph, made, epoch, index)
        for awaited, stages in groupby(every, is_async):
            if dropped_by is None and awaited:
                dropped_by = await self._run_stages_async(stages, made, epoch, index)
            elif dropped_by is None:
                dropped_by = await off_loop(self._run_stages, [*stages], made, epoch, index, graph._made_for_reader)
        self._record_drop(dropped_by)
        return made.get(id(graph.root))

    def apply(self, stage: StageBase, minibatch: MiniBatch, epoch: int) -> MiniBatch | None:
        """Return the result of one stage for a minibatch of its source. None: the stage dropped it.

        For stages behind a carrier (a stage that passes minibatches on unchanged), whose minibatches come as a stream.
        """
        made = self._call(stage, [minibatch], epoch, minibatch.index)
        self._record_drop(stage if made is None else None)
        return made

    async def apply_async(self, stage: StageBase, minibatch: MiniBatch, epoch: int) -> MiniBatch | None:
        """Return the result of one stage as `apply` does. The stage is asynchronous, and its call is awaited."""
        made = await self._await(stage, [minibatch], epoch, minibatch.index)
        self._record_drop(stage if made is None else None)
        return made

    def _run_stages(
        self,
        stages: Iterable[StageBase],
        made: dict[int, MiniBatch],
        epoch: int,
        index: int,
        made_for_reader: Mapping[int, Callable[..., Any]],
    ) -> StageBase | None:
        """Call the stages in order, and add each result to `made`. Return the stage that drops the minibatch. None: no
        stage drops it.

        Args:
            made: {id of a stage: its minibatch}, with the stages that were called before. It is changed in place.
            made_for_reader: {id of a stage: what is called in its place}.
        """
        for stage in stages:
            inputs = [made[id(source)] for source in stage._sources]
            minibatch = self._call(stage, inputs, epoch, index, made_for_reader.get(id(stage)))
            if minibatch is None:
                return stage
            made[id(stage)] = minibatch
        return None

    async def _run_stages_async(
        self, stages: Iterable[StageBase], made: dict[int, MiniBatch], epoch: int, index: int
    ) -> StageBase | None:
        """Do what `_run_stages` does for stages that are asynchronous; await their calls one after the other."""
        for stage in stages:
            minibatch = await self._await(stage, [made[id(source)] for source in stage.sources], epoch, index)
            if minibatch is None:
                return stage
            made[id(stage)] = minibatch
        return None

    def _record_drop(self, dropped_by: StageBase | None) -> None:
        """Count a minibatch that the stage `dropped_by` dropped; None counts nothing.

        For one graph, only one thread at a time may call this.
        """
        if dropped_by is not None:
            self._drops[self.calls.numbering.of(dropped_by).label] += 1

    def _call(
        self, stage: Any, inputs: list[MiniBatch], epoch: int, index: int, make: Callable[..., Any] | None = None
    ) -> MiniBatch | None:
        """Return the result of one stage. None: the stage drops the minibatch.

        Args:
            inputs: the minibatch of each source of the stage; a carrier returns the only one unchanged.
            index: the global index of the minibatch.
            make: what is called in place of the stage; see StageBase._made_for.
        """
        numbers = self.calls.numbering.of(stage)
        if not numbers.works:
            return inputs[0]  # a carrier passes minibatches on unchanged
        with Call(self.calls, numbers, epoch, index) as rng:
            if inputs:
                result = (make or stage._made_of)(*[minibatch._with_key(rng) for minibatch in inputs])
                return _checked(stage, result, inputs[0], rng)
            minibatch: MiniBatch = stage.make_minibatch(rng)
            check_aligned(stage, minibatch, NOTHING)
            return minibatch

    async def _await(self, stage: StageBase, inputs: list[MiniBatch], epoch: int, index: int) -> MiniBatch | None:
        """Do what `_call` does for an asynchronous stage. First wait until fewer than `concurrency` calls of this stage
        are running.
        """
        slots = self._slots.setdefault(id(stage), asyncio.Semaphore(concurrency_of(stage)))
        async with slots:
            with Call(self.calls, self.calls.numbering.of(stage), epoch, index, awaited=True) as rng:
                try:
                    transform_async = stage.transform_async  # type: ignore[attr-defined]  # is_async says it has one
                    result = await transform_async(*[minibatch._with_key(rng) for minibatch in inputs])
                except asyncio.CancelledError as error:
                    if _is_asked_to_end():
                        raise
                    raise RuntimeError(
                        f"{stage.name}: its transform_async raised CancelledError: {sentence(error)} Raise an error, "
                        "or return None to drop the minibatch."
                    ) from error
                return _checked(stage, result, inputs[0], rng)


def left_loop(queueing: Iterable[QueuesOnStreams], minibatch: MiniBatch | None) -> MiniBatch | None:
    """Let this thread use a minibatch that the threads of an event loop have made; return the minibatch.

    Work that stages have queued on GPUs is handed over to this thread's streams.

    Args:
        queueing: the stages before this point that use a GPU.
        minibatch: None is returned as it is.
    """
    if minibatch is not None:
        for stage in queueing:
            stage._leave_loop(minibatch)
    return minibatch


def _stages_after_replay(
    graph: StageGraph[Any], made: dict[int, MiniBatch], epoch: int, index: int
) -> tuple[StageBase, ...]:
    """Return the stages that must be called to make the minibatch of (epoch, index).

    Some stages can replay minibatches. If the graph has such a stage, put the replayed minibatch into `made`, which is
    {id of a stage: its minibatch}, and return only the stages after this stage. If the minibatch was dropped before
    this stage, return () and leave `made` as it is.
    """
    stages = graph.walk()
    if graph._replays:
        place, stage = next((place, stage) for place, stage in enumerate(stages) if stage in graph._replays)
        minibatch: MiniBatch | None = stage._replay(epoch, index)
        if minibatch is None:
            return ()
        made[id(stage)] = minibatch
        return stages[place + 1 :]
    return stages


def _checked(stage: StageBase, result: object, source: MiniBatch, rng: RngKey | None) -> MiniBatch | None:
    if result is None:
        return None
    if not isinstance(result, MiniBatch):
        raise TypeError(
            f"{stage.name}: must give a MiniBatch or None, got {type(result).__name__}. Return the new minibatch, "
            "with tensors of your own in its extra, a row for each seed; to read a dict or a tuple, write "
            "`for batch in map(fn, loader)`."
        )
    check_aligned(stage, result, source)
    if rng is not None and result.rng is rng and (result.epoch, result.index) == (source.epoch, source.index):
        # Nothing but our copy, or a replace() of our copy, has this very key. So `result` may be changed in place.
        result.rng = None
        return result
    return result.replace(epoch=source.epoch, index=source.index, rng=None)


def _is_asked_to_end() -> bool:
    """Return whether the running asyncio task was cancelled from outside, not by the stage that it awaits. Always True
    in Python 3.10, which cannot tell.
    """
    task: Any = asyncio.current_task()
    return bool(task.cancelling()) if hasattr(task, "cancelling") else True
