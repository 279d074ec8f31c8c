"""What makes the minibatches of a producer, a chain of a server: threads of the server, or processes; and the answers
that are kept for who asks again.
"""

from __future__ import annotations

import collections
import contextlib
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as NoAnswer  # the builtin one only since Python 3.11
from typing import Any, Protocol

from datapipes.base.clock import StageClock
from datapipes.base.errors import PeerDied
from datapipes.base.log import logger
from datapipes.chain.asynchronous import async_window
from datapipes.chain.epoch import Calls
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.in_flight import LoopThread
from datapipes.chain.stage import Stage
from datapipes.chain.stage_base import SeedBase, StageBase
from datapipes.chain.stage_graph import StageGraph
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.refusals import Unavailable, UnknownProducer
from datapipes.loader.options import LoaderOptions
from datapipes.loader.workers.pool import Death, Outcome, Task
from datapipes.loader.workers.process_pool import ProcessPool
from datapipes.minibatch import MiniBatch
from datapipes.processes.sharing import pack
from datapipes.processes.start import context_of
from datapipes.sampling.negative_sampler import NegativeSampler

Key = tuple[int, int, int]  # producer, epoch, index
BYTES_PER_SEED = 8
LOOK_S = 0.1  # between two looks whether the worker lives


class Maker(Protocol):
    """Makes minibatches; several threads may ask at once."""

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """Return the minibatch; None if a stage drops it."""

    def close(self) -> None:
        """End what runs; may be called twice."""


class InThreads:
    """Makes minibatches in the thread that asks."""

    def __init__(self, chain: Stage, most_bytes: int) -> None:
        self._graph, self._most_bytes = StageGraph(chain), most_bytes
        self._loop = LoopThread() if async_window(self._graph) else None

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """See Maker."""
        evaluator = _Bounded(Calls(self._graph.numbering, StageClock()), self._most_bytes)
        if self._loop is None:
            return evaluator.minibatch(self._graph, epoch, index)
        future = self._loop.submit(evaluator.minibatch_async(self._graph, epoch, index))
        try:
            return future.result(most_s)
        except NoAnswer as error:
            if future.done():
                raise  # of a stage
            future.cancel()
            raise _too_slow(epoch, index, most_s) from error

    def close(self) -> None:
        """End the event loop."""
        loop, self._loop = self._loop, None
        if loop is not None:
            loop.close()


class InProcesses:
    """Makes minibatches in worker processes, one at a time in each; a process that dies is replaced."""

    def __init__(self, chain: Stage, num_workers: int, most_bytes: int) -> None:
        self._chain, self._most_bytes = chain, most_bytes
        self._options, self._context = LoaderOptions(num_workers=1, prefetch_factor=1), context_of(None)
        self._packed = pack((chain, None))  # once, so that all processes map the same memory
        self._idle: queue.SimpleQueue[ProcessPool | None] = queue.SimpleQueue()  # None stands for one to be started
        self._pools: dict[int, ProcessPool] = {}  # by id
        self._changing, self._is_closed = threading.Lock(), False  # held while processes start or end
        for _ in range(num_workers):
            self._idle.put(None)

    def make(self, epoch: int, index: int, most_s: float) -> MiniBatch | None:
        """See Maker.

        Raises:
            PeerDied: A worker died while it made this one, more often than `max_restarts`.
        """
        pool = self._idle.get()
        try:
            if pool is None or pool.is_closed:
                pool = self._started()
            outcome = _outcome(pool, epoch, index, most_s, self._options.max_restarts)
        except Exception as error:
            if self._is_closed:
                raise _gone() from error
            raise
        finally:
            self._idle.put(pool)
        if outcome.error is not None:
            raise outcome.error
        if outcome.minibatch is not None:
            _refuse_large(outcome.minibatch, self._most_bytes)
        return outcome.minibatch

    def _started(self) -> ProcessPool:
        with self._changing:
            if self._is_closed:
                raise _gone()
            pool = ProcessPool(self._chain, secrets.randbits(62), self._packed, self._options, self._context, pin=False)
            self._pools = {key: each for key, each in self._pools.items() if not each.is_closed} | {id(pool): pool}
            pool.start()
            return pool

    def close(self) -> None:
        """End the processes, within a bounded time; none is started afterwards."""
        with self._changing:
            self._is_closed = True
            for pool in self._pools.values():
                pool.close()


