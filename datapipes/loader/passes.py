"""The rewrite passes of the DataLoader: pure functions from a StageGraph to a StageGraph.

A pass only plans: it starts nothing, and the caller's chain stays as it is.
"""

from __future__ import annotations

from datapipes.device import CopyTo
from datapipes.features import FeatureFetcher
from datapipes.loader.prefetcher import Prefetcher
from datapipes.stage import SeedStage, Stage, StreamStage
from datapipes.stage_graph import StageGraph


def overlap_with_consumer(graph: StageGraph, *, depth: int, timeout: float | None) -> StageGraph:
    """Return `graph` with a Prefetcher at its end, so that the next minibatches are made while the consumer works.

    Where the chain copies to a GPU the Prefetcher stands before the first such copy: copies are queued by the
    caller's thread, on its current stream. A chain that starts at a FromNode is left alone, since nothing may read
    ahead of it, and so is one that copies to a GPU and joins sources, since a join cannot stand behind a Prefetcher.
    """
    if any(not stage.sources for stage in graph.find(StreamStage)):
        return graph
    joins = any(len(stage.sources) > 1 for stage in graph)
    for stage in graph:
        if _copies_to_gpu(stage):
            if joins:
                return graph
            ahead = Prefetcher(stage.source, depth, timeout=timeout)
            return graph.replace(stage, stage.with_sources(ahead))
    return StageGraph(Prefetcher(graph.root, depth, timeout=timeout))


def overlap_fetch_with_sampling(graph: StageGraph, *, depth: int) -> StageGraph:
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
    return graph.replace(first, first.with_sources(Prefetcher(first.source, depth)))


def _copies_to_gpu(stage: Stage) -> bool:
    return isinstance(stage, CopyTo) and stage.device.type == "cuda"


def _single_line(graph: StageGraph) -> list[Stage]:
    """Return the stages with one source that lead to the last stage, in the order in which a minibatch passes them."""
    line = [graph.root]
    while len(line[-1].sources) == 1:
        line.append(line[-1].source)
    return [stage for stage in reversed(line) if len(stage.sources) == 1]
