"""RemotePart: one part behind a server or its replicas; requests are retried until a deadline."""

from __future__ import annotations

import collections
import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

from datapipes.base.errors import ServerUnavailable, add_note, text_of
from datapipes.base.log import logger
from datapipes.base.threads import add_thread
from datapipes.distributed.addresses import Address, Replicas
from datapipes.distributed.client.connection import Connection, Connections, server_name
from datapipes.distributed.client.retry import FULL, STRANGER, Failures, Moved, judge, pauses, reason, verdict_on
from datapipes.distributed.wire.arrow_message import Message
from datapipes.distributed.wire.arrow_reading import Sink
from datapipes.distributed.wire.refusals import OtherPartition


class Places:
    """The addresses of the servers of one part, in the order in which they are tried. Any thread may call the methods.

    Hashes of this process and each address give the first order, so that clients spread over the servers.

    Args:
        again: returns the present addresses, or raises; called when no server can be reached. None: servers never move.
    Attributes:
        complaint: a sentence for errors: why the last call of `again` failed. "": it did not fail.
    """

    def __init__(self, replicas: Replicas, again: Callable[[], Replicas] | None = None) -> None:
        self._again, self.complaint = again, ""
        self._changing = threading.Lock()
        self._order = sorted(replicas, key=_rank)
        self._have_answered: set[Address] = set()

    def connect(self, connect: Callable[[Address, float], Connection], timeout: float) -> Connection:
        """Try the servers in order, each for a share of `timeout`; return a connection to the first that accepts one.

        Raises:
            Moved: Another program answers where a server of this part had answered; a retry may find the server.
            The first failure that a retry cannot help. If there is none, the failure of the last server.
        """
        ends, tried = time.monotonic() + timeout, list[Address]()
        while waiting := [address for address in self.all() if address not in tried]:
            address, left = waiting[0], ends - time.monotonic()
            try:
                connection = connect(address, left / len(waiting))
            except Exception as failure:
                tried.append(address)
                self.failed(address)
                is_final = verdict_on(failure).most == 0
                if is_final and (self._again is None or address not in self._have_answered):
                    raise
                is_last = len(waiting) == 1
                if is_last:
                    self._ask_again()
                if time.monotonic() >= ends or (is_last and not {*self.all()} - {*tried}):
                    if is_final:
                        raise Moved(reason(failure)) from failure
                    raise
            else:
                self._have_answered.add(address)
                return connection
        raise AssertionError("no server was left to try, but none had failed")

    def all(self) -> Replicas:
        """Return all servers, in the order in which they are tried."""
        with self._changing:
            return Replicas(self._order)

    def failed(self, address: Address) -> bool:
        """Try `address` last from now on; return whether there are other servers."""
        with self._changing:
            if address in self._order:
                self._order.remove(address)
                self._order.append(address)
            return len(self._order) > 1

    def _ask_again(self) -> None:
        if self._again is None:
            return
        try:
            replicas = self._again()
        except BaseException as error:  # of a user's Resolver; the waiting caller gets it as text
            self.complaint = f" The resolver was asked again: {type(error).__name__}: {text_of(error)}"
            return
        self.complaint = ""
        with self._changing:
            new = sorted((address for address in replicas if address not in self._order), key=_rank)
            self._order = [*new, *(address for address in self._order if address in replicas)]


def _rank(address: Address) -> bytes:
    return hashlib.blake2b(f"{_client()} {address}".encode(), digest_size=8).digest()


def _client() -> str:
    return f"{socket.gethostname()} {os.getpid()}"


_Answer = TypeVar("_Answer")

CONNECTIONS = 4  # to one server
REQUESTS = 16  # to one server at a time; more wait for a thread
# An attempt may take a third of the deadline, so that a stalled attempt leaves time for another. After a timeout the
# next attempt has all the time left, in case the answer takes long.
TRIES = 3
OUTAGE_S = 2.0  # without an answer, before the log says so
PROBE_S = 1.0  # for a probe whether anything listens
_STARTED_BY = {
    "part": "datapipes serve ROOT --part {part} --address {address}",
    "server": "datapipes serve ROOT --address {address}",
    "receiver": 'SamplerReceiver(graph, "{address}", num_sender)',
}
MOST_CONNECT_S = 5.0  # for the handshakes of TCP and TLS; an abandoned channel stays open for as long


