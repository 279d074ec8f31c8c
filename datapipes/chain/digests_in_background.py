"""DigestsInBackground: digests of large arrays, taken beside the minibatches of an epoch; a state needs them."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from datapipes.base.array_digest import Hashed
from datapipes.base.threads import EndingThread, preempt_nobody, threads_of_kernels


class DigestsInBackground:
    """Computes the digests of `inputs`, as they are now, in a thread that begins at `release`; known ones are skipped.

    The thread works beside an epoch, from the first minibatch on, so that this minibatch waits for no digest. A state
    waits for the digests that are missing. If an input changes meanwhile, its digest raises.

    The thread ends with this object and before the interpreter does. A forked child does not have the thread. Two
    epochs that begin over one graph before its digest is known both compute it.
    """

    def __init__(self, inputs: Sequence[Hashed]) -> None:
        left = [hashed for hashed in inputs if hashed._note_arrays()]
        self._begin: SimpleQueue[None] = SimpleQueue()
        self._has_begun = False
        self._thread: threading.Thread | None = None
        # Ends the thread; the next DigestsInBackground over the same input goes on where it stopped.
        self.stop: Callable[[], object] = lambda: None
        if left:
            stopped = threading.Event()
            # Started before the first minibatch: afterwards a start can take 4 or 8 ms, since threads of OpenMP still
            # spin on the other cores.
            thread = EndingThread(_take_digests, (left, self._begin, stopped), name="datapipes-digests")
            with contextlib.suppress(RuntimeError):  # no thread can start: a state takes the digests itself
                thread.start()
                self._thread = thread
                self.stop = weakref.finalize(self, _end, os.getpid(), self._begin, stopped, thread)

    def release(self) -> None:
        """Let the thread compute the digests; a second call changes nothing."""
        self._has_begun = True
        self._begin.put(None)

    def finish(self) -> None:
        """After `release`, wait until the thread has computed the digests: at most one read of all arrays.

        Ctrl-C ends the wait.
        """
        if self._thread is not None and self._has_begun:
            self._thread.join()


def _take_digests(left: Sequence[Hashed], begin: SimpleQueue[None], stopped: threading.Event) -> None:
    preempt_nobody()
    begin.get()
    # An error is raised again where a state asks for the digest.
    with contextlib.suppress(Exception), threads_of_kernels(1):
        for hashed in left:
            hashed._array_digests(stopped.is_set)


def _end(process: int, begin: SimpleQueue[None], stopped: threading.Event, thread: threading.Thread) -> None:
    if os.getpid() == process:
        stopped.set()
        begin.put(None)
        if thread is not threading.current_thread():
            thread.join()
