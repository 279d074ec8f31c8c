"""The rewrite passes of the DataLoader, in their order, and how they make its plan.

A pass is a pure function from a graph and the loader's options to a graph. It starts nothing, and the caller's chain
stays as it is. A pass that has nothing to do returns the graph that it was given. The stages before the cut run in
workers, the others in the caller's process.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Callable, Iterable
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datapipes.base.checks import shown
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_base import is_async
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.device.host_pages import mapped_in
from datapipes.features import FeatureFetcher, FeatureStore, TensorFeature
from datapipes.graph import CSCGraph, HeteroCSCGraph
from datapipes.loader.gpu_passes import (
    fetch_behind_copy,
    fetch_for_copy,
    overlap_with_copies,
    part_from_asynchronous,
    read_on_gpu,
    refuse_ids_elsewhere,
    wait_at_the_end,
)
from datapipes.loader.graphs import Graph, copies_to_gpu, single_line
from datapipes.loader.options import OF_THREADS, LoaderOptions
from datapipes.loader.prefetcher import Overlap, Prefetcher
from datapipes.loader.workers.workers import Workers
from datapipes.processes.main_module import NAMES, refuse_hidden, refuse_missing_main, refuse_repetition
from datapipes.processes.mappings import extent
from datapipes.processes.sharing import Together
from datapipes.processes.start import context_of, refuse_unsafe_fork
from datapipes.sampling import NeighborSampler
from datapipes.seeds import DistributedItemSampler, HeteroItemSet, ItemSampler, ItemSet


def put_in_workers(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with Workers before the first stage that `options.cut` names; without workers, `graph` itself.

    `options.cut` is a functional name, a class (a stage of a subclass matches, too) or "end". The default,
    "fetch_feature", means the first CopyTo to a GPU or the first FeatureFetcher whose store is not read in workers
    (`fetch_in_worker`), whichever comes first. A chain without such stages is cut before its first CopyTo of any
    device, or at its end if it has no CopyTo.

    Raises:
        TypeError, ValueError: The chain starts with a stage that keeps an order of its own, which workers cannot share;
            `options.cut` names no stage of the chain; sources are joined after the cut; a stage before the cut cannot
            run in a worker; worker processes would copy to a GPU; or a stage cannot be pickled.
        RuntimeError: Workers would be forked from a process that uses CUDA.
    """
    if options.num_workers == 0:
        _place_of(graph, options.cut)
        return graph
    for stage in graph.own_orders:
        raise ValueError(
            f"data_loader: {stage.name} starts this chain and keeps an order of its own, which workers cannot share. "
            "Start it with an ItemSampler, or use num_workers=0."
        )
    behind = _place_of(graph, options.cut)
    is_on_line = any(stage is behind for stage in single_line(graph))
    if behind is not None and (not is_on_line or graph._num_readers(behind.source) != 1):
        raise ValueError(
            f"data_loader: the chain cannot be cut before {behind.name}, since sources are joined after it. Join "
            "before the cut, give cut='end', or use num_workers=0."
        )
    before: Graph = graph if behind is None else StageGraph(behind.source)
    _refuse_before_cut(before, options)
    if options.worker_method == "process" and context_of(options.multiprocessing_context).get_start_method() != "fork":
        _refuse_unpicklable(before, options.worker_init_fn)
    pins = any(map(copies_to_gpu, graph)) and not any(map(copies_to_gpu, before))
    workers = Workers(before.root, options, pin=pins)
    return StageGraph(workers) if behind is None else graph.replace(behind, behind.with_sources(workers))


def _place_of(graph: Graph, place: Any) -> Stage | None:
    """Return the stage before which the chain is cut. None: the chain is cut at its end.

    Args:
        place: the option `cut`: a functional name, a stage class or "end".
    """
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
    named: list[Stage] = graph.find(place)
    if not named:
        names = [stage.name for stage in graph if stage.sources]
        raise ValueError(
            f"data_loader: cut is {shown(place)}, but this chain has no such stage; allowed are "
            f"{[*names, 'end']}. Name one of these."
        )
    if not named[0].sources:
        raise ValueError(
            f"data_loader: cut is {shown(place)}, but no stage stands before it. Name a later stage, or 'end'."
        )
    return named[0]


