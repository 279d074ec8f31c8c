"""Gives the tasks of an epoch to workers and delivers each outcome once, in order or as they come.

Any worker can make any minibatch, with the same bits. So the tasks of a worker that died are given to the one in its
place, and an outcome that arrives twice is dropped. A step is settled once its minibatch was delivered or dropped. Only
the `window` steps from the first one that is not settled are given out; this bounds the memory that is held here and in
the channel.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from datapipes.base.errors import LoaderTimeoutError, PeerDied, add_note
from datapipes.base.log import logger
from datapipes.chain.epoch import EpochContext
from datapipes.chain.stage_base import SeedBase
from datapipes.device.handover import take
from datapipes.loader.workers.pool import Death, Outcome, Pool, Task, in_words
from datapipes.minibatch import MiniBatch

LOOK_S = 0.1  # seconds between two checks that the epoch still has a reader


class Dispatcher(Iterator[MiniBatch]):
    """The minibatches of one epoch, made by a pool.

    Args:
        waiting: The name under which time spent waiting is counted.
        timeout: Seconds to wait for a minibatch; None: as long as it takes.
        max_restarts: How often a minibatch is made again after the worker that made it died.
        counts: adds up "deaths", and the tasks that are given out again ("made_again").
    """

    def __init__(
        self,
        pool: Pool,
        context: EpochContext,
        seeds: SeedBase,
        waiting: str,
        *,
        in_order: bool,
        timeout: float | None,
        max_restarts: int,
        counts: dict[str, float] | None = None,
    ) -> None:
        self._pool = pool
        # Not the context itself: its `waiting_for` refers to this object, and a cycle would keep both alive.
        self._epoch, self._clock, self._stopped = context.epoch, context.calls.clock, context.stopped
        self._drops = context.drops
        self._seeds = seeds
        self._waiting = waiting
        self._in_order = in_order
        self._timeout = timeout
        self._max_restarts = max_restarts
        self._counts = {"deaths": 0.0, "made_again": 0.0} if counts is None else counts
        self._process = os.getpid()
        self._generation = pool.begin()
        self._steps = iter(context.steps(seeds.num_steps))
        self._next_step = next(self._steps, None)  # the next to give out
        self._low = context.start  # the first step that is not settled
        self._settled: set[int] = set(context.ahead)
        self._most_ahead = pool.num_workers * pool.tasks_each  # steps given out from `_low` on
        self._with: list[list[int]] = [[] for _ in range(pool.num_workers)]  # indices that each worker has, in order
        self._made: dict[int, Outcome] = {}  # by step: made and not yet delivered
        self._reached: dict[int, str] = {}  # by index: the last stage that was called, which is the one that drops it
        self._deaths: dict[int, list[Death]] = {}  # by the index that was being made
        # Consecutive deaths during start-up since the last outcome, per worker.
        self._early_deaths = [0] * pool.num_workers
        self._broken = False
        self._waits = False
        context.waiting_for = self._waiting_for

    def __next__(self) -> MiniBatch:
        if os.getpid() != self._process:
            raise RuntimeError(
                "data_loader: this epoch was begun in another process, and a forked child cannot use the workers of "
                "its parent. Call iter() again in this process."
            )
        began = time.monotonic()
        while not self._broken:
            self._give_out()
            outcome = self._ready()
            self._settle()
            if outcome is not None:
                self._clock.add(self._waiting, began, outcome.task.index)
                assert outcome.minibatch is not None
                take(outcome.minibatch, outcome.queued)
                return outcome.minibatch
            if self._low >= self._seeds.num_steps or self._stopped.is_set():
                break
            self._wait(began)
        self._broken = True
        raise StopIteration

    # --- giving out ---------------------------------------------------------------------------------------------------

    def _give_out(self) -> None:
        self._settle()
        while self._next_step is not None and self._next_step < self._low + self._most_ahead:
            worker = min(range(self._pool.num_workers), key=lambda number: len(self._with[number]))
            if len(self._with[worker]) >= self._pool.tasks_each:
                return
            self._give(worker, self._seeds._index_of(self._next_step))
            self._next_step = next(self._steps, None)

    def _give(self, worker: int, index: int) -> None:
        self._with[worker].append(index)
        self._pool.give(worker, Task(self._generation, self._epoch, index))

    def _settle(self) -> None:
        while self._low in self._settled:
            self._settled.remove(self._low)
            self._low += 1

    # --- delivering ---------------------------------------------------------------------------------------------------

    def _ready(self) -> Outcome | None:
        """Return the next outcome that can be delivered; raise its error if it has one."""
        while self._made:
            self._settle()
            step = self._low if self._in_order else next(iter(self._made))
            if step not in self._made:
                return None
            outcome = self._made.pop(step)
            if outcome.error is not None:
                self._broken = True  # to continue would skip a minibatch
                add_note(outcome.error, f"in worker {outcome.worker}")
                raise outcome.error
            self._settled.add(step)
            reached = self._reached.pop(outcome.task.index, "a stage")
            if outcome.minibatch is not None:
                return outcome
            self._drops[reached] += 1
        return None

    def _wait(self, began: float) -> None:
        left = LOOK_S
        if self._timeout is not None:
            left = min(LOOK_S, self._timeout - (time.monotonic() - began))
            if left <= 0:
                raise LoaderTimeoutError(
                    f"data_loader: no minibatch came within {self._timeout} s, the limit that was set."
                    f"{self._describe()} Raise timeout, or look into stats() for the slow stage."
                )
        self._waits = True
        try:
            event = self._pool.receive(left)
        except BaseException:
            self._broken = True  # an outcome may be lost with the error
            raise
        finally:
            self._waits = False
        if isinstance(event, Death):
            self._after_death(event)
        elif event is not None and event.task.generation == self._generation:
            self._take(event)

    def _take(self, outcome: Outcome) -> None:
        index = outcome.task.index
        for call in outcome.calls:
            self._clock.add_call(*call)
            self._reached[call.minibatch] = call.stage
        self._early_deaths = [0] * self._pool.num_workers  # an outcome came, so workers can start
        if not outcome.from_former_life and index in self._with[outcome.worker]:
            self._with[outcome.worker].remove(index)
        if self._is_wanted(outcome.task):
            self._made[self._step_of(index)] = outcome

    def _is_wanted(self, task: Task) -> bool:
        """Return whether the outcome of a task has not arrived yet."""
        step = self._step_of(task.index)
        return step >= self._low and step not in self._settled and step not in self._made

    def _step_of(self, index: int) -> int:
        return (index - self._seeds.rank) // self._seeds.world_size

    # --- deaths -------------------------------------------------------------------------------------------------------

    def _after_death(self, death: Death) -> None:
        self._counts["deaths"] += 1
        charged = [task for task in death.tasks if task.generation == self._generation and self._is_wanted(task)]
        for task in charged:
            self._deaths.setdefault(task.index, []).append(death)
        if too_often := [task for task in charged if len(self._deaths[task.index]) > self._max_restarts]:
            self._broken = True
            raise self._died_too_often(too_often, death)
        if not death.tasks and not death.was_ready:
            self._early_deaths[death.worker] += 1
            if not death.by_signal or self._early_deaths[death.worker] > self._max_restarts:
                self._broken = True
                raise PeerDied(
                    f"data_loader: worker {death.worker} (pid {death.pid}) died while it started: {death.how}. Read "
                    "what it has written to stderr. A script must start workers below `if __name__ == '__main__':`. "
                    "Workers cannot import a program read from stdin; it needs multiprocessing_context='fork' or "
                    "worker_method='thread'.",
                    [death.pid],
                )
        doing = f"was making {in_words(death.tasks)}" if death.tasks else "was idle"
        logger.warning(
            "data_loader: worker %d (pid %d) died: %s. It %s; another takes its place, and nothing is lost.",
            death.worker,
            death.pid,
            death.how,
            doing if death.was_ready else "was starting",
        )
        try:
            self._pool.replace(death.worker)
        except BaseException:
            self._broken = True  # the pool has ended
            raise
        again, self._with[death.worker] = self._with[death.worker], []
        self._counts["made_again"] += len(again)
        for index in again:
            self._give(death.worker, index)

    def _died_too_often(self, tasks: list[Task], last: Death) -> PeerDied:
        """Return the error for minibatches that were being made at too many deaths, the oldest first."""
        epoch, index = tasks[0].epoch, tasks[0].index
        deaths = self._deaths[index]
        others = ", ".join(str(task.index) for task in tasks[1:])
        return PeerDied(
            f"data_loader: {len(deaths)} workers died while they made minibatch {index} of epoch {epoch}"
            f"{f', and each time {others} beside it' if others else ''}; the last was worker {last.worker} (pid "
            f"{last.pid}): {last.how}. Try the stages on {'each of these' if others else 'this minibatch'} with "
            f"loader.minibatch({epoch}, {index}); use fewer workers or smaller minibatches if memory runs out; or "
            "raise max_restarts.",
            [death.pid for death in deaths],
        )

    # --- whereabouts --------------------------------------------------------------------------------------------------

    def _waiting_for(self) -> str:
        return self._describe() if self._waits else ""

    def _describe(self) -> str:
        """Return a sentence on the minibatch that is waited for and on the worker that has it."""
        index = self._seeds._index_of(self._low)
        for worker, indices in enumerate(self._with):
            if index in indices:
                return f" Waiting for minibatch {index} of epoch {self._epoch}: {self._pool.whereabouts(worker)}."
        return f" Waiting for minibatch {index} of epoch {self._epoch}."
