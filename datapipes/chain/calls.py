"""Call: one call of a stage. It gives the stage its random key, and times the call. If the call raises, it adds the
names of stage and minibatch to the error.

All chains of an epoch share one set of the calls and waits that are under way. The text of a time-out names the oldest
of them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol

from datapipes.base.clock import StageClock
from datapipes.base.errors import LoaderTimeoutError, add_note
from datapipes.base.outcome import as_error
from datapipes.base.rng import RngKey
from datapipes.chain.numbering import Numbering, Numbers


class UnderWay(Protocol):
    """A call or a wait that has begun and has not ended."""

    began: float  # of time.monotonic

    def whereabouts(self) -> str:
        """Return a sentence on the call or the wait, with a space before it."""


class Calls:
    """What the calls of a chain's stages share in this process: names, counts, and the set of calls that are under way.

    Attributes:
        numbering: the names and numbers of the stages of the chain.
        clock: counts the calls that have ended.
        under_way: the calls and waits under way in the epoch. If another chain makes the minibatches, as a DataLoader's
            plan does, both chains have the same set. Operations on a set are atomic, so threads need no lock.
    """

    def __init__(self, numbering: Numbering, clock: StageClock, under_way: set[UnderWay] | None = None) -> None:
        self.numbering = numbering
        self.clock = clock
        self.under_way: set[UnderWay] = set() if under_way is None else under_way

    def whereabouts(self) -> str:
        """Return a sentence on the call or wait that began first; "" if none is under way."""
        oldest = min(self.under_way.copy(), key=lambda call: call.began, default=None)
        return "" if oldest is None else oldest.whereabouts()


class Waiting:
    """A context manager around a wait: the wait is in the set `calls.under_way` until the `with` block ends.

    Args:
        whereabouts: function that returns a sentence on the wait, with a space before it.
    """

    began = math.inf  # so the text of a time-out prefers a call, which says more

    def __init__(self, calls: Calls, whereabouts: Callable[[], str]) -> None:
        self._under_way, self.whereabouts = calls.under_way, whereabouts

    def __enter__(self) -> None:
        self._under_way.add(self)

    def __exit__(self, *_: object) -> None:
        self._under_way.discard(self)


class Call:
    """A context manager around one call of a stage. Its `with` statement gives the random key of the stage for this
    minibatch. None: the stage has no key.

    Args:
        awaited: True if other calls run in the same thread meanwhile. The processor time of the call is then not
            counted.
    """

    __slots__ = ("_calls", "_epoch", "_index", "_numbers", "_used", "began")

    def __init__(self, calls: Calls, numbers: Numbers, epoch: int, index: int, awaited: bool = False) -> None:
        self._calls, self._numbers, self._epoch, self._index = calls, numbers, epoch, index
        self._used = None if awaited else 0.0  # processor time of this thread when the call began
        self.began = time.monotonic()  # seconds

    def whereabouts(self) -> str:
        """Return a sentence on the stage, the minibatch and the seconds taken until now."""
        stage = self._numbers.where
        minibatch = f"minibatch {self._index} of epoch {self._epoch}"
        return f" {stage[0].upper()}{stage[1:]} has been at {minibatch} for {time.monotonic() - self.began:.1f} s."

    def __enter__(self) -> RngKey | None:
        calls, numbers = self._calls, self._numbers
        calls.under_way.add(self)
        if self._used is not None:
            self._used = calls.clock.at_begin(self.began)
        return None if numbers.ordinal is None else calls.numbering.key(numbers.ordinal, self._epoch, self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls, numbers = self._calls, self._numbers
        calls.under_way.discard(self)
        if error is None:
            calls.clock.add(numbers.label, self.began, self._index, self._used)
            return
        place = f"epoch {self._epoch}, minibatch {self._index}"
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # would end the epoch as if it were complete
            raise RuntimeError(
                f"{numbers.name}: its function raised {type(error).__name__} at {place}. Return None to drop a "
                "minibatch, or give next() a default."
            ) from error
        if isinstance(error, LoaderTimeoutError):  # raised by a loader that the stage reads, not by this chain's loader
            seen = as_error(error)
            add_note(seen, f"in {numbers.where}, {place}")
            raise seen from error
        add_note(error, f"in {numbers.where}, {place}")
