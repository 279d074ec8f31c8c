"""Ranks of torch.distributed that make a call together, so that the call succeeds on all of them or on none.

They share torch.distributed's key-value store. Each rank has a thread that counts up a number in the store, the rank's
heartbeat. A rank votes when its work is done, and a vote is over when all ranks have voted. A rank that works or waits
watches the heartbeat of the next rank: if the number stays the same for `timeout_s`, that rank is taken for dead. A
rank that fails writes its reason into the store and makes the votes invalid, so the others stop and report the reason.

Only the thread of the heartbeat calls the store: while the store's process is stopped, a call may never return.
"""

from __future__ import annotations

import collections
import contextlib
import json
import math
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer  # the builtin one only since Python 3.11
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

import torch.distributed as dist

from datapipes.base.checks import shown
from datapipes.base.errors import text_of

ANSWER_S = 10.0  # seconds that a store may take for a call that waits for no rank
_LEAVE_S = 10.0  # seconds that rank 0 stays at most for the others
_FAILED = 2**40  # the number that a failed rank adds to the votes
_BEATS = 4  # heartbeats in `timeout_s`, at least
_BEAT_S = 1.0  # seconds, at most, between two heartbeats, and between two looks of a waiting rank
_PAUSE_S = 0.0002  # seconds between the first two looks
_LATER = 0.05  # length of a pause as a share of the time waited
_HOLDER = "the process that holds it, mostly rank 0,"
_calls: weakref.WeakKeyDictionary[Any, collections.Counter[str]] = weakref.WeakKeyDictionary()  # by store and `where`
_notes: weakref.WeakKeyDictionary[Any, set[str]] = weakref.WeakKeyDictionary()  # by store
_R = TypeVar("_R", bound="Ranks")
_E = TypeVar("_E", bound="RankError")
_MOST_TEXT = 10_000  # characters of each end of a text that goes to another process


class RankError(ValueError):
    """A call of several ranks has failed: one or more ranks have failed, and the others have stopped with them.

    Attributes:
        failed_ranks: {rank: how it failed}; {} if this rank is the one that failed.
    """

    def __init__(self, message: str, failed_ranks: Mapping[int, str] | None = None) -> None:
        self.failed_ranks: dict[int, str] = dict(failed_ranks or {})
        super().__init__(message, self.failed_ranks)

    def __str__(self) -> str:
        return str(self.args[0])

    @classmethod
    def of_ranks(cls: type[_E], rank: int, failed: Mapping[int, str], where: str, how: str) -> _E:
        """Return the error that `rank` raises because the ranks in `failed`, {rank: reason}, have failed.

        `how` says it in the message, such as "has failed".
        """
        names = ", ".join(f"rank {number}" for number in failed)
        also = f", so rank {rank} has stopped too" if rank not in failed else ""
        head = f"{where}: {names} {how}{also}. Correct the faults named below."
        texts = [f"rank {number}: {text}" for number, text in failed.items()]
        return cls("\n\n".join([head, *texts]), failed_ranks=failed)


def shortened(text: str) -> str:
    """Return `text`. A long one loses its middle, so that it fits into a pipe and its writer waits for no reader."""
    return text if len(text) <= 2 * _MOST_TEXT else f"{text[:_MOST_TEXT]}\n...\n{text[-_MOST_TEXT:]}"


class Members(NamedTuple):
    """The ranks that make a call together: this rank's id, how many ranks there are, and the store that they share."""

    rank: int
    size: int
    store: Any


