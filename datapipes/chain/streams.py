"""The stream of minibatches that leaves a chain in an epoch.

A carrier is a stage that passes minibatches on unchanged, such as a Prefetcher. Up to its first carrier a chain is
evaluated index by index (evaluator.py). A carrier opens a stream of its own; the stages after it map over that stream.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from typing import Any, TypeVar

from datapipes.base.errors import LoaderTimeoutError
from datapipes.chain.asynchronous import concurrency_of
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext
from datapipes.chain.evaluator import Evaluator, left_loop
from datapipes.chain.loop_pool import LoopPool
from datapipes.chain.loop_thread import LoopThread
from datapipes.chain.stage_base import CarrierBase, QueuesOnStreams, StageBase, is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch


def stream_of(stage: StageBase, context: EpochContext) -> Iterator[MiniBatch]:
    """Return the epoch's minibatches as they leave `stage`, from the epoch's position on."""
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
        graph.refuse_reused_memory(graph.root.name)
        pool = LoopPool(graph, evaluator)
        return EndingWithEpoch(Dispatcher(pool, context, indices), pool.close)
    wanted = map(indices.__getitem__, context.steps(len(indices)))
    return _Mapped(partial(evaluator.minibatch, graph, epoch), wanted)


def _mapped_stream(stage: StageBase, context: EpochContext, evaluator: Evaluator) -> Iterator[MiniBatch]:
    (source,) = stage.sources  # StageGraph refuses a join behind a carrier
    stream, epoch = _stream(source, context, evaluator), context.position.epoch
    if is_async(stage):
        graph = StageGraph(stage)
        graph.refuse_reused_memory(stage.name)
        queueing = graph.find(QueuesOnStreams)

        def start(minibatch: MiniBatch) -> Coroutine[Any, Any, MiniBatch | None]:
            for passed in queueing:
                passed._enter_loop(minibatch)
            return evaluator.apply_async(stage, minibatch, epoch)

        # unlike a generator, map outlives a timeout of the source
        in_flight = InFlight(map(start, stream), concurrency_of(stage))
        return _Mapped(partial(left_loop, queueing), in_flight, stream)
    return _Mapped(lambda minibatch: evaluator.apply(stage, minibatch, epoch), stream)


class _Mapped(Iterator[MiniBatch]):
    """An iterator over the results of `fn` for the entries of `source`, which are indices or minibatches. Dropped
    minibatches (None) are left out.

    If `fn` raises, the stream ends. If the source raises, the stream goes on at the next call, since a timeout can be
    waited out.

    Args:
        made_of: further streams that are closed together with the source.
    """

    def __init__(self, fn: Callable[[Any], MiniBatch | None], source: Iterator[Any], *made_of: Iterator[Any]) -> None:
        self._fn = fn
        self._source = source
        self._streams = (source, *made_of)
        self._broken = False

    def __next__(self) -> MiniBatch:
        while not self._broken:
            entry = next(self._source)
            try:
                minibatch = self._fn(entry)
            except BaseException:
                self._broken = True  # to continue would skip a minibatch
                raise
            if minibatch is not None:
                return minibatch
        raise StopIteration

    def close(self) -> None:
        for stream in self._streams:
            close_stream(stream)


class EndingWithEpoch(Iterator[MiniBatch]):
    """An iterator over the minibatches of an epoch. It calls `end` when the epoch has ended, failed or was closed."""

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


def close_stream(stream: Iterator[Any]) -> None:
    """Close an iterator that can be closed: a generator, a Run or a Prefetcher's reader."""
    close = getattr(stream, "close", None)
    if close is not None:
        close()


# --- the calls of an asynchronous stage behind a carrier: their results have an order but no index

T = TypeVar("T")


class InFlight(Iterator[T]):
    """An iterator over the results of `coroutines`, in the order of the coroutines. Up to `window` coroutines run at
    once.

    At most `window` coroutines are running or have a result that waits for the caller. While the next result is not
    ready, the limit is 2 * window. So a slow coroutine holds up the others only after a while. If the iterable raises,
    the running coroutines deliver first, then the error is raised. The next call may continue. An error of a coroutine
    ends the iterator.
    """

    def __init__(self, coroutines: Iterable[Coroutine[Any, Any, T]], window: int) -> None:
        self._coroutines = iter(coroutines)
        self._window = window
        self._kept: deque[Future[T]] = deque()
        self._ended = False
        self._late_error: BaseException | None = None
        self._thread = LoopThread()
        self.close = weakref.finalize(self, self._thread.close)  # runs also when this object is collected, and at exit

    def __next__(self) -> T:
        self._thread.refuse_other_processes()
        while True:
            self._fill()
            if not self._kept:
                break
            if self._kept[0].done():
                return self._oldest()
            wait(self._running(), return_when=FIRST_COMPLETED)
        if self._late_error is not None:
            late, self._late_error = self._late_error, None
            raise late
        self.close()
        raise StopIteration

    def _running(self) -> list[Future[T]]:
        return [future for future in self._kept if not future.done()]

    def _may_begin(self) -> bool:
        is_late = len(self._kept) > 0 and not self._kept[0].done()
        room = 2 * self._window if is_late else self._window
        return not self._ended and self._late_error is None and len(self._kept) < room

    def _fill(self) -> None:
        """Begin coroutines while there is room. After each one, return if the result to be delivered next is ready."""
        while self._may_begin() and len(self._running()) < self._window:
            try:
                future = self._thread.submit(next(self._coroutines))
            except StopIteration:
                self._ended = True
            except BaseException as error:
                self._late_error = error
            else:
                self._kept.append(future)
                if self._kept[0].done():
                    return

    def _oldest(self) -> T:
        try:
            return self._kept.popleft().result()
        except BaseException:
            self._ended = True
            self._kept.clear()
            self.close()
            raise
