"""Workers: a stage that has the chain before it run in worker processes or threads."""

from __future__ import annotations

import os
import secrets
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from datapipes.chain.calls import Waiting
from datapipes.chain.dispatcher import Dispatcher
from datapipes.chain.epoch import EpochContext
from datapipes.chain.input_use import InputUse, note_user
from datapipes.chain.pool import Pool
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.streams import EndingWithEpoch
from datapipes.channel import ChannelBase
from datapipes.device.handover import SideStreams
from datapipes.loader.graphs import gpus_of
from datapipes.loader.options import LoaderOptions
from datapipes.loader.workers.making import tasks_for_each
from datapipes.loader.workers.process_pool import ProcessPool
from datapipes.loader.workers.thread_pool import ThreadPool
from datapipes.minibatch import MiniBatch
from datapipes.processes import pages
from datapipes.processes.sharing import Packed, pack
from datapipes.processes.start import context_of, hold_standard_descriptors, refuse_unsafe_fork


class Workers(StreamStage):
    """Make the minibatches of `source` in workers. The pass `put_in_workers` puts this stage at the cut.

    The workers start with the first epoch. They end on `close`, with this object, or, if they are not persistent, with
    each epoch.

    Args:
        options: the DataLoader's options, already checked.
        pin: whether minibatches are copied to a GPU from the channel's memory.
        timeout: seconds to wait for a minibatch; None waits as long as a worker works on it. The pass
            `limit_the_consumers_wait` sets it if the consumer reads from the workers directly.
    """

    def __init__(
        self, source: Stage, options: LoaderOptions, *, pin: bool = False, timeout: float | None = None
    ) -> None:
        super().__init__(source)
        self.options = options
        self.pin = pin
        self.timeout = timeout
        self.context = context_of(options.multiprocessing_context) if options.worker_method == "process" else None
        self.window = 1 if options.in_order else options.num_workers * tasks_for_each(source, options.prefetch_factor)
        self._running = _Running()
        self._streams = SideStreams()  # for worker threads that copy to GPUs
        # Registered before any reader thread: exit handlers run in reverse, so readers end before workers.
        weakref.finalize(self, self._running.end)
        self._number = secrets.randbits(62)
        self._chain: Packed | tuple[Any, ...] | None = None  # as workers get it; kept, so that graphs are copied once
        self._of_channel: dict[str, float] = {}
        self._counts = {"deaths": 0.0, "made_again": 0.0}

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        with Waiting(context.calls, lambda: " Its workers are being started."):
            pool = self._running_pool()
        dispatcher = Dispatcher(
            pool,
            context,
            StageGraph(self.source).seed_stage._indices,
            context.calls.numbering.of(self.source).waiting,
            in_order=self.options.in_order,
            timeout=self.timeout,
            max_restarts=self.options.max_restarts,
            counts=self._counts,
        )
        return dispatcher if self.options.persistent_workers else EndingWithEpoch(dispatcher, partial(self._end, pool))

    def _running_pool(self) -> Pool:
        running = self._running
        if running.pool is None or running.pool.is_closed or running.pool.process != os.getpid():
            running.pool = self._make_pool()
        return running.pool

    def _make_pool(self) -> Pool:
        if self.context is None:
            return ThreadPool(self.source, self.options, self._streams.of(gpus_of(StageGraph(self.source))))
        refuse_unsafe_fork(self.context)
        hold_standard_descriptors()  # before there is shared memory
        note_user(self)
        if self._chain is None:
            chain = (self.source, self.options.worker_init_fn)
            self._chain = chain if self._reads_our_memory else pack(chain)
        return ProcessPool(self.source, self._number, self._chain, self.options, self.context, pin=self.pin)

    def input_use(self) -> InputUse | None:
        """Return the chain of which worker processes have a copy, as an InputUse; None if there is no copy now."""
        if self.context is None or not (isinstance(self._chain, Packed) or self._running.pool is not None):
            return None
        remedy = "Close the loader, and build a new one afterwards; or fetch behind its cut, in this process."
        return InputUse(self.source, "worker processes have a copy of the chain that ends in", remedy)

    def counts(self) -> dict[str, dict[str, float]]:
        """Return {"channel": counts, "workers": counts}.

        "channel" has the counts of the present or last ShmChannel, see ShmChannel.stats; {} if there is none. "workers"
        counts how many processes died and how many minibatches were made again; {} if the workers are threads.
        """
        if self._running.pool is not None:
            self._of_channel = self._running.pool.stats() or self._of_channel
        return {"channel": self._of_channel, "workers": {} if self.context is None else {**self._counts}}

    @property
    def starting(self) -> str:
        """The text to show while worker processes start. "" if they run already, or are forked: the thread that shows
        the text must not run at a fork.
        """
        if self._reads_our_memory or self._running.pool is not None:
            return ""
        return f"start the worker processes ({self.options.num_workers})"

    @property
    def _reads_our_memory(self) -> bool:
        """Whether the workers are threads or forked: they read the memory of this process as it is."""
        return self.context is None or self.context.get_start_method() == "fork"

    def processes(self) -> list[int]:
        """Return the pids of the worker processes that run."""
        return [] if self._running.pool is None else self._running.pool.processes()

    def end_workers(self) -> None:
        """End the workers, within a bounded time; the next epoch starts new ones."""
        try:
            self.counts()
        finally:
            self._running.end()

    def _end(self, pool: Pool) -> None:
        """End `pool`, the workers of an epoch. Do nothing if another pool has replaced it."""
        if pool is self._running.pool:
            self.end_workers()

    def _end_kept(self) -> None:
        self.end_workers()
        self._chain = None

    @property
    def _lane(self) -> str:
        options = self.options
        order = "in order" if options.in_order else "as made"
        ahead = f"each up to {options.prefetch_factor} minibatches ahead, {order}"
        if self.context is None:
            return f"{options.num_workers} worker threads (datapipes-worker-0 ...), {ahead}"
        channel = options.channel
        through = f"{type(channel).__name__} (yours)" if isinstance(channel, ChannelBase) else channel
        start = self.context.get_start_method()
        return f"{options.num_workers} worker processes ({start}), {ahead}, through channel {through}"

    def _pages(self) -> str:
        if isinstance(self._chain, Packed):
            return pages.of_shared(self._chain.memories, self._chain.files, [os.getpid(), *self.processes()])
        return pages.of_private() if self._reads_our_memory else pages.of_coming()

    def describe(self) -> dict[str, Any]:
        options = self.options
        shown: dict[str, Any] = {"num_workers": options.num_workers, "method": options.worker_method}
        if self.context is not None:
            shown["start"] = self.context.get_start_method()
            shown["channel"] = options.channel
        return {**shown, "prefetch_factor": options.prefetch_factor, "in_order": options.in_order}


class _Running:
    """Holds the pool of a Workers stage, so that the stage's finalizer can end the pool after the stage is gone."""

    def __init__(self) -> None:
        self.pool: Pool | None = None

    def end(self) -> None:
        pool, self.pool = self.pool, None
        if pool is not None:
            pool.close()