def _stays_here(stage: Stage) -> bool:
    """Return whether the default cut keeps a stage in the caller's process: a copy to a GPU, or a FeatureFetcher whose
    store workers do not read (`fetch_in_worker` is False).
    """
    return copies_to_gpu(stage) or (isinstance(stage, FeatureFetcher) and not stage.feature_store.fetch_in_worker)


def _refuse_before_cut(before: Graph, options: LoaderOptions) -> None:
    for stage in before.find(StreamStage):
        raise ValueError(
            f"data_loader: {stage.name} stands before the cut, in the part that workers make minibatch by minibatch. "
            "Take it out (workers run ahead by prefetch_factor), move it behind the cut, or use num_workers=0."
        )
    on_gpu = [stage for stage in before if copies_to_gpu(stage)]
    if on_gpu and options.worker_method == "thread" and any(map(is_async, before)):
        raise ValueError(
            f"data_loader: {on_gpu[0]!r} and asynchronous stages both stand before the cut; in worker threads the copy "
            "would run beside an event loop, where nothing waits for it. Use the default cut."
        )
    if options.worker_method == "process":
        if on_gpu:
            raise ValueError(
                f"data_loader: {on_gpu[0]!r} stands before the cut, but worker processes use no GPU. Move copy_to to "
                "the end of the chain, give another cut, or use worker_method='thread'."
            )
        refuse_unsafe_fork(context_of(options.multiprocessing_context))


def _refuse_unpicklable(graph: Graph, worker_init_fn: Any) -> None:
    """Check that worker processes that are not forked can make the minibatches of `graph`.

    Raises:
        TypeError: A stage or worker_init_fn cannot be pickled, or workers do not find one of its classes or functions.
        RuntimeError: Workers cannot import the main module, or would run it again.
    """
    refuse_missing_main()
    refuse_repetition(is_building=True)
    values = [(graph.numbering.of(stage).where, (type(stage), *stage.arguments)) for stage in graph]
    for name, value in [*values, ("worker_init_fn", worker_init_fn)]:
        trial = _Trial()
        try:
            trial.dump(value)
        except Exception as error:
            raise TypeError(
                f"data_loader: {name} cannot be passed on to a worker process, since it cannot be pickled: "
                f"{str(error).rstrip('.')}. Define functions and classes at the top of a module, or use "
                "multiprocessing_context='fork' or worker_method='thread'."
            ) from error
        for hidden in trial.names_of_main:
            refuse_hidden(name, hidden)


class _Trial(pickle.Pickler):
    """A pickler that shows whether a stage could be sent to a worker; its output is thrown away.

    It leaves out tensors, arrays and earlier stages, which workers get in another way. It remembers the classes and
    functions of the main module that it has met.
    """

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.names_of_main: list[str] = []

    def persistent_id(self, value: Any) -> str | None:
        if isinstance(value, (type, FunctionType)) and value.__module__ in NAMES:
            self.names_of_main.append(value.__qualname__)
        is_numbers = isinstance(value, np.ndarray) and not value.dtype.hasobject
        return "left out" if is_numbers or isinstance(value, (Stage, torch.Tensor, Together)) else None


