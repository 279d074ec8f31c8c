"""What the ranks of torch.distributed tell each other while they load, so that all of them load or none does.

They write into the store that torch.distributed began with. Each rank counts up its heartbeat, and writes its outcome
when it has one. Rank 0 looks at all of them and writes one verdict: loaded, once all ranks have; or failed, as soon as
one has, or has given no sign of life for `timeout_s`. The others look only at the verdict and at rank 0's heartbeat, so
the store is asked in proportion to the number of ranks. Rank 0 leaves last, since the store is often its own.

A thread does all this: a store whose process is gone may keep a call for ever, and the heart must beat while the rank
waits for something else.
"""

from __future__ import annotations

import json
import threading
import time
from types import TracebackType
from typing import Any

import torch.distributed

from datapipes.base.checks import check_positive_timeout, shown
from datapipes.datasets.tfrecord.errors import WHERE, TFRecordLoadError, ends_of

LOOK_S = 1.0  # seconds between two looks at the store
SOON_S = 0.02  # the first look of a rank that waits for the others; the next ones come later and later
LEAVE_S = 10.0  # seconds that a rank waits at most until others know that it has failed

Failed = dict[int, str]  # {rank: reason}

_HOLDER = "the process that holds it, mostly rank 0,"


class Ranks:
    """The ranks that load together; this one is `rank`. A process alone waits for nobody.

    Call `go_on` while loading, `agree` afterwards. Leaving the context by an error tells it to the others.
    """

    def __init__(self, timeout_s: float) -> None:
        self.rank, self.count = 0, 1
        self._talk: _Talk | None = None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self.rank, self.count = torch.distributed.get_rank(), torch.distributed.get_world_size()
        if self.count > 1:
            self._talk = _Talk(_default_store(), self.rank, self.count, timeout_s)

    def go_on(self) -> None:
        """Return if nobody is known to have failed; costs nothing.

        Raises:
            TFRecordLoadError: A rank has failed, or gives no sign of life; it is named with its reason.
        """
        failed = self._talk.failed() if self._talk is not None else None
        if failed:
            raise TFRecordLoadError.of_ranks(self.rank, failed)

    def agree(self) -> None:
        """Wait until all ranks have loaded; raise as `go_on` does if one does not."""
        if self._talk is not None:
            self._talk.say({})
            while not self._talk.has_verdict(wait_s=LOOK_S):
                self.go_on()
            self.go_on()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._talk is None:
            return
        if error is not None and not self._talk.has_verdict():
            self._talk.say({self.rank: f"{type(error).__name__}: {error}"})
        self._talk.leave()


