"""Makers of a producer's minibatches, threads of the server or worker processes; and KeptAnswers, the last answers for
requests that are made again.
"""

from __future__ import annotations

import collections
import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NoAnswer  # the builtin one only since Python 3.11
from functools import partial
from typing import Any

from datapipes import _core
from datapipes.base.clock import NoClock
from datapipes.chain.asynchronous import async_window
from datapipes.chain.calls import Calls
from datapipes.chain.deaths import Deaths
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.loop_thread import LoopThread
from datapipes.chain.pool import Death, Outcome, Task
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.refusals import Unavailable, UnknownProducer
from datapipes.features.feature_fetcher import FeatureFetcher
from datapipes.loader.options import LoaderOptions
from datapipes.loader.workers.process_pool import ProcessPool
from datapipes.minibatch import MiniBatch
from datapipes.processes.sharing import pack
from datapipes.processes.start import context_of
from datapipes.sampling.negative_sampler import NegativeSampler

Key = tuple[int, int, int]  # producer, epoch, index
_Index = tuple[int, int]  # epoch, index
BYTES_PER_SEED = 8
TASKS_EACH = 2  # minibatches that are asked of a worker at once
LOOK_S = 0.1  # between two looks whether the worker lives


class InThreads:
    """Makes minibatches in the thread that asks."""

    def __init__(self, chain: Stage, most_bytes: int) -> None:
        self._graph, self._most_bytes = StageGraph(chain), most_bytes
        self._loop = LoopThread() if async_window(self._graph) else None
        self._is_closed, self._closing = False, threading.Lock()

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """Return the minibatch, None if a stage drops it; several threads may ask at once."""
        evaluator = _Bounded(Calls(self._graph.numbering, NoClock()), self._most_bytes, most_s)
        if self._loop is None:
            return evaluator.minibatch(self._graph, epoch, index)
        with self._closing:
            if self._is_closed:
                raise _gone()
            future = self._loop.submit(evaluator.minibatch_async(self._graph, epoch, index))
        try:
            return future.result(most_s)
        except NoAnswer as error:
            if future.done():
                raise  # of a stage
            future.cancel()
            raise _too_slow(epoch, index, most_s) from error
        except CancelledError as error:
            raise _gone() from error

    def close(self) -> None:
        """End the event loop, and what runs there; may be called twice."""
        with self._closing:
            was_closed, self._is_closed = self._is_closed, True
        if self._loop is not None and not was_closed:
            self._loop.close()


class InProcesses:
    """Makes minibatches in worker processes.

    Attributes:
        at_once: minibatches that may be asked for at once. Each process has the next one while it makes one; where
            stages are asynchronous it has one, or nobody could tell which of them has killed it.
    """

    def __init__(self, chain: Stage, num_workers: int, most_bytes: int) -> None:
        self._choosing = threading.Lock()
        bounded = partial(_Bounded, most_bytes=most_bytes, most_s=math.inf)  # it is not the worker that looks for time
        packed = pack((chain, None, bounded))  # once, so that all processes map the same memory
        self._workers = [_Worker(chain, packed) for _ in range(num_workers)]
        self.at_once = num_workers if async_window(StageGraph(chain)) else TASKS_EACH * num_workers

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """Return the minibatch, None if a stage drops it; several threads may ask at once.

        Raises:
            PeerDied: A worker died while it made this one, more often than `max_restarts`.
        """
        with self._choosing:
            worker = min(self._workers, key=lambda worker: worker.num_asked)
            worker.num_asked += 1
        try:
            outcome = worker.outcome((epoch, index), most_s)
        finally:
            with self._choosing:
                worker.num_asked -= 1
        error, minibatch = outcome.error, outcome.minibatch
        del outcome  # the error's traceback would hold it, and it the error
        if error is None:
            return minibatch
        try:
            raise error
        finally:
            del error

    def close(self) -> None:
        """End the processes, within a bounded time; none is started afterwards. May be called twice."""
        for worker in self._workers:
            worker.close()


