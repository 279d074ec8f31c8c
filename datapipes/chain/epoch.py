"""What one epoch of a chain is made with: where it begins, the numbers of its stages, and the calls of them.

A stage has a label, for people ("2 fetch_feature"), and, if it may draw, an ordinal, for the random key
(docs/semantics.md, section 1.1). A Numbering knows stages by identity and holds none of them, so a thread that keeps
one keeps no stage alive. A call gives its stage the random key, is timed, and adds its place to an error it raises.
"""

from __future__ import annotations

import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, NamedTuple

from datapipes.base.clock import NOTHING, StageClock, Used
from datapipes.base.errors import LoaderTimeoutError, add_note
from datapipes.base.outcome import as_error
from datapipes.base.rng import RngKey

WAITING = "waiting for "  # begins the names that waits are counted under


class Position(NamedTuple):
    """Where an epoch begins or goes on.

    Attributes:
        epoch: its number.
        step: the first step that is wanted. A step is the number of a minibatch among those of this rank.
        node_state: the state of a stage that keeps its own order (FromNode).
        ahead: later steps that were already delivered, out of order.
        ended: whether the epoch was read to its end.
        after_end: whether `node_state` was saved at the end of the epoch before, so that the node's next one begins.
    """

    epoch: int
    step: int = 0
    node_state: Any = None
    ahead: tuple[int, ...] = ()
    ended: bool = False
    after_end: bool = False


class EpochContext:
    """What the stages of a running epoch share.

    It holds neither a reader nor the last stage, so a thread that keeps the context keeps neither of them alive.

    Attributes:
        calls: the calls of the chain's stages, under their labels.
        epoch: the number of the epoch.
        start: the first step of this rank that is wanted.
        ahead: later steps that were already delivered out of order; skip them.
        node_state: the state at which a FromNode goes on.
        after_end: whether that state was saved at the end of the epoch before.
        stopped: set when the epoch has no reader any more; a thread that waits for a minibatch then gives up.
        drops: how many minibatches stages have dropped, by the stage's label; one for all chains of the epoch.
        waiting_for: returns a sentence on what the epoch waits for at the moment; "" if it waits for nothing.
    """

    def __init__(self, calls: Calls, position: Position) -> None:
        self.calls = calls
        self.epoch = position.epoch
        self.start = position.step
        self.ahead = frozenset(position.ahead)
        self.node_state = position.node_state
        self.after_end = position.after_end
        self.stopped = threading.Event()
        self.drops: Counter[str] = Counter()
        self.waiting_for: Callable[[], str] = str

    def steps(self, num_steps: int) -> Iterable[int]:
        """Return the steps of this rank that are still wanted, in order."""
        ahead = self.ahead  # a generator that held the context would close a reference cycle through waiting_for
        return (step for step in range(self.start, num_steps) if step not in ahead)

    def whereabouts(self) -> str:
        """Return a sentence on what the epoch waits for or works on; "" if nothing is known."""
        return self.waiting_for() or self.calls.whereabouts()

    def of_chain(self, calls: Calls) -> EpochContext:
        """Return a context of this epoch for another chain that makes its minibatches, such as a DataLoader's plan."""
        inner = copy.copy(self)
        inner.calls = calls
        self.waiting_for = inner.whereabouts
        return inner


# --- the numbers of stages


class Numbers(NamedTuple):
    """What one stage is called.

    Attributes:
        name: its functional name.
        label: the name under which its calls are counted: "2 fetch_feature", or "prefetch" for a carrier. The number is
            its place among the stages that make, change or move minibatches.
        where: how errors name it: "stage 2 (fetch_feature)".
        ordinal: its place among the stages that may draw; None for the others.
        works: whether it has a place; a carrier has none.
    """

    name: str
    label: str
    where: str
    ordinal: int | None
    works: bool