def overlap_with_consumer(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Prefetcher at its end, so that the next minibatches are made while the consumer works.

    In a chain that copies to a GPU the Prefetcher stands behind the copy, see overlap_with_copies. The graph stays as
    it is in these cases:
    - `overlap` is False.
    - The graph starts at a FromNode: nothing may read ahead of a FromNode.
    - The graph ends in Workers, which run ahead already.
    - The minibatches are small (see makes_small), and `overlap`, `prefetch_factor` and `timeout` have their defaults.
    """
    if options.overlap is False or graph.own_orders:
        return graph
    in_workers = {id(stage) for workers in graph.find(Workers) for stage in StageGraph(workers)}
    if any(copies_to_gpu(stage) and id(stage) not in in_workers for stage in graph):
        return overlap_with_copies(graph, options)
    by_size = not any(name in OF_THREADS for name in options.changed())
    if isinstance(graph.root, Workers) or (by_size and makes_small(graph)):
        return graph
    return StageGraph(Overlap(graph.root, options.prefetch_factor))


def overlap_fetch_with_sampling(graph: Graph, options: LoaderOptions) -> Graph:
    """Return `graph` with a Prefetcher before its first FeatureFetcher or copy to a GPU. The Prefetcher's thread
    samples the next minibatches while the features of the present minibatch are fetched.

    The graph stays as it is in these cases:
    - It has workers, which sample beside the fetch already; or another StreamStage, such as a DataLoader, which
      overlaps its stages itself.
    - It has no Overlap at its end.
    - Nothing is sampled before the fetch, or a Prefetcher stands there already.
    - Sources are joined after the fetch.
    - It has asynchronous stages. These keep several minibatches in flight from the sampler to the fetch, and a
      Prefetcher would part them.
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
    """Return `graph` with `options.timeout` set on its last Overlap or Workers. A Prefetcher of the user keeps its own
    timeout.

    The timeout limits only how long the consumer waits for a minibatch. A background thread that waits for workers or
    for another thread has no limit: it waits as long as these are at work. If the plan has neither an Overlap nor
    Workers, `timeout` and `prefetch_factor` have no effect; those of the two that differ from their defaults are
    logged.
    """
    ahead = [stage for stage in graph if isinstance(stage, (Overlap, Workers))]
    if ahead:
        return graph.replace(ahead[-1], ahead[-1]._with(timeout=options.timeout))
    unused = [name for name in options.changed() if name in ("prefetch_factor", "timeout")]
    if unused:
        values = " and ".join(f"{name}={getattr(options, name)}" for name in unused)
        options.has_no_effect(
            f"data_loader: {values} belong to the background threads, but this plan has none (overlap=False, a "
            "FromNode, or a join behind a copy to a GPU)",
            "Leave them out",
        )
    return graph


# --- whether minibatches are so small that making one takes less time than passing it from thread to thread

MOST_BYTES = 1_000_000  # see benchmarks/small.py
NODE_BYTES = 64  # a cache line for each sampled node
ID_BYTES = 8


def makes_small(graph: Graph) -> bool:
    """Return whether each minibatch of a chain is known to read at most MOST_BYTES (1 MB) from memory. Such a minibatch
    is made faster than it is passed between threads.

    This is known for items, `sample_neighbor` with bounded fanouts, and features, all in memory. It is not known for
    files, servers, other samplers, and a user's classes and functions.
    """
    nodes, num_bytes = 0.0, 0.0
    tensors: list[Tensor] = []
    for stage in graph:
        if type(stage) in (ItemSampler, DistributedItemSampler):
            items = stage.item_set
            sets = [*items.item_sets.values()] if type(items) is HeteroItemSet else [items]
            if any(type(of_type) is not ItemSet or of_type._lists for of_type in sets):
                return False
            nodes = stage.batch_size * max(math.prod(of_type.seeds_shape) for of_type in sets)
            num_bytes += stage.batch_size * max(ID_BYTES + _row_bytes(of_type._tensors.values()) for of_type in sets)
            tensors += [tensor for of_type in sets for tensor in of_type._tensors.values()]
        elif type(stage) is NeighborSampler and type(stage.graph) in (CSCGraph, HeteroCSCGraph) and stage._form is None:
            for fanouts in stage.plan.fanouts:
                nodes *= 1 + sum(fanout if fanout >= 0 else math.inf for fanout in fanouts)
            num_bytes += nodes * NODE_BYTES
            relations = [stage.graph.relation(edge_type) for edge_type in stage.plan.edge_types]
            tensors += [tensor for relation in relations for tensor in (relation.indptr, relation.indices)]
        elif type(stage) is FeatureFetcher and type(stage.feature_store) is FeatureStore:
            features = [*stage.reads_from.values()]
            rows = [feature.tensor for feature in features if type(feature) is TensorFeature]
            if len(rows) < len(features):
                return False
            num_bytes += nodes * _row_bytes(rows)
            tensors += rows
        else:
            return False
    return num_bytes <= MOST_BYTES and not _lie_in_files(tensors)


def _row_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(math.prod(tensor.shape[1:]) * tensor.element_size() for tensor in tensors)


def _lie_in_files(tensors: Iterable[Tensor]) -> bool:
    """Return whether some tensor is mapped from a file. A tensor that processes share counts as mapped."""
    files = [mapped for mapped in mapped_in(0, 2**64) if mapped.is_file]
    bounds = [(tensor.data_ptr(), tensor.data_ptr() + extent(tensor)) for tensor in tensors]
    return any(file.begin < end and begin < file.end for begin, end in bounds for file in files)


PASSES: tuple[Callable[[Graph, LoaderOptions], Graph], ...] = (
    fetch_behind_copy,
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
    for rewrite_pass in PASSES:
        graph = rewrite_pass(graph, options)
    return graph
