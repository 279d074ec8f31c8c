"""Connections: the few channels to one server, and the threads that wait for answers.

A request takes the connection that has the fewest in flight. Threads start when there is work, are at most so many, and
end with `close`.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable

from datapipes.base.threads import add_thread
from datapipes.distributed.client.connection import Connection


class Connections:
    """At most `most` connections, made when they are needed; a stalled one delays only its own requests.

    While none is there, one thread connects and the others wait for what it finds, so a server that comes back is not
    met by all at once.

    Args:
        connect: makes a connection and greets the server, within so many seconds, or raises what prevented it.
    """

    def __init__(self, connect: Callable[[float], Connection], most: int) -> None:
        self._connect, self._most = connect, most
        self._changed = threading.Condition()
        self._live: list[Connection] = []
        self._opening = 0
        self._attempts = 0  # to connect, that have ended
        self._waiting = 0  # threads that wait for an attempt
        self._failure: BaseException | None = None  # of the last one, while threads wait that must hear of it
        self._closed = False

    def take(self, timeout: float) -> Connection:
        """Return a connection to ask on, which must be given back.

        Raises:
            TimeoutError: None came within `timeout` seconds.
            What prevented connecting: see Connection.ask.
        """
        ends = time.monotonic() + timeout
        with self._changed:
            while True:
                best = min(self._live, key=lambda each: each.in_flight, default=None)
                if best is not None and (best.in_flight == 0 or len(self._live) + self._opening >= self._most):
                    best.in_flight += 1
                    return best
                if best is not None or self._opening == 0:
                    break
                failure = self._waited(ends)
                if failure is not None and not self._live:
                    try:
                        raise _own(failure)
                    finally:
                        del failure  # its traceback would hold itself
            self._opening += 1
        return self._opened(ends)

    def _waited(self, ends: float) -> BaseException | None:
        """Wait until an attempt to connect has ended; return what prevented the last one."""
        before = self._attempts
        self._waiting += 1
        try:
            if not self._changed.wait_for(lambda: self._attempts != before, ends - time.monotonic()):
                raise TimeoutError("connecting took too long")
            return self._failure
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self._failure = None  # its traceback holds the threads' owner, who would never be dropped

    def _opened(self, ends: float) -> Connection:
        connection, failure = None, None
        try:
            connection = self._connect(ends - time.monotonic())
            connection.greeted = time.monotonic()
            return connection
        except BaseException as error:
            failure = error
            raise
        finally:
            with self._changed:
                self._opening -= 1
                self._attempts += 1
                self._failure = failure if self._waiting > 0 else None
                if connection is not None:
                    connection.in_flight = 1
                    connection.retired = self._closed
                    if not self._closed:
                        self._live.append(connection)
                self._changed.notify_all()
            del failure

    def give_back(self, connection: Connection, *, renew: bool) -> None:
        """Take a connection back; after `renew` nobody gets it again, and it ends with the last request on it."""
        with self._changed:
            connection.in_flight -= 1
            if renew and not connection.retired:
                connection.retired = True
                self._live.remove(connection)
            ended = connection.retired and connection.in_flight == 0
        if ended:
            connection.close()

    def close(self) -> None:
        """End the connections, each with the last request on it."""
        with self._changed:
            self._closed = True
            live, self._live = self._live, []
            for connection in live:
                connection.retired = True
            ended = [connection for connection in live if connection.in_flight == 0]
        for connection in ended:
            connection.close()


def _own(failure: BaseException) -> BaseException:
    """Return an error like this one for another thread: each adds notes on its own request."""
    try:
        own = type(failure)(*failure.args)
    except Exception:  # its constructor takes other arguments
        return failure
    own.__cause__ = failure.__cause__
    return own


class Threads:
    """At most `most` threads of this name, which run what they are given in turn.

    They are daemons: an idle one does not keep the process. `close` must be called before the interpreter ends if one
    may be inside a library.
    """

    def __init__(self, name: str, most: int) -> None:
        self._name, self._most = name, most
        self._changed = threading.Condition()
        self._work: collections.deque[Callable[[], None]] = collections.deque()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._closed = False

    def run(self, work: Callable[[], None]) -> bool:
        """Let a thread call `work`, which raises nothing; return whether it will, False once closed.

        Raises:
            RuntimeError: There is no thread, and none can be started; `work` is not called.
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
                self._changed.notify()  # the work waits for one of those there are
        return True

    def close(self, timeout: float) -> bool:
        """Run what was given, end all threads and wait for the others; return whether those have ended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        ends = time.monotonic() + timeout
        # A thread that closes them itself ends when it returns.
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
