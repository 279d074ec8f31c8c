"""Prefetcher: makes minibatches ahead of the consumer in a thread of its own, in order.

The thread iterates the stream of the stages before it; nobody has to tell it which minibatch is next. It refers to
these stages and to a bounded queue, never to the Prefetcher or its reader. When the reader is closed or collected, or
the interpreter exits, the thread is told to stop and is joined within a bounded time.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator

import torch

from datapipes.base.checks import check_int, check_positive_timeout
from datapipes.base.errors import LoaderTimeoutError
from datapipes.base.outcome import as_error
from datapipes.base.threads import EndingThread, preempt_nobody
from datapipes.chain.epoch import EpochContext
from datapipes.chain.functional import functional_name, register_stage
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.streams import close_stream
from datapipes.device.handover import Queued, SideStreams, current_streams, leave, take
from datapipes.device.runtime import Stream
from datapipes.loader.graphs import gpus_of
from datapipes.minibatch import MiniBatch
from datapipes.processes.child import end_if_clone
from datapipes.processes.unforkable import refuse_forked

__all__ = ["Prefetcher"]

THREADS = "datapipes-prefetch"
LOOK_S = 0.5  # seconds after which a waiting reader checks again that the thread is alive
JOIN_S = 10.0  # seconds that closing waits for a minibatch that is being made


@register_stage("prefetch")
class Prefetcher(StreamStage):
    """Make up to `depth` minibatches ahead in a background thread.

    The thread runs beside the consumer, since the kernels and torch release the GIL. If an earlier stage copies to a
    GPU, the thread queues its GPU work on a stream of its own. The thread that takes a minibatch lets its current
    stream wait for that work.

    Args:
        depth: the most minibatches that are held ready, 1 or more.
        timeout: seconds to wait for one minibatch before LoaderTimeoutError; None waits as long as the thread lives.
    """

    _where = "prefetch"  # the name in errors

    def __init__(self, source: Stage, depth: int = 2, *, timeout: float | None = None) -> None:
        super().__init__(source)
        self.depth = check_int("prefetch", "depth", depth, 1)
        self.timeout = check_positive_timeout("prefetch", timeout)
        self._streams = SideStreams()
        graph = StageGraph(source)
        graph.refuse_reused_memory("prefetch")
        for stage in graph.own_orders:
            raise ValueError(
                f"prefetch: stands behind {stage.name}, which only knows its own position and cannot be read ahead. "
                "Use torchdata.nodes.Prefetcher inside that node."
            )

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return _Reader(self, streams[0], self._streams.of(self._gpus), context)

    @property
    def _thread_name(self) -> str:
        """Return the name of this Prefetcher's thread, unique within the chain."""
        return f"{THREADS}-{self._number}"

    @property
    def _number(self) -> int:
        return len(StageGraph(self.source).find(Prefetcher)) + 1

    @property
    def _gpus(self) -> list[torch.device]:
        """The CUDA devices to which earlier stages copy. The Prefetcher's thread has a stream of its own on each of
        them.
        """
        return gpus_of(StageGraph(self.source))

    @property
    def _lane(self) -> str:
        on_gpu = ", on a GPU stream of its own" if self._gpus else ""
        return f"thread {self._number} ({self._thread_name}), up to {self.depth} minibatches ahead{on_gpu}"

    def describe(self) -> dict[str, int]:
        return {"depth": self.depth}


class Overlap(Prefetcher):
    """A Prefetcher that the DataLoader, not the user, has put into its plan. Its errors name the DataLoader."""

    _where = "data_loader"

    @property
    def name(self) -> str:
        """The functional name of Prefetcher, "prefetch": users see an Overlap as a Prefetcher."""
        return functional_name(Prefetcher)