def _gone() -> UnknownProducer:
    return UnknownProducer("the producer has ended: nobody has a claim on it any more. Create it again.")


def _outcome(pool: ProcessPool, epoch: int, index: int, most_s: float, max_restarts: int) -> Outcome:
    """Return what the one worker of a pool makes; one that takes too long is ended."""
    deaths: list[Death] = []
    ends, task = time.monotonic() + most_s, Task(pool.begin(), epoch, index)
    pool.give(0, task)
    while True:
        event = pool.receive(LOOK_S)
        if isinstance(event, Outcome) and event.task == task:
            return event
        if isinstance(event, Death):
            deaths.append(event)
            logger.warning("a worker of a producer (pid %d) died: %s; another takes its place", event.pid, event.how)
            pool.replace(0)
            if len(deaths) > max_restarts:
                raise PeerDied(
                    f"{len(deaths)} workers died while they made minibatch {index} of epoch {epoch}; the last one: "
                    f"{event.how}. Try the stages on this minibatch where the chain was described.",
                    [each.pid for each in deaths],
                )
            pool.give(0, task)
        elif time.monotonic() > ends:
            pool.close()
            raise _too_slow(epoch, index, most_s)


class _Bounded(Evaluator):
    """Looks after each stage whether a minibatch has become too large."""

    def __init__(self, calls: Calls, most_bytes: int) -> None:
        super().__init__(calls)
        self._most_bytes = most_bytes

    def _call(self, stage: StageBase, inputs: list[MiniBatch], epoch: int, index: int) -> MiniBatch | None:
        made = super()._call(stage, inputs, epoch, index)
        if made is not None and not isinstance(stage, SeedBase):
            _refuse_large(made, self._most_bytes)
        return made


class KeptAnswers:
    """The last answers, so that a request that is made again costs nothing; what is being made is made once.

    Args:
        most_bytes: of the answers that are kept.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes, self._num_bytes = most_bytes, 0
        self._changing = threading.Lock()
        self._answers: collections.OrderedDict[Key, Message] = collections.OrderedDict()
        self._making: dict[Key, threading.Event] = {}

    @contextlib.contextmanager
    def turn(self, key: Key, is_cancelled: Callable[[], bool]) -> Iterator[Message | None]:
        """Give the answer that is kept, or None to the one who is to make it; others wait here until that has ended.

        Raises:
            Unavailable: The client has given up waiting.
        """
        while True:
            with self._changing:
                if key in self._answers:
                    self._answers.move_to_end(key)
                    found: Message | None = self._answers[key]
                    break
                under_way = self._making.get(key)
                if under_way is None:
                    found, self._making[key] = None, threading.Event()
                    break
            if is_cancelled():
                raise Unavailable("the client has given up.")
            under_way.wait(LOOK_S)
        try:
            yield found
        finally:
            if found is None:
                with self._changing:
                    self._making.pop(key).set()

    def forget(self, number: int | None = None) -> None:
        """Drop the answers of a producer, by default all."""
        with self._changing:
            for key in [key for key in self._answers if number in (None, key[0])]:
                self._num_bytes -= self._answers.pop(key).num_bytes

    def keep(self, key: Key, answer: Message) -> None:
        """Keep an answer, if there is room, in the place of the oldest ones."""
        with self._changing:
            if key not in self._answers:
                self._answers[key] = answer
                self._num_bytes += answer.num_bytes
            while self._num_bytes > self._most_bytes:
                self._num_bytes -= self._answers.popitem(last=False)[1].num_bytes

    def __len__(self) -> int:
        return len(self._answers)


def bytes_of(minibatch: MiniBatch) -> int:
    """Return the bytes of all tensors."""
    return sum(each.numel() * each.element_size() for each in minibatch.to_message().values())


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


def _refuse_large(minibatch: MiniBatch, most: int) -> None:
    num_bytes = bytes_of(minibatch)
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
