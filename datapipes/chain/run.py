"""One epoch of a chain: the minibatch of an index, and the stream of an epoch.

Up to the first carrying stage a chain is a function of (epoch, index), evaluated stage by stage; that makes replay,
resume and any number of workers the same thing. What stands after it maps over the stream.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

from datapipes.base.checks import check_int
from datapipes.base.clock import StageClock
from datapipes.base.errors import add_note
from datapipes.base.rng import RngKey
from datapipes.chain.in_flight import InFlight
from datapipes.chain.stage import MiniBatchTransformer, SeedStage, Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch


class EpochPlan:
    """How an epoch is made from its stages.

    It holds no reader and not the last stage, so that a thread which works by it keeps neither alive.

    Attributes:
        start: The first step of this rank that is wanted.
        ahead: Later steps that are not, since an epoch that delivers out of order has given them before.
        stopped: Set when nobody reads any more: who waits for minibatches gives up.
        waiting_for: Says which worker the epoch waits for at the moment; "" where it waits for none.
    """

    def __init__(
        self,
        graph: StageGraph,
        epoch: int,
        start: int,
        node_state: Any,
        clock: StageClock,
        ahead: Collection[int] = (),
        stopped: threading.Event | None = None,
    ) -> None:
        self.epoch = epoch
        self.start = start
        self.ahead = frozenset(ahead)
        self.stopped = stopped or threading.Event()
        self.waiting_for: Callable[[], str] = str
        self.node_state = node_state
        self.clock = clock
        counted = [stage for stage in graph if not isinstance(stage, StreamStage)]
        self._numbered = {id(stage): (graph.ordinal(stage), stage.name) for stage in counted}
        self._rng_seed = graph.seed_stage.rng_seed if graph.find(SeedStage) else None
        self._slots: dict[int, asyncio.Semaphore] = {}
        self.calls: dict[int, _Call] = {}  # under way in this process

    def whereabouts(self) -> str:
        """Return a sentence on what the epoch is waiting for or working on, "" where nothing is known."""
        oldest = min(list(self.calls.values()), key=lambda call: call.began, default=None)
        return self.waiting_for() or ("" if oldest is None else oldest.whereabouts())

    def label(self, stage: Stage) -> str:
        """Return the stage's name in stats(): "1 sample_neighbor", or its name alone where it only carries."""
        ordinal, name = self._numbered.get(id(stage), ("", stage.name))
        return f"{ordinal} {name}".lstrip()

    def stream(self, stage: Stage) -> Iterator[MiniBatch]:
        """Return the epoch's minibatches as they leave `stage`, from this rank's minibatch number `start`."""
        if isinstance(stage, StreamStage):
            return stage.open([partial(self.stream, source) for source in stage.sources], self)
        graph = StageGraph(stage)
        return self._mapped_stream(stage) if graph.find(StreamStage) else self._indexed_stream(graph)

    def steps(self, num_steps: int) -> Iterable[int]:
        """Return the steps of this rank that are still wanted, in order."""
        ahead = self.ahead  # a generator that knew the plan would keep alive what waits by it
        return (step for step in range(self.start, num_steps) if step not in ahead)

    def minibatch(self, graph: StageGraph, index: int) -> MiniBatch | None:
        """Return the minibatch of a global index, or None if a stage drops it."""
        if any(map(_is_async, graph)):
            return next(InFlight([self.minibatch_async(graph, index)], 1))
        made: dict[int, MiniBatch] = {}
        for stage in graph:
            inputs = [made[id(source)] for source in stage.sources]
            minibatch = self._apply(stage, inputs, index)
            if minibatch is None:
                return None
            made[id(stage)] = minibatch
        return made[id(graph.root)]

    async def minibatch_async(self, graph: StageGraph, index: int) -> MiniBatch | None:
        """Return what `minibatch` returns; many can be in flight."""
        made: dict[int, MiniBatch] = {}
        for stage in graph:
            minibatch = await self._apply_async(stage, [made[id(source)] for source in stage.sources], index)
            if minibatch is None:
                return None
            made[id(stage)] = minibatch
        return made[id(graph.root)]

    def _indexed_stream(self, graph: StageGraph) -> Iterator[MiniBatch]:
        seed_stage = graph.seed_stage
        indices = (seed_stage.index_of(step) for step in self.steps(seed_stage.num_steps))
        window = async_window(graph)
        if window > 0:
            return _Delivery(InFlight((self.minibatch_async(graph, index) for index in indices), window))
        return _Delivery(self.minibatch(graph, index) for index in indices)

    def _mapped_stream(self, stage: Stage) -> Iterator[MiniBatch]:
        source = self.stream(stage.source)
        if _is_async(stage):
            calls = map(partial(self._start, stage), source)  # unlike a generator, map outlives a timeout of the source
            return _Delivery(InFlight(calls, _concurrency(stage)), source)
        return _Delivery(_Mapped(lambda given: self._apply(stage, [given], given.index), source), source)

    def _apply(self, stage: Stage, inputs: list[MiniBatch], index: int) -> MiniBatch | None:
        if isinstance(stage, StreamStage):
            return inputs[0]  # it would carry this minibatch on unchanged
        with self._call_of(stage, index) as rng:
            if isinstance(stage, SeedStage):
                assert rng is not None
                return stage.make_minibatch(rng)
            assert isinstance(stage, MiniBatchTransformer)
            return _checked(stage, stage.transform(*(given.replace(rng=rng) for given in inputs)), inputs[0])

    async def _apply_async(self, stage: Stage, inputs: list[MiniBatch], index: int) -> MiniBatch | None:
        if not _is_async(stage):
            return self._apply(stage, inputs, index)
        assert isinstance(stage, MiniBatchTransformer)
        slots = self._slots.setdefault(id(stage), asyncio.Semaphore(_concurrency(stage)))
        async with slots:
            with self._call_of(stage, index) as rng:
                try:
                    result = await stage.transform_async(*(given.replace(rng=rng) for given in inputs))
                except asyncio.CancelledError as error:
                    if _is_asked_to_end():
                        raise
                    raise RuntimeError(
                        f"{stage.name}: its transform_async raised CancelledError: {error}. Raise an error, or return "
                        "None to drop the minibatch."
                    ) from error
                return _checked(stage, result, inputs[0])

    def _start(self, stage: Stage, given: MiniBatch) -> Coroutine[Any, Any, MiniBatch | None]:
        return self._apply_async(stage, [given], given.index)

    def _call_of(self, stage: Stage, index: int) -> _Call:
        ordinal, name = self._numbered[id(stage)]
        rng = None if self._rng_seed is None else RngKey(self._rng_seed, self.epoch, index, ordinal)
        return _Call(self, ordinal, name, index, rng)


