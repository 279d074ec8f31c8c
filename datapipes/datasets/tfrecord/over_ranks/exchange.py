"""Exchange: what the ranks of one call tell and send each other; a rank that fails ends the call on all of them.

A collective of gloo waits for a rank that does not come, and does not say which one that is. So each collective stands
behind a vote in the store of torch.distributed: a rank enters it once all ranks are there. A vote takes as long as the
slowest rank works. Meanwhile each rank has a thread that counts up a number in the store, its heartbeat, and who waits
looks at the next rank's: where that stands still for `timeout_s`, the rank is taken for dead. A rank that fails writes
why into the store and makes the vote invalid, so the others stop at once and can say what has happened.

Only that thread calls the store: where its process is stopped, a call may never return.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as NoAnswer  # the builtin one only since Python 3.11
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from datapipes.base.errors import text_of
from datapipes.datasets.tfrecord.errors import TFRecordLoadError
from datapipes.datasets.tfrecord.over_ranks.store_thread import StoreThread, beat_key

MOST_TEXT = 20_000  # characters of a rank's error for the others
_FAILED = 2**40  # what a failed rank adds to the votes
_PAUSES_S = 0.0002, 0.02  # between two looks at the votes, at first and at most
_BEATS = 4  # heartbeats in `timeout_s`, at least
_BEAT_S = 1.0  # between two heartbeats, at most
_calls = itertools.count()  # as often on all ranks: each call has keys of its own


@contextmanager
def exchange(where: str, timeout_s: float) -> Iterator[Exchange]:
    """Meet all ranks of the default process group, and leave together.

    Args:
        where: the caller, for messages.
        timeout_s: seconds without a heartbeat after which a rank is taken for dead; also those that a rank may be late,
            and those that a collective may take.
    Raises:
        TFRecordLoadError: Another rank has failed, has ended, or did not come; the message names it and its reason.
    """
    if not (dist.is_available() and dist.is_initialized()):
        yield Exchange(where)
        return
    ranks = _OverGloo(where, timeout_s)
    group = None
    try:
        ranks.vote()
        group = ranks.connect()
        yield ranks
        ranks.vote()
        ranks.leave()
    except BaseException as error:
        ranks.tell_failure(error)
        raise
    finally:
        ranks.close()
        if group is not None:
            dist.destroy_process_group(group)


class Exchange:
    """The ranks of one call; `exchange` makes it. All ranks call the same methods in the same order.

    This class is that of a process alone, where torch.distributed is not initialised.

    Attributes:
        where: the caller, for messages.
        rank: this rank.
        size: number of ranks.
    """

    def __init__(self, where: str, rank: int = 0, size: int = 1) -> None:
        self.where, self.rank, self.size = where, rank, size

    def vote(self) -> None:
        """Wait until all ranks have come here, however long they work.

        Raises:
            TFRecordLoadError: One of them has failed or has ended.
        """

    def go_on(self) -> None:
        """Return if nobody is known to have failed; errors as those of `vote`. Other ranks need not call it."""

    def tell_failure(self, error: BaseException) -> None:
        """Let the others know why this rank leaves. Only the first failure of all counts."""

    def to_each(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """Send a message to each rank, uint8 [n]; return those that came, by rank, which share one memory.

        It takes as much memory again as is sent. Errors as those of `vote`.
        """
        return [*messages]

    def gather(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank; plain values that JSON holds. Errors as those of `vote`."""
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(each.numpy().tobytes()) for each in self.to_each([data] * self.size)]


