"""The passes (rewrites and checks) of the DataLoader for chains that copy to a GPU.

Other chains stay as they are. passes.py has the order of the passes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from datapipes.base.errors import pip_install
from datapipes.chain.epoch import EpochContext
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_base import is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.chain.streams import close_stream
from datapipes.device import CopyTo
from datapipes.device.gather import has_triton
from datapipes.device.missing_ids import wait_for_all
from datapipes.features import FeatureFetcher, FeatureStore
from datapipes.features.feature_store import feature_text
from datapipes.features.fetch_for_copy import Decode, FetchForCopy, lies_on_gpu, stored_in
from datapipes.loader.graphs import Graph, copies_to_gpu, gpus_of, planned_elsewhere, single_line
from datapipes.loader.options import LoaderOptions
from datapipes.loader.prefetcher import Overlap, Prefetcher
from datapipes.loader.workers.workers import Workers
from datapipes.minibatch import MiniBatch
from datapipes.sampling import Sampler
from datapipes.seeds import ItemSampler


class Passage(StreamStage):
    """A stage that passes minibatches on in the same thread, one at a time.

    It is put between asynchronous stages and a later copy to a GPU. The copy then runs in the thread that takes the
    minibatch, and not beside the event loop of the asynchronous stages.
    """

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return streams[0]()


def fetch_behind_copy(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with FeatureFetchers moved from right before a copy to a GPU to right behind the copy.

    A fetcher is moved only if the option `cut` has its default and all features of the fetcher can be read with ids on
    the GPU. Without triton, one of its features must also lie in GPU memory.
    """
    if options.cut != LoaderOptions.cut:
        return graph
    for stage in _copies_planned_here(graph):
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
    return graph._num_readers(fetch) == 1 and all(reads) and ("device memory" in reads or has_triton())


def _copies_planned_here(graph: Graph) -> list[Stage]:
    """Return the copies to a GPU in `graph`, without those before an inner loader: that loader plans them itself."""
    elsewhere = planned_elsewhere(graph)
    return [stage for stage in graph if copies_to_gpu(stage) and id(stage) not in elsewhere]