class Ranks:
    """A context manager for ranks that make a call together: its body succeeds on all of them or on none.

    If the body raises an error on one rank, the other ranks get a RankError; otherwise `vote` is called at its end.
    Without torch.distributed, or with one rank, nothing waits.

    Args:
        where: the caller, for messages.
        timeout_s: seconds without a heartbeat after which a rank is taken for dead; also how long the others wait for a
            rank that has not entered the `with` statement.
        failed, absent: what messages say of a rank that failed, and of a rank that did not come.
        error: the class of the error that a stopping rank raises.
        members: the ranks; by default those of the default process group.
    Attributes:
        rank: this rank, from 0.
        size: how many ranks there are.
    Raises:
        ValueError: timeout_s is not above 0.
    """

    def __init__(
        self,
        where: str,
        timeout_s: float,
        *,
        failed: str = "has failed",
        absent: str = "did not come",
        error: type[RankError] = RankError,
        members: Members | None = None,
    ) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not 0 < timeout_s < math.inf:
            raise ValueError(f"{where}: rank_timeout_s must be seconds above 0, got {shown(timeout_s)}. Use 60.")
        self.where, self.timeout_s = where, float(timeout_s)
        self._members = _of_process_group() if members is None else members
        self.rank, self.size, _ = self._members
        self.beat_s = min(self.timeout_s / _BEATS, _BEAT_S)
        self._failed, self._absent, self._error = failed, absent, error
        self._store: _StoreThread | None = None
        self._answer_s = self.timeout_s  # seconds that the store may take
        self._votes = 0
        self._known: dict[int, str] = {}  # the failure that counts, once this rank has reported a failure
        self._seen, self._seen_at, self._next_look = 0, 0.0, 0.0

    def __enter__(self: _R) -> _R:
        if self.size > 1:
            shared = self._members.store
            calls = _calls.setdefault(shared, collections.Counter())
            while self._store is None:
                calls[self.where] += 1
                store = dist.distributed_c10d.PrefixStore(f"datapipes/{self.where}/{calls[self.where]}", shared)
                self._store = _StoreThread(store, self.rank, self.beat_s)
                if self._has_missed_it():
                    self._store.close()
                    self._store = None
            self._seen_at = time.monotonic()
        return self

    def _has_missed_it(self) -> bool:
        """Return whether the call was given up because this rank came too late; this rank then joins the next call.

        If the call has failed for another reason, this rank still joins it, and gets the failure in its first vote.
        """
        assert self._store is not None
        try:
            return self._add("ready", 0) >= _FAILED and self.rank in self._told_failure()
        except RankError:
            self._store.close()
            raise

    def __exit__(self, kind: Any, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                self.vote()
            else:
                self.tell_failure(error)
        except BaseException as late:
            self.tell_failure(late)
            raise
        finally:
            self._leave()

    def vote(self) -> None:
        """Wait until every rank has called `vote` as often as this rank has. A rank that is alive may take any time.

        Raises:
            RankError: A rank has failed, has ended, or did not come; the message has the rank and the reason.
        """
        if self._store is None:
            return
        self._votes += 1
        began = time.monotonic()
        count = self._ready(1)
        while count < self._votes * self.size:
            self._watch()
            time.sleep(min(max(_LATER * (time.monotonic() - began), _PAUSE_S), self.beat_s))
            count = self._ready(0)

    def collected(self, value: Any) -> list[Any]:
        """Return a list of the `value` of each rank, rank 0 first. Waits and raises as `vote` does.

        A value may be anything that JSON can store. The values go through the store, so keep them small: rank 0 reads
        one after the other, the other ranks read all at once.
        """
        if self._store is None:
            return [json.loads(json.dumps(value))]
        key = f"value/{self._votes}"
        self._ask(lambda store: store.set(f"{key}/{self.rank}", json.dumps(value)))
        self.vote()
        if self.rank == 0:
            values = [self._get(f"{key}/{rank}").decode() for rank in range(self.size)]
            self._ask(lambda store: store.set(key, f"[{', '.join(values)}]"))
        self.vote()
        collected: list[Any] = json.loads(self._get(key))
        return collected

    def agreed(self, number: int, choose: Callable[[list[int]], int]) -> int:
        """Return `choose(numbers)`, such as the `max` of every rank's `number`. Waits and raises as `vote` does."""
        return choose(self.collected(number))

    def go_on(self) -> None:
        """Raise a RankError if a rank is known to have failed. Waits for no rank.

        May be called often: it looks into the store at most once per heartbeat.
        """
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + self.beat_s
            self.look()

    def look(self) -> None:
        """Raise a RankError if a rank is known to have failed. Unlike `go_on`, look into the store at every call."""
        if self._store is not None:
            self._ready(0)
            self._watch()

    def tell_failure(self, error: BaseException) -> None:
        """Tell the other ranks that this rank leaves because of `error`.

        Only the first failure of all ranks is kept.
        """
        if self._store is None or self._known:
            return
        self._known = {self.rank: shortened(f"{type(error).__name__}: {text_of(error)}")}
        if isinstance(error, RankError) and error.failed_ranks:
            self._known = error.failed_ranks
        with contextlib.suppress(RankError):
            failure = json.dumps(self._known)
            self._known = _failure_in(self._ask(lambda store: store.compare_set("failure", "", failure)))
            self._add("ready", _FAILED)

    def _leave(self) -> None:
        """Leave the call. Rank 0, which often has the store, first waits until all living ranks know the outcome."""
        if self._store is None:
            return
        ends = time.monotonic() + min(_LEAVE_S, self.timeout_s)
        wanted = self.size - len({0, *self._known}) if self.rank == 0 else 0
        try:
            left = self._add("left", int(self.rank not in {0, *self._known}))
            while left < wanted and time.monotonic() < ends:
                time.sleep(_LATER * self.beat_s)
                left = self._add("left", 0)
        except RankError:
            pass  # nobody can be waited for
        finally:
            self._store.close()

    def _ready(self, votes: int) -> int:
        """Add `votes` to the number of votes in the store, and return the sum; raise RankError if a rank has failed."""
        count = self._add("ready", votes)
        if count >= _FAILED:
            raise self._failure(self._told_failure())
        return count

    def _told_failure(self) -> dict[int, str]:
        return _failure_in(self._get("failure"))

    def _watch(self) -> None:
        """Raise RankError if the heartbeat of the next rank has not changed for `timeout_s`.

        To watch one rank is enough: if any rank is dead, a dead rank follows a living one.
        """
        watched, now = (self.rank + 1) % self.size, time.monotonic()
        beats = self._add(beat_key(watched), 0)
        if beats != self._seen:
            self._seen, self._seen_at = beats, now
        elif now - self._seen_at > self.timeout_s:
            how, dead = "has given no sign of life", [watched]
            if beats == 0:
                how, dead = self._absent, [rank for rank in range(self.size) if self._add(beat_key(rank), 0) == 0]
            raise self._failure(dict.fromkeys(dead, f"it {how} for {self.timeout_s:g} s"))

    def _failure(self, failed: dict[int, str]) -> RankError:
        return self._error.of_ranks(self.rank, failed, self.where, self._failed)

    def _add(self, key: str, count: int) -> int:
        return int(self._ask(lambda store: store.add(key, count)))

    def _get(self, key: str) -> Any:
        return self._ask(lambda store: store.get(key))

    def _ask(self, call: Callable[[Any], Any]) -> Any:
        """Return `call(store)`. RankError: the store does not answer within `_answer_s` seconds, or is gone."""
        assert self._store is not None
        try:
            return self._store.ask(call).result(self._answer_s)
        except NoAnswer as error:
            self._answer_s = 0.0  # later calls do not wait for it again
            how = f"has not answered for {self.timeout_s:g} s; {_HOLDER} is stopped"
            raise self._failure({0: f"the store of torch.distributed {how}"}) from error
        except RuntimeError as error:  # DistNetworkError, DistStoreError
            how = f"is gone ({text_of(error).partition(chr(10))[0]}); {_HOLDER} has probably ended"
            raise self._failure({0: f"the store of torch.distributed {how}"}) from error


def first_told(topic: str, value: str) -> str | None:
    """Store `value` under the key `topic` for all ranks, unless the key has a value; return the value that it has now.

    Waits for no rank. None: there is no process group, or its store has not answered in ANSWER_S.
    """
    shared = _store_of_group()
    if shared is None:
        return None
    store = _StoreThread(dist.distributed_c10d.PrefixStore("datapipes/told", shared), dist.get_rank(), _BEAT_S)
    try:
        first: bytes = store.ask(lambda store: store.compare_set(topic, "", value)).result(ANSWER_S)
        return first.decode()
    except (NoAnswer, RuntimeError):
        return None
    finally:
        store.close()


def noted() -> set[str]:
    """Return a set that belongs to the process group. Callers add texts to it that note what this process has done.

    It is dropped with the group. Without a group, each call returns a new set.
    """
    shared = _store_of_group()
    return set() if shared is None else _notes.setdefault(shared, set())


def _store_of_group() -> Any:
    try:
        return _of_process_group().store
    except ValueError:  # a group without a store
        return None


def _of_process_group() -> Members:
    if dist.is_available() and dist.is_initialized():
        return Members(dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store())
    return Members(0, 1, None)


def _failure_in(text: bytes) -> dict[int, str]:
    return {int(rank): reason for rank, reason in json.loads(text).items()}


class _StoreThread:
    """The thread of a rank that alone uses the store; it also counts up the rank's heartbeat there.

    A request to a store whose process is stopped may never return. A caller of `ask` waits only as long as it wants.

    Args:
        store: a Store of torch.distributed.
        rank: the rank whose heartbeat the thread counts up.
        beat_s: seconds between two heartbeats.
    """

    def __init__(self, store: Any, rank: int, beat_s: float) -> None:
        self._store, self._beat, self._beat_s = store, beat_key(rank), beat_s
        self._asked: queue.SimpleQueue[tuple[Callable[[Any], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="datapipes-ranks", daemon=True)
        self._thread.start()

    def ask(self, call: Callable[[Any], Any]) -> Future[Any]:
        """Let the thread run `call(store)`; return a future of the result."""
        future: Future[Any] = Future()
        self._asked.put((call, future))
        return future

    def close(self) -> None:
        """End the thread. If it hangs in a request to the store, it ends with the process."""
        self._asked.put(None)
        self._thread.join(self._beat_s)

    def _run(self) -> None:
        next_beat = time.monotonic()
        while True:
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + self._beat_s
                with contextlib.suppress(RuntimeError):  # the next call of the store raises it
                    self._store.add(self._beat, 1)
            try:
                request = self._asked.get(timeout=max(next_beat - time.monotonic(), 0))
            except queue.Empty:
                continue
            if request is None:
                return
            call, future = request
            try:
                future.set_result(call(self._store))
            except BaseException as error:
                future.set_exception(error)


def group_timeout_s() -> float:
    """Return the `timeout` of init_process_group, in seconds; there must be a process group."""
    store: Any = dist.distributed_c10d._get_default_store()
    return float(store.timeout.total_seconds())


def beat_key(rank: int) -> str:
    """Return the key in the store under which a rank counts its heartbeats."""
    return f"beat/{rank}"