class Numbering:
    """The numbers of all stages of one graph.

    Args:
        numbers: the Numbers of each stage, by `id(stage)`.
        rng_seed: the seed of the first ItemSampler; None without one.
    """

    def __init__(self, numbers: dict[int, Numbers], rng_seed: int | None) -> None:
        self._numbers = numbers
        self._rng_seed = rng_seed

    def of(self, stage: object) -> Numbers:
        """Return what a stage is called."""
        return self._numbers[id(stage)]

    def ordinal(self, stage: object) -> int | None:
        """Return the stage's number in the random key; None for a stage that does not draw."""
        return self._numbers[id(stage)].ordinal

    def label(self, stage: object) -> str:
        """Return the name under which the stage's calls are counted."""
        return self._numbers[id(stage)].label

    def waiting(self, stage: object) -> str:
        """Return the name under which the time is counted that a reader waited for what leaves the stage."""
        return f"{WAITING}{self.label(stage)}"

    def where(self, stage: object) -> str:
        """Return how errors name the stage."""
        return self._numbers[id(stage)].where

    def labels(self) -> list[str]:
        """Return the labels of all stages that have a place, in the order of their places."""
        return [numbers.label for numbers in self._numbers.values() if numbers.works]

    def key(self, ordinal: int, epoch: int, index: int) -> RngKey | None:
        """Return the random key of the stage with this ordinal at a minibatch; None if there is no seed."""
        return None if self._rng_seed is None else RngKey(self._rng_seed, epoch, index, ordinal)


# --- the calls of stages


class Calls:
    """The calls of the stages of one chain in this process.

    Attributes:
        numbering: the numbers of these stages.
        clock: counts the calls that have ended.
    """

    def __init__(self, numbering: Numbering, clock: StageClock) -> None:
        self.numbering = numbering
        self.clock = clock
        self.under_way: set[Call] = set()  # each of its operations is one step for other threads

    def whereabouts(self) -> str:
        """Return a sentence on the oldest call under way; "" if there is none."""
        oldest = min(self.under_way.copy(), key=lambda call: call.began, default=None)
        return "" if oldest is None else oldest.whereabouts()


class Call:
    """A context manager for one call of a stage; entering it gives the random key.

    Args:
        awaited: other calls run in the same thread meanwhile, so what the thread uses is not counted.
    """

    __slots__ = ("_calls", "_epoch", "_index", "_numbers", "_used", "began")

    def __init__(self, calls: Calls, numbers: Numbers, epoch: int, index: int, awaited: bool = False) -> None:
        self._calls, self._numbers, self._epoch, self._index = calls, numbers, epoch, index
        self._used = None if awaited else 0.0  # processor time of this thread when the call began
        self.began = time.monotonic()  # seconds

    def whereabouts(self) -> str:
        """Return a sentence on the stage, the minibatch and how long it has taken until now."""
        stage = self._numbers.where
        minibatch = f"minibatch {self._index} of epoch {self._epoch}"
        return f" {stage[0].upper()}{stage[1:]} has been at {minibatch} for {time.monotonic() - self.began:.1f} s."

    def __enter__(self) -> RngKey | None:
        calls, numbers = self._calls, self._numbers
        calls.under_way.add(self)
        if calls.clock.counts and self._used is not None:
            self._used = Used.at_begin(self.began)
        return None if numbers.ordinal is None else calls.numbering.key(numbers.ordinal, self._epoch, self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls, numbers = self._calls, self._numbers
        calls.under_way.discard(self)
        if error is None:
            if calls.clock.counts:
                used = NOTHING if self._used is None else Used.in_call(self.began, self._used)
                calls.clock.add(numbers.label, self.began, self._index, used)
            return
        place = f"epoch {self._epoch}, minibatch {self._index}"
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # would end the epoch as if it were complete
            raise RuntimeError(
                f"{numbers.name}: its function raised {type(error).__name__} at {place}. Return None to drop a "
                "minibatch, or give next() a default."
            ) from error
        if isinstance(error, LoaderTimeoutError):  # of a loader that the stage reads, not of this chain's
            seen = as_error(error)
            add_note(seen, f"in {numbers.where}, {place}")
            raise seen from error
        add_note(error, f"in {numbers.where}, {place}")
