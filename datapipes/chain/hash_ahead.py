"""HashAhead: takes the digests that a state needs beside the minibatches of an epoch, from the first one on.

So the first minibatch waits for no digest, and a state waits for what is left of them. What an epoch reads is noted
before its first minibatch, so that a change of it since then is seen.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Sequence

from datapipes.base.array_digest import Hashed
from datapipes.base.threads import preempt_nobody, threads_of_kernels


class HashAhead:
    """Digests of `inputs`, which are noted now; `start` has a thread take those that nobody has taken yet.

    The thread ends with this object and before the interpreter does. In a forked child there is none.
    """

    def __init__(self, inputs: Sequence[Hashed]) -> None:
        self._left = [each for each in inputs if each.note_arrays()]
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread of its own; a second call changes nothing."""
        if self._left and self._thread is None:
            left, self._left = self._left, []  # the thread alone keeps them, so that it is not what ends them
            self._thread = threading.Thread(
                target=_take_digests, args=(left, self._stopped), name="datapipes-digests", daemon=True
            )
            self._thread.start()
            weakref.finalize(self, _end, os.getpid(), self._stopped, self._thread)

    def finish(self) -> None:
        """Wait until all digests are taken that were begun."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """End the thread; the next one goes on where it stopped."""
        self._stopped.set()
        self.finish()


def _take_digests(left: Sequence[Hashed], stopped: threading.Event) -> None:
    preempt_nobody()
    # An error is raised again where a state asks for the digest.
    with contextlib.suppress(Exception), threads_of_kernels(1):
        for each in left:
            each.array_digests(stopped.is_set)


def _end(process: int, stopped: threading.Event, thread: threading.Thread) -> None:
    if os.getpid() == process:
        stopped.set()
        if thread is not threading.current_thread():
            thread.join()
