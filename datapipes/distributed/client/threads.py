"""Threads that wait for servers: started when there is work, at most so many, ended by `close`."""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable


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
            if len(self._work) > self._idle and len(self._threads) < self._most:
                self._start_one()
            else:
                self._changed.notify()
        return True

    def _start_one(self) -> None:
        name = f"{self._name}-{len(self._threads)}"
        thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the process may have no more threads
            if len(self._threads) == 0:
                self._work.pop()
                raise
            self._changed.notify()  # the work waits for one of those there are
        else:
            self._threads.append(thread)

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