def fetch_for_copy(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` in which each FeatureFetcher right before a copy to a GPU reads into page-locked memory. Rows that
    are stored with fewer bits are copied as stored, and decoded behind the copy.
    """
    for stage in _copies_planned_here(graph):
        fetches: list[FeatureFetcher] = []  # the last one first
        source = stage.source
        while (
            isinstance(source, FeatureFetcher)
            and FetchForCopy.can_replace(source)
            and graph._num_readers(source) == 1
            and _gpu_before(source) is None  # else its ids lie on a GPU
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
    """Return `graph` in which a copy to a GPU is parted from asynchronous stages before it. The copy then runs in the
    thread that takes the minibatch, and not beside the event loop.

    The stage in between is an Overlap, which reads ahead in a thread; with overlap=False it is a Passage, which does
    not.

    Raises:
        ValueError: Sources are joined behind the copy, or an asynchronous stage stands behind the copy.
    """
    for stage in _copies_planned_here(graph):
        if any(map(is_async, _called_with(stage))):
            if not any(stage is on_line for on_line in single_line(graph)):
                raise ValueError(
                    "data_loader: asynchronous stages stand before copy_to, and sources are joined after it; the copy "
                    "would run in another thread, and nothing would wait for it. Move copy_to behind the join."
                )
            ahead: Stage = Overlap(stage.source, options.prefetch_factor)
            if options.overlap is False:
                ahead = Passage(stage.source)
            return graph.replace(stage, stage.with_sources(ahead))
    for stage in graph:
        device = _gpu_before(stage)
        if is_async(stage) and device is not None:
            raise ValueError(
                f"data_loader: {stage.name} is asynchronous and stands behind copy_to({str(device)!r}); its calls run "
                "in a thread that does not wait for the copy. Put it before copy_to."
            )
    return graph


def _called_with(stage: Stage) -> list[Stage]:
    """Return the stages before `stage` that are called together with it: back to the nearest StreamStage."""
    called: list[Stage] = []
    for source in stage.sources:
        if not isinstance(source, StreamStage):
            called += [source, *_called_with(source)]
    return called


def _gpu_before(stage: Stage) -> torch.device | None:
    """Return the device of the last CopyTo before `stage` if it is a CUDA device. A user's stage in between may have
    moved the minibatch elsewhere.
    """
    for source in stage.sources:
        if isinstance(source, CopyTo):
            device = source.device if copies_to_gpu(source) else None
        else:
            device = _gpu_before(source)
        if device is not None:
            return device
    return None


def read_on_gpu(graph: Graph, options: LoaderOptions) -> Graph:
    """Return the stages `graph` in which each FeatureFetcher after a copy to a GPU uses `options.max_uva_threads`.

    Raises:
        ValueError: Such a FeatureFetcher reads a feature that needs ids in host memory. Or a loader with workers sets
            `max_uva_threads`, and no FeatureFetcher reads host memory from a GPU.
    """
    by_uva: list[bool] = []  # for each FeatureFetcher behind a copy to a GPU
    for stage in graph.find(FeatureFetcher):
        device = _gpu_before(stage)
        if device is not None:
            on_device = stage.reads_on(device)
            unreadable = [key for key, how in on_device.items() if how is None]
            if unreadable and place_of_ids(stage) is not None:
                raise ValueError(
                    f"data_loader: fetch_feature stands behind copy_to({str(device)!r}), but "
                    f"{feature_text(*unreadable[0])} is read only with ids in host memory; page-locked features and "
                    "those in the memory of that GPU are allowed there. Call pin_memory_() on the feature, or put "
                    "fetch_feature before copy_to."
                )
            by_uva.append(stage._reads_by_uva(device))
    if options.max_uva_threads != LoaderOptions.max_uva_threads and not any(by_uva):
        unused = (
            f"data_loader: max_uva_threads is {options.max_uva_threads}, but no stage of this chain reads host memory "
            f"from a GPU; allowed: {LoaderOptions.max_uva_threads}"
        )
        options.has_no_effect(unused, f"Leave it out{what_would_use_uva(graph)}")

    def planned(stage: FeatureFetcher) -> Stage:
        device = _gpu_before(stage)
        return stage if device is None else stage._behind_copy_to(device, options.max_uva_threads)

    return graph.replace_each(FeatureFetcher, planned) if by_uva else graph


def overlap_with_copies(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Prefetcher behind its first copy to a GPU and the fetches after that copy. The copy and the
    fetches run ahead of the user's later stages, which stay in the caller's thread.

    A join cannot stand behind a Prefetcher, so a chain that joins sources behind the copy stays as it is.
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
    """Return `graph` with a WaitForGpu at its end if a stage of it copies to a GPU. That stage waits for the GPU when
    an epoch ends.
    """
    return StageGraph(WaitForGpu(graph.root)) if any(map(copies_to_gpu, graph)) else graph


class WaitForGpu(StreamStage):
    """Pass minibatches on; at the end of an epoch, wait for the copies and reads of earlier stages.

    An id that has no row is reported only after the read on the GPU has run. With this wait, the error is raised at the
    end of its epoch and not in the next epoch. The source tensors of the last copies are freed, too.

    Raises:
        IndexError: At the end of an epoch: ids that were read on a GPU had no rows.
    """

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return _Waiting(streams[0](), StageGraph(self.source))


def wait_for_gpus(graph: Graph) -> None:
    """Wait for the copies and reads that stages of `graph` have queued on GPUs. Then raise the first of their
    IndexErrors (ids without rows), if any.
    """
    waits = [stage._finish for stage in graph.find(CopyTo)]
    wait_for_all(waits + [stage._finish_reads for stage in graph.find(FeatureFetcher)])


class _Waiting(Iterator[MiniBatch]):
    def __init__(self, minibatches: Iterator[MiniBatch], graph: Graph) -> None:
        self._minibatches, self._graph = minibatches, graph

    def __next__(self) -> MiniBatch:
        try:
            return next(self._minibatches)
        except StopIteration:
            wait_for_gpus(self._graph)
            raise

    def close(self) -> None:
        close_stream(self._minibatches)


# --- plans that cannot work, such as stages with ids in the wrong memory

_HOST = torch.device("cpu")


def refuse_ids_elsewhere(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` unchanged, after a check of where ids lie. Stages behind a user's stage are not checked.

    Raises:
        ValueError: A sampler's seeds lie on a GPU; or rows on a GPU are fetched with ids in host memory.
    """
    elsewhere = planned_elsewhere(graph)
    for stage in graph:
        if id(stage) in elsewhere:
            continue
        if isinstance(stage, Sampler):
            _refuse_seeds_on_gpu(stage)
        if isinstance(stage, FeatureFetcher):
            _refuse_rows_on_gpu(stage, options)
    return graph


def _refuse_seeds_on_gpu(sampler: Sampler) -> None:
    """Raise ValueError if the seeds of `sampler` lie on a GPU. A user's class that overrides the methods that read the
    seeds is not checked.
    """
    methods, place = ("transform", "seeds_of", "_checked_seeds"), place_of_ids(sampler)
    has_own = any(not _is_ours(getattr(type(sampler), name)) for name in methods)
    if place is not None and place.type == "cuda" and not has_own:
        raise ValueError(
            f"data_loader: {sampler.name} stands behind copy_to({str(place)!r}), but samplers take seeds in host "
            f"memory; fetch_feature and other stages of your own are allowed there. Put copy_to behind {sampler.name}."
        )


def _refuse_rows_on_gpu(fetch: FeatureFetcher, options: LoaderOptions) -> None:
    """Raise ValueError if `fetch` gets ids in host memory, but a feature has its rows on a GPU. Not checked:
    asynchronous fetches, and stages and stores of users' classes.
    """
    if place_of_ids(fetch) != _HOST or not (isinstance(fetch, FetchForCopy) or FetchForCopy.can_replace(fetch)):
        return
    for key in fetch.feature_keys:
        feature = fetch.feature_store[key]
        if lies_on_gpu(feature):
            device = str(feature.tensor.device)
            raise ValueError(
                f"data_loader: fetch_feature takes ids in host memory here, but the rows of {feature_text(*key)} lie "
                f"on {device}; only ids on {device} are allowed for them. "
                f"{_how_to_read_there(fetch, device, options)}, or keep the rows in host memory."
            )


def _how_to_read_there(fetch: FeatureFetcher, device: str, options: LoaderOptions) -> str:
    for key, how in fetch.reads_on(torch.device(device)).items():
        if how is None:
            return (
                f"The {feature_text(*key)} is not read with ids on {device}: pin it, or use two fetches, with "
                f"copy_to({device!r}) between"
            )
    in_processes = options.num_workers > 0 and options.worker_method == "process"
    at_default = ", and leave cut at its default" if in_processes and options.cut != LoaderOptions.cut else ""
    return f"Put copy_to({device!r}) before fetch_feature{at_default}"


def place_of_ids(stage: Stage) -> torch.device | None:
    """Return the device of the ids that `stage` gets. None: it is not known, for example because a user's stage may
    have moved the ids.
    """
    while len(stage.sources) == 1:
        stage = stage.source
        if not _is_ours(type(stage)):
            return None
        if isinstance(stage, CopyTo):
            return stage.device
        if isinstance(stage, (Sampler, ItemSampler)):
            return _HOST
        if not isinstance(stage, (FeatureFetcher, StreamStage, Decode)):
            return None
    return None


def _is_ours(defined: Any) -> bool:
    """Return whether a class or a method belongs to the package, not to the user."""
    return str(defined.__module__).startswith("datapipes.")


def what_would_use_uva(graph: Graph) -> str:
    """Return advice for the error that `max_uva_threads` has no effect: what to change so that a GPU reads host memory.

    The advice is the end of a sentence and begins with a comma. "": there is none.
    """
    gpus = gpus_of(graph)
    fetches = [stage for stage in graph.find(FeatureFetcher) if not stage.asynchronous]
    if fetches and not gpus:
        return ", or put copy_to('cuda') before fetch_feature and pin the features"
    reads = [(stage.reads_on(gpu).values(), stage._reads_by_uva(gpu)) for stage in fetches for gpu in gpus]
    if any(all(of_each) and by_uva for of_each, by_uva in reads):
        if not has_triton():
            how = pip_install("triton", "gpu")
            return f", or install triton, so that GPUs read the page-locked features: {how}"
        return ", or put fetch_feature behind copy_to: its features are page-locked, but are read on the CPU"
    return ", or pin the features" if any(None in of_each for of_each, _ in reads) else ""