class _Worker:
    """A worker process, started when it is first needed and replaced when it dies. Of the threads that wait for its
    outcomes one receives, for all.

    Attributes:
        num_asked: kept by InProcesses.
    """

    def __init__(self, chain: Stage, packed: Any) -> None:
        self.num_asked = 0
        self._options, context = LoaderOptions(num_workers=1, prefetch_factor=TASKS_EACH - 1), context_of(None)
        self._new_pool = partial(ProcessPool, chain, secrets.randbits(62), packed, self._options, context, pin=False)
        self._changed = threading.Condition()
        self._pool: ProcessPool | None = None
        self._generation = 0
        self._is_closed = self._is_receiving = False
        self._asked: list[_Index] = []  # the oldest first
        self._outcomes: dict[_Index, Outcome] = {}
        self._since = 0.0  # when the oldest became that
        self._deaths = Deaths("producer", self._options.max_restarts, "where the chain was described")

    def outcome(self, index: _Index, most_s: float) -> Outcome:
        """Return what became of a minibatch; nobody else asks for it meanwhile."""
        with self._changed:
            self._asked.append(index)
            try:
                self._give([index])
            except BaseException:
                self._asked.remove(index)
                raise
            if self._asked == [index]:
                self._since = time.monotonic()
        while True:
            with self._changed:
                if index in self._outcomes:
                    return self._outcomes.pop(index)
                if self._is_closed:
                    raise _gone()
                if self._is_receiving:
                    self._changed.wait(LOOK_S)
                    continue
                self._is_receiving, pool = True, self._pool
            assert pool is not None
            event: Outcome | Death | Exception | None
            try:
                event = pool.receive(LOOK_S)
            except Exception as error:
                event = error
            with self._changed:
                self._is_receiving = False
                if not self._is_closed:
                    self._note(event, most_s)
                self._changed.notify_all()

    def close(self) -> None:
        """End the process; who waits gets UnknownProducer."""
        with self._changed:
            self._is_closed = True
            if self._pool is not None:
                self._pool.close()
            self._changed.notify_all()

    # --- `_changed` is held

    def _give(self, indices: list[_Index]) -> None:
        """Give the worker these minibatches; all that are asked for, if it must be started."""
        if self._is_closed:
            raise _gone()
        if self._pool is None or self._pool.is_closed:
            pool = self._new_pool()
            pool.start()
            self._pool, self._generation, indices = pool, pool.begin(), self._asked
            self._since = time.monotonic()
        for index in indices:
            self._pool.give(0, Task(self._generation, *index))

    def _note(self, event: Outcome | Death | Exception | None, most_s: float) -> None:
        """Take in what was received; None if nothing was."""
        assert self._pool is not None
        try:
            if isinstance(event, Outcome):
                self._end(event)
            elif isinstance(event, Death):
                charged = [task for task in event.tasks if (task.epoch, task.index) in self._asked]
                if (error := self._deaths.error_after(event, charged)) is not None:
                    self._fail(error, charged)
                self._pool.replace(0)
                self._give(self._asked)
            elif event is not None:
                self._pool.close()  # what was given to it is lost
                self._fail(event)
            if self._asked and time.monotonic() > self._since + most_s:
                self._pool.close()
                self._fail(_too_slow(*self._asked[0], most_s))
            if self._asked:
                self._give([])  # starts another one if that one has been ended
        except Exception as error:  # no other worker can be started
            self._fail(error)

    def _fail(self, error: Exception, tasks: Sequence[Task] = ()) -> None:
        """End these minibatches; by default the oldest, on which the worker was."""
        for task in tasks or [Task(self._generation, *index) for index in self._asked[:1]]:
            self._end(Outcome(0, task, error=error))

    def _end(self, outcome: Outcome) -> None:
        index = outcome.task.epoch, outcome.task.index
        if index not in self._asked:
            return  # made twice, by a worker that died after it had sent the first
        self._deaths.forget(outcome.task)
        if index == self._asked[0]:
            self._since = time.monotonic()
        self._asked.remove(index)
        self._outcomes[index] = outcome


def _gone() -> UnknownProducer:
    return UnknownProducer("the producer has ended: nobody has a claim on it any more. Create it again.")


