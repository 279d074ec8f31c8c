"""HashAhead: takes the digests that a state needs beside the minibatches of an epoch, from the first one on.

So the first minibatch waits for no digest, and a state waits for what is left of them. What an epoch reads is noted
before its first minibatch, so that a change of it since then is seen.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from datapipes.base.array_digest import Hashed
from datapipes.base.threads import preempt_nobody, threads_of_kernels


class HashAhead:
    """Digests of `inputs`, which are noted now; `start` has a thread take those that nobody has taken yet."""

    def __init__(self, inputs: Sequence[Hashed]) -> None:
        self._left = [each for each in inputs if each.note_arrays()]
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin, in a thread of its own; a second call changes nothing."""
        if self._left and self._thread is None:
            self._thread = threading.Thread(target=self._run, name="datapipes-digests", daemon=True)
            self._thread.start()

    def finish(self) -> None:
        """Wait until all digests are taken that were begun."""
        if self._thread is not None:
            self._thread.join()

    def stop(self) -> None:
        """End the thread; a digest that is not finished will be taken anew."""
        self._stopped.set()
        self.finish()

    def _run(self) -> None:
        preempt_nobody()
        # An error is raised again where a state asks for the digest.
        with contextlib.suppress(Exception), threads_of_kernels(1):
            for each in self._left:
                each.array_digests(self._stopped.is_set)
