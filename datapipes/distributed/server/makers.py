"""The classes InThreads and InProcesses make the minibatches of a producer (a chain that a server runs for clients): in
threads of the server, or in worker processes. KeptAnswers keeps the last answers for repeated requests.
"""

from __future__ import annotations

import collections
import contextlib
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NoAnswer  # the builtin one only since Python 3.11
from functools import partial
from queue import SimpleQueue
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
from datapipes.sampling.random_walk_sampler import RandomWalkSampler

Key = tuple[int, int, int]  # producer, epoch, index
BYTES_PER_SEED = 8
LOOK_S = 0.1  # between two checks that the worker lives


class InThreads:
    """Makes the minibatches of a chain in this process: in the thread that calls `make`, or for a chain with
    asynchronous stages in the thread of an event loop.
    """

    def __init__(self, chain: Stage, most_bytes: int) -> None:
        self._graph, self._most_bytes = StageGraph(chain), most_bytes
        self._loop = LoopThread() if async_window(self._graph) else None
        self._is_closed, self._closing = False, threading.Lock()

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """Make and return the minibatch with this index in this epoch; None if a stage drops it. Raise TimeoutError if
        this takes more than `most_s` seconds. Several threads may call this at once.
        """
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
                raise  # a stage has raised it
            future.cancel()
            raise _too_slow(epoch, index, most_s) from error
        except CancelledError as error:
            raise _gone() from error

    def close(self) -> None:
        """End the event loop and its tasks, if there is one. May be called twice."""
        with self._closing:
            was_closed, self._is_closed = self._is_closed, True
        if self._loop is not None and not was_closed:
            self._loop.close()


class InProcesses:
    """Makes the minibatches of a chain in worker processes. A thread that calls `make` waits until a process is free.

    Attributes:
        at_once: how many calls of `make` may be made at once: two for each process, of which one waits; or one for each
            process if the chain has asynchronous stages.
    """

    def __init__(self, chain: Stage, num_workers: int, most_bytes: int) -> None:
        bounded = partial(_Bounded, most_bytes=most_bytes, most_s=math.inf)  # `make` bounds the time instead
        packed = pack((chain, None, bounded))  # once, so that all processes map the same memory
        self.at_once = num_workers * (1 if async_window(StageGraph(chain)) else 2)
        self._closed = threading.Event()
        self._workers = [_Worker(chain, packed, self._closed) for _ in range(num_workers)]
        self._free: SimpleQueue[_Worker] = SimpleQueue()
        for worker in self._workers:
            self._free.put(worker)

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """Make and return the minibatch with this index in this epoch; None if a stage drops it. Raise TimeoutError if
        this takes more than `most_s` seconds. Several threads may call this at once.

        Raises:
            PeerDied: Workers died while they made this minibatch, more often than LoaderOptions.max_restarts allows.
        """
        worker = self._free.get()
        try:
            return worker.make(epoch, index, most_s)
        finally:
            self._free.put(worker)

    def close(self) -> None:
        """End the processes, within a bounded time. None is started after this. May be called twice."""
        self._closed.set()
        for worker in self._workers:
            worker.close()