class _Bounded(Evaluator):
    """Looks whether a minibatch becomes too large, before hops and rows are made and after each stage; and whether it
    takes too long.
    """

    def __init__(self, calls: Calls, most_bytes: int, most_s: float) -> None:
        super().__init__(calls)
        self._most_bytes, self._most_s, self._ends = most_bytes, most_s, time.monotonic() + most_s

    def _call(self, stage: StageBase, inputs: list[MiniBatch], epoch: int, index: int) -> MiniBatch | None:
        self._look_ahead(stage, inputs)
        before = _core.limit_hops(self._most_bytes)
        try:
            return self._looked_at(super()._call(stage, inputs, epoch, index), epoch, index)
        finally:
            _core.limit_hops(before)

    async def _await(self, stage: StageBase, inputs: list[MiniBatch], epoch: int, index: int) -> MiniBatch | None:
        self._look_ahead(stage, inputs)
        return self._looked_at(await super()._await(stage, inputs, epoch, index), epoch, index)

    def _look_ahead(self, stage: StageBase, inputs: list[MiniBatch]) -> None:
        if isinstance(stage, FeatureFetcher):
            _refuse_bytes(inputs[0], stage.bytes_for(inputs[0]), self._most_bytes)

    def _looked_at(self, made: MiniBatch | None, epoch: int, index: int) -> MiniBatch | None:
        if made is not None:
            _refuse_bytes(made, bytes_of(made), self._most_bytes)
        if time.monotonic() > self._ends:
            raise _too_slow(epoch, index, self._most_s)
        return made


class KeptAnswers:
    """The last answers, so that a request that is made again costs nothing; what is being made is made once.

    Args:
        most_bytes: of the answers that are kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._num_bytes = most_bytes, 0
        self._changed = threading.Condition()
        self._answers: collections.OrderedDict[Key, Message] = collections.OrderedDict()
        self._making: set[Key] = set()

    @contextlib.contextmanager
    def turn(self, key: Key, is_cancelled: Callable[[], bool]) -> Iterator[Message | None]:
        """Give the answer that is kept, or None to the one who is to make it; others wait here until that has ended.

        Raises:
            Unavailable: The client has given up waiting.
        """
        with self._changed:
            while key in self._making:
                if is_cancelled():
                    raise Unavailable("the client has given up.")
                self._changed.wait(LOOK_S)
            answer = self._answers.get(key)
            if answer is None:
                self._making.add(key)
            else:
                self._answers.move_to_end(key)
        try:
            yield answer
        finally:
            if answer is None:
                with self._changed:
                    self._making.remove(key)
                    self._changed.notify_all()

    def forget(self, number: int | None = None) -> None:
        """Drop the answers of a producer, by default all."""
        with self._changed:
            for key in [key for key in self._answers if number in (None, key[0])]:
                self._num_bytes -= self._answers.pop(key).num_bytes

    def keep(self, key: Key, answer: Message) -> None:
        """Keep an answer, if there is room, in the place of the oldest ones."""
        with self._changed:
            if key not in self._answers and answer.num_bytes <= self._most_bytes:
                self._answers[key] = answer
                self._num_bytes += answer.num_bytes
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= self._answers.popitem(last=False)[1].num_bytes

    def __len__(self) -> int:
        return len(self._answers)


def bytes_of(minibatch: MiniBatch) -> int:
    """Return the bytes of all tensors."""
    return sum(tensor.numel() * tensor.element_size() for tensor in minibatch.to_message().values())


def refuse_many_seeds(where: str, graph: StageGraph[Stage], most_bytes: int) -> None:
    """Raise ValueError if the seeds of a minibatch alone, with their negatives, have too many bytes."""
    seeds: Any = graph.seed_stage
    count = min(seeds.batch_size, len(seeds.item_set))
    for stage in graph.find(NegativeSampler):
        count = int(count * (1 + stage.negative_ratio)) + 1
    if count * BYTES_PER_SEED > most_bytes:
        raise ValueError(
            f"{where}: a minibatch has {count} seeds, negatives counted too, of {BYTES_PER_SEED} bytes or more; at "
            f"most {most_bytes} bytes are sent at once. Lower batch_size or negative_ratio."
        )


def _refuse_bytes(minibatch: MiniBatch, num_bytes: int, most: int) -> None:
    if num_bytes > most:
        raise ValueError(
            f"minibatch {minibatch.index} of epoch {minibatch.epoch} has {num_bytes} bytes; the server sends at most "
            f"{most} at once. Lower batch_size or the fanouts, fetch features where the minibatch is used, or start "
            "the server with a larger max_answer_bytes."
        )


def _too_slow(epoch: int, index: int, most_s: float) -> TimeoutError:
    return TimeoutError(
        f"minibatch {index} of epoch {epoch} was not made within {most_s:g} s, the limit of the server. Lower "
        "batch_size or the fanouts."
    )
