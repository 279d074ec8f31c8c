"""The rewrite passes for chains that copy to a GPU; passes.py has their order. Other chains stay as they are."""

from __future__ import annotations

from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_base import is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.device.gather import has_triton
from datapipes.features import FeatureFetcher, FeatureStore
from datapipes.features.feature_store import feature_text
from datapipes.features.fetch_for_copy import Decode, FetchForCopy, stored_in
from datapipes.loader.gpu_refusals import unused_max_uva_threads
from datapipes.loader.graphs import (
    Graph,
    Passage,
    copies_planned_here,
    copies_to_gpu,
    gpu_before,
    num_readers,
    only_carried_before,
    single_line,
)
from datapipes.loader.options import LoaderOptions
from datapipes.loader.prefetcher import Overlap, Prefetcher
from datapipes.loader.wait_for_gpu import WaitForGpu
from datapipes.loader.workers.workers import Workers


def fetch_behind_copy(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with the FeatureFetchers right before a copy to a GPU behind it, where all that they read can be
    read with ids that lie there; in a chain whose cut is the default one. Without triton only those that must.
    """
    if options.cut != LoaderOptions.cut:
        return graph
    for stage in copies_planned_here(graph):
        fetch = stage.source
        if _can_move(graph, fetch, stage):
            moved = graph.replace(stage, fetch.with_sources(stage.with_sources(fetch.source)))
            return fetch_behind_copy(moved, options)
    return graph


def _can_move(graph: Graph, fetch: Stage, behind: Stage) -> bool:
    assert isinstance(behind, CopyTo)
    if not isinstance(fetch, FeatureFetcher) or type(fetch).transform is not FeatureFetcher.transform:
        return False
    if fetch.asynchronous or type(fetch.feature_store).read_many is not FeatureStore.read_many:
        return False
    reads = fetch.reads_on(behind.device).values()
    return num_readers(graph, fetch) == 1 and all(reads) and ("device memory" in reads or has_triton())


def fetch_for_copy(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with each FeatureFetcher right before a copy to a GPU reading into page-locked memory; rows that
    are stored with fewer bits are copied so and decoded behind the copy.
    """
    for stage in copies_planned_here(graph):
        fetches: list[FeatureFetcher] = []  # the last one first
        source = stage.source
        while (
            isinstance(source, FeatureFetcher)
            and FetchForCopy.can_replace(source)
            and num_readers(graph, source) == 1
            and gpu_before(source) is None  # else its ids lie on that GPU
        ):
            fetches.append(source)
            source = source.source
        if fetches:
            planned: list[FetchForCopy] = []
            for fetch in reversed(fetches):
                planned.append(FetchForCopy.of(fetch, source))
                source = planned[-1]
            copied = stage.with_sources(source)
            stored = stored_in(planned)
            new = Decode(copied, stored) if stored else copied
            return fetch_for_copy(graph.replace(stage, new), options)
    return graph


def part_from_asynchronous(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a carrier between asynchronous stages and a copy to a GPU behind them, so that the copy is
    called in the thread that takes the minibatch: asynchronous stages have others called beside their event loop.

    Raises:
        ValueError: Behind the copy stages are joined, or an asynchronous stage stands.
    """
    for stage in copies_planned_here(graph):
        if any(map(is_async, _called_with(stage))):
            if not any(stage is each for each in single_line(graph)):
                raise ValueError(
                    "data_loader: asynchronous stages stand before copy_to, and sources are joined after it; the copy "
                    "would run in a thread that nobody waits for. Move copy_to behind the join."
                )
            ahead: Stage = Overlap(stage.source, options.prefetch_factor) if options.overlap else Passage(stage.source)
            return graph.replace(stage, stage.with_sources(ahead))
    for each in graph:
        device = gpu_before(each)
        if is_async(each) and device is not None:
            raise ValueError(
                f"data_loader: {each.name} is asynchronous and stands behind copy_to({str(device)!r}); its calls run "
                "in a thread that does not wait for the copy. Put it before copy_to."
            )
    return graph


def _called_with(stage: Stage) -> list[Stage]:
    """Return the stages before `stage` that are called one after the other with it: those behind the last carrier."""
    found: list[Stage] = []
    for source in stage.sources:
        if not isinstance(source, StreamStage):
            found += [source, *_called_with(source)]
    return found


def read_on_gpu(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with `options.max_uva_threads` at its FeatureFetchers behind a copy to a GPU.

    Raises:
        ValueError: Such a FeatureFetcher reads a feature that can only be read with ids in host memory; or there are
            workers, the option is not the default, and nothing reads host memory from a GPU.
    """
    by_uva: list[bool] = []  # of each FeatureFetcher behind such a copy
    for stage in graph.find(FeatureFetcher):
        device = gpu_before(stage)
        if device is not None:
            on_device = stage.reads_on(device)
            unreadable = [key for key, how in on_device.items() if how is None]
            if unreadable and only_carried_before(stage):
                raise ValueError(
                    f"data_loader: fetch_feature stands behind copy_to({str(device)!r}), but "
                    f"{feature_text(*unreadable[0])} is read only with ids in host memory; page-locked features and "
                    "those in the memory of that GPU are allowed there. Call pin_memory_() on the feature, or put "
                    "fetch_feature before copy_to."
                )
            by_uva.append(stage._reads_by_uva(device))
    if options.max_uva_threads != LoaderOptions.max_uva_threads and not any(by_uva):
        options.has_no_effect(*unused_max_uva_threads(graph, options.max_uva_threads))

    def planned(stage: FeatureFetcher) -> Stage:
        device = gpu_before(stage)
        return stage if device is None else stage._behind_copy_to(device, options.max_uva_threads)

    return graph.replace_each(FeatureFetcher, planned) if by_uva else graph


def overlap_with_copies(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Prefetcher behind its first copy to a GPU and the fetches that follow it: they run ahead
    of the stages of the user's behind them, which stay in the caller's thread.

    A join cannot stand behind a Prefetcher, so a chain that joins sources behind such a copy stays as it is.
    """
    line = single_line(graph)
    first = max((number for number, stage in enumerate(line) if isinstance(stage, Workers)), default=0)
    places = [number for number, stage in enumerate(line) if number >= first and copies_to_gpu(stage)]
    if not places:
        return graph
    last = places[0]
    while last + 1 < len(line) and isinstance(line[last + 1], (CopyTo, FeatureFetcher, Decode)):
        last += 1
    if last + 1 < len(line) and isinstance(line[last + 1], Prefetcher):
        return graph
    ahead = Overlap(line[last], options.prefetch_factor)
    if line[last] is graph.root:
        return StageGraph(ahead)
    return graph.replace(line[last + 1], line[last + 1].with_sources(ahead))


def wait_at_the_end(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a WaitForGpu at its end if it copies to a GPU."""
    return StageGraph(WaitForGpu(graph.root)) if any(map(copies_to_gpu, graph)) else graph
