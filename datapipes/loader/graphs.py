"""Functions that find stages of a graph, shared by several passes."""

from __future__ import annotations

import torch

from datapipes.chain.stage import Stage, StreamStage
from datapipes.chain.stage_graph import StageGraph
from datapipes.device import CopyTo
from datapipes.sampling.sampler import line_before

Graph = StageGraph[Stage]


def copies_to_gpu(stage: Stage) -> bool:
    """Return whether `stage` is a CopyTo whose device is a CUDA device."""
    return isinstance(stage, CopyTo) and stage.device.type == "cuda"


def gpus_of(graph: Graph) -> list[torch.device]:
    """Return the CUDA device of each stage of `graph` that copies to a CUDA device."""
    return [stage.device for stage in graph.find(CopyTo) if copies_to_gpu(stage)]


def single_line(graph: Graph) -> list[Stage]:
    """Return the stages behind the last join, or behind the start if there is no join, in the order of the flow. Each
    of them has one source.
    """
    return [stage for stage in reversed(line_before(graph.root)) if len(stage.sources) == 1]


def planned_elsewhere(graph: Graph) -> set[int]:
    """Return {id(stage)} of the stages that another loader runs.

    A chain may contain a loader as one of its stages. That loader has a plan of its own for the stages before it.
    """
    loaders = [stage for stage in graph.find(StreamStage) if stage._plans_its_source]
    return {id(stage) for loader in loaders for stage in StageGraph(loader.source)}
