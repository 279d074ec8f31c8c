"""Questions that several passes ask of a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from datapipes.chain.epoch import EpochContext
from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.features import FeatureFetcher
from datapipes.minibatch import MiniBatch

Graph = StageGraph[Stage]


class Passage(StreamStage):
    """Passes minibatches on unchanged, in the same thread. The stages behind it are called minibatch by minibatch."""

    def open(self, streams: list[Callable[[], Iterator[MiniBatch]]], context: EpochContext) -> Iterator[MiniBatch]:
        return streams[0]()


def copies_to_gpu(stage: Stage) -> bool:
    """Return whether `stage` is a CopyTo a CUDA device."""
    return isinstance(stage, CopyTo) and stage.device.type == "cuda"


def gpus_of(graph: Graph) -> list[torch.device]:
    """Return the CUDA devices that the stages of `graph` copy to, one for each such stage."""
    return [stage.device for stage in graph.find(CopyTo) if copies_to_gpu(stage)]


def gpu_before(stage: Stage) -> torch.device | None:
    """Return the device of the last CopyTo before `stage` if it is a CUDA device. A stage of the user's in between may
    have moved the minibatch elsewhere.
    """
    for source in stage.sources:
        if isinstance(source, CopyTo):
            device = source.device if copies_to_gpu(source) else None
        else:
            device = gpu_before(source)
        if device is not None:
            return device
    return None


def only_carried_before(stage: Stage) -> bool:
    """Return whether no stage of the user's stands between `stage` and the last CopyTo before it."""
    while len(stage.sources) == 1:
        stage = stage.source
        if isinstance(stage, CopyTo):
            return True
        if not isinstance(stage, (FeatureFetcher, StreamStage)):
            return False
    return False


def single_line(graph: Graph) -> list[Stage]:
    """Return the stages with one source that lead to the last stage, in the order in which a minibatch passes them."""
    line = [graph.root]
    while len(line[-1].sources) == 1:
        line.append(line[-1].source)
    return [stage for stage in reversed(line) if len(stage.sources) == 1]


def planned_elsewhere(graph: Graph) -> set[int]:
    """Return id(stage) of the stages that belong to the plan of another loader, one that is a stage of `graph`."""
    loaders = [stage for stage in graph.find(StreamStage) if stage._plans_its_source]
    return {id(stage) for loader in loaders for stage in StageGraph(loader.source)}


def copies_planned_here(graph: Graph) -> list[Stage]:
    """Return the copies to a GPU that belong to the plan of `graph`."""
    elsewhere = planned_elsewhere(graph)
    return [stage for stage in graph if copies_to_gpu(stage) and id(stage) not in elsewhere]


def num_readers(graph: Graph, stage: Stage) -> int:
    """Return how many stages of `graph` take minibatches from `stage`."""
    return sum(source is stage for reader in graph for source in reader.sources)