class _OverGloo(Exchange):
    """The ranks of the default process group of torch.distributed."""

    def __init__(self, where: str, timeout_s: float) -> None:
        super().__init__(where, dist.get_rank(), dist.get_world_size())
        self.timeout_s = timeout_s
        self._store = StoreThread(_store_of(where), self.rank, beat_s(timeout_s))
        self._group: Any = None
        self._votes = 0
        self._watched = (self.rank + 1) % self.size
        self._seen, self._seen_at = 0, time.monotonic()

    def connect(self) -> Any:
        """Return a gloo group of all ranks, whose collectives then carry what is sent."""
        timeout = datetime.timedelta(seconds=self.timeout_s)
        with self._carrying():
            self._group = dist.new_group(backend="gloo", timeout=timeout)
        return self._group

    def vote(self) -> None:
        """See Exchange."""
        self._votes += 1
        wanted, (pause, most) = self._votes * self.size, _PAUSES_S
        self._seen_at = time.monotonic()  # since then it is looked at
        count = self._add("ready", 1)
        while count < wanted:
            time.sleep(pause)
            pause = min(1.5 * pause, most)
            self._watch()
            count = self._add("ready", 0)
        if count >= _FAILED:
            raise self._told_failure()

    def go_on(self) -> None:
        """See Exchange."""
        if self._add("ready", 0) >= _FAILED:
            raise self._told_failure()

    def leave(self) -> None:
        """Wait until all ranks have seen the last vote: the store may be gone after it."""
        with self._carrying():
            dist.barrier(self._group)

    def to_each(self, messages: Sequence[Tensor]) -> list[Tensor]:
        """See Exchange."""
        self.vote()
        sizes = torch.tensor([message.shape[0] for message in messages])
        coming = torch.empty_like(sizes)
        with self._carrying():
            dist.all_to_all_single(coming, sizes, group=self._group)
            counts: list[int] = coming.tolist()
            received = torch.empty(sum(counts), dtype=torch.uint8)
            dist.all_to_all_single(received, torch.cat([*messages]), counts, sizes.tolist(), group=self._group)
        return [*torch.split(received, counts)]

    def tell_failure(self, error: BaseException) -> None:
        """See Exchange."""
        failed = {self.rank: f"{type(error).__name__}: {text_of(error)}"[:MOST_TEXT]}
        if isinstance(error, TFRecordLoadError) and error.failed_ranks:
            failed = error.failed_ranks
        with contextlib.suppress(TFRecordLoadError):
            self._ask(lambda store: store.compare_set("failure", "", json.dumps(failed)))
            self._add("ready", _FAILED)

    def close(self) -> None:
        """End the thread."""
        self._store.close()

    def _watch(self) -> None:
        """Look at the heartbeat of the next rank. If ranks are dead, the rank before one of them lives."""
        beats = self._add(beat_key(self._watched), 0)
        now = time.monotonic()
        if beats != self._seen:
            self._seen, self._seen_at = beats, now
        elif now - self._seen_at > self.timeout_s:
            found = "has given no sign of life" if beats > 0 else "did not come"
            raise self._failure(self._watched, f"it {found} for {self.timeout_s:g} s")

    def _told_failure(self) -> TFRecordLoadError:
        found = json.loads(self._ask(lambda store: store.get("failure")))
        return next(self._failure(int(rank), reason) for rank, reason in found.items())

    def _failure(self, rank: int, reason: str) -> TFRecordLoadError:
        also = f", so rank {self.rank} has stopped too" if rank != self.rank else ""
        return TFRecordLoadError(
            f"{self.where}: rank {rank} has failed{also}: {reason}. Correct this, and call it again on all ranks.",
            None,
            {rank: reason},
        )

    def _add(self, key: str, count: int) -> int:
        found: int = self._ask(lambda store: store.add(key, count))
        return found

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        """Return what a call of the store returns, within the bound."""
        try:
            return self._store.ask(call).result(self.timeout_s)
        except NoAnswer as error:
            found = f"it has not answered for {self.timeout_s:g} s"
            raise self._failure(0, f"{found}; {_HOLDER}") from error
        except RuntimeError as error:  # DistNetworkError, DistStoreError
            raise self._failure(0, f"the store of torch.distributed is gone; {_HOLDER}") from error

    @contextmanager
    def _carrying(self) -> Iterator[None]:
        """Turn the error of a collective, which names no rank, into one that does."""
        try:
            yield
        except RuntimeError as error:
            raise self._broken(error) from error

    def _broken(self, error: RuntimeError) -> TFRecordLoadError:
        """Return what has happened to a connection: look whose heart stands still, or who tells of a failure."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        before = {rank: self._add(beat_key(rank), 0) for rank in others}
        ends = time.monotonic() + 3 * beat_s(self.timeout_s)
        while time.monotonic() < ends:
            if self._add("ready", 0) >= _FAILED:
                return self._told_failure()
            time.sleep(_PAUSES_S[1])
        still = [rank for rank, beats in before.items() if self._add(beat_key(rank), 0) == beats]
        if still:
            return self._failure(still[0], "it has ended, or does not answer any more")
        return self._failure(self.rank, f"its connection to another rank is broken ({text_of(error)})")


_HOLDER = "the process that holds the store of torch.distributed, mostly rank 0, has probably ended"


def beat_s(timeout_s: float) -> float:
    """Return the seconds between two heartbeats."""
    return min(timeout_s / _BEATS, _BEAT_S)


def _store_of(where: str) -> Any:
    """Return the store that torch.distributed began with, under a key for each call."""
    return torch.distributed.distributed_c10d.PrefixStore(
        f"datapipes/{where}/{next(_calls)}", dist.distributed_c10d._get_default_store()
    )
