"""The rewrite passes of the DataLoader: pure functions from a StageGraph to a StageGraph.

A pass only plans: it starts nothing, and the caller's chain stays as it is. In their order: `shard`, `cut`,
`put_in_workers`, `overlap_fetch_with_sampling`, `overlap_with_consumer`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from datapipes.chain.epoch import EpochContext
from datapipes.chain.functional import registered_stages
from datapipes.chain.stage import SeedStage, Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.features import FeatureFetcher
from datapipes.loader.prefetcher import Overlap, Prefetcher
from datapipes.loader.shard import Sharded
from datapipes.loader.workers.workers import Workers
from datapipes.minibatch import MiniBatch

CUT = "fetch_feature"  # the default


class Cut(StreamStage):
    """Marks where a chain is cut: what stands before it runs in workers, the rest in the caller's process."""

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return streams[0]()


def shard(graph: StageGraph[Stage]) -> StageGraph[Stage]:
    """Return `graph` with every ItemSampler, subclasses and other seed stages too, giving out minibatches by index.

    Raises:
        ValueError: A chain starts with something that cannot, since it keeps an order of its own.
    """
    for stage in graph.find(StreamStage):
        if not stage.sources:
            raise ValueError(
                f"data_loader: {stage.name} starts this chain and keeps an order of its own, which workers cannot "
                "share. Start it with an ItemSampler, or use num_workers=0."
            )

    def by_index(stage: SeedStage) -> SeedStage:
        return stage if isinstance(stage, Sharded) else Sharded(stage)

    return graph.replace_each(SeedStage, by_index)  # type: ignore[type-abstract]


def cut(graph: StageGraph[Stage], place: str | type[Stage]) -> StageGraph[Stage]:
    """Return `graph` with a Cut before the first stage that `place` names.

    Args:
        place: a functional name, a class (subclasses count) or "end". "fetch_feature", the default, is the first
            FeatureFetcher whose store is not read in workers (`fetch_in_worker`); where there is none, the first
            CopyTo; where there is none either, the end.
    Raises:
        ValueError: No such stage; a join stands after it; or a stage before it cannot run in a worker.
    """
    before = _place_of(graph, place)
    if before is None:
        _check_before(StageGraph(graph.root))
        return StageGraph(Cut(graph.root))
    if not any(stage is before for stage in _single_line(graph)) or not _is_alone(graph, before):
        raise ValueError(
            f"data_loader: the chain cannot be cut before {before.name}, since sources are joined after it. Join "
            "before the cut, give cut='end', or use num_workers=0."
        )
    _check_before(StageGraph(before.source))
    return graph.replace(before, before.with_sources(Cut(before.source)))


def put_in_workers(graph: StageGraph[Stage], **arguments: Any) -> StageGraph[Stage]:
    """Return `graph` with Workers, built with `arguments`, at its Cut.

    Raises:
        ValueError: Worker processes would copy to a GPU.
    """
    (mark,) = graph.find(Cut)
    on_gpu = [stage for stage in StageGraph(mark.source) if _copies_to_gpu(stage)]
    if on_gpu and arguments.get("method", "process") == "process":
        raise ValueError(
            f"data_loader: {on_gpu[0]!r} stands before the cut, but worker processes use no GPU. Move copy_to to the "
            "end of the chain, give another cut, or use worker_method='thread'."
        )
    pins = any(_copies_to_gpu(stage) for stage in graph) and not on_gpu
    return graph.replace(mark, Workers(mark.source, pin=pins, **arguments))