class _Call:
    """One call of a stage: gives it its random key, times it, and notes on an error where it happened."""

    def __init__(self, plan: EpochPlan, ordinal: int, name: str, index: int, rng: RngKey | None) -> None:
        self._plan, self._ordinal, self._name, self._index, self._rng = plan, ordinal, name, index, rng

    def whereabouts(self) -> str:
        where = f"minibatch {self._index} of epoch {self._plan.epoch}"
        return f" Stage {self._ordinal} ({self._name}) has been at {where} for {time.monotonic() - self.began:.1f} s."

    def __enter__(self) -> RngKey | None:
        self.began = time.monotonic()
        self._plan.calls[id(self)] = self
        return self._rng

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._plan.calls.pop(id(self), None)
        if error is None:
            self._plan.clock.add(f"{self._ordinal} {self._name}", self.began, self._index)
            return
        where = f"epoch {self._plan.epoch}, minibatch {self._index}"
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # would end the epoch as if it were complete
            raise RuntimeError(
                f"{self._name}: its function raised {type(error).__name__} at {where}. Return None to drop a "
                "minibatch, or give next() a default."
            ) from error
        add_note(error, f"in stage {self._ordinal} ({self._name}), {where}")


def _is_async(stage: Stage) -> bool:
    return isinstance(stage, MiniBatchTransformer) and hasattr(stage, "transform_async")


def _is_asked_to_end() -> bool:
    """Return whether the running task was cancelled from outside (Python 3.10 cannot tell)."""
    task: Any = asyncio.current_task()
    return bool(task.cancelling()) if hasattr(task, "cancelling") else True


def async_window(graph: StageGraph) -> int:
    """Return how many minibatches are kept in flight for the asynchronous stages of a graph; 0 where it has none."""
    return max((_concurrency(stage) for stage in graph if _is_async(stage)), default=0)


