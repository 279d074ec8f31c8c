"""The rewrite passes of the DataLoader: pure functions from a StageGraph to a StageGraph.

A pass only plans: it starts nothing, and the caller's chain stays as it is.
"""

from __future__ import annotations

from datapipes.device import CopyTo
from datapipes.loader.prefetcher import Prefetcher
from datapipes.stage import StreamStage
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
    for stage in graph.find(CopyTo):
        if stage.device.type == "cuda":
            if joins:
                return graph
            ahead = Prefetcher(stage.source, depth, timeout=timeout)
            return graph.replace(stage, stage.with_sources(ahead))
    return StageGraph(Prefetcher(graph.root, depth, timeout=timeout))