class Limits(NamedTuple):
    """The time limits of one request.

    Attributes:
        deadline: seconds in all, from the call to the answer or the error.
        may_return: whether a server that has ended may be started again at its address, so that requests wait for it.
    """

    deadline: float
    may_return: bool = True

    @property
    def attempt_s(self) -> float:
        """Seconds that an attempt may take if no attempt has timed out before."""
        return self.deadline / TRIES

    @property
    def last_s(self) -> float:
        """Seconds that an attempt may take if another attempt has timed out before."""
        return self.deadline - self.attempt_s

    @property
    def connect_s(self) -> float:
        """Seconds that connecting to a server may take."""
        return min(self.attempt_s, MOST_CONNECT_S)


class Send(Protocol):
    """Function that sends a request on a connection and returns the answer; see Connection.ask."""

    def __call__(self, message: Message, most_bytes: int, sink: Sink | None = None) -> Message: ...


class RemotePart:
    """Sends requests to the servers of one part, and retries them until a deadline. `close` ends it for good.

    Args:
        part: the id of a part, the rank of a server, or the id of a receiver; see `kind`.
        replicas: the addresses of its servers.
        connect: function (address, seconds) -> connection, handshake included; raises if this fails or takes longer.
        again: returns the present addresses, see Places.
        kind: what `part` identifies: "part", "server" or "receiver".
        requests: how many requests may be in flight. With 1, requests keep their order.
    Attributes:
        limits: the time limits of requests; may be replaced between requests.
    """

    def __init__(
        self,
        part: int,
        replicas: Replicas,
        limits: Limits,
        connect: Callable[[Address, float], Connection],
        *,
        kind: str = "part",
        requests: int = REQUESTS,
        again: Callable[[], Replicas] | None = None,
    ) -> None:
        self.where = server_name(kind, part, replicas)
        self.limits, self._places = limits, Places(replicas, again)
        self._command = _STARTED_BY[kind].format(part=part, address=replicas[0])
        self._connections = Connections(partial(self._places.connect, connect), min(CONNECTIONS, requests))
        self._threads = Threads(f"datapipes-{kind}-{part}", requests)
        self._outage = Outage(self.where)
        self._stop = threading.Event()

    def submit(self, attempt: Callable[[Send], _Answer], *, waits: bool = True) -> Future[_Answer]:
        """Let a thread call `attempt(send)`, which sends requests, until it has an answer; return at once.

        Args:
            waits: True waits for a server that has ended; False lets the request fail at once if nothing listens.

        The future ends within the deadline: with the answer, with ServerUnavailable, or with the error that the server
        sent. The text of such an error begins with the part and the address.
        """
        future: Future[_Answer] = Future()
        begun = time.monotonic()

        def work() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                answer = self._until_answered(attempt, begun, waits and self.limits.may_return)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(answer)

        try:
            if not self._threads.run(work):
                future.set_exception(self._closed())
        except RuntimeError as error:  # no thread can be started
            add_note(error, f"asking {self.where}")
            future.set_exception(error)
        return future

    def stop(self) -> None:
        """Start no new attempts from now on. Does not wait for requests in flight."""
        self._stop.set()
        self._connections.close()

    def close(self, wait_s: float | None = None) -> None:
        """End all threads and connections. Requests in flight end with an error, or with an answer that comes in time.

        Args:
            wait_s: seconds to wait for the requests in flight; None: as long as an attempt may take.
        """
        self.stop()
        if not self._threads.close(self.limits.last_s + 1 if wait_s is None else wait_s):
            logger.warning("%s: a request did not end in time, so its thread is left behind.", self.where)

    def _until_answered(self, attempt: Callable[[Send], _Answer], begun: float, waits: bool) -> _Answer:
        ends, waits_s, failures = begun + self.limits.deadline, pauses(), Failures()
        while (left := ends - time.monotonic()) > 0 and not self._stop.is_set():
            limit, began = left if failures.slow else min(left, self.limits.attempt_s), time.monotonic()
            try:
                answer = self._on_connection(attempt, limit, failures)
                self._outage.answered(time.monotonic())
                return answer
            except Exception as failure:
                verdict, error = judge(self.where, failure)
            if verdict.slow and limit < self.limits.attempt_s and failures.count > 0:
                break  # the deadline cut this attempt short: its failure says less than the last one
            if failures.add(verdict, error):
                raise error
            is_lost = failures.greeted is None and not waits
            if is_lost and not self._places.all().is_heard(PROBE_S):
                remedy = f"start it again ({self._command})" if self.limits.may_return else "start all ranks again"
                raise ServerUnavailable(
                    f"{self.where}: nothing listens there any more: its process has ended. Look for its own error, and "
                    f"{remedy}."
                )
            if verdict is not FULL:
                self._outage.failed(began, time.monotonic(), failures.last)
            del error  # its traceback holds the objects of the attempt
            self._stop.wait(max(min(next(waits_s), ends - time.monotonic()), 0.0))
        raise self._closed() if self._stop.is_set() else self._unavailable(failures)

    def _on_connection(self, attempt: Callable[[Send], _Answer], timeout: float, failures: Failures) -> _Answer:
        ends, renew, failures.greeted = time.monotonic() + timeout, False, None
        connection = self._connections.take(min(timeout, self.limits.attempt_s))
        failures.greeted = connection.greeted

        def send(message: Message, most_bytes: int, sink: Sink | None = None) -> Message:
            return connection.ask(message, ends - time.monotonic(), most_bytes, sink)

        try:
            return attempt(send)
        except Exception as failure:
            verdict = verdict_on(failure)
            renew = verdict.renew
            # The right server answered the handshake; since then gRPC has connected to another program or server.
            if verdict is STRANGER or isinstance(failure, OtherPartition):
                renew = True
                raise Moved(reason(failure)) from failure
            if verdict.most != 0 and self._places.failed(connection.address):
                self._connections.leave(connection.address)
            raise
        finally:
            self._connections.give_back(connection, renew=renew)

    def _unavailable(self, failures: Failures) -> ServerUnavailable:
        text = (
            f"{self.where}: no answer within {self.limits.deadline:g} s; it was asked {failures.count} times, and the "
            f"last attempt ended with: {failures.last}.{self._places.complaint}"
        )
        if not self.limits.may_return:
            return ServerUnavailable(
                f"{text} Its process is stopped, or the network between the machines is down. Start all ranks again."
            )
        slow = "The server was reached and had not answered yet: if it needs longer, raise deadline. Else start it"
        return ServerUnavailable(
            f"{text} {slow if failures.slow else 'Start the server'} again at this "
            f"address ({self._command}), or correct the namebook. "
            "A server also ends connections without TLS, or with a certificate, that it does not accept."
        )

    def _closed(self) -> RuntimeError:
        return RuntimeError(f"{self.where}: the connections were closed before the answer came. Ask again.")


