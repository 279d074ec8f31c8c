"""The stream of minibatches that leaves a chain in an epoch.

Up to its first carrier a chain is evaluated index by index (evaluator.py). A carrier opens a stream of its own; the
stages after it map over that stream.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any

from datapipes.base.errors import LoaderTimeoutError
from datapipes.chain.asynchronous import concurrency_of
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.in_flight import InFlight
from datapipes.chain.loop_pool import LoopPool
from datapipes.chain.stage_base import CarrierBase, QueuesOnStreams, StageBase, is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch


def stream_of(stage: StageBase, context: EpochContext) -> Iterator[MiniBatch]:
    """Return the epoch's minibatches as they leave `stage`, from where the epoch begins."""
    return _stream(stage, context, Evaluator(context.calls, context.drops))


def _stream(stage: StageBase, context: EpochContext, evaluator: Evaluator) -> Iterator[MiniBatch]:
    if isinstance(stage, CarrierBase):
        return stage.open([partial(_stream, source, context, evaluator) for source in stage.sources], context)
    graph = StageGraph(stage)
    if graph.find(CarrierBase):
        return _mapped_stream(stage, context, evaluator)
    return _indexed_stream(graph, context, evaluator)


def _indexed_stream(graph: StageGraph[Any], context: EpochContext, evaluator: Evaluator) -> Iterator[MiniBatch]:
    indices, epoch = graph.seed_stage._indices, context.position.epoch
    if graph._is_async:
        pool = LoopPool(graph, evaluator)
        return _Delivery(EndingWithEpoch(Dispatcher(pool, context, indices), pool.close))
    wanted = map(indices.__getitem__, context.steps(len(indices)))
    return _Delivery(_Mapped(partial(evaluator.minibatch, graph, epoch), wanted))


def _mapped_stream(stage: StageBase, context: EpochContext, evaluator: Evaluator) -> Iterator[MiniBatch]:
    (source,) = stage.sources  # StageGraph refuses a join behind a carrier
    stream, epoch = _stream(source, context, evaluator), context.position.epoch
    if is_async(stage):
        graph = StageGraph(stage)
        queueing = graph.find(QueuesOnStreams)

        def start(minibatch: MiniBatch) -> Coroutine[Any, Any, MiniBatch | None]:
            for passed in queueing:
                passed._enter_loop(minibatch)
            return evaluator.apply_async(stage, minibatch, epoch)

        # unlike a generator, map outlives a timeout of the source
        return _Delivery(_FromLoop(InFlight(map(start, stream), concurrency_of(stage)), graph), stream)
    return _Delivery(_Mapped(lambda minibatch: evaluator.apply(stage, minibatch, epoch), stream), stream)


class _Mapped(Iterator[MiniBatch | None]):
    """The results of `fn` for each minibatch or index.

    An error of `fn` ends it. An error of the source does not, since a timeout can be waited out.
    """

    def __init__(self, fn: Callable[[Any], MiniBatch | None], source: Iterator[Any]) -> None:
        self._fn = fn
        self._source = source
        self._broken = False

    def __next__(self) -> MiniBatch | None:
        if self._broken:
            raise StopIteration
        item = next(self._source)
        try:
            return self._fn(item)
        except BaseException:
            self._broken = True  # to continue would skip a minibatch
            raise


class _FromLoop(Iterator[MiniBatch | None]):
    """The minibatches that the threads of an event loop have made."""

    def __init__(self, made: InFlight[MiniBatch | None], graph: StageGraph[Any]) -> None:
        self._made = made
        self._queueing = graph.find(QueuesOnStreams)

    def __next__(self) -> MiniBatch | None:
        minibatch = next(self._made)
        if minibatch is not None:
            for stage in self._queueing:
                stage._leave_loop(minibatch)
        return minibatch

    def close(self) -> None:
        self._made.close()


class EndingWithEpoch(Iterator[MiniBatch]):
    """The minibatches of an epoch; `end` is called when it has ended, broken off or was closed."""

    def __init__(self, minibatches: Iterator[MiniBatch], end: Callable[[], None]) -> None:
        self._minibatches = minibatches
        self._end = end

    def __next__(self) -> MiniBatch:
        try:
            return next(self._minibatches)
        except LoaderTimeoutError:
            raise  # the next call goes on waiting
        except BaseException:
            self._end()
            raise

    def close(self) -> None:
        self._end()


class _Delivery(Iterator[MiniBatch]):
    """The minibatches that no stage dropped; closing it closes the streams it is made of."""

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


def close_stream(stream: Iterator[Any]) -> None:
    """Close an iterator that can be closed: a generator, a Run or a Prefetcher's reader."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()
