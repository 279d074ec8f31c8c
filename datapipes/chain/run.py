"""Run: the reading of one epoch of a chain, and its progress."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import Any

from datapipes.base.array_digest import Hashed
from datapipes.base.clock import NoClock
from datapipes.base.errors import LoaderTimeoutError
from datapipes.base.outcome import as_seen_by_consumer
from datapipes.base.threads import EndingThread, preempt_nobody, threads_of_kernels
from datapipes.chain.calls import Calls
from datapipes.chain.epoch import EpochContext, Position
from datapipes.chain.input_use import InputUse, note_user
from datapipes.chain.stage_base import CarrierBase, SeedBase, StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.streams import close_stream, stream_of
from datapipes.minibatch import MiniBatch


class Run(Iterator[MiniBatch]):
    """The reading of one epoch of a chain, and its progress. Nothing starts before `begin`.

    Several threads may read the epoch, one at a time. So the position always fits the minibatches that were given out,
    and no error is hidden by a minibatch that another thread takes.

    Attributes:
        empty_after_end: if resumed at an epoch's end: True yields nothing, False starts the next epoch.
        has_begun: whether `begin` was called.
        uses_up_epoch: whether the run gave a minibatch or reached its end; if not, the next loop reads the same epoch.
        finished: whether the run reached its end.
    """

    def __init__(self, *, empty_after_end: bool = False) -> None:
        self.empty_after_end = empty_after_end
        self.has_begun = self.uses_up_epoch = self.finished = False
        self._process, self._turn = os.getpid(), threading.RLock()
        self.epoch = self.next_step = 0
        self.ahead: set[int] = set()
        self._stream: Iterator[MiniBatch] = iter(())
        self._error: BaseException | None = None
        self.consumer: weakref.ref[Any] | None = None  # the iterator of a loop; None without a loop
        # Returns the last stage of the chain while the epoch is open, else None.
        self._root: Callable[[], StageBase | None] = lambda: None

    @property
    def is_open(self) -> bool:
        """Whether the run has begun and its consumer may ask for more."""
        is_over = self.finished or self._error is not None or (self.consumer is not None and self.consumer() is None)
        return self.has_begun and not is_over

    def input_use(self) -> InputUse | None:
        """Return the chain that this epoch reads, if the epoch is open; see InputUser. None: nothing is read now."""
        last = self._root() if self.is_open else None
        remedy = "Read the epoch to its end, let its iterator go (del), or close the chain's last stage."
        return None if last is None else InputUse(last, "an epoch is open of the chain that ends in", remedy)

    def begin(self, root: StageBase, position: Callable[[], Position]) -> None:
        """Start the epoch at `position()`, for the chain whose last stage is `root`, unless the run has begun."""
        with self._in_turn():
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
        with self._in_turn():
            return self._next()

    def _in_turn(self) -> threading.RLock:
        """Return the lock that a thread holds while it begins or reads the epoch. It is an RLock, since a user's
        function in the chain may read the same chain again.
        """
        if os.getpid() != self._process:  # the thread whose turn it was does not exist in a forked child
            self._process, self._turn = os.getpid(), threading.RLock()
        return self._turn

    def _next(self) -> MiniBatch:
        try:
            minibatch = next(self._stream)
        except StopIteration:
            if self._error is not None:
                raise RuntimeError(
                    f"epoch {self.epoch} broke off at an error before its minibatch number {self.next_step} of this "
                    "rank, and gives no more. To try the rest again, call x.load_state_dict(x.state_dict()) and "
                    "iter(x), where x is the stage or loader that you iterate."
                ) from self._error
            gave_nothing = not self.uses_up_epoch and not self.finished
            self.uses_up_epoch = self.finished = True
            if gave_nothing and self._must_give:
                self._refuse_lost_epoch()
            raise
        except BaseException as raised:
            error = as_seen_by_consumer(raised)
            if not isinstance(error, LoaderTimeoutError):  # the epoch goes on after a time-out
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
        """Raise RuntimeError if stages dropped all minibatches: most likely a stage lacks its `return`."""
        if self._context.drops:
            drops = ", ".join(f"{count} by {label!r}" for label, count in sorted(self._context.drops.items()))
            raise RuntimeError(
                f"epoch {self.epoch} gave no minibatch, since all were dropped: {drops}. A stage drops a minibatch if "
                "it returns None: return the new minibatch. If an epoch may be empty, say may_drop_all=True where the "
                "stage is built, or may_drop_all = True in its class."
            ) from None

    def _record_delivery(self, step: int) -> None:
        """Record that `step` was delivered.

        The chain's `window` bounds how far steps come out of order: every step <= step - window was delivered or
        dropped before.
        """
        if step == self.next_step and not self.ahead:  # in order
            self.next_step += 1
            return
        self.ahead.add(step)
        self.next_step = max(self.next_step, step - self._window + 1)
        while self.next_step in self.ahead:
            self.next_step += 1
        self.ahead = {ahead for ahead in self.ahead if ahead > self.next_step}

    def finish_digests(self) -> None:
        """Wait for the digests that a background thread computes; a state needs them."""
        if self.has_begun:
            self._digests.finish()

    def close(self) -> None:
        """End the epoch and everything that runs for it."""
        if not self.has_begun:
            return
        self._digests.stop()
        self._context.stopped.set()
        close_stream(self._stream)
        # From here on, a reference to this object keeps neither workers nor a channel's memory alive.
        self._stream = iter(())
        self._root = lambda: None


class DigestsInBackground:
    """Computes the digests of `inputs`, as the inputs are now, in a thread that begins at `release`. Digests that are
    known already are not computed again.

    The thread works beside an epoch, from the first minibatch on, so that this minibatch waits for no digest. A state
    waits for the digests that are missing. If an input changes meanwhile, its digest raises.

    The thread ends with this object and before the interpreter does. A forked child does not have the thread. If two
    epochs over one graph begin before the digest of the graph is known, both compute this digest.
    """

    def __init__(self, inputs: Sequence[Hashed]) -> None:
        left = [hashed for hashed in inputs if hashed._note_arrays()]
        self._begin: SimpleQueue[None] = SimpleQueue()
        self._has_begun = False
        self._thread: threading.Thread | None = None
        # Ends the thread; the next DigestsInBackground over the same input goes on where it stopped.
        self.stop: Callable[[], object] = lambda: None
        if left:
            stopped = threading.Event()
            # Started before the first minibatch: afterwards a start can take 4 or 8 ms, since threads of OpenMP still
            # spin on the other cores.
            thread = EndingThread(_take_digests, (left, self._begin, stopped), name="datapipes-digests")
            with contextlib.suppress(RuntimeError):  # no thread can start: a state computes the digests itself
                thread.start()
                self._thread = thread
                self.stop = weakref.finalize(self, _end, os.getpid(), self._begin, stopped, thread)

    def release(self) -> None:
        """Let the thread compute the digests; a second call changes nothing."""
        self._has_begun = True
        self._begin.put(None)

    def finish(self) -> None:
        """After `release`, wait until the thread has computed the digests: at most one read of all arrays.

        Ctrl-C ends the wait.
        """
        if self._thread is not None and self._has_begun:
            self._thread.join()


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
