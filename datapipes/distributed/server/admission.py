"""Admission decides how many requests a server works on at once, which request is next, and how many bytes of answers
may be in memory.

A thread that is free takes one request from the next connection, so a busy connection does not delay the others. Turns
go by connection, not by host: by host, eight trainers on one machine would share one turn.

The bytes of an answer are "in flight" from before the answer is made until it is sent or dropped. A client that reads
slowly has at most its own share of the bytes, or one answer if that is larger. Its further requests wait while requests
of other clients are worked on. One trainer has several connections, which may all stop reading. So all connections of a
host together have a bound too: one half of the bytes. Other hosts always get answers.

A request that waits for bytes must not be overtaken by later requests, or small requests would keep a large one waiting
for ever. There is one exception, for owners with few bytes. An owner is a PartitionClient with all its connections, or
a connection of any other client. Requests of such owners may overtake, and use bytes that are reserved for them: a
sixteenth above the half of each host, and the last sixteenth of all bytes. So a slow reader of large answers does not
hold up readers of small answers.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.refusals import Unavailable

CLIENTS_SHARE = 16  # a client holds at most 1/CLIENTS_SHARE of the bytes in flight, or one answer
HOSTS_SHARE = 2  # 1/HOSTS_SHARE for all clients of a host; an answer has at most a quarter, so it always fits
KEPT_SHARE = 16  # 1/KEPT_SHARE is reserved for owners that hold at most 1/KEPT_SHARE, the new answer included


def host_of(client: str) -> str:
    """Return the host in gRPC's name of a client: "ipv4:HOST" from "ipv4:HOST:PORT", and the same for IPv6."""
    return client.rpartition(":")[0] or client


_ALL = ""  # in place of a host: all hosts together
NumBytes = int | Callable[[], int]  # bytes of an answer, or a function that returns how many are expected now


class Hold:
    """The reservation of bytes for one answer. The bytes count as in flight until `release`."""

    def __init__(self, admission: Admission, client: str, owner: str, num_bytes: int) -> None:
        self.client, self.owner, self.num_bytes, self._admission = client, owner, num_bytes, admission
        self.is_released = False

    def recount(self, num_bytes: int) -> None:
        """Replace the expected bytes of the answer by `num_bytes`, its real bytes. Does nothing after `release`."""
        if not self.is_released:
            self._admission._recount(self, num_bytes)

    def release(self) -> None:
        """End the reservation: the bytes are no longer in flight. May be called more than once."""
        self.is_released = True
        self._admission._recount(self, 0)


class _Task:
    """A request that waits for its turn or is worked on, and later its result."""

    def __init__(
        self, client: str, num_bytes: NumBytes, work: Callable[[], Any], is_cancelled: Callable[[], bool], owner: str
    ) -> None:
        self.client, self.work, self.is_cancelled, self.owner = client, work, is_cancelled, owner
        self._num_bytes = num_bytes
        self.ended = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None
        self.hold: Hold | None = None

    @property
    def num_bytes(self) -> int:
        """How many bytes the answer is expected to have. The number may be another one at the next call."""
        return self._num_bytes if isinstance(self._num_bytes, int) else self._num_bytes()

    def end(self, error: BaseException | None = None) -> None:
        self.error = error
        if error is not None and self.hold is not None:
            self.hold.release()
        self.ended.set()