def overlap_with_consumer(graph: StageGraph[Stage], *, depth: int, timeout: float | None) -> StageGraph[Stage]:
    """Return `graph` with a Prefetcher at its end, so that the next minibatches are made while the consumer works.

    Where the chain copies to a GPU the Prefetcher stands before the first such copy: copies are queued by the
    caller's thread, on its current stream. A chain that starts at a FromNode is left alone, since nothing may read
    ahead of it, and so is one that copies to a GPU and joins sources, since a join cannot stand behind a Prefetcher.
    Directly behind Workers, which run ahead themselves, none is needed.
    """
    if any(not stage.sources for stage in graph.find(StreamStage)):
        return graph
    joins = any(len(stage.sources) > 1 for stage in graph)
    for stage in graph:
        if _copies_to_gpu(stage):
            if joins or isinstance(stage.source, Workers):
                return graph
            ahead = Overlap(stage.source, depth, timeout=timeout)
            return graph.replace(stage, stage.with_sources(ahead))
    if isinstance(graph.root, Workers):
        return graph
    return StageGraph(Overlap(graph.root, depth, timeout=timeout))


def overlap_fetch_with_sampling(graph: StageGraph[Stage], *, depth: int) -> StageGraph[Stage]:
    """Return `graph` with a Prefetcher before its first FeatureFetcher, so that the next minibatches are sampled while
    the features of this one are fetched.

    The graph is left alone where nothing is sampled before, where a copy to a GPU (see above) or a Prefetcher stands
    before, where another carrying stage plans for itself, and where a join follows. The Prefetcher waits without a
    limit: the one that the consumer reads is the one that times out.
    """
    fetchers = [stage for stage in _single_line(graph) if isinstance(stage, FeatureFetcher)]
    plans_for_itself = any(not isinstance(stage, Prefetcher) for stage in graph.find(StreamStage))
    if not fetchers or plans_for_itself:
        return graph
    first = fetchers[0]
    before = StageGraph(first.source)
    if before.find(Prefetcher) or isinstance(first.source, SeedStage) or any(map(_copies_to_gpu, before)):
        return graph
    return graph.replace(first, first.with_sources(Overlap(first.source, depth)))


def check_cut(graph: StageGraph[Stage], place: Any) -> str | type[Stage]:
    """Return `place` if it names where this chain can be cut; the default names a place in every chain."""
    if not (isinstance(place, str) or (isinstance(place, type) and issubclass(place, Stage))):
        raise TypeError(
            f"data_loader: cut must be a functional name, a stage class or 'end', got {place!r}. Name a stage of the "
            "chain."
        )
    _place_of(graph, place)
    return place


def _place_of(graph: StageGraph[Stage], place: str | type[Stage]) -> Stage | None:
    """Return the stage before which the chain is cut; None for its end."""
    if place == "end":
        return None
    if place == CUT:
        here = [stage for stage in graph.find(FeatureFetcher) if not stage.feature_store.fetch_in_worker]
        return next(iter([*here, *graph.find(CopyTo)]), None)
    kind: type | None = place if isinstance(place, type) else registered_stages().get(place)
    found = [] if kind is None else [stage for stage in graph if isinstance(stage, kind)]
    if not found:
        names = [stage.name for stage in graph if stage.sources]
        raise ValueError(
            f"data_loader: cut is {place!r}, but this chain has no such stage; it has {names}. Name one of these, or "
            "'end'."
        )
    if not found[0].sources:
        raise ValueError(f"data_loader: cut is {place!r}, before which there is nothing. Name a later stage, or 'end'.")
    return found[0]


def _check_before(graph: StageGraph[Stage]) -> None:
    for stage in graph.find(StreamStage):
        raise ValueError(
            f"data_loader: {stage.name} stands before the cut, in the part that workers make minibatch by minibatch. "
            "Take it out (workers run ahead by prefetch_factor), move it behind the cut, or use num_workers=0."
        )


def _is_alone(graph: StageGraph[Stage], stage: Stage) -> bool:
    """Return whether nothing but `stage` reads its source."""
    return sum(stage.source is source for reader in graph for source in reader.sources) == 1


def _copies_to_gpu(stage: Stage) -> bool:
    return isinstance(stage, CopyTo) and stage.device.type == "cuda"


def _single_line(graph: StageGraph[Stage]) -> list[Stage]:
    """Return the stages with one source that lead to the last stage, in the order in which a minibatch passes them."""
    line = [graph.root]
    while len(line[-1].sources) == 1:
        line.append(line[-1].source)
    return [stage for stage in reversed(line) if len(stage.sources) == 1]