class _Talk:
    """The thread that talks to the store, and what it has heard.

    Attributes of the store, under a key for each load: "{rank}/beat" counts; "{rank}/outcome" and "verdict" are a JSON
    object {rank: reason}, {} for success; "left" counts the ranks that have read the verdict.
    """

    def __init__(self, store: Any, rank: int, count: int, timeout_s: float) -> None:
        self._store = store
        self._rank, self._count, self._timeout_s = rank, count, timeout_s
        self._look_s = min(LOOK_S, timeout_s / 4)
        self._key = ""
        self._said: Failed | None = None  # this rank's outcome
        self._published = False
        self._verdict: Failed | None = None
        self._outcomes: dict[int, Failed] = {}
        self._beats: dict[int, tuple[int, float]] = {}  # {rank: (count, when it changed)}
        self._looked = self._began = time.monotonic()
        self._is_over = False  # whether all is said
        self._changed = threading.Condition()  # told when there is a verdict, and when all is over
        self._wake = threading.Event()  # ends the pause of the thread
        self._thread = threading.Thread(target=self._run, name="datapipes-ranks", daemon=True)
        self._thread.start()

    def say(self, outcome: Failed) -> None:
        """Tell the outcome of this rank: {} or {rank: reason}."""
        self._said = outcome
        self._wake.set()

    def failed(self) -> Failed | None:
        """Return the ranks that have failed; {} if all have loaded; None while that is open. A store that hangs counts
        as the failure of the rank that holds it.
        """
        with self._changed:
            silent_s = time.monotonic() - self._looked
            if self._verdict is None and silent_s > self._timeout_s:
                reason = f"the store of torch.distributed has not answered for {silent_s:.0f} s; {_HOLDER} is stopped."
                self._verdict = {0: reason}
                self._is_over = True  # nothing can be told any more
            return self._verdict

    def has_verdict(self, wait_s: float = 0.0) -> bool:
        """Wait up to `wait_s` seconds for the verdict; return whether it is there."""
        with self._changed:
            self._changed.wait_for(lambda: self._verdict is not None, wait_s)
            return self._verdict is not None

    def leave(self) -> None:
        """Wait, for a bounded time, until the others know what this rank has said, and its store is not needed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_over, LEAVE_S)
        self._is_over = True
        self._wake.set()
        self._thread.join(self._look_s)  # a thread that hangs in the store cannot be ended; it is a daemon

    def _run(self) -> None:
        pause = self._look_s
        try:
            number = self._store.add(f"datapipes/tfrecord/{self._rank}/loads", 1)
            self._key = f"datapipes/tfrecord/load{number}"
            while not self._is_over:
                self._look()
                self._looked = time.monotonic()
                if self._wake.wait(pause):
                    self._wake.clear()
                    pause = SOON_S
                else:
                    pause = min(1.5 * pause, self._look_s)
        except Exception as error:  # torch raises RuntimeError and its kin where the store is gone
            what = f"{type(error).__name__}: {_first_line(error)}"
            reason = f"the store of torch.distributed is gone ({what}); {_HOLDER} has probably ended."
            self._decide({0: reason})
            self._end()

    def _look(self) -> None:
        self._store.add(f"{self._key}/{self._rank}/beat", 1)
        if self._said is not None and not self._published:
            self._store.set(f"{self._key}/{self._rank}/outcome", _dumped(self._said))
            self._published = True
        if self._rank == 0:
            self._look_as_first()
        else:
            self._look_as_other()

    def _look_as_first(self) -> None:
        if self._verdict is None:
            failed: Failed = {}
            if self._said is not None:
                self._outcomes[0] = self._said
            for rank in range(1, self._count):
                if rank not in self._outcomes:
                    found = self._read(f"{rank}/outcome")
                    if found is not None:
                        self._outcomes[rank] = found
                    elif (reason := self._silence_of(rank)) is not None:
                        failed[rank] = reason
            for outcome in self._outcomes.values():
                failed.update(outcome)
            if failed or len(self._outcomes) == self._count:
                self._store.set(f"{self._key}/verdict", _dumped(failed))
                self._decide(failed)
        else:
            left = self._store.add(f"{self._key}/left", 0)
            gone = [rank for rank in range(1, self._count) if self._silence_of(rank) is not None]
            if left + len(gone) >= self._count - 1:
                self._end()

    def _look_as_other(self) -> None:
        verdict = self._read("verdict")
        if verdict is None and (reason := self._silence_of(0)) is not None:
            verdict = {0: reason}
        if verdict is not None:
            self._store.add(f"{self._key}/left", 1)
            self._decide(verdict)
            self._end()

    def _end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _decide(self, verdict: Failed) -> None:
        with self._changed:
            if self._verdict is None:
                self._verdict = verdict
            self._changed.notify_all()

    def _read(self, name: str) -> Failed | None:
        key = f"{self._key}/{name}"
        if not self._store.check([key]):  # get would wait
            return None
        return {int(rank): str(reason) for rank, reason in json.loads(self._store.get(key)).items()}

    def _silence_of(self, rank: int) -> str | None:
        """Listen to the heart of another rank; return in words that it has stopped, None if it has not."""
        beat, now = self._store.add(f"{self._key}/{rank}/beat", 0), time.monotonic()
        heard, since = self._beats.setdefault(rank, (0, self._began))
        if beat != heard:
            self._beats[rank] = beat, now
            return None
        if now - since <= self._timeout_s:
            return None
        what = "has not begun this load" if beat == 0 else "has given no sign of life"
        return f"it {what} for {now - since:.0f} s: it has ended, is stopped, or cannot reach the store."


def check_rank_timeout(value: Any) -> float:
    """Return the seconds without a sign of life after which a rank counts as failed."""
    timeout_s = check_positive_timeout(WHERE, value)
    if timeout_s is None:
        raise ValueError(f"{WHERE}: rank_timeout_s must be seconds above 0, got {shown(value)}. Use 60.")
    return timeout_s


def _default_store() -> Any:
    return torch.distributed.distributed_c10d._get_default_store()


def _dumped(failed: Failed) -> str:
    return json.dumps({rank: ends_of(reason) for rank, reason in failed.items()})


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]
