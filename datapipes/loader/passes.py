"""The rewrite passes of the DataLoader, in their order, and how they make its plan.

A pass is a pure function from a graph and the loader's options to a graph. It starts nothing, and the caller's chain
stays as it is. A pass that has nothing to do returns the graph that it was given. The stages before the cut run in
workers, the others in the caller's process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from datapipes.base.checks import shown
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_base import is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.features import FeatureFetcher
from datapipes.loader.gpu_passes import (
    fetch_behind_copy,
    fetch_for_copy,
    overlap_with_copies,
    part_from_asynchronous,
    read_on_gpu,
    wait_at_the_end,
)
from datapipes.loader.gpu_refusals import refuse_ids_elsewhere
from datapipes.loader.graphs import Graph, Passage, copies_to_gpu, num_readers, single_line
from datapipes.loader.options import LoaderOptions
from datapipes.loader.prefetcher import Overlap, Prefetcher
from datapipes.loader.sharded import shard
from datapipes.loader.workers.pickling import refuse_unpicklable
from datapipes.loader.workers.workers import Workers
from datapipes.processes.start import context_of, refuse_unsafe_fork


class Cut(Passage):
    """Marks the place of the cut."""


def cut(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Cut before the first stage that `options.cut` names; without workers, `graph` itself.

    `options.cut` is a functional name, a class (subclasses count) or "end". The default, "fetch_feature", means the
    first CopyTo to a GPU or the first FeatureFetcher whose store is not read in workers (`fetch_in_worker`), whichever
    comes first. If there is none, it means the first CopyTo; if there is none of these either, the end.

    Raises:
        TypeError, ValueError: `options.cut` names no stage of the chain; sources are joined after the cut; or a stage
            before the cut cannot run in a worker.
    """
    before = _place_of(graph, options.cut)
    if options.num_workers == 0:
        return graph
    if before is None:
        _check_before(StageGraph(graph.root))
        return StageGraph(Cut(graph.root))
    if not any(stage is before for stage in single_line(graph)) or num_readers(graph, before.source) != 1:
        raise ValueError(
            f"data_loader: the chain cannot be cut before {before.name}, since sources are joined after it. Join "
            "before the cut, give cut='end', or use num_workers=0."
        )
    _check_before(StageGraph(before.source))
    return graph.replace(before, before.with_sources(Cut(before.source)))


def _place_of(graph: Graph, place: Any) -> Stage | None:
    """Return the stage before which the chain is cut; None for its end."""
    if not (isinstance(place, str) or (isinstance(place, type) and issubclass(place, Stage))):
        raise TypeError(
            f"data_loader: cut must be a functional name, a stage class or 'end', got {shown(place)}. Name a stage of "
            "the chain."
        )
    if place == "end":
        return None
    if place == LoaderOptions.cut:
        here: list[Stage] = [stage for stage in graph if _stays_here(stage)]
        return next(iter([*here, *graph.find(CopyTo)]), None)
    found: list[Stage] = graph.find(place)
    if not found:
        names = [stage.name for stage in graph if stage.sources]
        raise ValueError(
            f"data_loader: cut is {shown(place)}, but this chain has no such stage; it has {names}. Name one of these, "
            "or 'end'."
        )
    if not found[0].sources:
        raise ValueError(
            f"data_loader: cut is {shown(place)}, but no stage stands before it. Name a later stage, or 'end'."
        )
    return found[0]


def _stays_here(stage: Stage) -> bool:
    """Return whether a stage belongs into the caller's process: it uses a GPU, or memory of this process."""
    return copies_to_gpu(stage) or (isinstance(stage, FeatureFetcher) and not stage.feature_store.fetch_in_worker)


def _check_before(graph: Graph) -> None:
    for stage in graph.find(StreamStage):
        raise ValueError(
            f"data_loader: {stage.name} stands before the cut, in the part that workers make minibatch by minibatch. "
            "Take it out (workers run ahead by prefetch_factor), move it behind the cut, or use num_workers=0."
        )


