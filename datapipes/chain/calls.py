"""The calls of stages. A call gives its stage the random key, is timed, and adds its place to an error it raises."""

from __future__ import annotations

import time
from types import TracebackType

from datapipes.base.clock import StageClock
from datapipes.base.errors import LoaderTimeoutError, add_note
from datapipes.base.outcome import as_error
from datapipes.base.rng import RngKey
from datapipes.chain.numbering import Numbering


class Calls:
    """The calls of the stages of one chain in this process.

    Attributes:
        numbering: the numbers of these stages.
        clock: counts the calls that have ended.
    """

    def __init__(self, numbering: Numbering, clock: StageClock) -> None:
        self.numbering = numbering
        self.clock = clock
        self._under_way: dict[int, Call] = {}

    def of(self, stage: object, epoch: int, index: int) -> Call:
        """Return a context manager for one call of `stage`; entering it gives the random key."""
        return Call(self, stage, epoch, index)

    def whereabouts(self) -> str:
        """Return a sentence on the oldest call under way; "" if there is none."""
        oldest = min(list(self._under_way.values()), key=lambda call: call.began, default=None)
        return "" if oldest is None else oldest.whereabouts()


class Call:
    """One call of a stage; see Calls.of."""

    def __init__(self, calls: Calls, stage: object, epoch: int, index: int) -> None:
        self._calls, self._stage, self._epoch, self._index = calls, stage, epoch, index
        self.began = 0.0  # seconds of time.monotonic()

    def whereabouts(self) -> str:
        """Return a sentence on the stage, the minibatch and how long it has taken until now."""
        stage = self._calls.numbering.where(self._stage)
        minibatch = f"minibatch {self._index} of epoch {self._epoch}"
        return f" {stage[0].upper()}{stage[1:]} has been at {minibatch} for {time.monotonic() - self.began:.1f} s."

    def __enter__(self) -> RngKey | None:
        self.began = time.monotonic()
        self._calls._under_way[id(self)] = self
        return self._calls.numbering.key(self._stage, self._epoch, self._index)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        calls = self._calls
        calls._under_way.pop(id(self), None)
        if error is None:
            calls.clock.add(calls.numbering.label(self._stage), self.began, self._index)
            return
        place = f"epoch {self._epoch}, minibatch {self._index}"
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # would end the epoch as if it were complete
            name = calls.numbering.of(self._stage).name
            raise RuntimeError(
                f"{name}: its function raised {type(error).__name__} at {place}. Return None to drop a minibatch, or "
                "give next() a default."
            ) from error
        if isinstance(error, LoaderTimeoutError):  # of a loader that the stage reads, not of this chain's
            seen = as_error(error)
            add_note(seen, f"in {calls.numbering.where(self._stage)}, {place}")
            raise seen from error
        add_note(error, f"in {calls.numbering.where(self._stage)}, {place}")