class _Worker:
    """A worker process of InProcesses. It is started when it is first needed, and replaced when it dies. One thread
    uses it at a time.

    Args:
        closed: an event. After it is set, `make` ends the process and raises UnknownProducer, also in a call that
            waits.
    """

    def __init__(self, chain: Stage, packed: Any, closed: threading.Event) -> None:
        options = LoaderOptions(num_workers=1, prefetch_factor=1)
        self._new_pool = partial(ProcessPool, chain, secrets.randbits(62), packed, options, context_of(None), pin=False)
        self._closed, self._using = closed, threading.Lock()
        self._pool: ProcessPool | None = None
        self._generation = 0
        self._deaths = Deaths("producer", options.max_restarts, "where the chain was described")

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        with self._using:
            try:
                outcome = self._outcome_of(epoch, index, most_s)
            except BaseException:  # no process can be started, the pool has lost the task, or it takes too long
                self._let_go()
                raise
        if outcome.error is None:
            return outcome.minibatch
        try:
            raise outcome.error
        finally:
            del outcome  # the error's traceback holds this frame

    def _outcome_of(self, epoch: int, index: int, most_s: float) -> Outcome:
        """Have the process make a minibatch, and return the Outcome: the minibatch, None, or an error. If there is no
        process, start one.
        """
        if self._closed.is_set():
            raise _gone()
        if self._pool is None:
            self._pool = self._new_pool()
            self._generation = self._pool.begin()
        task, ends = Task(self._generation, epoch, index), time.monotonic() + most_s
        self._pool.give(0, task)
        while not self._closed.is_set():
            event = self._pool.receive(LOOK_S)
            if isinstance(event, Outcome) and event.task == task:
                self._deaths.forget(task)
                return event
            if isinstance(event, Death):
                error = self._deaths.error_after(event, [task] if task in event.tasks else [])
                self._pool.replace(0)
                if error is not None:
                    self._deaths.forget(task)
                    return Outcome(0, task, error=error)
                self._pool.give(0, task)
            if time.monotonic() > ends:
                raise _too_slow(epoch, index, most_s)
        raise _gone()

    def close(self) -> None:
        with self._using:
            self._let_go()

    def _let_go(self) -> None:
        """End the process, if there is one."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()


def _gone() -> UnknownProducer:
    return UnknownProducer("the producer has ended: no client uses it any more. Create it again.")


class _Bounded(Evaluator):
    """An Evaluator (which calls the stages for a minibatch) that raises an error if the minibatch gets too large or
    takes too long.

    The size is checked before hops and walks are sampled, before rows are fetched, and after each stage. The time is
    checked after each stage.
    """

    def __init__(self, calls: Calls, most_bytes: int, most_s: float) -> None:
        super().__init__(calls)
        self._most_bytes, self._most_s, self._ends = most_bytes, most_s, time.monotonic() + most_s

    def _call(
        self, stage: Any, inputs: list[MiniBatch], epoch: int, index: int, make: Callable[..., Any] | None = None
    ) -> MiniBatch | None:
        self._look_ahead(stage, inputs)
        before = _core.limit_hops(self._most_bytes)
        try:
            return self._looked_at(super()._call(stage, inputs, epoch, index, make), epoch, index)
        finally:
            _core.limit_hops(before)

    async def _await(self, stage: StageBase, inputs: list[MiniBatch], epoch: int, index: int) -> MiniBatch | None:
        self._look_ahead(stage, inputs)
        return self._looked_at(await super()._await(stage, inputs, epoch, index), epoch, index)

    def _look_ahead(self, stage: StageBase, inputs: list[MiniBatch]) -> None:
        if isinstance(stage, (FeatureFetcher, RandomWalkSampler)):
            _refuse_bytes(inputs[0], stage.bytes_for(inputs[0]), self._most_bytes)

    def _looked_at(self, made: MiniBatch | None, epoch: int, index: int) -> MiniBatch | None:
        if made is not None:
            _refuse_bytes(made, bytes_of(made), self._most_bytes)
        if time.monotonic() > self._ends:
            raise _too_slow(epoch, index, self._most_s)
        return made


class KeptAnswers:
    """Keeps the last answers with minibatches, so that a repeated request needs no work. If equal requests come at the
    same time, one makes the answer and the others wait for it.

    Args:
        most_bytes: the most bytes of all kept answers.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._num_bytes = most_bytes, 0
        self._changed = threading.Condition()
        self._answers: collections.OrderedDict[Key, Message] = collections.OrderedDict()
        self._making: set[Key] = set()

    @contextlib.contextmanager
    def turn(self, key: Key, is_cancelled: Callable[[], bool]) -> Iterator[Message | None]:
        """Context manager for a request with the key (producer, epoch, index). It gives the kept answer, or None if
        there is none. After None the caller must make the answer within the `with` statement; meanwhile other callers
        with this key wait.

        Args:
            is_cancelled: returns whether the client no longer waits.
        Raises:
            Unavailable: The client no longer waits.
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
        """Drop the kept answers of the producer with the id `number`, or all answers if `number` is None."""
        with self._changed:
            for key in [key for key in self._answers if number in (None, key[0])]:
                self._num_bytes -= self._answers.pop(key).num_bytes

    def keep(self, key: Key, answer: Message) -> None:
        """Keep `answer` for repeated requests, and drop the oldest answers until all kept ones together have at most
        `most_bytes`. An answer that alone has more is not kept.
        """
        with self._changed:
            if key not in self._answers and answer.num_bytes <= self._most_bytes:
                self._answers[key] = answer
                self._num_bytes += answer.num_bytes
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= self._answers.popitem(last=False)[1].num_bytes

    def __len__(self) -> int:
        return len(self._answers)


def bytes_of(minibatch: MiniBatch) -> int:
    """Return the bytes of all tensors of a minibatch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in minibatch.to_message().values())


def refuse_many_seeds(where: str, graph: StageGraph[Stage], most_bytes: int) -> None:
    """Raise ValueError if the seeds of a minibatch alone, negatives included, have more than `most_bytes`."""
    seeds: Any = graph.seed_stage
    count = min(seeds.batch_size, seeds.num_items)
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
