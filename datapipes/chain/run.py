"""A running epoch: the stream of minibatches that leaves a chain, and how far it has been read.

Up to its first carrier a chain is evaluated index by index (evaluator.py). A carrier opens a stream of its own; the
stages after it map over that stream.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, Protocol

from datapipes.base.array_digest import Hashed
from datapipes.base.checks import shown
from datapipes.base.clock import NoClock
from datapipes.base.errors import LoaderTimeoutError
from datapipes.base.outcome import as_seen_by_consumer
from datapipes.base.threads import EndingThread, preempt_nobody, threads_of_kernels
from datapipes.chain.asynchronous import async_window, concurrency_of
from datapipes.chain.epoch import Calls, EpochContext, Position
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.in_flight import InFlight
from datapipes.chain.stage_base import CarrierBase, QueuesOnStreams, SeedBase, StageBase, is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.minibatch import MiniBatch


class InputUse(NamedTuple):
    """A chain whose stages read graphs and features now: its last stage; for errors, who runs it, how to end that."""

    last: StageBase
    run_by: str
    remedy: str


class InputUser(Protocol):
    """What may read graphs and features: an epoch, or workers that have copies of stages."""

    def input_use(self) -> InputUse | None:
        """Return the chain that reads now; None if none does."""


_users: set[weakref.ref[InputUser]] = set()  # each of its operations is one step for other threads


def note_user(user: InputUser) -> None:
    """Let `refuse_while_read` ask a user, as long as it lives."""
    _users.add(weakref.ref(user, _users.discard))


def refuse_while_read(where: str, inputs: Sequence[object]) -> None:
    """Raise RuntimeError if a chain that runs in this process, or for it in workers, reads one of `inputs`."""
    for user in [reference() for reference in _users.copy()]:
        if user is None or (use := user.input_use()) is None:
            continue
        for stage in StageGraph(use.last):
            for text, read in stage.reads_from.items():
                if any(read is changed for changed in inputs):
                    raise RuntimeError(
                        f"{where}: {use.run_by} {shown(use.last)}, whose stage {stage.name} reads the {text}; "
                        f"no chain may read rows that change. {use.remedy}"
                    )


class Run(Iterator[MiniBatch]):
    """An epoch of a chain, and how far it has been read. It starts nothing before `begin`.

    Attributes:
        empty_after_end: at a state saved at an epoch's end, True gives nothing, and False starts the next epoch.
        has_begun: whether `begin` was called.
        uses_up_epoch: whether it gave a minibatch or came to its end; if not, the next loop is the same epoch.
        finished: whether it came to its end.
    """

    def __init__(self, *, empty_after_end: bool = False) -> None:
        self.empty_after_end = empty_after_end
        self.has_begun = self.uses_up_epoch = self.finished = False
        self._beginning = threading.Lock()  # several threads may ask for the first minibatch at once
        self.epoch = self.next_step = 0
        self.ahead: set[int] = set()
        self._stream: Iterator[MiniBatch] = iter(())
        self._error: BaseException | None = None
        self.consumer: weakref.ref[Any] | None = None  # the iterator that a loop has; None if it is read without one
        self._root: Callable[[], StageBase | None] = lambda: (
            None
        )  # the last stage of the chain, while the epoch is open

    @property
    def is_open(self) -> bool:
        """Whether it has begun, and its consumer may ask for more."""
        is_over = self.finished or self._error is not None or (self.consumer is not None and self.consumer() is None)
        return self.has_begun and not is_over

    def input_use(self) -> InputUse | None:
        """See InputUser."""
        last = self._root() if self.is_open else None
        remedy = "Read it to its end, let its iterator go (del), or close that stage."
        return None if last is None else InputUse(last, "an epoch is open of", remedy)

    def begin(self, root: StageBase, position: Callable[[], Position]) -> None:
        """Start the epoch of the chain that ends in `root` at `position()`, unless it has begun."""
        with self._beginning:
            if not self.has_begun:
                self._begin(root, position())

    def _begin(self, root: StageBase, position: Position) -> None:
        graph = StageGraph(root)
        self.epoch = position.epoch
        self.next_step = position.step
        self.ahead = set(position.ahead)
        self.finished = position.ended
        self._error = None
        self._seeds = graph.find(SeedBase)
        self._window = max([stage.window for stage in graph.find(CarrierBase)], default=1)
        self._context = EpochContext(Calls(graph.numbering, NoClock()), position)
        self._digests = DigestsInBackground([hashed for stage in graph for hashed in stage._hashed_inputs])
        from_its_start = position == Position(position.epoch)
        self._must_give = from_its_start and not any(stage.may_drop_all for stage in graph)
        nothing_left = bool(self._seeds) and position.step >= self._seeds[0].num_steps
        self._stream = iter(()) if nothing_left else stream_of(root, self._context)
        self._root = weakref.ref(root)
        self.has_begun = True
        note_user(self)

    def __next__(self) -> MiniBatch:
        try:
            minibatch = next(self._stream)
        except StopIteration:
            if self._error is not None:
                raise RuntimeError(
                    f"epoch {self.epoch} broke off at an error before its minibatch number {self.next_step} of this "
                    "rank; it has no more to give. Load its state_dict() to try the rest again."
                ) from self._error
            gave_nothing = not self.uses_up_epoch and not self.finished
            self.uses_up_epoch = self.finished = True
            if gave_nothing and self._must_give:
                self._refuse_lost_epoch()
            raise
        except BaseException as raised:
            error = as_seen_by_consumer(raised)
            if not isinstance(error, LoaderTimeoutError):  # after which the epoch goes on
                self._error = error
            if error is raised:
                raise
            raise error from raised
        self._error = None
        if not self.uses_up_epoch:
            self._digests.release()
        self.uses_up_epoch = True
        if self._seeds:
            self._record_delivery((minibatch.index - self._seeds[0].rank) // self._seeds[0].world_size)
        else:
            self.next_step += 1
        return minibatch

    def _refuse_lost_epoch(self) -> None:
        """Raise RuntimeError if stages dropped all minibatches of the epoch: most likely one forgets its `return`."""
        if self._context.drops:
            drops = ", ".join(f"{label} dropped {count}" for label, count in sorted(self._context.drops.items()))
            raise RuntimeError(
                f"epoch {self.epoch} gave no minibatch: {drops}; a stage that returns None drops the minibatch. Return "
                "the new minibatch. If an epoch may be empty, say may_drop_all=True where the stage is built, or "
                "may_drop_all = True in its class."
            ) from None

    def _record_delivery(self, step: int) -> None:
        """Record that `step` was delivered; so every step <= step - window was delivered or dropped before."""
        if step == self.next_step and not self.ahead:  # in order
            self.next_step += 1
            return
        self.ahead.add(step)
        self.next_step = max(self.next_step, step - self._window + 1)
        while self.next_step in self.ahead:
            self.next_step += 1
        self.ahead = {ahead for ahead in self.ahead if ahead > self.next_step}

    def finish_digests(self) -> None:
        """Wait for the digests that a thread takes beside the minibatches, which a state needs."""
        if self.has_begun:
            self._digests.finish()

    def close(self) -> None:
        """End the epoch and everything that runs for it."""
        if not self.has_begun:
            return
        self._digests.stop()
        self._context.stopped.set()
        close_stream(self._stream)
        # Whoever still keeps this object then keeps neither workers nor the memory of a channel alive.
        self._stream = iter(())
        self._context.waiting_for = str  # str() is "": it waits for nothing
        self._root = lambda: None


def stream_of(stage: StageBase, context: EpochContext) -> Iterator[MiniBatch]:
    """Return the epoch's minibatches as they leave `stage`, from this rank's step `context.start` on."""
    return _stream(stage, context, Evaluator(context.calls, context.drops))


def _stream(stage: StageBase, context: EpochContext, evaluator: Evaluator) -> Iterator[MiniBatch]:
    if isinstance(stage, CarrierBase):
        return stage.open([partial(_stream, source, context, evaluator) for source in stage.sources], context)
    graph = StageGraph(stage)
    if graph.find(CarrierBase):
        return _mapped_stream(stage, context, evaluator)
    return _indexed_stream(graph, context, evaluator)


def _indexed_stream(graph: StageGraph[Any], context: EpochContext, evaluator: Evaluator) -> Iterator[MiniBatch]:
    seed_stage, epoch = graph.seed_stage, context.epoch
    indices = (seed_stage._index_of(step) for step in context.steps(seed_stage.num_steps))
    window = async_window(graph)
    if window > 0:
        made = InFlight((evaluator.minibatch_async(graph, epoch, index) for index in indices), window)
        return _Delivery(_FromLoop(made, graph))
    return _Delivery(evaluator.minibatch(graph, epoch, index) for index in indices)


def _mapped_stream(stage: StageBase, context: EpochContext, evaluator: Evaluator) -> Iterator[MiniBatch]:
    (source,) = stage.sources  # StageGraph refuses a join behind a carrier
    stream, epoch = _stream(source, context, evaluator), context.epoch
    if is_async(stage):
        graph = StageGraph(stage)

        def start(minibatch: MiniBatch) -> Coroutine[Any, Any, MiniBatch | None]:
            for passed in graph.find(QueuesOnStreams):
                passed._enter_loop(minibatch)
            return evaluator.apply_async(stage, minibatch, epoch)

        # unlike a generator, map outlives a timeout of the source
        return _Delivery(_FromLoop(InFlight(map(start, stream), concurrency_of(stage)), graph), stream)
    return _Delivery(_Mapped(lambda minibatch: evaluator.apply(stage, minibatch, epoch), stream), stream)


class _Mapped(Iterator[MiniBatch | None]):
    """The results of `fn` for each minibatch.

    An error of `fn` ends it. An error of the source does not, since a timeout can be waited out.
    """

    def __init__(self, fn: Callable[[MiniBatch], MiniBatch | None], source: Iterator[MiniBatch]) -> None:
        self._fn = fn
        self._source = source
        self._broken = False

    def __next__(self) -> MiniBatch | None:
        if self._broken:
            raise StopIteration
        minibatch = next(self._source)
        try:
            return self._fn(minibatch)
        except BaseException:
            self._broken = True  # to continue would skip a minibatch
            raise


class _FromLoop(Iterator[MiniBatch | None]):
    """The minibatches that the threads of an event loop have made."""

    def __init__(self, made: InFlight[MiniBatch | None], graph: StageGraph[Any]) -> None:
        self._made = made
        self._graph = graph

    def __next__(self) -> MiniBatch | None:
        minibatch = next(self._made)
        if minibatch is not None:
            for stage in self._graph.find(QueuesOnStreams):
                stage._leave_loop(minibatch)
        return minibatch

    def close(self) -> None:
        self._made.close()


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


class DigestsInBackground:
    """Digests of `inputs` as they are now; after `release` a thread takes those that nobody has taken yet.

    It takes them beside the minibatches of an epoch, from the first one on: the first minibatch waits for no digest,
    and a state waits for what is left of them. If an input changes meanwhile, its digest raises.

    The thread ends with this object and before the interpreter does. In a forked child there is none. Two epochs that
    begin over one graph before its digest is known both take it.
    """

    def __init__(self, inputs: Sequence[Hashed]) -> None:
        left = [hashed for hashed in inputs if hashed._note_arrays()]
        self._stopped = threading.Event()
        self._begin: SimpleQueue[None] = SimpleQueue()
        self._has_begun = False
        self._thread: threading.Thread | None = None
        if left:
            # It runs before the first minibatch. To start a thread after it can take 4 or 8 ms: threads of OpenMP then
            # still spin on the other cores.
            thread = EndingThread(_take_digests, (left, self._begin, self._stopped), name="datapipes-digests")
            with contextlib.suppress(RuntimeError):  # no thread can start: a state takes the digests itself
                thread.start()
                self._thread = thread
                weakref.finalize(self, _end, os.getpid(), self._begin, self._stopped, thread)

    def release(self) -> None:
        """Let the thread take digests; a second call changes nothing."""
        self._has_begun = True
        self._begin.put(None)

    def finish(self) -> None:
        """Wait until all digests are taken that were begun: at most one read of all arrays. Ctrl-C ends the wait."""
        if self._thread is not None and self._has_begun:
            self._thread.join()

    def stop(self) -> None:
        """End the thread; the next DigestsInBackground over the same input goes on where it stopped."""
        self._stopped.set()
        self.release()
        self.finish()


def _take_digests(left: Sequence[Hashed], begin: SimpleQueue[None], stopped: threading.Event) -> None:
    preempt_nobody()
    begin.get()
    # An error is raised again where a state asks for the digest.
    with contextlib.suppress(Exception), threads_of_kernels(1):
        for hashed in left:
            hashed._array_digests(stopped.is_set)


def _end(process: int, begin: SimpleQueue[None], stopped: threading.Event, thread: threading.Thread) -> None:
    if os.getpid() == process:
        stopped.set()
        begin.put(None)
        if thread is not threading.current_thread():
            thread.join()