def put_in_workers(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with Workers at its Cut.

    Raises:
        ValueError: Worker processes would copy to a GPU.
        TypeError: A stage cannot be pickled, so it cannot be passed on to a worker process.
        RuntimeError: Workers would be forked from a process that uses CUDA.
    """
    if options.num_workers == 0:
        return graph
    (mark,) = graph.find(Cut)
    before: Graph = StageGraph(mark.source)
    on_gpu = [stage for stage in before if copies_to_gpu(stage)]
    if on_gpu and options.worker_method == "thread" and any(map(is_async, before)):
        raise ValueError(
            f"data_loader: {on_gpu[0]!r} and asynchronous stages both stand before the cut; in worker threads the copy "
            "would run beside an event loop, where nobody waits for it. Use the default cut."
        )
    if options.worker_method == "process":
        if on_gpu:
            raise ValueError(
                f"data_loader: {on_gpu[0]!r} stands before the cut, but worker processes use no GPU. Move copy_to to "
                "the end of the chain, give another cut, or use worker_method='thread'."
            )
        context = context_of(options.multiprocessing_context)
        refuse_unsafe_fork(context)
        if context.get_start_method() != "fork":
            refuse_unpicklable(before, options.worker_init_fn)
    pins = any(copies_to_gpu(stage) for stage in graph) and not on_gpu
    return graph.replace(mark, Workers(mark.source, options, pin=pins))


def overlap_with_consumer(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Prefetcher at its end, so that the next minibatches are made while the consumer works.

    In a chain that copies to a GPU the Prefetcher stands behind the copy, see overlap_with_copies. Two chains stay as
    they are: one that starts at a FromNode, since nothing may read ahead of it; and one that ends in Workers, which run
    ahead themselves.
    """
    if not options.overlap or any(not stage.sources for stage in graph.find(StreamStage)):
        return graph
    if any(map(copies_to_gpu, _behind_workers(graph))):
        return overlap_with_copies(graph, options)
    if isinstance(graph.root, Workers):
        return graph
    return StageGraph(Overlap(graph.root, options.prefetch_factor))


def _behind_workers(graph: Graph) -> list[Stage]:
    """Return the stages that run in the caller's process."""
    in_workers = {id(stage) for workers in graph.find(Workers) for stage in StageGraph(workers)}
    return [stage for stage in graph if id(stage) not in in_workers]


def overlap_fetch_with_sampling(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Prefetcher before its first FeatureFetcher or copy to a GPU: its thread samples the next
    minibatches while the features of this one are fetched.

    These graphs stay as they are: one with workers, which sample beside the fetch already; one without a thread at its
    end; one that samples nothing before the fetch; one with a Prefetcher before the fetch; one with another carrier,
    such as a DataLoader, which overlaps its stages itself; one that joins sources after the fetch; and one with
    asynchronous stages, which have several minibatches in flight from the sampler to the fetch: a Prefetcher would part
    them.
    """
    first = next(
        (stage for stage in single_line(graph) if isinstance(stage, FeatureFetcher) or copies_to_gpu(stage)), None
    )
    has_other_carrier = any(not isinstance(stage, Prefetcher) for stage in graph.find(StreamStage))
    if first is None or not graph.find(Overlap) or has_other_carrier or any(map(is_async, graph)):
        return graph
    before: Graph = StageGraph(first.source)
    if before.find(Prefetcher) or not before.root.sources or any(map(copies_to_gpu, before)):
        return graph
    return graph.replace(first, first.with_sources(Overlap(first.source, options.prefetch_factor)))


def limit_the_consumers_wait(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with `options.timeout` at its last Prefetcher or Workers.

    Only the consumer's wait is limited. A thread in between waits for as long as something works on its minibatch.
    Where the plan runs in the consumer's thread alone, the log names options of threads that are given.
    """
    ahead = [stage for stage in graph if isinstance(stage, (Overlap, Workers))]
    if ahead:
        return graph.replace(ahead[-1], ahead[-1].with_timeout(options.timeout))
    unused = [name for name in options.changed() if name in ("prefetch_factor", "timeout")]
    if unused:
        found = " and ".join(f"{name}={getattr(options, name)}" for name in unused)
        options.has_no_effect(
            f"data_loader: {found} belong to the background threads, but this plan has none (overlap=False, a "
            "FromNode, or a join behind a copy to a GPU)",
            "Leave them out",
        )
    return graph


PASSES: tuple[Callable[[Graph, LoaderOptions], Graph], ...] = (
    shard,
    fetch_behind_copy,
    cut,
    put_in_workers,
    fetch_for_copy,
    part_from_asynchronous,
    overlap_with_consumer,
    overlap_fetch_with_sampling,
    limit_the_consumers_wait,
    refuse_ids_elsewhere,
    read_on_gpu,
    wait_at_the_end,
)


def rewrite(graph: Graph, options: LoaderOptions) -> Graph:
    """Return the plan of a DataLoader: `graph` after all passes."""
    for each in PASSES:
        graph = each(graph, options)
    return graph
