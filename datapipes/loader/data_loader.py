"""DataLoader: runs a chain so that the next minibatches are made while the consumer works.

An ordered list of pure passes (passes.py) rewrites the chain into the plan of the loader. The chain itself stays as it
is and can feed other loaders. A DataLoader is a Stage too: stages chained after it run in the caller's process.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

from datapipes.base.checks import check_int
from datapipes.base.clock import NoClock, StageClock
from datapipes.base.errors import needed
from datapipes.base.html import filled
from datapipes.base.rng import check_epoch
from datapipes.chain.calls import Calls
from datapipes.chain.epoch import EpochContext
from datapipes.chain.evaluator import Evaluator
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.streams import stream_of
from datapipes.channel import ChannelBase
from datapipes.features import FeatureFetcher
from datapipes.loader.gpu_passes import fetch_behind_copy, wait_for_gpus
from datapipes.loader.graphs import copies_to_gpu
from datapipes.loader.leaks import LookForLeaks
from datapipes.loader.options import LoaderOptions
from datapipes.loader.passes import rewrite
from datapipes.loader.prefetcher import Overlap
from datapipes.loader.report import lanes_of, write_report
from datapipes.loader.stats import Delivered, LoaderStats, Watch
from datapipes.loader.trace import write_trace
from datapipes.loader.workers.workers import Workers
from datapipes.minibatch import MiniBatch
from datapipes.sampling import Padder

__all__ = ["DataLoader"]


class DataLoader(StreamStage):
    """Iterate over the minibatches of a chain, prepared in the background.

    Each loop over it is the next epoch, also after a `break`; `len(loader)` counts its minibatches. Minibatches have
    the same bits for any number of workers or threads and any start method, even after a worker has died. Workers
    read the arguments of the stages when they start: after you change an array in place, build a new loader.

    Args:
        datapipe: the last stage of a chain; it stays as it is.
        num_workers: number of workers, which run the stages before the cut (see `cut`). With 0 the stages before the
            first feature fetch run in a thread of this process, unless minibatches are small (see `overlap`); the
            options of workers then have no effect. An option other than `overlap` that has no effect on this chain
            raises ValueError if there are workers, and is only logged, at level INFO, if num_workers is 0.
        persistent_workers: keep the workers between epochs; otherwise they end with each epoch.
        max_uva_threads: the most threads of a GPU that take part in one read of a page-locked feature in host memory;
            the others are left to training. If a stage of your own stands between two fetches, both may run at the same
            time, and each may use `max_uva_threads`.
        worker_method: "process" or "thread". Threads copy nothing, but the Python code of their stages runs in one
            thread at a time.
        prefetch_factor: minibatches that each worker makes ahead, 1 or more. Without workers: how many sampled
            minibatches are held ready for the feature fetch, and how many complete minibatches for the consumer.
        in_order: True keeps the order of the indices. False delivers each minibatch as soon as it is made; every
            minibatch still comes once, with the same bits. No minibatch is made more than num_workers *
            (prefetch_factor + 1) beyond the first missing minibatch, so a very slow minibatch still holds up the others
            in the end. With asynchronous stages, their `concurrency` replaces the 1.
        timeout: seconds to wait for one minibatch before LoaderTimeoutError, a TimeoutError after which `next` goes on
            waiting. None waits as long as something works on the minibatch.
        multiprocessing_context: how worker processes start: None or "forkserver", "spawn", "fork", or a context.
        worker_init_fn: called in each worker with the worker's index, from 0, before its first minibatch.
        channel: how minibatches come from worker processes: "shm" (ShmChannel), "mp" (an MpChannel for each worker) or
            your own channel, which serves this loader alone and stays open. After the death of a worker, a channel over
            a multiprocessing queue may time out, since a killed process can keep the queue's lock.
        shm_size: size of the "shm" channel, as an int or text ("1GB"). None fits it to the first minibatch; larger
            minibatches then come in parts.
        max_restarts: how often a minibatch is made again after the worker that was making it died. With asynchronous
            stages a worker makes several at once; its death counts for each of them.
        cut: where the chain is cut: a functional name, a stage class, or "end". The default is before the first copy to
            a GPU or the first FeatureFetcher whose store workers do not read (`fetch_in_worker` is False: a
            FeatureStore, in memory or on disk), whichever comes first; in a chain without these, before the first
            CopyTo; else at the end.
        overlap: True runs the stages after the cut in a thread of their own while the consumer works. If a stage after
            the cut copies to a GPU, the thread runs the stages up to the first copy, and the copies and feature fetches
            that follow it directly; it uses a GPU stream of its own. Later stages then run in the consumer's thread.
            False runs all stages after the cut in the consumer's thread. None means True, but False if all three hold:
            num_workers is 0; `prefetch_factor` and `timeout` have their defaults; the loader can compute that each
            minibatch reads at most 1 MB from memory (such a minibatch is made faster than it is passed between
            threads). It can compute this only for items, `sample_neighbor` with fanouts other than -1, and features,
            all in memory; not for files, servers, other samplers or your own stages. A chain that starts with a
            FromNode has no such thread. `explain()` shows the choice.
    Raises:
        TypeError, ValueError, RuntimeError: An argument is not allowed, or the plan cannot work; the message says why.
    """

    _plans_its_source = True
    _does = "loader"

    def __init__(
        self,
        datapipe: Stage,
        num_workers: int = 0,
        persistent_workers: bool = True,
        max_uva_threads: int = 10240,
        *,
        worker_method: str = "process",
        prefetch_factor: int = 2,
        in_order: bool = True,
        timeout: float | None = 120.0,
        multiprocessing_context: Any = None,
        worker_init_fn: Callable[[int], None] | None = None,
        channel: str | ChannelBase = "shm",
        shm_size: int | str | None = None,
        max_restarts: int = 3,
        cut: str | type[Stage] = "fetch_feature",
        overlap: bool | None = None,
    ) -> None:
        arguments = locals()
        super().__init__(datapipe)
        self.options = LoaderOptions(**{option.name: arguments[option.name] for option in fields(LoaderOptions)})
        self.__dict__.update(vars(self.options))  # read-only attributes
        graph = StageGraph(self.source)
        graph.refuse_reused_memory("data_loader")
        self._plan = rewrite(graph, self.options)
        self._clock = StageClock()
        buckets = [len(stage.sizes) for stage in graph.find(Padder)]
        self._watch = Watch(self._plan.find(Workers), num_buckets=buckets[0] if buckets else None)
        self.window = max([stage.window for stage in self._plan.find(StreamStage)], default=1)
        self.options.log_unused()
        self._look = LookForLeaks(graph)

    def rewritten(self) -> StageGraph[Stage]:
        """Return the plan: the rewritten chain, which the loader runs."""
        return self._plan

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        starting = next((workers.starting for workers in self._plan.find(Workers) if workers.starting), "")
        stream = stream_of(self._plan.root, context.of_chain(self._plan.numbering, self._clock))
        as_a_stage = partial(context.calls.clock.add, context.calls.numbering.of(self).label)  # of a longer chain
        return Delivered(stream, self._clock, self._watch, self._look, as_a_stage, starting)

    def minibatch(self, epoch: int, index: int) -> MiniBatch | None:
        """Return the minibatch with this epoch and this global index, made again. None: a stage drops the minibatch.

        It is made in this process. The state of the loader and its running epoch do not change.

        Raises:
            IndexError: Ids that were read on a GPU had no rows. The call waits for the GPU, so these ids most likely
                belong to this minibatch.
        """
        check_epoch("data_loader: minibatch", epoch)
        graph = fetch_behind_copy(StageGraph(self.source), self.options)  # features on a GPU need this
        graph.refuse_jumps("data_loader: minibatch")
        seed_stage = graph.seed_stage
        check_int("data_loader: minibatch", "index", index, 0, seed_stage.num_steps * seed_stage.world_size - 1)
        minibatch = Evaluator(Calls(graph.numbering, NoClock())).minibatch(graph, epoch, index)
        if any(map(copies_to_gpu, graph)):
            wait_for_gpus(graph)
        return minibatch

    def _shown(self) -> tuple[str, Iterable[Stage]]:
        return repr(self), self._plan  # the rewritten chain

    def stats(self) -> LoaderStats:
        """Return {"1 sample_neighbor": {"calls": n, "seconds": s, "concurrent_seconds": c}, ...} since the loader was
        built, all processes together; {} before the first minibatch. `print` shows a table, with the bottleneck.

        `seconds` is wall time in which at least one call ran. `concurrent_seconds` adds up the calls: it is larger if
        several ran at once, in workers or in one event loop. "epochs" counts the delivered minibatches, and the seconds
        from asking for the first to the end. "consumer" is the time that the consumer spent on its minibatches.

        "waiting for 2 fetch_feature" (the last stage that runs ahead) is the time the consumer waited: if it is near 0,
        the consumer is the bottleneck. "waiting for 1 sample_neighbor" is the time the feature fetch waited for
        sampling. "channel" has the counts of the present or last ShmChannel from worker processes, see
        ShmChannel.stats: many `send_waits` mean that the workers are faster than the stages after them, many
        `recv_waits` that the workers are slower. Workers that are not persistent get a new channel each epoch.
        "padding" counts the minibatches of each bucket of `pad`; if many are beyond the last bucket, measure again.
        """
        rows: dict[str, dict[str, float]] = self._clock.stats()
        if (epochs := self._watch.epochs)["calls"] > 0:
            rows["epochs"] = {**epochs, "concurrent_seconds": epochs["seconds"]}
        for stage in self._plan.find(Workers):
            rows |= {name: counts for name, counts in stage.counts().items() if counts}
        for fetcher in self._plan.find(FeatureFetcher):
            if read := fetcher.feature_store.stats():
                rows["features"] = {name: float(count) for name, count in read.items()}
        if padding := self._watch.padding:
            rows["padding"] = self._padding(padding)
        return LoaderStats.of_plan(rows, repr(self), self._plan, self._watch.samples)

    def _padding(self, counts: Mapping[int, int]) -> dict[str, float]:
        """Return {in words: number of minibatches}, given {number of a bucket: number of minibatches}."""
        named: Counter[str] = Counter()
        for bucket, count in sorted(counts.items()):
            is_beyond = self._watch.is_beyond(bucket)
            named["minibatches beyond the last bucket" if is_beyond else f"minibatches of bucket {bucket}"] += count
        return {name: float(count) for name, count in named.items()}

    def trace(self, path: str | Path) -> None:
        """Write the last calls of all stages, in all processes, as a trace for chrome://tracing and Perfetto.

        The loader remembers the last 65,536 calls. The command `datapipes report` makes the page of `report` from this
        file.
        """
        write_trace(path, self._stats_and_calls())

    def report(self, path: str | Path) -> None:
        """Write a report of all epochs so far as one HTML page, which needs no other file and no network.

        The page names the bottleneck of the epochs and the option to change. It shows the chain with the time of each
        stage; minibatches/s, memory and queues over time; and the last calls of each thread and process.

        Raises:
            RuntimeError: No minibatch was delivered yet, or an epoch is running.
            OSError: The file cannot be written.
        """
        if self._run is not None and self._run.is_open:
            raise RuntimeError(
                "data_loader: report: an epoch is running. Read it to its end, or let its iterator go (del); "
                "trace(path) and stats() can be called at any time."
            )
        write_report(path, self._stats_and_calls())

    def progress(self, *, bottleneck: bool = False, **options: Any) -> Iterator[MiniBatch]:
        """Yield the minibatches of the next epoch; on a terminal, under tqdm's bar, which shows minibatches/s.

        Args:
            bottleneck: show the bottleneck of the epochs so far behind the bar; it is renewed each second.
            options: further arguments of tqdm.
        Raises:
            ModuleNotFoundError: tqdm is not installed; the message says what to install.
        """
        tqdm = needed("tqdm.auto", "cli", "data_loader: progress").tqdm
        shown_at, hidden = time.monotonic(), {} if "TQDM_DISABLE" in os.environ else {"disable": None}
        with tqdm(self, **{"unit": " minibatches", **hidden, **options}) as bar:
            for minibatch in bar:
                yield minibatch
                if bottleneck and not bar.disable and time.monotonic() - shown_at > 1:
                    shown_at, cause = time.monotonic(), self.stats().found
                    bar.set_postfix_str("" if cause is None else cause.short)

    def _stats_and_calls(self) -> LoaderStats:
        stats = self.stats()
        stats.calls = self._clock.last_calls()
        return stats

    def _repr_html_(self) -> str:
        """Return the HTML for notebooks: the rewritten chain, with the time of each stage."""
        stats = self.stats()
        return filled("loader.html", title=stats.title, lanes=lanes_of(stats), bottleneck=stats.bottleneck)

    def _end_kept(self) -> None:
        for stage in self._plan:
            stage._end_kept()

    def describe(self) -> dict[str, Any]:
        options = self.options
        shown: dict[str, Any] = {"num_workers": options.num_workers}
        if options.num_workers > 0:
            shown["worker_method"] = options.worker_method
        overlap, plan = options.overlap, self.__dict__.get("_plan")
        if overlap is None:
            overlap = plan is None or bool(plan.find(Overlap) or plan.find(Workers))
        return {**shown, "prefetch_factor": options.prefetch_factor, "overlap": overlap}