def _concurrency(stage: Stage) -> int:
    return check_int(stage.name, "concurrency", getattr(stage, "concurrency", 1), 1)


def _checked(stage: Stage, result: object, given: MiniBatch) -> MiniBatch | None:
    if result is None:
        return None
    if not isinstance(result, MiniBatch):
        raise TypeError(
            f"{stage.name}: must give a MiniBatch or None, got {type(result).__name__}. Return the new minibatch."
        )
    return result.replace(epoch=given.epoch, index=given.index, rng=None)


class _Mapped(Iterator[MiniBatch | None]):
    """`fn` of each minibatch; it outlives an error of the source (a timeout can be waited out), not one of `fn`."""

    def __init__(self, fn: Callable[[MiniBatch], MiniBatch | None], source: Iterator[MiniBatch]) -> None:
        self._fn = fn
        self._source = source
        self._broken = False

    def __next__(self) -> MiniBatch | None:
        if self._broken:
            raise StopIteration
        given = next(self._source)
        try:
            return self._fn(given)
        except BaseException:
            self._broken = True  # going on would leave a minibatch out
            raise


class _Delivery(Iterator[MiniBatch]):
    """The minibatches that no stage dropped; closing it closes what it is made of."""

    def __init__(self, made: Iterator[MiniBatch | None], *sources: Iterator[MiniBatch]) -> None:
        self._made = made
        self._parts = (made, *sources)

    def __next__(self) -> MiniBatch:
        while (minibatch := next(self._made)) is None:
            pass
        return minibatch

    def close(self) -> None:
        for part in self._parts:
            close_stream(part)


class Position(NamedTuple):
    """Where an epoch begins or goes on: the first step that is wanted, and later ones that are not."""

    epoch: int
    step: int = 0
    node_state: Any = None
    ahead: tuple[int, ...] = ()


class Run(Iterator[MiniBatch]):
    """A running epoch of the chain that ends in `root`, and how far it has been read."""

    def __init__(
        self, root: Stage, position: Position, clock: StageClock | None = None, stopped: threading.Event | None = None
    ) -> None:
        graph = StageGraph(root)
        self.epoch = position.epoch
        self.next_step = position.step
        self.ahead = set(position.ahead)
        self.finished = False
        self._error: BaseException | None = None
        self._seeds = graph.find(SeedStage)
        self._window = max([stage.window for stage in graph.find(StreamStage)], default=1)
        self._plan = EpochPlan(
            graph,
            position.epoch,
            position.step,
            position.node_state,
            clock or StageClock(),
            position.ahead,
            stopped,
        )
        self._stream = self._plan.stream(root)

    def __next__(self) -> MiniBatch:
        try:
            minibatch = next(self._stream)
        except StopIteration:
            if self._error is not None:
                raise RuntimeError(
                    f"epoch {self.epoch} broke off at an error before its minibatch number {self.next_step} of this "
                    "rank; it has no more to give. Load its state_dict() to try the rest again."
                ) from self._error
            self.finished = True
            raise
        except BaseException as error:
            self._error = error
            raise
        self._error = None
        if self._seeds:
            self._count((minibatch.index - self._seeds[0].rank) // self._seeds[0].world_size)
        else:
            self.next_step += 1
        return minibatch

    def _count(self, step: int) -> None:
        """Note that the minibatch of `step` was delivered: what is `window` before it was delivered or dropped."""
        self.ahead.add(step)
        self.next_step = max(self.next_step, step - self._window + 1)
        while self.next_step in self.ahead:
            self.next_step += 1
        self.ahead = {ahead for ahead in self.ahead if ahead > self.next_step}

    def close(self) -> None:
        """End the epoch and what runs for it."""
        self._plan.stopped.set()
        close_stream(self._stream)
        self._stream = iter(())  # whoever keeps this object does not keep the memory of a channel


def close_stream(stream: Iterator[Any]) -> None:
    """Close an iterator that can be closed: a generator, a Run or a Prefetcher's reader."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()


def one_minibatch(root: Stage, epoch: int, index: int) -> MiniBatch | None:
    """Return the minibatch of (epoch, global index) as it leaves `root`, or None if a stage drops it."""
    graph = StageGraph(root)
    return EpochPlan(graph, epoch, 0, None, StageClock()).minibatch(graph, index)
