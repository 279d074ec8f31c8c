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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as NoAnswer  # the builtin one only since Python 3.11
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

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


class _Wanted(NamedTuple):
    """A minibatch that somebody waits for, `most_s` seconds from when its worker has done all before it."""

    key: _Index
    most_s: float
    answer: Future[MiniBatch | None]


class InProcesses:
    """Makes minibatches in worker processes, each with a thread that gives it what is wanted next.

    Attributes:
        at_once: minibatches that may be asked for at once. Each process has the next one while it makes one; where
            stages are asynchronous it has one, or nobody could tell which of them has killed it.
    """

    def __init__(self, chain: Stage, num_workers: int, most_bytes: int) -> None:
        bounded = partial(_Bounded, most_bytes=most_bytes, most_s=math.inf)  # it is not the worker that looks for time
        packed = pack((chain, None, bounded))  # once, so that all processes map the same memory
        each_has = 1 if async_window(StageGraph(chain)) else TASKS_EACH
        self.at_once = each_has * num_workers
        self._wanted: SimpleQueue[_Wanted | None] = SimpleQueue()
        self._closing, self._closed = threading.Lock(), threading.Event()
        self._num_workers, self._workers = num_workers, list[_Worker]()
        self._new_worker = partial(_Worker, chain, packed, each_has, self._wanted, self._closed)

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """Return the minibatch, None if a stage drops it; several threads may ask at once, each for another one.

        Raises:
            PeerDied: A worker died while it made this one, more often than `max_restarts`.
        """
        wanted = _Wanted((epoch, index), most_s, Future())
        with self._closing:
            if self._closed.is_set():
                raise _gone()
            while len(self._workers) < self._num_workers:
                self._workers.append(self._new_worker())
            self._wanted.put(wanted)
        try:
            return wanted.answer.result()
        finally:
            del wanted  # the error's traceback would hold it, and it the error

    def close(self) -> None:
        """End the processes, within a bounded time; none is started afterwards. May be called twice."""
        with self._closing:
            self._closed.set()
        for _ in self._workers:
            self._wanted.put(None)
        for worker in self._workers:
            worker.thread.join()
        while not self._wanted.empty():
            if (wanted := self._wanted.get()) is not None:
                wanted.answer.set_exception(_gone())


class _Worker:
    """A thread with a worker process, which is started when it is first needed and replaced when it dies.

    Args:
        most: minibatches that the process has at once.
        wanted: what all workers are asked for; None ends one.
        closed: set when all are to end; then who waits gets UnknownProducer.
    """

    def __init__(
        self, chain: Stage, packed: Any, most: int, wanted: SimpleQueue[_Wanted | None], closed: threading.Event
    ) -> None:
        options = LoaderOptions(num_workers=1, prefetch_factor=TASKS_EACH - 1)
        self._new_pool = partial(ProcessPool, chain, secrets.randbits(62), packed, options, context_of(None), pin=False)
        self._most, self._wanted, self._closed = most, wanted, closed
        self._pool: ProcessPool | None = None
        self._generation = 0
        self._given: dict[_Index, _Wanted] = {}  # the oldest first
        self._since = 0.0  # when the oldest became that
        self._deaths = Deaths("producer", options.max_restarts, "where the chain was described")
        self.thread = threading.Thread(target=self._run, name="datapipes-producer", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while not self._closed.is_set() and self._take():
            try:
                self._look()
            except Exception as error:  # no process can be started, or the pool has lost what it was given
                self._let_go()
                self._fail(error)
        self._let_go()
        for wanted in self._given.values():
            wanted.answer.set_exception(_gone())

    def _take(self) -> bool:
        """Take what is wanted next, as much as the process may have; wait if it has nothing. False ends the thread."""
        while len(self._given) < self._most:
            try:
                wanted = self._wanted.get(block=not self._given)
            except Empty:
                break
            if wanted is None:
                return False
            if not self._given:
                self._since = time.monotonic()
            self._given[wanted.key] = wanted
            if self._pool is not None:
                self._give([wanted.key])
        return True

    def _give(self, indices: Iterable[_Index]) -> None:
        assert self._pool is not None
        for index in indices:
            self._pool.give(0, Task(self._generation, *index))

    def _look(self) -> None:
        """Receive what comes from the process, if something does; start one if there is none."""
        if self._pool is None:
            self._pool = self._new_pool()
            self._generation, self._since = self._pool.begin(), time.monotonic()
            self._give(self._given)
        event = self._pool.receive(LOOK_S)
        if isinstance(event, Outcome):
            self._end(event.task, event.minibatch, event.error)
        elif isinstance(event, Death):
            charged = [task for task in event.tasks if (task.epoch, task.index) in self._given]
            if (error := self._deaths.error_after(event, charged)) is not None:
                self._fail(error, charged)
            self._pool.replace(0)
            self._give(self._given)
        oldest = next(iter(self._given.values()), None)
        if oldest is not None and time.monotonic() > self._since + oldest.most_s:
            self._let_go()
            self._fail(_too_slow(*oldest.key, oldest.most_s))

    def _let_go(self) -> None:
        """End the process."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _fail(self, error: Exception, tasks: Sequence[Task] = ()) -> None:
        """End these minibatches; by default the oldest, on which the process was."""
        for task in tasks or [Task(self._generation, *index) for index in [*self._given][:1]]:
            self._end(task, None, error)

    def _end(self, task: Task, minibatch: MiniBatch | None, error: Exception | None) -> None:
        wanted = self._given.pop((task.epoch, task.index), None)
        if wanted is None:
            return  # made twice, by a process that died after it had sent the first
        self._deaths.forget(task)
        self._since = time.monotonic()
        if error is None:
            wanted.answer.set_result(minibatch)
        else:
            wanted.answer.set_exception(error)


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