class Outage:
    """Writes a line to the log when a server has not answered for a while, and another line when it answers again.

    Args:
        where: the part and its address.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._since: float | None = None  # when the first attempt without an answer began
        self._told = False

    def failed(self, began: float, now: float, why: str) -> None:
        """Record a failed attempt, from `began` to `now` in time.monotonic(), that will be retried."""
        with self._lock:
            if self._since is None:
                self._since = began
            lasts = now - self._since
            if self._told or lasts < OUTAGE_S:
                return
            self._told = True
        logger.warning("%s has not answered for %.0f s: %s. It is asked again.", self._where, lasts, why)

    def answered(self, now: float) -> None:
        """Record that the server has answered."""
        if self._since is None:  # mostly
            return
        with self._lock:
            since, was_told, self._since, self._told = self._since, self._told, None, False
        if was_told and since is not None:
            logger.warning("%s answers again, after %.0f s.", self._where, now - since)


class Threads:
    """A pool of up to `most` threads, which run the calls that `run` gets, in this order.

    The threads are daemons: an idle thread does not keep the process alive. Call `close` before the interpreter ends if
    a thread may be inside a library.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._changed = threading.Condition()
        self._work: collections.deque[Callable[[], None]] = collections.deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def run(self, work: Callable[[], None]) -> bool:
        """Let a thread call `work`, which must not raise, and return True. After `close`, do nothing and return False.

        Raises:
            RuntimeError: There is no thread yet, and none can be started; `work` is not called.
        """
        with self._changed:
            if self._closed:
                return False
            self._work.append(work)
            wants_more = len(self._work) > self._idle and len(self._threads) < self._most
            try:
                started = wants_more and add_thread(self._threads, self._name, self._main)
            except RuntimeError:
                self._work.pop()
                raise
            if not started:
                self._changed.notify()  # an existing thread will do the work
        return True

    def close(self, timeout: float) -> bool:
        """End all threads after the calls given so far. Wait for the other threads up to `timeout` seconds, and return
        whether all of these have ended.
        """
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        ends = time.monotonic() + timeout
        # If one of the threads calls this method, that thread ends after the call.
        others = [thread for thread in self._threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(ends - time.monotonic(), 0.0))
        return not any(thread.is_alive() for thread in others)

    def _main(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._work or self._closed)
                self._idle -= 1
                if not self._work:
                    return
                work = self._work.popleft()
            work()
            del work  # its future holds the answer