class Admission:
    """Runs the work of a server's requests in threads of its own, within bounds.

    Args:
        where: what errors call the server.
        concurrency: how many requests are worked on at once.
        max_waiting: how many requests may wait.
        max_bytes: how many bytes of answers may be in flight: being made, or waiting to be sent. At least the bytes of
            the largest answer.
        spare: how many more requests than `concurrency` may be worked on. They must be of owners with no other request
            in work, so that long requests of one owner do not hold up another owner.
    """

    def __init__(self, where: str, concurrency: int, max_waiting: int, max_bytes: int, spare: int = 0) -> None:
        self.where, self.max_waiting, self.max_bytes = where, max_waiting, max_bytes
        self._concurrency = concurrency
        self._working: Counter[str] = Counter()  # requests by owner
        self._changed = threading.Condition()
        self._queues: dict[str, deque[_Task]] = {}  # in the order of turns; no queue is empty
        self._held: dict[str, int] = {}  # bytes by client
        self._held_by_hosts: dict[str, int] = {}
        self._held_by_owners: dict[tuple[str, str], int] = {}  # by host and owner
        self.num_waiting = self.num_working = self.num_bytes = 0
        self._is_closing = self.is_closed = False
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(concurrency + spare)]
        for thread in self._threads:
            thread.start()

    def run(
        self,
        client: str,
        num_bytes: NumBytes,
        work: Callable[[], Any],
        is_cancelled: Callable[[], bool],
        owner: str = "",
    ) -> tuple[Any, Hold]:
        """Queue a request, wait until a thread has called `work`, and return (result of `work`, Hold). The bytes of the
        answer count as in flight until the caller releases the Hold.

        Args:
            client: name of the client's connection.
            num_bytes: expected bytes of the answer, or a function that returns them. With 0 the request need not wait
                for bytes. If the result is a Message, its real bytes are counted from then on.
            is_cancelled: returns whether the client no longer waits.
            owner: identifies a client with several connections; by default each connection is an owner of its own.
        Raises:
            Unavailable: Too many requests wait, the server stops, or the client has gone.
            Exception: The error of `work`.
        """
        task = _Task(client, num_bytes, work, is_cancelled, owner or client)
        with self._changed:
            self._enqueue(task)
            self._changed.notify()
        task.ended.wait()
        error, task.error = task.error, None
        if error is not None:
            try:
                raise error
            finally:
                del error, task  # its traceback holds this frame
        assert task.hold is not None
        return task.result, task.hold

    def close(self, grace_s: float) -> bool:
        """Refuse new requests. Wait up to `grace_s` seconds until all earlier requests are answered and the answers are
        sent; then refuse the requests that still wait. Return True if everything was answered and sent in time.
        """
        with self._changed:
            self._is_closing = True
            ended = self._changed.wait_for(lambda: not (self.num_waiting or self.num_working or self._held), grace_s)
            self.is_closed = True
            rest = [task for queue in self._queues.values() for task in queue]
            self._queues.clear()
            self.num_waiting = 0
            self._changed.notify_all()
        for task in rest:
            task.end(Unavailable(f"{self.where}: the server stops. Ask the next one."))
        return ended

    def join(self, timeout_s: float) -> None:
        """After `close`, wait until all threads have ended, but at most `timeout_s` seconds in all."""
        until = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def _enqueue(self, task: _Task) -> None:
        if self._is_closing:
            raise Unavailable(f"{self.where}: the server stops. Ask the next one.")
        if self.num_waiting >= self.max_waiting:
            self._make_room(task)
        self._queues.setdefault(task.client, deque()).append(task)
        self.num_waiting += 1

    def _make_room(self, task: _Task) -> None:
        """Make room for `task` in the full queue: refuse the latest request of the client that has the most waiting
        requests. If `task` itself is this request, raise Unavailable.
        """
        full = Unavailable(f"{self.where}: the server is full: {self.num_waiting} requests wait. Ask later.")
        longest = max(self._queues.values(), key=len, default=deque())
        if len(longest) <= len(self._queues.get(task.client, ())) + 1:
            raise full
        longest.pop().end(full)
        self.num_waiting -= 1

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.is_closed or self._next_client() is not None)
                client = self._next_client()
                if client is None:
                    return
                task = self._take(client)
            self._work_on(task)
            with self._changed:
                self.num_working -= 1
                self._working -= Counter([task.owner])
                self._changed.notify_all()
            del task  # or this thread would keep its result while it waits for the next task

    def _work_on(self, task: _Task) -> None:
        try:
            if task.is_cancelled():
                raise Unavailable(f"{self.where}: the client has given up.")
            task.result = task.work()
            if task.hold is not None and isinstance(task.result, Message):
                task.hold.recount(task.result.num_bytes)  # before this thread takes another request
        except BaseException as error:  # the client gets it
            task.end(error)
        else:
            task.end()

    def _next_client(self) -> str | None:
        """Return the client whose first waiting request is to be worked on next. None: no request waits, or none may be
        worked on yet.
        """
        room = _Room(self)
        for client, queue in self._queues.items():
            task, held = queue[0], self._held.get(client, 0)
            wanted = task.num_bytes
            if wanted and held and held + wanted > self.max_bytes // CLIENTS_SHARE:
                continue
            if self.num_working >= self._concurrency and self._working[task.owner]:
                continue
            if not wanted or room.is_for(task, wanted):
                return client
        return None

    def _take(self, client: str) -> _Task:
        queue = self._queues.pop(client)
        task = queue.popleft()
        if queue:
            self._queues[client] = queue  # behind the others
        self.num_waiting -= 1
        self.num_working += 1
        self._working[task.owner] += 1
        num_bytes = task.num_bytes
        self._count(client, task.owner, num_bytes)
        task.hold = Hold(self, client, task.owner, num_bytes)
        return task

    def _recount(self, hold: Hold, num_bytes: int) -> None:
        # The garbage collector may call this in any thread, also in a thread that holds the (reentrant) lock.
        with self._changed:
            more, hold.num_bytes = num_bytes - hold.num_bytes, num_bytes
            self._count(hold.client, hold.owner, more)
            self._changed.notify_all()

    def _count(self, client: str, owner: str, num_bytes: int) -> None:
        """Add `num_bytes` to the bytes in flight of a client, of its host and of its owner. A negative number takes
        bytes off.
        """
        self.num_bytes += num_bytes
        host = host_of(client)
        _add(self._held, client, num_bytes)
        _add(self._held_by_hosts, host, num_bytes)
        _add(self._held_by_owners, (host, owner), num_bytes)