class _Queue:
    """A bounded queue between one thread that makes minibatches and one reader; either side can end it."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.ready: deque[tuple[MiniBatch, list[Queued]]] = deque()
        self.changed = threading.Condition()
        self.is_full = False  # the thread waits for room
        self.spent: object = None  # a minibatch that the thread frees once there is room
        self.stopped = False
        self.ended = False
        self.error: Exception | None = None

    def put(self, minibatch: MiniBatch, queued: list[Queued]) -> bool:
        """Append a minibatch, and `queued`, the GPU work that it waits for. Wait first while the queue is full.

        Return True; or False if the reader has ended the queue, so that the thread can stop.
        """
        with self.changed:
            while not self.stopped and len(self.ready) >= self.depth:
                self.is_full = True
                self.changed.wait()
            self.is_full = False
            self.ready.append((minibatch, queued))
            self.changed.notify_all()
            spent, self.spent = self.spent, None
        del spent  # outside the lock: freeing it releases the GIL, and the reader may want the lock
        return not self.stopped

    def take(self, last: object) -> tuple[MiniBatch, list[Queued]]:
        """Return (oldest ready minibatch, GPU work that it waits for). The caller must hold the lock.

        Args:
            last: the previous minibatch, if the consumer still has it and is about to drop it; else None. If the thread
                waits for room, the queue keeps `last` for the thread to free. If the consumer freed it, torch would
                release the GIL for each tensor, and the thread that this call wakes would take the GIL each time.
        """
        if self.is_full and self.spent is None:
            self.spent = last
        taken = self.ready.popleft()
        self.changed.notify_all()
        return taken

    def end(self, error: Exception | None) -> None:
        with self.changed:
            self.ended, self.error = True, error
            self.changed.notify_all()

    def stop(self) -> None:
        with self.changed:
            self.stopped = True
            self.spent = None
            self.ready.clear()
            self.changed.notify_all()


class _Reader(Iterator[MiniBatch]):
    def __init__(
        self,
        stage: Prefetcher,
        open_stream: Callable[[], Iterator[MiniBatch]],
        streams: list[Stream],
        context: EpochContext,
    ) -> None:
        self._where, self._timeout = stage._where, stage.timeout
        self._waiting = context.calls.numbering.of(stage.source).waiting
        self._queue = _Queue(stage.depth)
        self._last: Callable[[], object] = _nothing  # returns the previous minibatch if the consumer still holds it
        self._process = os.getpid()
        self._context = context
        self._thread = EndingThread(_make_minibatches, (open_stream, streams, self._queue), name=stage._thread_name)
        self._thread.start()
        self.close = weakref.finalize(
            self, _stop, self._process, self._queue, self._thread, context.stopped
        )  # runs also when this object is collected, and at exit

    def __next__(self) -> MiniBatch:
        # before the lock, which may have been held when the process forked
        refuse_forked(self._process, "prefetch", "thread")
        queue, began = self._queue, time.monotonic()
        with queue.changed:
            while not queue.ready:
                if queue.stopped or (queue.ended and queue.error is None):
                    raise StopIteration
                if queue.error is not None:
                    error, queue.error = queue.error, None
                    raise error
                if not self._thread.is_alive():
                    raise RuntimeError("prefetch: its thread ended without a minibatch or an error. Call iter() again.")
                waited = time.monotonic() - began
                if self._timeout is not None and waited >= self._timeout:
                    raise LoaderTimeoutError(
                        f"{self._where}: no minibatch came within {self._timeout} s, the limit that was set; the "
                        f"thread still works on it.{self._context.calls.whereabouts()} Raise timeout, or look into "
                        "stats() for the slow stage."
                    )
                left = LOOK_S if self._timeout is None else min(LOOK_S, self._timeout - waited)
                queue.changed.wait(left)
            minibatch, queued = queue.take(self._last())
        take(minibatch, queued)
        self._last = minibatch._kept_by_consumer()
        self._context.calls.clock.add(self._waiting, began, minibatch.index)
        return minibatch


def _nothing() -> None:
    """Return None. A reader calls this for its previous minibatch as long as there is none."""


# In a thread that makes minibatches `makes` is True; `ending` is True too once the thread is ending.
_here = threading.local()


def _make_minibatches(open_stream: Callable[[], Iterator[MiniBatch]], streams: list[Stream], queue: _Queue) -> None:
    _here.makes = True
    preempt_nobody()
    process = os.getpid()
    error: Exception | None = None
    try:
        with current_streams(streams):
            stream = open_stream()
            try:
                for minibatch in stream:
                    end_if_clone(process)
                    if not queue.put(minibatch, leave(minibatch) if streams else []):
                        break
            finally:
                end_if_clone(process)
                _here.ending = True
                close_stream(stream)
    except BaseException as raised:
        error = as_error(raised)
    queue.end(error)


def _stop(process: int, queue: _Queue, thread: threading.Thread, stopped: threading.Event) -> None:
    if os.getpid() != process:
        return  # a forked child has a copy of the queue, perhaps locked for good, and no thread
    stopped.set()  # the epoch has no reader: a thread that waits for one of its minibatches gives up
    queue.stop()
    # The garbage collector may run this, for the reader of another epoch, in a thread that makes minibatches. Such a
    # thread must not join `thread`, which may be waiting for the minibatches made here. Once it is ending, it may join.
    may_wait = not getattr(_here, "makes", False) or getattr(_here, "ending", False)
    if may_wait and thread is not threading.current_thread():
        thread.join(JOIN_S)
