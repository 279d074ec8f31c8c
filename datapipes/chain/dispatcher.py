"""Dispatcher: gives the tasks of an epoch to a pool of workers, and delivers each outcome once, in order or as the
outcomes arrive. A task is a minibatch to be made; its outcome is the minibatch, a drop or an error.

Any worker can make any minibatch, with the same bits. So the tasks of a worker that died are given out again, and an
outcome that arrives twice is dropped. A step is settled once its minibatch was delivered or dropped. Only the
`most_ahead` steps from the first one that is not settled are given out; this bounds the memory that is held here and in
the pool.

Every minibatch that is made from (epoch, index) is asked for here. Minibatches without an index or an order are made
elsewhere: streams behind a carrier, a stage that passes minibatches on unchanged (streams.py, loader/prefetcher.py),
the minibatches of a server with many clients (distributed/server/producers.py), and the minibatches that a sender
pushes (distributed/sampler_sender.py).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator

from datapipes.base.errors import LoaderTimeoutError, add_note
from datapipes.chain.calls import Waiting
from datapipes.chain.deaths import Deaths
from datapipes.chain.epoch import EpochContext
from datapipes.chain.pool import Death, Outcome, Pool, Task
from datapipes.minibatch import MiniBatch

LOOK_S = 0.1  # seconds between two checks that the epoch still has a reader
_TO_TRY = (
    "with loader.minibatch({epoch}, {index}); use fewer workers or smaller minibatches if memory runs out; or raise "
    "max_restarts"
)
_TO_START = (
    " Workers cannot import a program read from stdin; it needs multiprocessing_context='fork' or "
    "worker_method='thread'."
)


class Dispatcher(Iterator[MiniBatch]):
    """The minibatches of one epoch, made by a pool.

    Args:
        indices: the global index of each step.
        waiting: the name under which time spent waiting is counted; "" counts nothing.
        timeout: seconds to wait for a minibatch; None: as long as it takes.
        max_restarts: how often a minibatch is made again after the worker that made it died.
        counts: a Counter that is updated in place: "deaths" of workers, and "made_again", the minibatches that were
            given out again.
        goes_on: whether the epoch goes on after an error: with the next minibatch if a stage raised, with the same
            minibatch if the pool failed.
    """

    def __init__(
        self,
        pool: Pool,
        context: EpochContext,
        indices: range,
        waiting: str = "",
        *,
        in_order: bool = True,
        timeout: float | None = None,
        max_restarts: int = 0,
        counts: dict[str, float] | None = None,
        goes_on: bool = False,
    ) -> None:
        self._pool, self._context, self._epoch, self._indices = pool, context, context.position.epoch, indices
        self._waiting, self._in_order, self._timeout, self._goes_on = waiting, in_order, timeout, goes_on
        self._counts = {"deaths": 0.0, "made_again": 0.0} if counts is None else counts
        self._generation = pool.begin()
        self._steps = iter(context.steps(len(indices)))
        self._next_step = next(self._steps, None)  # the next step to give out
        self._again: deque[int] = deque()  # indices to give out first: their worker died, or the pool failed
        self._low = context.position.step  # the first step that is not settled
        self._settled: set[int] = set(context.position.ahead)
        self._with: list[list[int]] = [[] for _ in range(pool.num_workers)]  # indices that each worker has, in order
        self._made: dict[int, Outcome] = {}  # {step: outcome that is not delivered yet}
        self._reached: dict[int, str] = {}  # {index: the stage called last}; if a stage dropped it, this one did
        self._deaths = Deaths("data_loader", max_restarts, _TO_TRY, _TO_START)
        self._broken = False

    def __next__(self) -> MiniBatch:
        return self.take(self._timeout)

    def take(self, timeout: float | None) -> MiniBatch:
        """Return the next minibatch.

        Args:
            timeout: seconds to wait for it; None: as long as it takes.
        Raises:
            LoaderTimeoutError: No minibatch came in time; the next call goes on waiting.
            StopIteration: The epoch has ended, or has no reader any more.
            The error of a stage, or of the pool.
        """
        self._pool.refuse_other_processes()
        began = time.monotonic()
        while not self._broken:
            self._give_out()
            low = self._low
            outcome = self._ready()
            if outcome is not None:
                if self._waiting:
                    self._context.calls.clock.add(self._waiting, began, outcome.task.index)
                return self._pool.taken(outcome)
            if self._low >= len(self._indices) or self._context.stopped.is_set():
                break
            if self._low == low:  # else minibatches were dropped, and there is room for more
                self._wait(began, timeout)
        self._broken = True
        raise StopIteration

    def __len__(self) -> int:
        """Number of steps whose outcome was received and is not delivered yet."""
        return len(self._made)

    # --- giving out ---------------------------------------------------------------------------------------------------

    def _give_out(self) -> None:
        while self._again or (self._next_step is not None and self._next_step < self._low + self._pool.most_ahead):
            worker = min(range(self._pool.num_workers), key=lambda number: len(self._with[number]))
            if len(self._with[worker]) >= self._pool.tasks_each:
                return
            if not self._again:
                assert self._next_step is not None
                self._again.append(self._indices[self._next_step])
                self._next_step = next(self._steps, None)
            index = self._again[0]  # stays until it is given, since giving may raise
            if self._is_wanted(index):
                self._pool.give(worker, Task(self._generation, self._epoch, index))
                self._with[worker].append(index)
            self._again.popleft()

    def _settle(self, step: int) -> None:
        self._settled.add(step)
        while self._low in self._settled:
            self._settled.remove(self._low)
            self._low += 1

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _ready(self) -> Outcome | None:
        """Return the next outcome to deliver, which has a minibatch. None: it was not received yet.

        If the next outcome is an error, raise this error. Dropped minibatches are passed over.
        """
        while self._made:
            step = self._low if self._in_order else next(iter(self._made))
            if step not in self._made:
                return None
            outcome = self._made.pop(step)
            reached = self._reached.pop(outcome.task.index, self._pool.dropped_by)
            if outcome.error is not None:
                if self._goes_on:
                    self._settle(step)
                else:
                    self._broken = True  # to continue would skip a minibatch
                if name := self._pool.name_of(outcome.worker):
                    add_note(outcome.error, f"in {name}")
                raise outcome.error
            self._settle(step)
            if outcome.minibatch is not None:
                return outcome
            if reached:
                self._context.drops[reached] += 1
        return None

    def _wait(self, began: float, timeout: float | None) -> None:
        left = LOOK_S if timeout is None else min(LOOK_S, timeout - (time.monotonic() - began))
        try:
            with Waiting(self._context.calls, self._describe):
                event = self._pool.receive(max(left, 0.0))
        except BaseException:
            self._broken = not self._goes_on  # if it goes on, all given tasks are given out again
            self._again.extendleft(sorted((index for indices in self._with for index in indices), reverse=True))
            self._with = [[] for _ in self._with]
            raise
        if event is None and left <= 0:
            raise LoaderTimeoutError(
                f"data_loader: no minibatch came within {timeout} s, the limit that was set."
                f"{self._describe()} Raise timeout, or look into stats() for the slow stage."
            )
        if isinstance(event, Death):
            self._after_death(event)
        elif event is not None and event.task.generation == self._generation:
            self._take(event)

    def _take(self, outcome: Outcome) -> None:
        index = outcome.task.index
        self._context.calls.clock.add_calls(outcome.calls)
        for call in outcome.calls:
            self._reached[call.minibatch] = call.stage
        self._deaths.forget(outcome.task)
        if not outcome.from_former_life and index in self._with[outcome.worker]:
            self._with[outcome.worker].remove(index)
        if self._is_wanted(index):
            self._made[self._indices.index(index)] = outcome

    def _is_wanted(self, index: int) -> bool:
        """Return whether the minibatch of this global index was neither received, delivered nor dropped yet."""
        step = self._indices.index(index)
        return step >= self._low and step not in self._settled and step not in self._made

    # --- deaths -------------------------------------------------------------------------------------------------------

    def _after_death(self, death: Death) -> None:
        self._counts["deaths"] += 1
        charged = [task for task in death.tasks if task.generation == self._generation and self._is_wanted(task.index)]
        if (error := self._deaths.error_after(death, charged)) is not None:
            self._broken = True
            raise error
        try:
            self._pool.replace(death.worker)
        except BaseException:
            self._broken = True  # the pool has ended
            raise
        again = [index for index in self._with[death.worker] if self._is_wanted(index)]
        self._with[death.worker] = []
        self._counts["made_again"] += len(again)
        self._again.extend(again)

    # --- whereabouts --------------------------------------------------------------------------------------------------

    def _describe(self) -> str:
        """Return a sentence on the awaited minibatch and on the worker that has it."""
        index = self._indices[self._low]
        for worker, indices in enumerate(self._with):
            if index in indices:
                return f" Waiting for minibatch {index} of epoch {self._epoch}: {self._pool.whereabouts(worker)}."
        return f" Waiting for minibatch {index} of epoch {self._epoch}."