def _add(held: dict[Any, int], name: Any, num_bytes: int) -> None:
    held[name] = held.get(name, 0) + num_bytes
    if held[name] <= 0:
        del held[name]


class _Room:
    """Checks waiting requests one after another: may the bytes of the answer be in flight too, within the bound of the
    client's host and the bound of the server?

    A _Room is for one round over the requests. It remembers which bounds an earlier request waits for, so that later
    requests do not overtake.
    """

    def __init__(self, admission: Admission) -> None:
        self._all, self._kept = admission, admission.max_bytes // KEPT_SHARE
        self._waited_for: set[str] = set()  # hosts, or _ALL, where an earlier request waits
        self._kept_waited_for: set[str] = set()  # where an earlier request of an owner with few bytes waits

    def is_for(self, task: _Task, wanted: int) -> bool:
        """Return True if `task` may have `wanted` bytes more in flight. If False, later requests may not overtake
        `task`, except those of owners with few bytes.
        """
        of_all, host = self._all, host_of(task.client)
        is_little = of_all._held_by_owners.get((host, task.owner), 0) + wanted <= self._kept
        most, on_host = of_all.max_bytes // HOSTS_SHARE, of_all._held_by_hosts.get(host, 0)
        return self._fits(host, on_host, most, wanted, is_little) and self._fits(
            _ALL, of_all.num_bytes, of_all.max_bytes - self._kept, wanted, is_little
        )

    def _fits(self, place: str, held: int, most: int, wanted: int, is_little: bool) -> bool:
        if place not in self._waited_for and (not held or held + wanted <= most):
            return True
        self._waited_for.add(place)
        if not is_little or place in self._kept_waited_for:
            return False
        if held + wanted <= most + self._kept and self._little_held(place) + wanted <= self._kept:
            return True
        self._kept_waited_for.add(place)
        return False

    def _little_held(self, place: str) -> int:
        """Return the bytes in flight of all owners with few bytes (at most `_kept` each), on the host `place`, or on
        all hosts if `place` is _ALL.
        """
        held = self._all._held_by_owners.copy()  # the garbage collector may end an answer in between
        return sum(count for (host, _), count in held.items() if count <= self._kept and place in (host, _ALL))
